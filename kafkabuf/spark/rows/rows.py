"""The error that names a refused row, and the dead letter that replaces the row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import (
    InvalidPartitionsError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    NullHeaderKeyError,
    RecordListTooLargeError,
    RecordTooLargeError,
)
from kafkabuf.producer import KafkaProducer
from kafkabuf.sending.recovery import ERRORS_OF_RECORDS
from kafkabuf.shown import escaped, raw
from kafkabuf.spark.rows.numbered import NumberedRows

# Errors of one row: they say nothing about the other rows. The first are the producer's, the rest are the brokers'.
ROW_ERRORS = (InvalidPartitionsError, InvalidTopicError, NullHeaderKeyError, *ERRORS_OF_RECORDS)
_KEY_BYTES_SHOWN = 40
# send_arrow counts rows from the start of the call. The task's number of the row replaces that number.
_NUMBER_IN_CALL = re.compile(r"^row \d+: ")


def describe(rows: NumberedRows, place: int) -> str:
    """The number, key and size of a row."""
    key, value = _bytes(rows, "key", place), _bytes(rows, "value", place)
    shown = (
        "no key" if key is None else f"key {key[:_KEY_BYTES_SHOWN]!r}" + ("..." if len(key) > _KEY_BYTES_SHOWN else "")
    )
    return f"row {rows.numbers[place]} of this task ({shown}, {len(key or b'') + len(value or b'')} bytes)"


def reason(error: KafkaError) -> str:
    """The text of the error, without a row number."""
    return _NUMBER_IN_CALL.sub("", str(error))


def row_error(rows: NumberedRows, place: int, error: KafkaError, timestamp_column: str | None = None) -> KafkaError:
    """The error that fails the task for a row. It has the class of `error`, names the row and says what to do.

    `timestamp_column` is the user's name of the column `timestamp` where it is another.
    """
    return type(error)(
        f"{describe(rows, place)} cannot be sent: {reason(error)}. {_advice(error, timestamp_column)}, or set option "
        "'onRowError' to 'skip' or 'dead_letter'"
    )


def _advice(error: KafkaError, timestamp_column: str | None) -> str:
    if isinstance(error, RecordTooLargeError | RecordListTooLargeError):
        return "Make the row smaller, filter it out, or raise max.request.size and the topic's max.message.bytes"
    if isinstance(error, InvalidTopicError):
        return "Fill column 'topic', filter such rows out, name one topic for all with .option('topic', ...)"
    if isinstance(error, InvalidTimestampError):
        column = timestamp_column or "timestamp"
        return f"Correct column '{column}', filter the row out, or change the topic's message.timestamp.*.max.ms"
    return "Correct the row, or filter it out"


def send_dead_letter(
    producer: KafkaProducer, topic: str, rows: NumberedRows, place: int, error: KafkaError, topic_option: str | None
) -> RecordFuture:
    """Send the row's key, value and headers to `topic`, with headers that say why the row could not be sent.

    The row's timestamp is a header too, in ms since 1970, because the broker may have refused it. A row that is too
    large goes without its value. `topic_option` is the topic of all rows, None where each row names
    its topic.
    """
    value = _bytes(rows, "value", place)
    headers: list[tuple[str, bytes | None]] = []
    if "headers" in rows.batch.schema.names:
        headers += _headers(rows.batch.column("headers")[place])
    headers += [
        ("kafkabuf.error", type(error).__name__.encode()),
        ("kafkabuf.reason", _encoded(reason(error))),
        ("kafkabuf.topic", _encoded(topic_option) if topic_option else _bytes(rows, "topic", place)),
    ]
    timestamp = rows.milliseconds(place)
    if timestamp is not None:
        headers.append(("kafkabuf.timestamp", str(timestamp).encode()))
    if isinstance(error, RecordTooLargeError) and value is not None:
        headers.append(("kafkabuf.value.size", str(len(value)).encode()))
        value = None
    return producer.send(topic, value, _bytes(rows, "key", place), headers=headers)


def _bytes(rows: NumberedRows, name: str, place: int) -> bytes | None:
    if name not in rows.batch.schema.names:
        return None
    return raw(rows.batch.column(name)[place])


def _headers(pairs: Any) -> Iterator[tuple[str, bytes | None]]:
    """The headers of a row. The name of a header is text: bytes in it that are not UTF-8 become escapes."""
    for pair in pairs.values or ():
        name = escaped(pair["key"]) if pair.is_valid else None
        if name is not None:
            yield name, raw(pair["value"])


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")
