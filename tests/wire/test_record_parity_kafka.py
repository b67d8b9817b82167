"""Generated records through real Kafka: two clients, Kafka's own tool and the log's bytes must say what was sent."""

from __future__ import annotations

import string
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kafkabuf import KafkaProducer
from rigs.real_kafka import RealKafka
from tests.memory.pool_support import assert_all_free
from tests.real.consumers import READERS, DumpedBatch, Partition, Reader, dumped, log_bytes
from tests.wire.record_support import SampleRecord, encoded_by_kafka_python, headers, records, timestamps

# Small enough for many batches of many records each, and for records larger than a batch.
BATCH_SIZE = 4096
# Nothing expires or rolls a segment because a record says it is of 1970 or of the year 146,000,000.
TOPIC_CONFIG = {
    "retention.ms": "-1",
    "segment.ms": str(2**63 - 1),
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
LAST_TIMESTAMP = 2**62
BY_SEND, AS_TEXT, BY_ARROW = PARTITIONS = range(3)
ARROW_SCHEMA = pa.schema(
    {
        "timestamp": pa.timestamp("ms"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)


@cache
def drawn(magic: int, *, text: bool) -> list[SampleRecord]:
    """Some hundreds of records, the same at every run; as text, those that DumpLogSegments prints as they are."""
    strategy = texts(magic) if text else records(magic, 9000, LAST_TIMESTAMP)
    found: list[SampleRecord] = []

    @settings(max_examples=120, derandomize=True, database=None, phases=[Phase.generate])
    @given(st.lists(strategy, min_size=1, max_size=6))
    def collect(some: list[SampleRecord]) -> None:
        found.extend(some)

    collect()
    large = [SampleRecord(1_700_000_000_000, b"k", bytes([65 + n]) * 300_000) for n in range(3)]
    return [*found, *large, *found[:100]]


def texts(magic: int) -> st.SearchStrategy[SampleRecord]:
    alphabet = string.ascii_letters + string.digits + ".,;/+-*_#"
    text = st.one_of(st.none(), st.text(alphabet, max_size=60).map(str.encode))
    names = headers().map(lambda pairs: tuple((f"h{n}", value) for n, (_, value) in enumerate(pairs)))
    return st.builds(SampleRecord, timestamps(LAST_TIMESTAMP), text, text, names if magic == 2 else st.just(()))


@dataclass
class Published:
    kafka: RealKafka
    magic: int
    topic: str
    # By partition and offset, as our own metadata says.
    sent: dict[int, Partition] = field(default_factory=dict)
    _dumps: dict[int, list[DumpedBatch]] = field(default_factory=dict)

    def dump(self, partition: int) -> list[DumpedBatch]:
        if partition not in self._dumps:
            self._dumps[partition] = dumped(self.kafka, self.topic, partition)
        return self._dumps[partition]


@pytest.fixture(
    scope="module",
    params=[("kafka_4", 2), ("kafka_3_9", 2), ("kafka_3_9", 1)],
    ids=["4.1.2", "3.9.2", "3.9.2, magic 1"],
)
def published(request: pytest.FixtureRequest) -> Published:
    name, magic = request.param
    found = Published(request.getfixturevalue(name), magic, f"parity-{magic}")
    found.kafka.create_topic(found.topic, len(PARTITIONS), TOPIC_CONFIG)
    with KafkaProducer(
        bootstrap_servers=found.kafka.bootstrap_servers, record_magic=magic, batch_size=BATCH_SIZE, linger_ms=50
    ) as producer:
        for partition, text in ((BY_SEND, False), (AS_TEXT, True)):
            found.sent[partition] = sent_one_by_one(producer, found.topic, partition, drawn(magic, text=text))
        found.sent[BY_ARROW] = sent_as_arrow(producer, found.topic, drawn(magic, text=False))
        producer.flush(30)
        assert_all_free(producer.pool)
    return found


def sent_one_by_one(producer: KafkaProducer, topic: str, partition: int, batch: list[SampleRecord]) -> Partition:
    futures = [
        producer.send(topic, record.value, record.key, record.headers or None, partition, record.timestamp)
        for record in batch
    ]
    found = [future.result(30) for future in futures]
    assert [metadata.timestamp for metadata in found] == [record.timestamp for record in batch]
    return {metadata.offset: record for metadata, record in zip(found, batch, strict=True)}


def sent_as_arrow(producer: KafkaProducer, topic: str, batch: list[SampleRecord]) -> Partition:
    rows = [
        {
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
        }
        for record in batch
    ]
    table = pa.Table.from_pylist(rows, ARROW_SCHEMA)
    table = table.append_column("partition", pa.array([BY_ARROW] * len(batch), pa.int32()))
    # In slices: the first record is not always the first in Arrow's buffers.
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1, 100), table.slice(101)])
    result = producer.send_arrow(chunked, topic).result(30)
    assert result.timestamp.tolist() == [record.timestamp for record in batch]
    return dict(zip(result.offset.tolist(), batch, strict=True))


def in_batches(published: Published, partition: int) -> Iterator[tuple[DumpedBatch, list[SampleRecord]]]:
    """Kafka's batches beside the records that ought to lie in them."""
    sent = published.sent[partition]
    for batch in published.dump(partition):
        yield batch, [sent[offset] for offset in range(batch.base_offset, batch.last_offset + 1)]


# ---- tests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", READERS)
def test_every_client_reads_the_records_that_were_sent(published: Published, reader: Reader) -> None:
    read = reader(published.kafka, published.topic, len(PARTITIONS))
    for partition, sent in published.sent.items():
        assert read[partition] == sent
        assert list(sent) == list(range(len(sent))), "offsets are not in the order of sending"


@pytest.mark.parametrize("partition", PARTITIONS)
def test_kafkas_own_tool_finds_every_batch_valid(published: Published, partition: int) -> None:
    found = list(in_batches(published, partition))
    assert sum(len(batch.records) for batch, _ in found) == len(published.sent[partition])
    assert any(len(batch.records) > 20 for batch, _ in found), "records did not share batches"
    assert any(batch.size > BATCH_SIZE for batch, _ in found), "no record was larger than a batch"
    for batch, sent in found:
        assert batch.valid
        assert batch.magic == 2
        assert len(batch.records) == len(sent)
        assert batch.timestamp == max(record.timestamp for record in sent)
        for line, record in zip(batch.records, sent, strict=True):
            assert line.timestamp == record.timestamp
            assert line.key_size == (-1 if record.key is None else len(record.key))
            assert line.value_size == (-1 if record.value is None else len(record.value))


def test_kafkas_own_tool_prints_the_records_that_were_sent(published: Published) -> None:
    for batch, sent in in_batches(published, AS_TEXT):
        for line, record in zip(batch.records, sent, strict=True):
            assert line.key == (None if record.key is None else record.key.decode())
            assert line.value == (None if record.value is None else record.value.decode())
            assert line.header_keys == ",".join(name for name, _ in record.headers)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_log_equals_kafka_pythons_encoding(published: Published, partition: int) -> None:
    """Kafka 4 stores what it is given, 3.9 what it makes of magic 1: the same bytes, and so the same CRC."""
    expected = b""
    stored = log_bytes(published.kafka, published.topic, partition)
    producer_id, epoch = struct.unpack_from(">qh", stored, 43)
    assert (producer_id >= 0, epoch) == ((True, 0) if published.magic == 2 else (False, -1))
    for batch, sent in in_batches(published, partition):
        # Nobody else writes here: numbers are offsets.
        numbers = (producer_id, epoch, batch.base_offset if published.magic == 2 else -1)
        one = encoded_by_kafka_python(2, sent, numbers, batch.base_offset)
        assert len(one) == batch.size
        assert int.from_bytes(one[17:21], "big") == batch.crc
        expected += one
    assert stored[: len(expected)] == expected
    assert not any(stored[len(expected) :])
