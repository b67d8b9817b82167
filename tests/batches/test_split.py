"""MESSAGE_TOO_LARGE: a batch goes again in parts (KIP-126), every record in its place and with its own outcome.

This file has the cases of Kafka's RecordAccumulatorTest, ProducerBatchTest and SenderTest on splitting. A comment names
each case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.batches.compression import DECOMPRESS, codec
from kafkabuf.errors import RecordTooLargeError, TimeoutError
from rigs.producer import PATIENCE, SLAB, TOPIC, assert_whole, collecting_everywhere, only_request, quick_rig
from tests.batches.split_support import TOO_LARGE, Topic, offset_of, refuse
from tests.effort import effort
from tests.memory.pool_support import in_thread, until
from tests.wire.record_support import records

REQUEST_TIMED_OUT = 7
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


# ---- every record in its place ---------------------------------------------------------------------------------------


# Kafka: testSplitAndReenqueue
@pytest.mark.parametrize("magic", [1, 2])
def test_parts_keep_the_order_and_outcomes_of_their_records(magic: int) -> None:
    rig = quick_rig(record_magic=magic)
    topic = Topic(rig, 200)
    sent = [b"%03d" % n for n in range(40)]
    outcomes: list[tuple[int, bytes]] = []

    def note(value: bytes) -> Callable[[Any, Any], None]:
        return lambda metadata, error: outcomes.append((metadata.offset, value))

    futures = [rig.send(value, callback=note(value)) for value in sent[:20]]
    futures += [rig.send(value, timestamp_ms=5) for value in sent[20:]]
    topic.serve()
    assert topic.values() == sent
    assert [offset_of(future) for future in futures] == list(range(40))
    assert outcomes == list(enumerate(sent[:20]))
    assert rig.sender.batch_splits >= 2
    assert (rig.sender.record_errors, rig.sender.record_retries) == (0, 0)
    assert_whole(rig.pool)


# Kafka: testSplitBatchOffAccumulator, and KIP-126's reason: no single record takes others with it
@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("place", [0, 1, 6, 11])
def test_record_too_large_fails_alone(place: int, magic: int) -> None:
    rig = quick_rig(record_magic=magic)
    topic = Topic(rig, 300)
    sent = [b"%d" % n for n in range(12)]
    sent[place] = b"x" * 301
    futures = [rig.send(value) for value in sent]
    assert len({future.batch for future in futures}) == 1
    topic.serve()
    for n, future in enumerate(futures):
        if n == place:
            assert isinstance(future.exception(0), RecordTooLargeError)
        else:
            assert offset_of(future) == n - (n > place)
    assert topic.values() == [value for n, value in enumerate(sent) if n != place]
    assert rig.sender.record_errors == 1
    assert_whole(rig.pool)


def test_split_ends_if_no_record_fits() -> None:
    rig = quick_rig()
    topic = Topic(rig, 0)
    futures = [rig.send(b"v") for _ in range(20)]
    topic.serve()
    assert all(isinstance(future.exception(0), RecordTooLargeError) for future in futures)
    assert rig.sender.record_errors == 20
    assert_whole(rig.pool)


def test_waiting_parts_are_split_with_the_refused_part() -> None:
    """The batch is 16 times the limit. The broker refuses it at 16, 8, 4 and 2 times, not once for each part."""
    rig = quick_rig()
    topic = Topic(rig, 61 + 4 * 10)
    futures = [rig.send(b"xxx", timestamp_ms=7) for _ in range(64)]
    topic.serve()
    assert [offset_of(future) for future in futures] == list(range(64))
    assert topic.refused == 4
    assert len(rig.client.sent) == 4 + 16
    assert_whole(rig.pool)


# Kafka: testSplitPreservesHeaders, testSplitPreservesMagicAndCompressionType
@settings(max_examples=effort(60), deadline=None)
@given(st.data())
@pytest.mark.parametrize("magic", [1, 2])
def test_split_alters_no_record(magic: int, data: st.DataObject) -> None:
    sample = data.draw(st.lists(records(magic), min_size=1, max_size=30))
    limit = data.draw(st.integers(100, 2000))
    compression = data.draw(st.sampled_from(CODECS[:-1] if magic == 1 else CODECS))
    rig = quick_rig(batch_size=4096, slabs=64, record_magic=magic, compression_type=compression)
    topic = Topic(rig, limit)
    futures = [
        rig.send(record.value, key=record.key, headers=list(record.headers) or None, timestamp_ms=record.timestamp)
        for record in sample
    ]
    topic.serve()
    delivered = [n for n, future in enumerate(futures) if future.exception(0) is None]
    assert [offset_of(futures[n]) for n in delivered] == list(range(len(delivered)))
    assert topic.log.get(0, []) == [sample[n] for n in delivered]
    assert [futures[n].result(0).timestamp for n in delivered] == [sample[n].timestamp for n in delivered]
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)


@pytest.mark.parametrize(
    ("name", "level", "magic"),
    [*((name, {}, 2) for name in CODECS[1:]), *((name, {}, 1) for name in CODECS[1:4]),
     ("lz4", {"compression_lz4_level": 12}, 2)],
)  # fmt: skip
def test_parts_of_a_compressed_batch_are_compressed(name: str, level: dict[str, int], magic: int) -> None:
    rig = quick_rig(batch_size=16 * SLAB, record_magic=magic, compression_type=name, slabs=64, **level)
    topic = Topic(rig, 500)
    sent = [b"%04d a row that compresses well, since it is the same but for its number" % n for n in range(150)]
    futures = [rig.send(value) for value in sent]
    batches = len({future.batch for future in futures})
    topic.serve()
    assert rig.sender.batch_splits >= batches
    assert topic.values() == sent
    assert [offset_of(future) for future in futures] == list(range(150))
    id_at = 22 if magic == 2 else 17
    kept = [data for request in rig.client.sent for data in request.produced.records.values()]
    assert sum(data[id_at] & 7 == 0 for data in kept) == 0
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)


@pytest.mark.parametrize("name", CODECS[1:])
@pytest.mark.parametrize("size", [1, 1000, 33_000, 200_000])
def test_codec_decompresses_its_own_frames(name: str, size: int) -> None:
    tested = codec(name, -1, 9, 3)
    for plain in (b"ab" * (size // 2 + 1), bytes((n * n >> 3) & 255 for n in range(size))):
        frame = bytearray(2 * len(plain) + 1024)
        used = tested.compress(memoryview(plain), memoryview(frame))
        back = bytearray(len(plain) + 5000)  # the slab has more room than the records took
        assert DECOMPRESS[tested.id](memoryview(frame)[:used], memoryview(back)) == len(plain)
        assert back[: len(plain)] == plain


# ---- the order of batches --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 5])
def test_later_batch_waits_for_all_parts(in_flight: int) -> None:
    rig = quick_rig(max_in_flight_requests_per_connection=in_flight)
    topic = Topic(rig, 400)
    first = [rig.send(b"a%02d" % n + b"." * 60) for n in range(12)]
    topic.answer(only_request(rig))
    rig.turn()
    later = [rig.send(b"b%02d" % n + b"." * 60) for n in range(4)]
    topic.serve()
    assert [offset_of(future) for future in [*first, *later]] == list(range(16))
    assert_whole(rig.pool)


def test_success_of_a_batch_in_flight_lets_no_batch_overtake_the_rest() -> None:
    """After a later batch's success the leader is proven, but batches still wait for the rest."""
    rig = quick_rig()
    topic = Topic(rig, 600)
    big = [rig.send(b"a%d" % n + b"." * 100) for n in range(8)]
    small = [rig.send(b"b" + b"." * 300)]
    (sent_big, sent_small) = rig.sent_after_turn()
    refuse(rig, sent_big)
    topic.answer(sent_small)  # it was in flight already, so it comes first
    last = rig.send(b"c" + b"." * 300)
    topic.serve()
    order = [value[:2] for value in topic.values() if value is not None]
    assert order == [b"b.", *(b"a%d" % n for n in range(8)), b"c."]
    assert [offset_of(future) for future in [*small, *big, last]] == list(range(10))
    assert_whole(rig.pool)


def test_retried_part_keeps_its_place() -> None:
    rig = quick_rig(retries=1, retry_backoff_ms=10)
    topic = Topic(rig, 500)
    futures = [rig.send(b"%02d" % n + b"." * 60) for n in range(12)]
    refuse(rig, only_request(rig))
    rig.client.answer(only_request(rig), REQUEST_TIMED_OUT)
    rig.turn()
    assert rig.sent_after_turn() == []  # the part backs off, and the batches behind it wait
    rig.clock.advance(0.1)
    topic.serve()
    assert [offset_of(future) for future in futures] == list(range(12))
    assert rig.sender.record_retries == 6
    assert_whole(rig.pool)


# As in Kafka, a split does not count as a retry.
def test_split_does_not_count_against_retries() -> None:
    rig = quick_rig(retries=0)
    topic = Topic(rig, 150)
    futures = [rig.send(b"%02d" % n + b"." * 40) for n in range(12)]
    topic.serve()
    assert [offset_of(future) for future in futures] == list(range(12))


def test_parts_begin_with_all_their_retries() -> None:
    rig = quick_rig(retries=1, retry_backoff_ms=10, compression_type="zstd")
    futures = [rig.send(b"." * 50) for _ in range(10)]
    rig.client.answer(only_request(rig), REQUEST_TIMED_OUT)
    rig.turn()
    rig.clock.advance(0.1)
    refuse(rig, only_request(rig))
    rig.client.answer(only_request(rig), base_offset=10)
    rig.turn()
    rest = only_request(rig)
    assert rest.produced.records[TOPIC, 0][22] & 7 == 4  # compressed again
    rig.client.answer(rest, REQUEST_TIMED_OUT)
    rig.turn()
    rig.clock.advance(0.1)
    rig.client.answer(only_request(rig), base_offset=15)
    rig.turn()
    assert [offset_of(future) for future in futures] == list(range(10, 20))


def test_several_batches_of_a_partition_can_be_split_at_once() -> None:
    rig = quick_rig()
    topic = Topic(rig, 300)
    futures = [rig.send(b"%02d" % n + b"." * 80) for n in range(30)]
    assert len({future.batch for future in futures}) == 3
    under_way = rig.sent_after_turn()
    assert len(under_way) == 3
    for sent in under_way:
        topic.answer(sent)
    topic.serve()
    assert [offset_of(future) for future in futures] == list(range(30))
    assert_whole(rig.pool)


# ---- waiting threads and callbacks -----------------------------------------------------------------------------------


def test_thread_waits_only_for_the_part_of_its_record() -> None:
    rig = quick_rig()
    futures = [rig.send(b"%02d" % n) for n in range(10)]
    sent = only_request(rig)
    front = in_thread(lambda: futures[0].result(PATIENCE))
    rest = in_thread(lambda: futures[9].result(PATIENCE))
    flush = in_thread(lambda: rig.accumulator.flush(None))
    until(lambda: len(rig.accumulator.flushes) == 1)
    refuse(rig, sent)
    rig.client.answer(only_request(rig), base_offset=50)
    rig.turn()
    assert front.result(PATIENCE).offset == 50
    assert [(future.done(), future.running()) for future in futures] == [(True, False)] * 5 + [(False, True)] * 5
    assert [rest.done(), flush.done()] == [False, False]
    with pytest.raises(TimeoutError):
        futures[9].result(0)
    rig.client.answer(only_request(rig), base_offset=90)
    rig.turn()
    assert rest.result(PATIENCE).offset == 94
    flush.result(PATIENCE)
    assert_whole(rig.pool)


def test_callback_runs_at_the_end_of_its_records_part() -> None:
    rig = quick_rig()
    called: list[tuple[str, int, int]] = []

    def note(when: str) -> None:
        for n, future in enumerate(futures):
            future.add_done_callback(noting(when, n))

    def noting(when: str, n: int) -> Callable[[RecordFuture], None]:
        return lambda done: called.append((when, n, offset_of(done)))

    futures = [rig.send(b"%02d" % n) for n in range(4)]
    note("before")
    refuse(rig, only_request(rig))
    note("between")
    rig.client.answer(only_request(rig), base_offset=50)
    rig.turn()
    assert sorted(called) == [(when, n, 50 + n) for when in ("before", "between") for n in (0, 1)]
    called.clear()
    note("half")
    assert sorted(called) == [("half", 0, 50), ("half", 1, 51)]
    rig.client.answer(only_request(rig), base_offset=90)
    rig.turn()
    assert sorted(called[2:]) == [(when, n, 88 + n) for when in ("before", "between", "half") for n in (2, 3)]
    assert_whole(rig.pool)


def test_thread_that_runs_within_the_split_finds_every_record_once() -> None:
    """Adds callbacks whenever the split makes an object: then the garbage collector may let another thread run."""
    rig = quick_rig()
    topic = Topic(rig, 150)
    futures = [rig.send(b"%02d" % n + b"." * 20) for n in range(24)]
    sent = only_request(rig)
    rig.client.answer(sent, TOO_LARGE)
    added: list[int] = []
    called: list[tuple[int, int]] = []

    def intrude() -> None:
        for number, future in enumerate(futures):
            added.append(number)
            future.add_done_callback(noting(number))

    def noting(number: int) -> Callable[[RecordFuture], None]:
        return lambda done: called.append((number, offset_of(done)))

    with collecting_everywhere(intrude):
        rig.turn()
    assert len(added) >= 2 * 24  # from Python 3.12 on the collector runs between bytecodes only
    topic.serve()
    assert sorted(called) == sorted((number, number) for number in added)
    assert [offset_of(future) for future in futures] == list(range(24))
    assert_whole(rig.pool)


def test_report_of_a_table_gives_each_row_the_outcome_of_its_part() -> None:
    rig = quick_rig(leaders=(1, 1))
    limit = 300
    topic = Topic(rig, limit)
    rig.send(b"not of the table", partition=0)
    values = [b"%02d" % n + b"." * 60 for n in range(20)]
    values[7] = b"x" * (limit + 1)
    partitions = [n % 2 for n in range(20)]
    table = pa.record_batch({"value": pa.array(values, pa.binary()), "partition": pa.array(partitions, pa.int32())})
    report = rig.producer.send_arrow(table, TOPIC)
    rig.turn()
    topic.answer_under_way()
    rig.turn()
    assert not report.done()
    topic.serve()
    assert report.done()
    result = report.result(0, errors="return")
    assert result.partition.tolist() == partitions
    assert result.error_code.tolist() == [10 * (n == 7) for n in range(20)]
    for n, offset in enumerate(result.offset.tolist()):
        assert (offset == -1) if n == 7 else topic.values(n % 2)[offset] == values[n]
    assert isinstance(report.exception(0), RecordTooLargeError)
    assert [
        (row_range.partition, row_range.first_offset, row_range.last_offset, row_range.rows)
        for row_range in report.ranges(0)
    ] == [
        (0, 1, 10, 10),
        (1, 0, 8, 9),
    ]
    delivered = sum(len(value) for n, value in enumerate(values) if n != 7)
    assert delivered < sum(row_range.bytes for row_range in report.ranges(0)) < sum(map(len, values)) + 20 * 20
    assert_whole(rig.pool)
