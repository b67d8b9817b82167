"""send_many: elements of sequences become the records that send() would make, with a report like send_arrow's."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkabuf.errors import (
    BufferExhaustedError,
    ClosedError,
    InvalidPartitionsError,
    InvalidTimestampError,
    KafkaError,
    RecordTooLargeError,
    SerializationError,
)
from kafkabuf.partitioner import partition_for_key
from rigs.producer import SLAB, TOPIC, Rig, assert_whole
from tests.append.arrow_support import stored, turning

ROW = b"row" + b"x" * 100

blobs = st.none() | st.binary(max_size=30) | st.just(b"x" * 700) | st.binary(max_size=9).map(bytearray)


@given(
    rows=st.lists(
        st.tuples(
            blobs,
            blobs,
            st.none() | st.lists(st.tuples(st.text(max_size=5), blobs), max_size=10),
            st.none() | st.integers(0, 2),
            st.none() | st.integers(0, 2**62),
        ),
        max_size=60,
    ),
    slabs=st.integers(9, 20),  # the largest record needs nine
    left_out=st.sets(st.integers(1, 4)),
)
def test_records_arrive_as_given(rows: list[Any], slabs: int, left_out: set[int]) -> None:
    rig = turning(leaders=(1, 2, 1), slabs=slabs)
    values, *others = ([row[n] for row in rows] for n in range(5))
    given_others: list[Any] = [None if n in left_out else column for n, column in enumerate(others, 1)]
    keys, headers, wanted_partitions, stamps = given_others
    report = rig.producer.send_many(TOPIC, values, keys, headers, wanted_partitions, stamps)
    found = stored(rig, report)
    partitions = report.result(0).partition.tolist()
    for row, record, partition in zip(rows, found, partitions, strict=True):
        value, key, pairs, wanted, stamp = (None if n in left_out else field for n, field in enumerate(row))
        assert (record.value, record.key) == (value, key)
        assert [(name, text) for name, text in pairs or []] == record.headers
        assert stamp in (None, record.timestamp)
        if wanted is not None:
            assert partition == wanted
        elif key is not None:
            assert partition == partition_for_key(bytes(key), 3)


def test_sequences_other_than_lists_are_accepted() -> None:
    rig = Rig()
    report = rig.producer.send_many(TOPIC, np.array([b"a", b"b"]), (b"k", None), partitions=np.zeros(2, np.int32))
    assert [(record.key, record.value) for record in stored(rig, report)] == [(b"k", b"a"), (None, b"b")]
    assert rig.producer.send_many(TOPIC, []).result(0).offset.tolist() == []


@pytest.mark.parametrize("values", ["abc", b"abc", bytearray(b"a"), {b"a": 1}, {b"a"}, None, 5, iter([b"a"])])
def test_values_that_are_no_sequence_are_refused(values: Any) -> None:
    rig = Rig()
    with pytest.raises(TypeError, match=f"values must be a list, .* found {type(values).__name__}"):
        rig.producer.send_many(TOPIC, values)
    assert_whole(rig.pool)


@pytest.mark.parametrize("name", ["keys", "headers", "partitions", "timestamps_ms"])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_lengths_that_differ_are_refused(name: str, length: int) -> None:
    rig = Rig()
    others: dict[str, Any] = {name: [None] * length}
    with pytest.raises(ValueError, match=f"{name} has {length} elements and values has 2"):
        rig.producer.send_many(TOPIC, [b"a", b"b"], **others)
    assert_whole(rig.pool)


BAD: dict[str, tuple[dict[str, list[Any]], type[KafkaError], str]] = {
    "value": ({"values": [b"a", b"b", "text"]}, SerializationError, "record 2: the value is a str"),
    "key": ({"keys": [b"a", None, 5]}, SerializationError, "record 2: the key is a int"),
    "memory": ({"values": [b"a", b"b", memoryview(b"abcd")[::2]]}, SerializationError, "record 2: .*contiguous"),
    "headers": ({"headers": [None, {}, 5]}, SerializationError, "record 2: headers must be pairs"),
    "partition": ({"partitions": [0, None, 9]}, InvalidPartitionsError, "record 2: partition 9 of topic"),
    "no partition": ({"partitions": [0, None, 0.5]}, InvalidPartitionsError, "record 2: a partition must be an int"),
    "negative": ({"partitions": [0, None, -1]}, InvalidPartitionsError, "record 2: partition -1"),
    "huge": ({"partitions": [0, None, 2**32]}, InvalidPartitionsError, "record 2: partition 4294967296"),
    "time": ({"timestamps_ms": [0, None, -1]}, InvalidTimestampError, "record 2: timestamp_ms must not be negative"),
    "no time": ({"timestamps_ms": [0, None, "now"]}, InvalidTimestampError, "record 2: timestamp_ms must be an int"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_only_elements_before_an_element_of_a_wrong_type_are_sent(name: str) -> None:
    arguments, kind, message = BAD[name]
    rig = Rig()
    with pytest.raises(kind, match=message) as raised:
        rig.producer.send_many(TOPIC, **({"values": [b"a", b"b", b"c"]} | arguments))
    assert raised.value.rows_queued == raised.value.report.rows == 2
    rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"a", b"b"]
    assert raised.value.report.result(0).offset.tolist() == [0, 1]
    assert_whole(rig.pool)


def test_serializers_are_called_once_for_each_element() -> None:
    seen: list[Any] = []

    def serializer(value: Any) -> bytes:
        seen.append(value)
        return str(value).encode()

    rig = turning(slabs=2, value_serializer=serializer, key_serializer=lambda key: b"%d" % key)
    values = [f"{number}" * 40 for number in range(100)]
    found = stored(rig, rig.producer.send_many(TOPIC, values, keys=list(range(100))))
    assert [(record.key, record.value) for record in found] == [
        (b"%d" % number, value.encode()) for number, value in enumerate(values)
    ]
    assert seen == values
    with pytest.raises(SerializationError, match=r"record 1: the key serializer raised TypeError") as raised:
        rig.producer.send_many(TOPIC, ["a", "b"], keys=[1, "no number"])
    assert raised.value.rows_queued == 1


def test_headers_of_iterators_survive_a_full_batch() -> None:
    rig = turning(slabs=2)
    headers = [iter([("h", b"%d" % number)]) for number in range(50)]
    found = stored(rig, rig.producer.send_many(TOPIC, [b"x" * 200] * 50, headers=headers))
    assert [record.headers for record in found] == [[("h", b"%d" % number)] for number in range(50)]


def test_record_that_is_too_large_is_reported_and_the_others_are_sent() -> None:
    rig = turning(max_request_size=2_000, slabs=2)
    report = rig.producer.send_many(TOPIC, [b"a", b"x" * 2_000, b"b"])
    rig.ack_all()
    assert report.result(0, errors="return").error_code.tolist() == [0, 10, 0]
    assert isinstance(report.exception(0), RecordTooLargeError)
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"a", b"b"]
    assert_whole(rig.pool)


def test_buffer_exhausted_error_reports_the_queued_records() -> None:
    rig = Rig(slabs=3, max_block_ms=50)
    with pytest.raises(BufferExhaustedError) as raised:
        rig.producer.send_many(TOPIC, [b"x" * (SLAB // 2)] * 10, report="errors")
    assert raised.value.rows_queued == 3
    assert not rig.queue().claimed
    rig.ack_all()
    assert [one.rows for one in raised.value.report.ranges(0)] == [3]
    assert_whole(rig.pool)


def test_records_keep_order_through_waits_for_memory() -> None:
    rig = turning(slabs=2, max_in_flight_requests_per_connection=1)
    values = [b"%d" % number + b"x" * (number % 400) for number in range(300)]
    report = rig.producer.send_many(TOPIC, values)
    assert rig.pool.waits_total > 10
    assert [record.value for record in stored(rig, report)] == values


def test_headers_are_refused_in_the_old_format() -> None:
    rig = Rig(record_magic=1)
    with pytest.raises(SerializationError, match=r"record 1: record\.magic is 1"):
        rig.producer.send_many(TOPIC, [b"a", b"b"], headers=[None, [("k", b"v")]])
    rig.ack_all()
    assert_whole(rig.pool)


def test_closed_producer_takes_no_records() -> None:
    rig = Rig()
    rig.producer._begin_close()
    with pytest.raises(ClosedError):
        rig.producer.send_many(TOPIC, [b"a"])


def test_callers_objects_are_released_exactly_once() -> None:
    rig = turning(slabs=4)
    value, key = bytearray(b"x" * 100), bytearray(b"k")
    for _ in range(3):
        stored_report = rig.producer.send_many(TOPIC, [value] * 50, [key] * 50, [[("h", value)]] * 50)
        rig.ack_all()
        value.append(0)  # not while its memory is held
        key.append(0)
    assert stored_report.rows == 150 // 3
    gc.collect()
    assert_whole(rig.pool)


def test_batch_that_another_sender_has_opened_stays_open() -> None:
    seen = 0

    def serialize(value: bytes) -> bytes:
        nonlocal seen
        seen += value == ROW
        if value == ROW and seen == 148:
            rig.producer.send(TOPIC, b"single", partition=0)
        return value

    rig = Rig(batch_size=16 * 1024, buffer_memory=1 << 20, linger_ms=60_000, value_serializer=serialize)
    rig.producer.send_many(TOPIC, [ROW] * 400, partitions=[0] * 400)
    assert sum(batch.count for batch in rig.incomplete()) == 401
    assert min(batch.count for batch in rig.incomplete()) > 1
