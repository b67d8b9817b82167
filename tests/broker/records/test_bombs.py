"""What the records of one batch may become when the broker unpacks them: JSON is no bomb, and a bomb costs little."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.records._batch import check_batch
from kafkabuf.broker.records._record_walk import RecordWalk
from kafkabuf.broker.records.compression import LZ4, SNAPPY, ZSTD, unpack
from kafkabuf.broker.records.config import Limits
from kafkabuf.broker.records.records import first_at, read_records, verify
from kafkabuf.broker.records.validator import RefusedRecordsError, check_records
from kafkabuf.errors import CorruptMessageError, InvalidRecordError
from kafkabuf.protocol.messages import LIST_OFFSETS
from tests.broker.front.test_hostile import CODECS, forget_peak, resident, soon
from tests.broker.log.support import append
from tests.broker.raw_client import NOW, RawClient, batch, varint
from tests.effort import effort

MIB = 1024 * 1024
HEADER = 61
# The record with index 0: no key, no value, no headers.
EMPTY = b"\x0c\0\0\0\x01\x01\0"


def record(index: int, value: bytes) -> bytes:
    fields = b"\0" + varint(index) + varint(index) + b"\x01" + varint(len(value)) + value + b"\0"
    return varint(len(fields)) + fields


def records_of(values: list[bytes]) -> bytes:
    """Records without keys, a millisecond apart."""
    return b"".join(record(index, value) for index, value in enumerate(values))


def packed(name: str, body: bytes, count: int, newest: int | None = None) -> bytes:
    """A batch with `body` for its records, of which the last has the timestamp `newest`."""
    codec, compress = CODECS[name]
    times = [NOW, NOW + count - 1 if newest is None else newest]
    data: bytes = bytes(compress(body))
    return batch([b""] * 2, timestamps=times, attributes=codec, body=data, count=count, last_delta=count - 1)


def json_lines(size: int) -> list[bytes]:
    """Rows of JSON, of `size` bytes in all, of which gzip leaves a fifteenth."""
    draw, rows, left = random.Random(1), [], size
    while left > 0:
        fields = {"customer": draw.randrange(99), "state": "delivered", "currency": "EUR", "items": ["a", "b"] * 9}
        rows.append(json.dumps(fields).encode())
        left -= len(rows[-1])
    return rows


@pytest.fixture(scope="module")
def rows() -> list[bytes]:
    return json_lines(6 * MIB)


@pytest.fixture(scope="module")
def forty_mebibytes(rows: list[bytes]) -> bytes:
    """Records. To make them takes longer than what the tests do with them."""
    return records_of(rows * 7)


@pytest.mark.parametrize("name", CODECS)
def test_six_mebibytes_of_json_in_one_batch_are_verified_and_looked_up(name: str, rows: list[bytes]) -> None:
    data = packed(name, records_of(rows), len(rows))
    assert len(data) < MIB
    verify(data)
    log = PartitionLog()
    append(log, data)
    middle = len(rows) // 2
    assert log.offset_at(NOW + middle) == (middle, NOW + middle, 0)
    assert log.newest() == (len(rows) - 1, NOW + len(rows) - 1, 0)


@pytest.mark.parametrize("name", CODECS)
def test_batch_is_looked_up_after_max_message_bytes_was_lowered(name: str) -> None:
    count, log = 6_000, PartitionLog()
    append(log, packed(name, records_of([b"x" * 1_000] * count), count))
    assert log.offset_at(NOW + 7, max_message_bytes=1_000) == (7, NOW + 7, 0)
    assert log.newest(max_message_bytes=1_000) == (count - 1, NOW + count - 1, 0)


def test_json_in_one_batch_passes_a_cluster_that_verifies_records(rows: list[bytes]) -> None:
    data = packed("gzip", records_of(rows), len(rows))
    with EmbeddedCluster(verify_records=True) as cluster, RawClient(cluster.bootstrap_servers) as client:
        cluster.create_topic("t")
        assert client.produce("t", data).error_code == 0
        asked = {"partition_index": 0, "timestamp": NOW + 100}
        answer = client.ask(
            LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=[{"name": "t", "partitions": [asked]}]
        )
        assert answer.topics[0].partitions[0].offset == 100


@pytest.mark.parametrize("name", ["gzip", "xerial", "lz4", "zstd"])
def test_topic_with_larger_messages_takes_larger_records(name: str, rows: list[bytes], forty_mebibytes: bytes) -> None:
    """40 MiB in one batch: too many for a topic that takes messages of 1 MiB, few for one that takes 10 MiB."""
    data = packed(name, forty_mebibytes, 7 * len(rows))
    verify(data, 10 * MIB)
    if len(data) < MIB:
        with pytest.raises(CorruptMessageError, match="or too large"):
            verify(data, MIB)


def read_all(data: bytes) -> None:
    list(read_records(data))


def look_up(data: bytes) -> None:
    first_at(data, NOW + 1, 0, MIB)


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd"])
@pytest.mark.parametrize("reader", [verify, look_up, read_all])
def test_well_formed_bomb_is_refused_in_little_memory_and_time(name: str, reader: Callable[[bytes], Any]) -> None:
    data = packed(name, record(0, bytes(96 * MIB)), 1, newest=NOW)
    assert len(data) < MIB
    before = forget_peak()
    with soon(), pytest.raises(CorruptMessageError, match="or too large"):
        reader(data)
    assert resident(peak=True) - before < 64 * MIB


def test_announced_size_is_refused_before_it_is_unpacked() -> None:
    zeros = bytes(64 * MIB)
    for codec, data in ((ZSTD, cramjam.zstd.compress(zeros)), (SNAPPY, cramjam.snappy.compress_raw(zeros))):
        before = forget_peak()
        with pytest.raises(CorruptMessageError, match=f"becomes {64 * MIB} bytes"):
            list(unpack(codec, bytes(data), 40 * MIB))
        assert resident(peak=True) - before < 8 * MIB
    header = bytes.fromhex("04224d18") + b"\x68\x40" + (64 * MIB).to_bytes(8, "little") + b"\0"
    with pytest.raises(CorruptMessageError, match=f"becomes {64 * MIB} bytes"):
        list(unpack(LZ4, header, 40 * MIB))


def test_more_records_than_the_bytes_can_hold_are_refused_at_once() -> None:
    with soon(), pytest.raises(CorruptMessageError, match="the batch says 2147483647 records"):
        verify(packed("gzip", EMPTY, 2**31 - 1))


def test_hundreds_of_thousands_of_records_in_one_batch_cost_little_memory_and_time() -> None:
    count = 300_000
    data = packed("zstd", records_of([b""] * count), count)
    limits = Limits(max_message_bytes=9 * MIB, compacted=True)
    before = forget_peak()
    with soon():
        verify(data)
        last = first_at(data, NOW + count - 1, 0, MIB)
        assert last is not None
        assert last.offset == count - 1
        with pytest.raises(RefusedRecordsError, match=f"{count} of the {count} records") as caught:
            check_records(memoryview(data), check_batch(memoryview(data), 9, limits), limits, NOW + count, 10_000)
    assert len(caught.value.records) == 10_000
    assert resident(peak=True) - before < 32 * MIB


def test_lookup_reads_one_batch_whose_header_lies() -> None:
    log = PartitionLog()
    for _ in range(3):
        append(log, packed("gzip", records_of([b"v"] * 4), 4, newest=NOW + 1000))
    with mock.patch("kafkabuf.broker.log.log.first_at", wraps=first_at) as read:
        assert log.offset_at(NOW + 500) == (3, NOW + 1000, 0)
        assert read.call_count == 1
    log.delete_before(2)
    assert log.offset_at(NOW + 500) == (7, NOW + 1000, 0)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("size", [1, 255, 65_536, 300_000, 2_000_000])
def test_unpacking_ends_at_its_bound(name: str, size: int) -> None:
    codec, compress = CODECS[name]
    data, plain = bytes(compress(bytes(size))), bytes(size)
    assert b"".join(unpack(codec, data, size)) == plain
    with pytest.raises(CorruptMessageError):
        list(unpack(codec, data, size - 1))


def outcome(pieces: list[bytes], count: int) -> list[Any]:
    """What each question to a walk answers, or the kind of its error."""
    questions: list[Callable[[RecordWalk], Any]] = [
        list,
        RecordWalk.newest,
        lambda walk: walk.first(3, 1),
        lambda walk: walk.outside(-2, 5, 9, True, 2),
    ]
    answers: list[Any] = []
    for question in questions:
        try:
            answers.append(question(RecordWalk(iter(pieces), count)))
        except InvalidRecordError:
            answers.append(InvalidRecordError)
    return answers


@settings(max_examples=effort(400), deadline=None)
@given(st.data())
def test_records_are_the_same_however_they_are_cut_into_pieces(data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(-20, 20), min_size=1, max_size=8))
    keys = [data.draw(st.sampled_from([None, b"", b"key" * 50])) for _ in times]
    body = batch([b"value"] * len(times), keys=keys, timestamps=[NOW + time for time in times])[HEADER:]
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(body) - 1))
        body = body[:at] + data.draw(st.binary(max_size=3)) + body[at + 1 :]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert outcome(pieces, len(times)) == outcome([body], len(times))


def test_walk_answers_what_a_plain_reading_says() -> None:
    times = [0, 5, -3, 9, 6, 2]
    keys = [b"k", None, b"k", b"k", None, b""]
    body = batch([b"v"] * 6, keys=keys, timestamps=[NOW + time for time in times])[HEADER:]
    assert list(RecordWalk([body], 6)) == [(time, key is not None) for time, key in zip(times, keys, strict=True)]
    assert RecordWalk([body], 6).newest() == 9
    assert RecordWalk([body], 6).first(5, 2) == (3, 9)
    assert RecordWalk([body], 6).first(10, 0) is None
    assert RecordWalk([body], 6).outside(0, 5, 9, True, 2) == (9, 3, [(1, 5, False), (2, -3, True)])
    assert RecordWalk([body], 6).outside(0, 5, None, False, 9) == (9, 3, [(2, -3, True), (3, 9, True), (4, 6, False)])


def test_walk_that_begins_anew_forgets_its_former_piece() -> None:
    body = batch([b"v"] * 3)[HEADER:]
    walk = RecordWalk([body], 3)
    next(walk)
    walk.__init__([body], 3)
    assert len(list(walk)) == 3
