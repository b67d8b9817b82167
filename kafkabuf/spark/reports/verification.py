"""Reading the rows of a write back, to prove that Kafka has them: the same number of rows with the same bytes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kafkabuf.arrow._columns import digest
from kafkabuf.errors import KafkaError, TimeoutError
from kafkabuf.extras import needs
from kafkabuf.process._time import monotonic
from kafkabuf.spark.reports.report import CHECKSUMS, WriteReport

if TYPE_CHECKING:
    from kafkabuf.append.offset_range import OffsetRange

_PIECE = 10_000
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True)
class Verification:
    """The `rows` and the `checksum` of the report, which Kafka has.

    `strangers` counts rows of other writers in the report's ranges. Where there are any, the checksum could not be
    compared: the ranges have at least as many rows as reported, and no more is proven.
    """

    rows: int
    checksum: int
    strangers: int


def verify(report: WriteReport, options: Mapping[str, str], timeout: float = 60.0) -> Verification:
    """Read the report's ranges with read_committed and compare count and checksum.

    Args:
        report: of `last_report()`, or from the driver's log. A report of rows that an earlier attempt wrote has no
            ranges.
        options: the consumer's settings under Kafka's names, with or without "kafka." before them. bootstrap.servers
            is required.
        timeout: seconds for all ranges together.

    Raises KafkaError where rows are missing or differ, or where the report has no offsets (acks=0). Raises TimeoutError
    where the rows cannot be read in time. Raises MissingExtraError without confluent-kafka (`kafkabuf[verify]`).
    """
    _check_extra()
    rows = checksum = 0
    deadline = monotonic() + timeout
    if any(entry.first_offset < 0 for entry in report.ranges):
        raise KafkaError(
            "the report has no offsets, since with acks=0 brokers do not tell them: verify() cannot find the rows. "
            "Write with kafka.acks 'all' or '1'"
        )
    for entry in report.ranges:
        rows_in_kafka, digested = _read(entry, options, deadline)
        if rows_in_kafka < entry.rows:
            raise KafkaError(
                f"{entry.topic}-{entry.partition}: {entry.rows} rows were reported from offset {entry.first_offset} to "
                f"{entry.last_offset}, Kafka has {rows_in_kafka}"
            )
        rows += rows_in_kafka
        checksum = (checksum + digested) % CHECKSUMS
    strangers = rows - report.rows
    if not strangers and checksum != report.checksum:
        raise KafkaError(
            f"Kafka has {rows} rows, as reported, but their checksum is {checksum:016x}, not {report.checksum:016x}"
        )
    return Verification(report.rows, checksum, strangers)


def _check_extra() -> None:
    with needs("verify", "verify()"):
        import confluent_kafka  # noqa: F401


def _read(entry: OffsetRange, options: Mapping[str, str], deadline: float) -> tuple[int, int]:
    """Number and digest of the committed rows in a range."""
    from confluent_kafka import TopicPartition

    consumer = _consumer(options)
    rows = digested = 0
    try:
        consumer.assign([TopicPartition(entry.topic, entry.partition, entry.first_offset)])
        for messages in _until(consumer, entry, deadline):
            rows += len(messages)
            digested += _digest(messages)
    finally:
        consumer.close()
    return rows, digested


def _consumer(options: Mapping[str, str]) -> Any:
    from confluent_kafka import Consumer

    # librdkafka's consumer refuses settings of a producer.
    known = ("bootstrap.servers", "security.", "sasl.", "ssl.", "client.id")
    given = {name.removeprefix("kafka."): value for name, value in options.items()}
    settings = {name: value for name, value in given.items() if name.startswith(known)}
    return Consumer(
        {
            **settings,
            "group.id": f"kafkabuf-verify-{uuid.uuid4()}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )


def _until(consumer: Any, entry: OffsetRange, deadline: float) -> Iterator[list[Any]]:
    """The messages of the range, in pieces. The last offset is that of a reported row, so a reader comes to it."""
    # The range has at most this many rows: the control records of transactions have offsets, but no reader gets them.
    left = entry.last_offset - entry.first_offset + 1
    while True:
        if monotonic() > deadline:
            raise TimeoutError(f"{entry.topic}-{entry.partition} could not be read up to offset {entry.last_offset}")
        messages = consumer.consume(min(_PIECE, left), 0.5)
        for message in messages:
            if message.error() is not None:
                raise KafkaError(f"{entry.topic}-{entry.partition}: {message.error()}")
        yield [message for message in messages if message.offset() <= entry.last_offset]
        left = entry.last_offset - messages[-1].offset() if messages else left
        if left <= 0:
            return


def _digest(messages: list[Any]) -> int:
    headers = [
        None if not message.headers() else [{"key": key, "value": value} for key, value in message.headers()]
        for message in messages
    ]
    return digest(
        pa.record_batch(
            {
                "key": pa.array([message.key() for message in messages], pa.binary()),
                "value": pa.array([message.value() for message in messages], pa.binary()),
                "headers": pa.array(headers, _HEADERS),
            }
        )
    )
