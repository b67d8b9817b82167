"""Rows that Kafka refuses (`onRowError`): the error that names a row, and the dead letter that replaces it."""

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

# Errors of one row: they say nothing about the other rows.
ROW_ERRORS = (
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    NullHeaderKeyError,
    RecordTooLargeError,
)
_KEY_BYTES_SHOWN = 40


def describe(batch: pa.RecordBatch, row: int, first: int) -> str:
    """The number, key and size of a row.

    `row` counts from the start of the batch. `first` is the number of the batch's first row in its task.
    """
    key, value = _bytes(batch, "key", row), _bytes(batch, "value", row)
    shown = (
        "no key" if key is None else f"key {key[:_KEY_BYTES_SHOWN]!r}" + ("..." if len(key) > _KEY_BYTES_SHOWN else "")
    )
    return f"row {first + row} of this task ({shown}, {len(key or b'') + len(value or b'')} bytes)"


def row_error(batch: pa.RecordBatch, row: int, first: int, error: KafkaError) -> KafkaError:
    """The error that fails the task for a row. It has the class of `error`, names the row and says what to do."""
    return type(error)(
        f"{describe(batch, row, first)} cannot be sent: {error}. {_advice(error)}, or set option 'onRowError' to "
        "'skip' or 'dead_letter'"
    )


def _advice(error: KafkaError) -> str:
    if isinstance(error, RecordTooLargeError):
        return "Make the row smaller, filter it out, or raise max.request.size and the topic's max.message.bytes"
    if isinstance(error, InvalidTopicError):
        return "Fill column 'topic', filter such rows out, name one topic for all with .option('topic', ...)"
    return "Correct the row, or filter it out"


def send_dead_letter(
    producer: KafkaProducer, topic: str, batch: pa.RecordBatch, row: int, error: KafkaError, topic_option: str | None
) -> RecordFuture:
    """Send the row's key, value and headers to `topic`, with headers that say why the row could not be sent.

    A row that is too large goes without its value. `topic_option` is the topic of all rows, None where each row names
    its topic.
    """
    value = _bytes(batch, "value", row)
    headers: list[tuple[str, bytes | None]] = []
    if "headers" in batch.schema.names:
        pairs = batch.column("headers")[row].as_py() or ()
        headers += [(item["key"], item["value"]) for item in pairs if item["key"] is not None]
    headers += [
        ("kafkabuf.error", type(error).__name__.encode()),
        ("kafkabuf.reason", str(error).encode()),
        ("kafkabuf.topic", (topic_option or _text(batch, "topic", row) or "").encode()),
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
