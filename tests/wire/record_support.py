"""Records for tests of the formats: what hypothesis draws, and what kafka-python's encoder and decoder make of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from kafkabuf._records import MemoryRecordsBuilder

LAST_TIMESTAMP = 2**63 - 1
# Sizes around which a size's varint grows by a byte (zig-zag halves what a byte holds), up to four bytes.
EDGE_SIZES = [size for power in (6, 13, 20) for size in (2**power - 1, 2**power)]


class SampleRecord(NamedTuple):
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def blobs(max_size: int = 300) -> st.SearchStrategy[bytes | None]:
    edges = [size for size in EDGE_SIZES if size <= max_size]
    filled = st.builds(lambda size, byte: bytes([byte]) * size, st.sampled_from(edges), st.integers(0, 255))
    return st.one_of(st.none(), st.just(b""), st.binary(max_size=40), filled)


def timestamps(last: int = LAST_TIMESTAMP) -> st.SearchStrategy[int]:
    """Not in order: most of a batch's deltas are negative as often as not."""
    edges = [0, last, *(2**bits for bits in range(0, last.bit_length() - 1, 7))]
    return st.one_of(st.sampled_from(edges), st.integers(0, last), st.integers(1_700_000_000_000, 1_700_000_100_000))


def headers(max_count: int = 4) -> st.SearchStrategy[tuple[tuple[str, bytes | None], ...]]:
    # No NUL: confluent-kafka, a reader in C, ends a name there.
    names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
    values = st.one_of(st.none(), st.binary(max_size=20))
    return st.lists(st.tuples(names, values), max_size=max_count).map(tuple)


def records(magic: int, max_size: int = 300, last_timestamp: int = LAST_TIMESTAMP) -> st.SearchStrategy[SampleRecord]:
    no_headers: st.SearchStrategy[tuple[tuple[str, bytes | None], ...]] = st.just(())
    return st.builds(
        SampleRecord,
        timestamps(last_timestamp),
        blobs(max_size),
        blobs(max_size),
        headers() if magic == 2 else no_headers,
    )


def encoded(magic: int, batch: Iterable[SampleRecord], write_limit: int = 1 << 24) -> bytes:
    """The batch in our encoding; every record must find room."""
    builder = MemoryRecordsBuilder(magic, write_limit)
    for place, record in enumerate(batch):
        assert builder.append(*record) == place
    return builder.close()


def encoded_by_kafka_python(
    magic: int, batch: Iterable[SampleRecord], producer: tuple[int, int, int] = (-1, -1, -1), base_offset: int = 0
) -> bytes:
    """The same in kafka-python's, as it lies in a log at `base_offset` under leader epoch 0."""
    builder = kafka_python_builder(magic, 1 << 24, producer)
    for offset, record in enumerate(batch):
        # A message of magic 1 carries an offset of its own; a batch of magic 2 the first one's alone.
        assert builder.append(offset, *record) is not None
    return base_offset.to_bytes(8, "big") + bytes(builder.build())[8:] if magic == 2 else bytes(builder.build())


def kafka_python_builder(
    magic: int, write_limit: int, producer: tuple[int, int, int] = (-1, -1, -1)
) -> DefaultRecordBatchBuilder | LegacyRecordBatchBuilder:
    if magic == 1:
        return LegacyRecordBatchBuilder(1, 0, write_limit + 1)  # it wants a byte to spare, Java and we do not
    producer_id, epoch, sequence = producer
    return DefaultRecordBatchBuilder(2, 0, False, producer_id, epoch, sequence, write_limit)


def decoded_by_kafka_python(data: bytes) -> list[tuple[int, SampleRecord]]:
    """(offset, record) of everything in `data`; fails on a wrong CRC or a byte too many."""
    found = []
    whole = MemoryRecords(data)
    assert whole.valid_bytes() == len(data)
    for batch in whole:
        assert batch.validate_crc()
        for record in batch:
            sample = SampleRecord(record.timestamp, record.key, record.value, tuple(record.headers or ()))
            found.append((record.offset, sample))
    return found
