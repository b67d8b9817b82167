"""Rows that Kafka will not have: naming them, skipping them, sending them to the dead-letter topic (`onRowError`)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import (
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    NullHeaderKeyError,
    RecordTooLargeError,
)
from kafkabuf.producer import KafkaProducer

# What a row is refused for that says nothing of the others.
OF_A_ROW = (
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    NullHeaderKeyError,
    RecordTooLargeError,
)
_SHOWN = 40


def describe(batch: pa.RecordBatch, row: int, first: int) -> str:
    """`row` of the batch, whose rows are counted from `first` in its task: its number, key and size."""
    key, value = _bytes(batch, "key", row), _bytes(batch, "value", row)
    shown = "no key" if key is None else f"key {key[:_SHOWN]!r}" + ("..." if len(key) > _SHOWN else "")
    return f"row {first + row} of this task ({shown}, {len(key or b'') + len(value or b'')} bytes)"


def failure(batch: pa.RecordBatch, row: int, first: int, error: KafkaError) -> KafkaError:
    """The error that fails the task for a row: of the class of `error`, naming the row and what may be done."""
    return type(error)(
        f"{describe(batch, row, first)} cannot be sent: {error}. {_advice(error)}, or set option 'onRowError' to "
        "'skip' or 'dead_letter'"
    )


def _advice(error: KafkaError) -> str:
    if isinstance(error, RecordTooLargeError):
        return "Make it smaller, filter it out, or raise max.request.size, and the topic's max.message.bytes with it"
    if isinstance(error, InvalidTopicError):
        return "Fill column 'topic', filter such rows out, name one topic for all with .option('topic', ...)"
    return "Mend it, or filter it out"


def send_dead_letter(
    producer: KafkaProducer, topic: str, batch: pa.RecordBatch, row: int, error: KafkaError, wanted: str | None
) -> RecordFuture:
    """The row's key, value and headers, and why it could not be sent. A value that is too large is left out."""
    value = _bytes(batch, "value", row)
    headers: list[tuple[str, bytes | None]] = []
    if "headers" in batch.schema.names:
        pairs = batch.column("headers")[row].as_py() or ()
        headers += [(item["key"], item["value"]) for item in pairs if item["key"] is not None]
    headers += [
        ("kafkabuf.error", type(error).__name__.encode()),
        ("kafkabuf.reason", str(error).encode()),
        ("kafkabuf.topic", (wanted or _text(batch, "topic", row) or "").encode()),
    ]
    if isinstance(error, RecordTooLargeError) and value is not None:
        headers.append(("kafkabuf.value.size", str(len(value)).encode()))
        value = None
    return producer.send(topic, value, _bytes(batch, "key", row), headers=headers)


def _bytes(batch: pa.RecordBatch, name: str, row: int) -> bytes | None:
    if name not in batch.schema.names:
        return None
    found: Any = batch.column(name)[row].as_py()
    return found.encode() if isinstance(found, str) else found


def _text(batch: pa.RecordBatch, name: str, row: int) -> str | None:
    return str(batch.column(name)[row].as_py()) if name in batch.schema.names else None
