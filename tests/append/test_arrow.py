"""send_arrow without a network: the records that rows become, and the offsets that the report gives for them."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkabuf.append.offset_range import OffsetRange
from kafkabuf.errors import (
    BufferExhaustedError,
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    NetworkError,
    RecordTooLargeError,
    TimeoutError,
)
from kafkabuf.partitioner import partition_for_key
from rigs.producer import SLAB, TOPIC, Rig, assert_whole
from tests.append.arrow_support import HEADERS, as_bytes, stored, turning

# ---- topics and partitions -------------------------------------------------------------------------------------------


def test_each_row_goes_to_the_topic_of_its_column() -> None:
    rig = Rig(leaders=(1, 1))
    rig.accumulator.topic_queues("other", [1, 2, 1])
    topics = [TOPIC, TOPIC, "other", TOPIC, "other", "other", TOPIC] * 30
    values = [f"{name}-{row}" for row, name in enumerate(topics)]
    for kind in (pa.string(), pa.large_string()):
        rig.log.clear()
        batch = pa.record_batch({"topic": pa.array(topics, kind), "value": values})
        report = rig.producer.send_arrow(batch)
        found = stored(rig, report, topics)
        assert [record.value for record in found] == [value.encode() for value in values]
        assert {(one.topic, one.rows) for one in report.ranges(0)} >= {("other", 90)} or len(report.ranges(0)) > 2


def test_topic_argument_takes_precedence_over_the_column() -> None:
    rig = Rig()
    rig.accumulator.topic_queues("other", [1])
    report = rig.producer.send_arrow(
        pa.record_batch({"topic": ["other", None, "no topic!"], "value": ["a", "b", "c"]}), TOPIC
    )
    assert [record.value for record in stored(rig, report)] == [b"a", b"b", b"c"]


def test_row_without_topic_is_refused() -> None:
    rig = Rig()
    with pytest.raises(InvalidTopicError, match="row 1: there is no topic") as raised:
        rig.producer.send_arrow(pa.record_batch({"topic": [TOPIC, None], "value": ["a", "b"]}))
    assert raised.value.rows_queued == 1
    rig.ack_all()
    assert_whole(rig.pool)


def test_data_without_any_topic_is_refused() -> None:
    rig = Rig()
    with pytest.raises(InvalidTopicError, match="topic argument, or a column 'topic'") as raised:
        rig.producer.send_arrow(pa.record_batch({"value": ["a"]}))
    assert raised.value.rows_queued == 0


@pytest.mark.parametrize("bad", [-1, 3, 2**31 - 1, -(2**31)])
def test_partition_that_does_not_exist_is_refused(bad: int) -> None:
    rig = Rig(leaders=(1, 1, 1))
    batch = pa.record_batch({"value": ["a", "b", "c"], "partition": pa.array([2, None, bad], pa.int32())})
    with pytest.raises(InvalidPartitionsError, match=str(bad)) as raised:
        rig.producer.send_arrow(batch, TOPIC)
    assert raised.value.rows_queued == 2
    rig.ack_all()
    assert sum(map(len, rig.log.values())) == 2
    assert_whole(rig.pool)


def test_partition_that_is_new_is_taken_after_a_metadata_update(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(leaders=(1,))
    producer = rig.producer
    monkeypatch.setattr(producer.topics, "await_partition", lambda *_: rig.accumulator.topic_queues(TOPIC, [1] * 5))
    batch = pa.record_batch({"value": ["a", "b", "c"], "partition": pa.array([0, 4, 0], pa.int32())})
    report = producer.send_arrow(batch, TOPIC)
    assert [record.value for record in stored(rig, report)] == [b"a", b"b", b"c"]
    assert report.result(0).partition.tolist() == [0, 4, 0]


def test_rows_without_key_use_all_partitions_and_fill_batches() -> None:
    rig = Rig(leaders=[1] * 4, slabs=512)
    report = rig.producer.send_arrow(pa.record_batch({"value": ["x" * 100] * 2_000}), TOPIC)
    stored(rig, report)
    counts = np.bincount(report.result(0).partition, minlength=4)
    assert counts.min() > 300
    assert len(rig.client.sent) < 2_000 / 7


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slabs", [1, 2, 4])
def test_data_larger_than_memory_is_sent_in_order(slabs: int) -> None:
    # With fewer slabs than partitions, the walker must give its claims back before it can get more memory.
    rig = turning(leaders=(1, 1, 1), slabs=slabs, max_in_flight_requests_per_connection=1)
    values = [b"%d" % row + b"x" * (row % 400) for row in range(300)]
    report = rig.producer.send_arrow(
        pa.table({"value": values, "partition": pa.array([row % 3 for row in range(300)], pa.int32())}), TOPIC
    )
    assert rig.pool.waits_total > 10
    assert [record.value for record in stored(rig, report)] == values
    offsets = report.result(0).offset
    for partition in range(3):
        assert (np.diff(offsets[partition::3]) == 1).all()


def test_thread_that_gets_no_memory_gives_back_its_claims() -> None:
    rig = Rig(leaders=(1, 1, 1), slabs=2, max_block_ms=50)
    batch = pa.record_batch({"value": ["a", "b", "c"], "partition": pa.array([0, 1, 2], pa.int32())})
    with pytest.raises(BufferExhaustedError) as raised:
        rig.producer.send_arrow(batch, TOPIC)
    assert raised.value.rows_queued == 2
    assert not any(queue.claimed for queue in rig.topic.queues)
    rig.send(b"fits", partition=1)
    rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 1]] == [b"b", b"fits"]
    assert_whole(rig.pool)


@pytest.mark.parametrize("size", [SLAB, 5 * SLAB, 20 * SLAB])
def test_large_row_has_a_batch_of_its_own(size: int) -> None:
    rig = turning(slabs=24)
    values = [b"before", b"x" * size, b"after"]
    assert [
        record.value for record in stored(rig, rig.producer.send_arrow(pa.table({"value": values}), TOPIC))
    ] == values
    assert len(rig.client.sent) == 3


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("limit", [{"max_request_size": 2_000}, {"max_request_size": 10**6}])
def test_row_that_is_too_large_is_reported_and_the_others_are_sent(magic: int, limit: dict[str, int]) -> None:
    rig = turning(slabs=2, record_magic=magic, **limit)
    values = ["x" * 5_000, "a", "x" * 3_000, "b"]
    stamps = pa.array([5, 6, 7, 8], pa.timestamp("ms"))
    report = rig.producer.send_arrow(pa.table({"value": values, "timestamp": stamps}), TOPIC)
    assert [failure.first_row for failure in report.too_large] == [0, 2]
    rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"a", b"b"]
    result = report.result(0, errors="return")
    assert result.error_code.tolist() == [10, 0, 10, 0]
    assert result.partition.tolist() == [-1, 0, -1, 0]
    assert result.offset.tolist() == [-1, 0, -1, 1]
    assert result.timestamp.tolist() == [5, 6, 7, 8]
    error = report.exception(0)
    assert isinstance(error, RecordTooLargeError)
    what = r"max\.request\.size \(2000\)" if limit["max_request_size"] == 2_000 else r"buffer\.memory \(2048\)"
    assert re.match(rf"row 0: the record is too large: .* needs up to 50\d\d bytes, more than {what}", str(error))
    assert (report.rows, sum(one.rows for one in report.ranges(0))) == (4, 2)
    assert_whole(rig.pool)


def test_row_numbers_count_over_all_chunks() -> None:
    rig = turning(max_request_size=2_000)
    table = pa.Table.from_batches(
        [pa.record_batch({"value": ["a", "b"]}), pa.record_batch({"value": ["c", "x" * 2_000]})]
    )
    (failure,) = rig.producer.send_arrow(table, TOPIC).too_large
    assert (failure.first_row, failure.last_row, failure.rows, failure.error_code) == (3, 3, 1, 10)
    assert str(failure.error).startswith("row 3: ")
    stamps = [pa.array(part, pa.timestamp("ms")) for part in ([1, 2], [3, -4])]
    late = pa.table({"value": ["v"] * 4, "timestamp": pa.chunked_array(stamps)})
    with pytest.raises(InvalidTimestampError, match="row 3: "):
        rig.producer.send_arrow(late, TOPIC)


def test_rows_that_are_all_too_large_have_an_outcome_at_once() -> None:
    rig = turning(max_request_size=2_000)
    report = rig.producer.send_arrow(pa.table({"value": ["x" * 2_000] * 3}), TOPIC)
    assert report.done()
    assert report.result(0, errors="return").error_code.tolist() == [10] * 3
    assert report.ranges(0) == ()
    assert not rig.queue().claimed
    assert_whole(rig.pool)


# ---- the report ------------------------------------------------------------------------------------------------------


def test_report_has_the_outcome_of_each_row() -> None:
    rig = Rig(leaders=(1, 1, 1), linger_ms=0)
    partitions = [0, 1, 2, 0, 1, 2]
    report = rig.producer.send_arrow(
        pa.record_batch({"value": ["v"] * 6, "partition": pa.array(partitions, pa.int32())}), TOPIC
    )
    with pytest.raises(TimeoutError, match="not all of 6 rows"):
        report.result(0)
    assert not report.done()
    (sent,) = rig.sent_after_turn()
    codes = {0: 0, 1: 87, 2: 0}
    rig.client.answer(sent, *(codes[partition] for partition in sent.partitions), base_offset=100)
    rig.turn()
    assert report.done()
    result = report.result(0, errors="return")
    assert result.partition.tolist() == partitions
    assert result.error_code.tolist() == [0, 87, 0, 0, 87, 0]
    assert result.offset.tolist() == [100, -1, 100, 101, -1, 101]
    assert isinstance(report.exception(0), InvalidRecordError)
    assert [(one.partition, one.first_offset, one.last_offset, one.rows) for one in report.ranges(0)] == [
        (0, 100, 101, 2),
        (2, 100, 101, 2),
    ]
    assert_whole(rig.pool)


@pytest.mark.parametrize("keep", ["rows", "errors"])
@pytest.mark.parametrize("fold", [False, True])
def test_failure_names_the_rows_of_the_failed_batch(keep: str, fold: bool) -> None:
    rig = Rig(leaders=(1, 1, 1), linger_ms=0)
    partitions = pa.array([2, 0, 1, 1, 0, 1, 2], pa.int32())
    report = rig.producer.send_arrow(pa.record_batch({"value": ["v"] * 7, "partition": partitions}), TOPIC, keep)
    (sent,) = rig.sent_after_turn()
    rig.client.answer(sent, *(29 if partition == 1 else 0 for partition in sent.partitions), base_offset=100)
    rig.turn()
    if fold:
        report.fold()
        assert report.portions == []
    (failure,) = report.failures(0)
    assert (failure.error_code, failure.topic, failure.partition) == (29, TOPIC, 1)
    assert (failure.first_row, failure.last_row, failure.rows) == (2, 6, 3)
    assert report.exception(0) is failure.error
    assert report.too_large == ()
    assert [(one.partition, one.first_offset, one.last_offset, one.rows) for one in report.ranges(0)] == [
        (0, 100, 101, 2),
        (2, 100, 101, 2),
    ]
    assert_whole(rig.pool)


def test_errors_only_report_keeps_failures_and_drops_delivered_portions() -> None:
    rig = turning(leaders=(1, 1), slabs=8, max_request_size=2_000, max_in_flight_requests_per_connection=1)
    partitions = [row // 7 % 2 for row in range(20_000)]
    values = ["x" * 2_000 if row in (5, 19_000) else f"{row}-" + "v" * (row % 50) for row in range(20_000)]
    table = pa.table({"value": values, "partition": pa.array(partitions, pa.int32())})
    report = rig.producer.send_arrow(table, TOPIC, report="errors")
    assert len(report.portions) < 600  # of far more batches
    assert len(rig.client.sent) > 700
    rig.ack_all()
    assert [(one.partition, one.rows) for one in report.ranges(0)] == [
        (0, partitions.count(0) - 2),
        (1, partitions.count(1)),
    ]
    assert [failure.first_row for failure in report.failures(0)] == [5, 19_000]
    with pytest.raises(RecordTooLargeError, match=r"^2 of 20000 rows failed, .* lists them\)$"):
        report.result(0)
    with pytest.raises(ValueError, match="keeps no rows"):
        report.result(0, errors="return")
    assert_whole(rig.pool)


def test_error_of_a_batch_without_rows_of_the_call_is_not_reported() -> None:
    rig = Rig(linger_ms=0)
    full = rig.send(b"x" * (SLAB - 80))  # open, with room for none of the rows
    report = rig.producer.send_arrow(pa.record_batch({"value": ["y" * 500]}), TOPIC)
    full.batch.fail(NetworkError("not ours"))
    rig.accumulator.discard(full.batch)
    rig.ack_all()
    assert report.exception(0) is None
    assert report.result(0).error_code.tolist() == [0]


def test_acks_0_reports_no_offsets() -> None:
    rig = Rig(linger_ms=0, acks=0)
    report = rig.producer.send_arrow(pa.record_batch({"value": ["a", "b"]}), TOPIC)
    (sent,) = rig.sent_after_turn()
    rig.client.answer_with(sent, None)
    rig.turn()
    assert report.result(0).offset.tolist() == [-1, -1]
    assert report.result(0).error_code.tolist() == [0, 0]
    assert [(one.first_offset, one.last_offset, one.rows) for one in report.ranges(0)] == [(-1, -1, 2)]


def test_rows_between_records_of_send_get_their_own_offsets() -> None:
    rig = turning(slabs=8)
    reports, singles = [], []
    for number in range(40):
        singles.append((rig.send(b"single-%d" % number), b"single-%d" % number))
        values = [b"row-%d-%d" % (number, row) for row in range(7)]
        reports.append((rig.producer.send_arrow(pa.record_batch({"value": values}), TOPIC), values))
    rig.ack_all()
    log = rig.log[TOPIC, 0]
    for future, value in singles:
        assert log[future.result(0).offset].value == value
    for report, values in reports:
        assert [log[offset].value for offset in report.result(0).offset.tolist()] == values
        (one,) = report.ranges(0)
        assert one == OffsetRange(TOPIC, 0, one.first_offset, one.first_offset + 6, 7, one.bytes)
    assert_whole(rig.pool)


# ---- any data --------------------------------------------------------------------------------------------------------

texts = st.none() | st.text(max_size=30) | st.just("x" * 700)
blobs = st.none() | st.binary(max_size=30) | st.just(b"\xff" * 1_500)
row = st.fixed_dictionaries(
    {
        "value": blobs,
        "key": texts,
        "topic": st.sampled_from([TOPIC, TOPIC, "other"]),
        "partition": st.none() | st.integers(0, 2),
        "timestamp": st.none() | st.integers(0, 2**62),
        "headers": st.none() | st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3),
    }
)


@given(
    rows=st.lists(row, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=3),
    slabs=st.integers(8, 20),
    value_type=st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]),
    key_type=st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]),
    topic_type=st.sampled_from([pa.string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]),
    in_flight=st.sampled_from([1, 5]),
)
def test_any_table_arrives_as_the_report_says(
    rows: list[dict[str, Any]],
    cuts: list[int],
    slabs: int,
    value_type: pa.DataType,
    key_type: pa.DataType,
    topic_type: pa.DataType,
    in_flight: int,
) -> None:
    schema = pa.schema(
        [
            ("timestamp", pa.timestamp("ms")),
            ("headers", HEADERS),
            ("key", key_type),
            ("value", value_type),
            ("partition", pa.int32()),
            ("topic", topic_type),
        ]
    )
    whole = pa.RecordBatch.from_pylist([{"value": b"skipped"}, *rows], schema)
    bounds = [1, *sorted(min(cut, len(rows)) + 1 for cut in cuts), len(rows) + 1]
    table = pa.Table.from_batches([whole.slice(a, b - a) for a, b in pairwise(bounds)], schema)
    rig = turning(leaders=(1, 2, 1), slabs=slabs, max_in_flight_requests_per_connection=in_flight)
    rig.accumulator.topic_queues("other", [2, 1, 2])
    report = rig.producer.send_arrow(table)
    found = stored(rig, report, [one["topic"] for one in rows])
    result = report.result(0)
    for one, record, partition in zip(rows, found, result.partition.tolist(), strict=True):
        assert (record.key, record.value) == (as_bytes(one["key"]), one["value"])
        assert record.headers == (one["headers"] or [])
        assert one["timestamp"] in (None, record.timestamp)
        if one["partition"] is not None:
            assert partition == one["partition"]
        elif one["key"] is not None:
            assert partition == partition_for_key(one["key"].encode(), 3)
    ranges = {(one.topic, one.partition): one for one in report.ranges(0)}
    assert sum(one.rows for one in ranges.values()) == len(rows)
    for place, log in rig.log.items():
        assert (ranges[place].first_offset, ranges[place].last_offset) == (0, len(log) - 1)
