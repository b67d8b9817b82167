"""The demo's check: confluent-kafka, which shares no code with kafkabuf, reads all records back."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from click import ClickException
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kafkabuf.process import threads
from kafkabuf.process._time import monotonic

# The first field of every value: the number of the row, which shows the order.
ROW_FIELD = "_row"
_ROW = re.compile(rb'\{"%s":(\d+)[,}]' % ROW_FIELD.encode())


def json_row(value: bytes) -> int:
    """The number of the row at the beginning of its JSON; -1: there is no number."""
    row = _ROW.match(value)
    return int(row[1]) if row else -1


def avro_row(value: bytes) -> int:
    """The number of the row at the beginning of its Avro bytes, a zigzag varint; -1: there is no number."""
    zigzag = _varint(value)
    return -1 if zigzag & 1 else zigzag >> 1


def protobuf_row(value: bytes) -> int:
    """The number of the row in the first field of a message, whose tag is 8; -1: there is no number."""
    return _varint(value[1:]) if value[:1] == b"\b" else -1


def _varint(encoded: bytes) -> int:
    """The number at the beginning; -1 where it does not end within ten bytes."""
    number = 0
    for place, byte in enumerate(encoded[:10]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number
    return -1


REQUEST_TIMEOUT_S = 15.0
# Reading back fails after this time without a record.
STALL_TIMEOUT_S = 30.0
MAX_PROBLEMS = 10


class Record(NamedTuple):
    """What a consumer sees. `timestamp` is in milliseconds, and None where the record has the time of its sending."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None
    row: int
    """The number of the row; its bits from the 33rd on name the Spark task. -1 where the record has no number."""


def digest(key: bytes | None, value: bytes | None, timestamp: int | None) -> int:
    """64 bits of SHA-256 over `timestamp:key length:value length:key value`. An absent part adds no bytes."""
    lengths = ["" if part is None else str(len(part)) for part in (key, value)]
    head = ":".join(["" if timestamp is None else str(timestamp), *lengths, ""])
    return int.from_bytes(hashlib.sha256(head.encode() + (key or b"") + (value or b"")).digest()[:8])


@functools.lru_cache(maxsize=65536)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Java's producer chooses: murmur2 with seed 0x9747b28c, no sign bit, modulo `partitions`."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    state = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        state = state * multiplier & mask ^ word
    if whole < len(key):
        state = (state ^ int.from_bytes(key[whole:], "little")) * multiplier & mask
    state = (state ^ state >> 13) * multiplier & mask
    return ((state ^ state >> 15) & 0x7FFFFFFF) % partitions


class Tally:
    """Adds up records and notes records in a wrong order or partition.

    Spark's tasks run at the same time, so only the rows of one task have an order: their numbers must rise within every
    partition. A key is in one partition, so this is the order of the input for each key and task.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.rows = self.bytes = self.checksum = 0
        self.problems: list[str] = []
        self._last_row: dict[tuple[int, int], int] = {}

    def add(self, record: Record) -> None:
        self.rows += 1
        self.bytes += len(record.key or b"") + len(record.value or b"")
        self.checksum = (self.checksum + digest(record.key, record.value, record.timestamp)) % 2**64
        partition_and_task = (record.partition, record.row >> 33)
        last = self._last_row.get(partition_and_task, -1)
        if record.row < 0:
            self._note(record, "the record carries no row number")
        elif record.row <= last:
            self._note(record, f"row {record.row} comes after row {last}")
        self._last_row[partition_and_task] = record.row
        if record.key is not None and record.partition != partition_of(record.key, self.partitions):
            self._note(record, f"key {record.key!r} belongs to partition {partition_of(record.key, self.partitions)}")

    def _note(self, record: Record, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"partition {record.partition}, offset {record.offset}: {problem}")

    def compare(self, rows: int, nbytes: int, checksum: int) -> list[str]:
        """Everything that does not match. Empty where every record arrived once, unchanged, in order and partition."""
        problems = list(self.problems)
        if self.rows != rows:
            problems.append(f"{rows:,} rows were sent, {self.rows:,} were read back")
        if self.bytes != nbytes:
            problems.append(f"{nbytes:,} bytes of keys and values were sent, {self.bytes:,} were read back")
        if self.checksum != checksum:
            problems.append(f"the checksum of what was sent is {checksum:016x}, of what was read {self.checksum:016x}")
        return problems


def check_reachable(bootstrap_servers: str) -> None:
    """Raises ClickException where no broker answers. The demo calls it before Spark starts, which takes seconds."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "kafkabuf-demo", "log_level": 2})
    try:
        consumer.cluster_id(timeout=REQUEST_TIMEOUT_S)
    except KafkaException:
        raise ClickException(f"no broker answered at {bootstrap_servers} within {REQUEST_TIMEOUT_S:g} s") from None
    finally:
        consumer.close()


class Topic:
    """A topic through confluent-kafka: its partitions, end offsets and records. A topic that is missing is created."""

    def __init__(
        self, bootstrap_servers: str, name: str | None, partitions: int, row: Callable[[bytes], int] = json_row
    ) -> None:
        """Without a name, create the first of kafkabuf-demo-1, -2, ... that does not exist.

        `row` gives the number of the row that is in a value.
        """
        self._row = row
        names = [name] if name is not None else (f"kafkabuf-demo-{n}" for n in itertools.count(1))
        admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
        self.name = next(each for each in names if _create(admin, each, partitions, bootstrap_servers) or each == name)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "kafkabuf-demo",  # the client requires a group; this consumer never joins one
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "log_level": 2,
            }
        )
        self.partitions, self.start = self._await_leaders()

    def _await_leaders(self) -> tuple[int, dict[int, int]]:
        """The partitions and their end offsets, once all have leaders: a new topic gets its leaders a little later."""
        deadline = monotonic() + REQUEST_TIMEOUT_S
        while True:
            try:
                topics = self._consumer.list_topics(self.name, timeout=REQUEST_TIMEOUT_S).topics
                count = len(topics[self.name].partitions)
                if count:
                    return count, self._offsets(count)
                problem = "the topic has no partitions"
            except KafkaException as error:
                problem = error.args[0].str()
            if monotonic() > deadline:
                raise ClickException(f"topic {self.name} is not ready after {REQUEST_TIMEOUT_S:.0f} s: {problem}")
            threads.sleep(0.1)

    def end_offsets(self) -> dict[int, int]:
        """Ask the brokers for the next offset of every partition. Any thread may call it."""
        return self._offsets(self.partitions)

    def _offsets(self, partitions: int) -> dict[int, int]:
        return {
            partition: self._consumer.get_watermark_offsets(
                TopicPartition(self.name, partition), timeout=REQUEST_TIMEOUT_S, cached=False
            )[1]
            for partition in range(partitions)
        }

    def records(self, end: dict[int, int], timestamps: bool) -> Iterator[Record]:
        """Every record up to `end`, from the end offsets at the time this object was made. Call it once."""
        waiting = {partition for partition, start in self.start.items() if start < end[partition]}
        self._consumer.assign([TopicPartition(self.name, partition, self.start[partition]) for partition in waiting])
        for message in _until_stalled(self._consumer, waiting):
            partition, offset, error = _partition(message), _offset(message), message.error()
            if error is None and offset < end[partition]:
                yield _record(message, timestamps, self._row)
            elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise ClickException(f"reading back failed: {error.str()}")
            # An end-of-partition event carries the next offset, and comes even after control records.
            if offset + (error is None) >= end[partition]:
                waiting.discard(partition)

    def close(self) -> None:
        self._consumer.close()


def _create(admin: AdminClient, name: str, partitions: int, servers: str) -> bool:
    """Create the topic. False if it exists."""
    # Replication factor -1 is the cluster's default. Retention would delete the flights: they are of 2013.
    topic = NewTopic(name, partitions, replication_factor=-1, config={"retention.ms": "-1"})
    request = admin.create_topics([topic], request_timeout=REQUEST_TIMEOUT_S)
    try:
        request[name].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise ClickException(f"topic {name} could not be created on {servers}: {error.args[0].str()}") from None
    return True


def _until_stalled(consumer: Consumer, waiting: set[int]) -> Iterator[Message]:
    """Messages and events, until `waiting` is empty. Raises ClickException after STALL_TIMEOUT_S without any."""
    last_message = monotonic()
    while waiting:
        messages = consumer.consume(2_000, timeout=0.2)
        now = monotonic()
        last_message = now if messages else last_message
        if now - last_message > STALL_TIMEOUT_S:
            raise ClickException(
                f"no record for {STALL_TIMEOUT_S:.0f} s; partitions not at their end: {sorted(waiting)}"
            )
        yield from messages


def _partition(message: Message) -> int:
    partition = message.partition()
    assert partition is not None, "the consumer gets only messages and events of partitions"
    return partition


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _record(message: Message, timestamps: bool, row: Callable[[bytes], int]) -> Record:
    kind, millis = message.timestamp()
    if timestamps and kind != TIMESTAMP_CREATE_TIME:
        raise ClickException(
            "the topic replaces timestamps by the time of appending (message.timestamp.type=LogAppendTime): set it to "
            "CreateTime"
        )
    value = message.value()
    return Record(
        _partition(message),
        _offset(message),
        message.key(),
        value,
        millis if timestamps else None,
        row(value or b""),
    )
