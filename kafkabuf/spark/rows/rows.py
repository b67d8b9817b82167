"""The error that names a refused row, and the dead letter that replaces the row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import (
    ConfigError,
    InvalidPartitionsError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    NullHeaderKeyError,
    RecordListTooLargeError,
    RecordTooLargeError,
    SerializationError,
)
from kafkabuf.producer import KafkaProducer
from kafkabuf.sending.recovery import ERRORS_OF_RECORDS
from kafkabuf.shown import escaped, raw
from kafkabuf.spark.rows.numbered import NumberedRows

# Errors of one row: they say nothing about the other rows. The first are the producer's, the rest are the brokers'.
ROW_ERRORS = (InvalidPartitionsError, InvalidTopicError, NullHeaderKeyError, *ERRORS_OF_RECORDS)
# Errors that each further attempt of a task would end with. The last two are about columns, schemas and time zones.
REPEATING_ERRORS = (*ROW_ERRORS, SerializationError, ConfigError)
_KEY_BYTES_SHOWN = 40
# A topic has at most 249 letters, and a column of topics texts of any length.
_TOPIC_BYTES_KEPT = 300
# send_arrow counts rows from the start of the call. The task's number of the row replaces that number.
_NUMBER_IN_CALL = re.compile(r"^row \d+: ")

Header = tuple[str, bytes | None]


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


class DeadLetter(NamedTuple):
    """The record that stands for a refused row. `headers` are the row's, `causes` say why the row was refused."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    causes: tuple[Header, ...]

    def send(self, producer: KafkaProducer, topic: str) -> RecordFuture:
        return producer.send(topic, self.value, self.key, headers=[*self.headers, *self.causes])

    def smaller(self) -> DeadLetter | None:
        """The same letter without its value. A letter that has no value goes without the row's key and headers.

        More headers have the sizes of what is left out. None: only the causes are left.
        """
        if self.value is not None:
            return self._replace(value=None, causes=(*self.causes, _size_of("value", self.value)))
        if self.key is None and not self.headers:
            return None
        size = () if self.key is None else (_size_of("key", self.key),)
        return self._replace(key=None, headers=(), causes=(*self.causes, *size))


def dead_letter(rows: NumberedRows, place: int, error: KafkaError, topic_option: str | None) -> DeadLetter:
    """The row's key, value and headers, with headers that say why the row could not be sent.

    The row's timestamp is a header too, in ms since 1970, because the broker may have refused it. A row that is too
    large goes without its value. `topic_option` is the topic of all rows, None where each row names its topic.
    """
    headers = _headers(rows.batch.column("headers")[place]) if "headers" in rows.batch.schema.names else ()
    topic = topic_option.encode() if topic_option else _bytes(rows, "topic", place)
    causes: list[Header] = [
        ("kafkabuf.error", type(error).__name__.encode()),
        ("kafkabuf.reason", reason(error).encode(errors="backslashreplace")),
        ("kafkabuf.topic", None if topic is None else topic[:_TOPIC_BYTES_KEPT]),
    ]
    timestamp = rows.milliseconds(place)
    if timestamp is not None:
        causes.append(("kafkabuf.timestamp", str(timestamp).encode()))
    letter = DeadLetter(_bytes(rows, "key", place), _bytes(rows, "value", place), tuple(headers), tuple(causes))
    is_too_large = isinstance(error, RecordTooLargeError) and letter.value is not None
    return (is_too_large and letter.smaller()) or letter


def _bytes(rows: NumberedRows, name: str, place: int) -> bytes | None:
    if name not in rows.batch.schema.names:
        return None
    return raw(rows.batch.column(name)[place])


def _headers(pairs: Any) -> Iterator[Header]:
    """The headers of a row. The name of a header is text: bytes in it that are not UTF-8 become escapes."""
    for pair in pairs.values or ():
        name = escaped(pair["key"]) if pair.is_valid else None
        if name is not None:
            yield name, raw(pair["value"])


def _size_of(part: str, content: bytes) -> Header:
    return f"kafkabuf.{part}.size", str(len(content)).encode()
