"""Reads records without kafkabuf: through kafka-python, confluent-kafka and DumpLogSegments, and from the files."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import kafka
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, TopicPartition

from rigs.real_kafka import RealKafka
from tests.wire.record_support import SampleRecord

PATIENCE = 30.0  # seconds without a record after which a reader gives up


class Server(Protocol):
    """A node or a cluster."""

    @property
    def bootstrap_servers(self) -> str: ...


# The records of a partition by offset.
Partition = dict[int, SampleRecord]


def read_with_kafka_python(
    server: Server, topic: str, partitions: int = 1, *, isolation_level: str = "read_uncommitted"
) -> list[Partition]:
    """All records of a topic, by partition."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=server.bootstrap_servers, enable_auto_commit=False, isolation_level=isolation_level
    )
    try:
        wanted = [kafka.TopicPartition(topic, partition) for partition in range(partitions)]
        consumer.assign(wanted)
        consumer.seek_to_beginning(*wanted)
        ends = consumer.end_offsets(wanted)
        found: list[Partition] = [{} for _ in wanted]
        last = time.monotonic()
        while any(consumer.position(where) < ends[where] for where in wanted):
            # A short time-out: a poll that finds only control records moves the positions and waits on.
            fetched = consumer.poll(timeout_ms=100)
            last = time.monotonic() if fetched else last
            waited = time.monotonic() - last
            assert waited < PATIENCE, f"kafka-python got {[len(partition) for partition in found]} records of {ends}"
            for record in (record for batch in fetched.values() for record in batch):
                headers = tuple(record.headers or ())
                sample = SampleRecord(record.timestamp, record.key, record.value, headers)
                found[record.partition][record.offset] = sample
        return found
    finally:
        consumer.close()


def read_with_confluent(server: Server, topic: str, partitions: int = 1, wait_for: int = 0) -> list[Partition]:
    """All records of a topic, by partition. Waits until there are at least `wait_for`."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "group.id": "none",
            "check.crcs": True,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # only an empty response shows the end of a partition
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        found: list[Partition] = [{} for _ in range(partitions)]
        at_end: set[int] = set()
        while len(at_end) < partitions or sum(len(partition) for partition in found) < wait_for:
            message = consumer.poll(PATIENCE)
            assert message is not None, f"confluent-kafka got {[len(p) for p in found]} records and then nothing"
            partition, offset, error = message.partition(), message.offset(), message.error()
            assert partition is not None
            assert offset is not None
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                at_end.add(partition)
                continue
            kind, timestamp = message.timestamp()
            assert kind in (TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME)
            pairs: Any = message.headers() or ()
            found[partition][offset] = SampleRecord(timestamp, message.key(), message.value(), tuple(pairs))
        return found
    finally:
        consumer.close()


Reader = Callable[[Server, str, int], list[Partition]]
READERS: list[Reader] = [read_with_kafka_python, read_with_confluent]


class DumpedRecord(NamedTuple):
    """A record's line of DumpLogSegments. The tool decodes keys and values as UTF-8; None stands for null."""

    offset: int
    timestamp: int
    key_size: int
    value_size: int
    header_keys: str
    key: str | None
    value: str | None


class DumpedBatch(NamedTuple):
    base_offset: int
    last_offset: int
    timestamp: int  # the greatest timestamp of its records
    size: int
    magic: int
    crc: int
    valid: bool
    records: list[DumpedRecord]


_BATCH = re.compile(
    r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .*?(?:CreateTime|LogAppendTime): (-?\d+) size: (\d+) "
    r"magic: (\d+) compresscodec: \w+ crc: (\d+) isvalid: (true|false)$",
    re.MULTILINE,
)
_RECORD = re.compile(
    r"\| offset: (\d+) (?:CreateTime|LogAppendTime): (-?\d+) keySize: (-?\d+) valueSize: (-?\d+) sequence: -?\d+ "
    r"headerKeys: \[(.*?)\](?: key: (.*?))?(?: payload: (.*))?",
    re.DOTALL,
)


def dumped(server: RealKafka, topic: str, partition: int = 0) -> list[DumpedBatch]:
    """The batches of a partition as Kafka's DumpLogSegments reads them."""
    text = server.dump_log(topic, partition)
    heads = list(_BATCH.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return [_batch(head, text[head.end() : end]) for head, end in zip(heads, ends, strict=True)]


def _batch(head: re.Match[str], body: str) -> DumpedBatch:
    # A value may contain line breaks: a record ends where the line of the next record begins.
    lines = re.split(r"\n(?=\| offset: \d+ (?:CreateTime|LogAppendTime): )", body)[1:]
    base, last, count, timestamp, size, magic, crc = (int(number) for number in head.groups()[:7])
    assert count == len(lines), f"cannot tell the {count} records of batch {base} apart"
    return DumpedBatch(base, last, timestamp, size, magic, crc, head[8] == "true", [_record(line) for line in lines])


def _record(line: str) -> DumpedRecord:
    match = _RECORD.fullmatch(line.removesuffix("\n"))
    assert match, f"cannot read DumpLogSegments' line {line!r}"
    offset, timestamp, key_size, value_size = (int(number) for number in match.groups()[:4])
    header_keys, key, value = match.groups()[4:]
    return DumpedRecord(offset, timestamp, key_size, value_size, header_keys, key, value)


def log_bytes(server: RealKafka, topic: str, partition: int = 0) -> bytes:
    """The bytes of the partition's segments on the disk."""
    files = sorted((server.log_dir / f"{topic}-{partition}").glob("*.log"))
    return b"".join(file.read_bytes() for file in files)
