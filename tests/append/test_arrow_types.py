"""send_arrow: which columns of which types become which fields of records, in whatever shape the data comes."""

from __future__ import annotations

import datetime
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kafkabuf.errors import (
    BufferExhaustedError,
    InvalidTimestampError,
    InvalidTopicError,
    SerializationError,
)
from kafkabuf.partitioner import partition_for_key
from rigs.producer import TOPIC, Rig, assert_whole
from tests.append.arrow_support import BYTES, HEADERS, TEXTS, as_bytes, stored, turning

# ---- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value_type", BYTES)
@pytest.mark.parametrize("key_type", BYTES)
def test_bytes_nulls_and_empty_values_stay_different(key_type: pa.DataType, value_type: pa.DataType) -> None:
    rig = Rig(leaders=(1, 1))
    batch = pa.record_batch(
        {"value": pa.array(TEXTS, value_type), "other": range(7), "key": pa.array(TEXTS[::-1], key_type)}
    )
    found = stored(rig, rig.producer.send_arrow(batch, TOPIC))
    assert [record.value for record in found] == [as_bytes(text) for text in TEXTS]
    assert [record.key for record in found] == [as_bytes(text) for text in TEXTS[::-1]]
    now = rig.clock.time_ms()
    assert all(now - 1000 <= record.timestamp <= now and record.headers == [] for record in found)


def test_keys_choose_the_same_partitions_as_with_send() -> None:
    rig = Rig(leaders=[1] * 7)
    keys = [b"%d" % number for number in range(100)]
    report = rig.producer.send_arrow(pa.record_batch({"value": keys, "key": keys}), TOPIC)
    rig.ack_all()
    assert report.result(0).partition.tolist() == [partition_for_key(key, 7) for key in keys]


def test_ignored_keys_do_not_choose_the_partition() -> None:
    rig = Rig(leaders=[1] * 7, partitioner_ignore_keys=True)
    keys = [b"%d" % number for number in range(5)]
    report = rig.producer.send_arrow(pa.record_batch({"value": keys, "key": keys}), TOPIC)
    assert [record.key for record in stored(rig, report)] == keys
    assert len(set(report.result(0).partition.tolist())) == 1


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (0, 7), (1, 6), (3, 2), (6, 1), (7, 0)])
@pytest.mark.parametrize("value_type", BYTES)
def test_slice_is_read_within_its_bounds(value_type: pa.DataType, offset: int, length: int) -> None:
    rig = Rig(leaders=(1, 1, 1))
    partitions = [0, 1, 2, None, 1, 0, 2]
    stamps = [10, 11, None, 13, 14, 15, 16]
    headers = [[("h", b"%d" % row)] * row for row in range(7)]
    batch = pa.record_batch(
        {
            "value": pa.array(TEXTS, value_type),
            "partition": pa.array(partitions, pa.int32()),
            "timestamp": pa.array(stamps, pa.timestamp("ms")),
            "headers": pa.array(headers, HEADERS),
        }
    )
    report = rig.producer.send_arrow(batch.slice(offset, length), TOPIC)
    found = stored(rig, report)
    rows = slice(offset, offset + length)
    assert report.rows == length
    assert [record.value for record in found] == [as_bytes(text) for text in TEXTS[rows]]
    assert [record.headers for record in found] == headers[rows]
    for record, place, stamp, partition in zip(
        found, report.result(0).partition.tolist(), stamps[rows], partitions[rows], strict=True
    ):
        assert stamp in (None, record.timestamp)
        assert partition in (None, place)


def test_slices_of_columns_and_of_slices_keep_their_rows() -> None:
    rig = Rig()
    value = pa.array([None, "skip", "a", None, "b", "skip"]).slice(1).slice(1, 3)
    batch = pa.RecordBatch.from_arrays([value, pa.array(["k0", "k1", None, "k2"]).slice(1)], ["value", "key"])
    found = stored(rig, rig.producer.send_arrow(batch.slice(1), TOPIC))
    assert [(record.value, record.key) for record in found] == [(None, None), (b"b", b"k2")]
    struct = pa.StructArray.from_arrays([pa.array(["w", "x", "y", "z"]).slice(1)], ["value"]).slice(1)
    rig = Rig()
    report = rig.producer.send_arrow(struct, TOPIC)
    assert [record.value for record in stored(rig, report)] == [b"y", b"z"]


@pytest.mark.parametrize("list_type", [pa.list_, pa.large_list])
@pytest.mark.parametrize("key_type", [pa.string(), pa.large_string(), pa.string_view()])
@pytest.mark.parametrize("value_type", BYTES)
def test_headers_keep_order_nulls_and_their_row(list_type: Any, key_type: pa.DataType, value_type: pa.DataType) -> None:
    rig = Rig()
    rows: list[list[tuple[str, str | None]] | None] = [
        [("a", "1"), ("a", "2"), ("", "")],
        None,
        [],
        [("é" * 30, "x" * 200), ("n", None)],
        [("last", "row")],
    ]
    column = pa.array(rows, list_type(pa.struct([("key", key_type), ("value", value_type)])))
    for start in range(5):
        rig = Rig()
        batch = pa.RecordBatch.from_arrays([pa.array(["v"] * 5), column], ["value", "headers"]).slice(start)
        found = stored(rig, rig.producer.send_arrow(batch, TOPIC))
        assert [record.headers for record in found] == [
            [(key, as_bytes(value)) for key, value in row or []] for row in rows[start:]
        ]


def test_headers_of_sliced_items_keep_their_rows() -> None:
    rig = Rig()
    keys, values = pa.array(["no", "no", "a", "b", "c"]), pa.array([b"no", b"no", b"1", None, b"3"], pa.binary())
    items = pa.StructArray.from_arrays([keys.slice(1), values.slice(1)], ["key", "value"]).slice(1)
    column = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), items)
    batch = pa.RecordBatch.from_arrays([pa.array(["v"] * 3), column], ["value", "headers"])
    found = stored(rig, rig.producer.send_arrow(batch, TOPIC))
    assert [record.headers for record in found] == [[("a", b"1"), ("b", None)], [], [("c", b"3")]]


def test_headers_are_bound_by_the_names_of_their_fields_in_either_order() -> None:
    rig = Rig()
    rows = [[{"key": "name", "value": "text"}], [], [{"key": "a", "value": None}, {"key": "b", "value": ""}]]
    column = pa.array(rows, pa.list_(pa.struct([("value", pa.string()), ("key", pa.string())])))
    found = stored(rig, rig.producer.send_arrow(pa.record_batch({"value": ["v"] * 3, "headers": column}), TOPIC))
    assert [record.headers for record in found] == [[("name", b"text")], [], [("a", None), ("b", b"")]]


@pytest.mark.parametrize("names", [("k", "v"), ("key", "Value"), ("key", "key"), ("name", "value"), ("", "")])
def test_headers_whose_struct_lacks_a_key_or_a_value_are_refused(names: tuple[str, str]) -> None:
    rig = Rig()
    items = pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], names)
    column = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), items)
    message = rf"column 'headers' has a struct of the fields '{names[0]}' and '{names[1]}'; allowed: list<struct<key: "
    with pytest.raises(SerializationError, match=message) as raised:
        rig.producer.send_arrow(pa.record_batch({"value": ["v"], "headers": column}), TOPIC)
    assert raised.value.rows_queued == 0
    assert_whole(rig.pool)


def test_header_without_a_key_is_refused() -> None:
    rig = Rig()
    column = pa.array([[("k", b"")], [(None, b"v")]], HEADERS)
    with pytest.raises(SerializationError, match=r"row 1: .*key") as raised:
        rig.producer.send_arrow(pa.record_batch({"value": ["a", "b"], "headers": column}), TOPIC)
    assert raised.value.rows_queued == 1
    rig.ack_all()
    assert_whole(rig.pool)


INDICES = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]


@pytest.mark.parametrize("index_type", INDICES)
@pytest.mark.parametrize("value_type", [pa.string(), pa.large_string(), pa.string_view()])
def test_dictionary_encoded_columns_are_decoded(index_type: pa.DataType, value_type: pa.DataType) -> None:
    rig = Rig(leaders=(1,))
    rig.accumulator.topic_queues("other", [1])
    topics = pa.array(["no topic", None, TOPIC, "other", "x" * 30], value_type).slice(1)
    keys = pa.array(["no", "k" * 20, None, "l"], value_type).slice(1)
    topic = pa.DictionaryArray.from_arrays(pa.array([3, None, 1, 2, 2, 1], index_type).slice(1), topics)
    key = pa.DictionaryArray.from_arrays(pa.array([0, 0, 0, None, 1, 2], index_type).slice(1), keys)
    values = pa.array(["-", "a", "b", "c", "d"])
    batch = pa.RecordBatch.from_arrays([topic, key, values], ["topic", "key", "value"]).slice(1)
    report = rig.producer.send_arrow(batch)
    found = stored(rig, report, [TOPIC, "other", "other", TOPIC])
    assert [record.value for record in found] == [b"a", b"b", b"c", b"d"]
    assert [record.key for record in found] == [b"k" * 20, None, None, b"l"]


@pytest.mark.parametrize("indices", [[1, None], [1, 0]])
def test_null_topic_in_a_dictionary_is_refused(indices: list[int | None]) -> None:
    rig = Rig()
    topic = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), pa.array([None, TOPIC]))
    with pytest.raises(InvalidTopicError, match="row 1: there is no topic") as raised:
        rig.producer.send_arrow(pa.record_batch({"topic": topic, "value": ["a", "b"]}))
    assert raised.value.rows_queued == 1


@pytest.mark.parametrize("view_type", [pa.binary_view(), pa.string_view()])
def test_rows_of_views_keep_order_through_waits_for_memory(view_type: pa.DataType) -> None:
    rig = turning(slabs=2, max_in_flight_requests_per_connection=1)
    values = [f"{row}-" + "x" * (row % 300) for row in range(300)]
    report = rig.producer.send_arrow(pa.table({"value": pa.array(values, view_type)}), TOPIC)
    assert rig.pool.waits_total > 10
    assert [record.value for record in stored(rig, report)] == [value.encode() for value in values]
    rig = Rig(slabs=3, max_block_ms=50)  # whose broker is stalled
    with pytest.raises(BufferExhaustedError) as raised:
        rig.producer.send_arrow(pa.table({"value": pa.array(["x" * 600] * 10, view_type)}), TOPIC)
    assert raised.value.rows_queued == raised.value.report.rows == 3
    rig.ack_all()
    assert raised.value.report.result(0).offset.tolist() == [0, 1, 2]
    assert_whole(rig.pool)


@pytest.mark.parametrize(("unit", "per_ms"), [("s", None), ("ms", 1), ("us", 1_000), ("ns", 1_000_000)])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_timestamp_of_any_unit_becomes_milliseconds(unit: str, per_ms: int | None, zone: str | None) -> None:
    rig = Rig()
    raw = [0, 1, 999, 1_600_000_000, None, 1_700_000_000_123]
    batch = pa.record_batch({"value": ["v"] * 6, "timestamp": pa.array(raw, pa.int64()).cast(pa.timestamp(unit, zone))})
    now = rig.clock.time_ms()
    found = stored(rig, rig.producer.send_arrow(batch, TOPIC))
    assert [record.timestamp for record in found] == [
        now if value is None else value * 1000 if per_ms is None else value // per_ms for value in raw
    ]


@pytest.mark.parametrize(("unit", "value"), [("s", -1), ("ms", -1), ("us", -1), ("ns", -1), ("us", -1_001)])
def test_time_before_1970_is_refused(unit: str, value: int) -> None:
    rig = Rig()
    stamps = pa.array([5, value], pa.timestamp(unit))
    with pytest.raises(InvalidTimestampError, match="row 1") as raised:
        rig.producer.send_arrow(pa.record_batch({"value": ["a", "b"], "timestamp": stamps}), TOPIC)
    assert raised.value.rows_queued == 1
    rig.ack_all()
    assert len(rig.log[TOPIC, 0]) == 1
    assert_whole(rig.pool)


def test_seconds_that_overflow_milliseconds_are_refused() -> None:
    rig = Rig()
    stamps = pa.array([2**62], pa.timestamp("s"))
    with pytest.raises(InvalidTimestampError, match="row 0"):
        rig.producer.send_arrow(pa.record_batch({"value": ["a"], "timestamp": stamps}), TOPIC)
    assert_whole(rig.pool)


def test_report_has_the_brokers_log_append_time() -> None:
    rig = Rig(linger_ms=0)
    report = rig.producer.send_arrow(pa.record_batch({"value": ["a", "b"]}), TOPIC)
    (sent,) = rig.sent_after_turn()
    rig.client.answer(sent, base_offset=7, log_append_time=1_700_000_000_000)
    rig.turn()
    assert report.result(0).timestamp.tolist() == [1_700_000_000_000] * 2
    assert report.result(0).offset.tolist() == [7, 8]


# ---- shapes of data --------------------------------------------------------------------------------------------------


def test_chunks_of_a_table_or_stream_are_sent_once_and_in_order() -> None:
    values = [b"%d" % row for row in range(500)]
    batches = [pa.record_batch({"value": values[start : start + 50]}) for start in range(0, 500, 50)]
    batches.insert(3, batches[0].slice(0, 0))
    table = pa.Table.from_batches(batches)
    for data in (
        table,
        table.to_reader(),
        pa.RecordBatchReader.from_batches(table.schema, iter(batches)),
        table.combine_chunks(),
    ):
        rig = turning(leaders=(1, 1), slabs=4)
        report = rig.producer.send_arrow(data, TOPIC)
        assert report.rows == 500
        assert [record.value for record in stored(rig, report)] == values


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_data_without_rows_gives_an_empty_report(chunks: int) -> None:
    rig = Rig()
    empty = pa.record_batch({"value": pa.array([], pa.string())})
    report = rig.producer.send_arrow(pa.Table.from_batches([empty] * chunks, empty.schema), TOPIC)
    assert report.rows == 0
    assert report.done()
    assert [len(column) for column in report.result(0)] == [0, 0, 0, 0]
    assert [column.dtype for column in report.result(0)] == [np.int32, np.int64, np.int64, np.int16]
    assert (report.ranges(0), report.exception(0)) == ((), None)
    assert_whole(rig.pool)


def test_arrow_data_is_released() -> None:
    gc.collect()  # what earlier tests left
    before = pa.total_allocated_bytes()
    rig = turning(slabs=64)
    for _ in range(20):
        table = pa.table({"value": pa.array(["x" * 100] * 100)})
        rig.producer.send_arrow(table, TOPIC)
        rig.producer.send_arrow(table.to_batches()[0], TOPIC)
        with pytest.raises(SerializationError):
            rig.producer.send_arrow(table.rename_columns(["nothing"]), TOPIC)
    del table
    gc.collect()
    assert pa.total_allocated_bytes() <= before


def test_error_of_the_stream_is_raised() -> None:
    schema = pa.schema([("value", pa.string())])

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": ["a", "b"]}, schema)
        raise OSError("the disk is gone")

    rig = Rig()
    with pytest.raises(SerializationError, match=r"stream failed: .*the disk is gone") as raised:
        rig.producer.send_arrow(pa.RecordBatchReader.from_batches(schema, batches()), TOPIC)
    assert raised.value.rows_queued == raised.value.report.rows == 2
    rig.ack_all()
    assert len(rig.log[TOPIC, 0]) == 2
    assert raised.value.report.result(0).offset.tolist() == [0, 1]
    assert_whole(rig.pool)


def headers_of(item: tuple[Any, ...], *fields: tuple[str, pa.DataType]) -> pa.Array:
    return pa.array([[item]], pa.list_(pa.struct(fields)))


REFUSED: dict[str, tuple[Any, str]] = {
    "no value": ({"key": ["a"]}, "column 'value' is missing; found: key"),
    "int value": ({"value": [1]}, "column 'value' has the type int64; allowed: string, .*, binary"),
    "double key": ({"value": ["a"], "key": [1.5]}, "column 'key' has the type double"),
    "null value": ({"value": pa.nulls(1)}, "column 'value' has the type null"),
    "dictionary": ({"value": pa.array([5]).dictionary_encode()}, "column 'value' has the type int64; allowed: string"),
    "dictionary partition": (
        {"value": ["a"], "partition": pa.array([5], pa.int32()).dictionary_encode()},
        "column 'partition' has the type dictionary<int32>; allowed: int32",
    ),
    "dictionary timestamp": (
        {"value": ["a"], "timestamp": pa.array([5], pa.timestamp("ms")).dictionary_encode()},
        "column 'timestamp' has the type dictionary<timestamp.m.>; allowed: timestamp",
    ),
    "list of views": (
        {"value": ["a"], "headers": pa.array([[]], pa.list_view(pa.string()))}, "column 'headers' has the type .*vl"
    ),
    "fixed size": ({"value": pa.array([b"ab"], pa.binary(2))}, "column 'value' has the type .*w:2"),
    "binary topic": ({"value": ["a"], "topic": [b"t"]}, "column 'topic' has the type binary; allowed: string"),
    "int64 partition": ({"value": ["a"], "partition": [1]}, "column 'partition' has the type int64; allowed: int32"),
    "date": ({"value": ["a"], "timestamp": [datetime.date(2020, 1, 1)]}, "column 'timestamp' has the type date32"),
    "int timestamp": ({"value": ["a"], "timestamp": [5]}, "column 'timestamp' has the type int64"),
    "string headers": ({"value": ["a"], "headers": ["h"]}, "column 'headers' has the type string; .*list<struct"),
    "map headers": (
        {"value": ["a"], "headers": pa.array([[("k", b"v")]], pa.map_(pa.string(), pa.binary()))},
        "column 'headers' has the type .*map|column 'headers' has the type .*\\+m",
    ),
    "headers of strings": ({"value": ["a"], "headers": [["h"]]}, "column 'headers' has the type string"),
    "header of three": (
        {"value": ["a"], "headers": headers_of((1, 2, 3), ("a", pa.int8()), ("b", pa.int8()), ("c", pa.int8()))},
        "column 'headers' has the type struct",
    ),
    "int header": (
        {"value": ["a"], "headers": headers_of(("a", 1), ("key", pa.string()), ("value", pa.int8()))},
        "column 'headers.value' has the type int8",
    ),
    "binary header key": (
        {"value": ["a"], "headers": headers_of((b"a", b""), ("key", pa.binary()), ("value", pa.binary()))},
        "column 'headers.key' has the type binary; allowed: string",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_column_of_a_wrong_type_is_refused(name: str) -> None:
    columns, message = REFUSED[name]
    rig = Rig()
    with pytest.raises(SerializationError, match=message) as raised:
        rig.producer.send_arrow(pa.table(columns), TOPIC)
    assert raised.value.rows_queued == 0
    assert_whole(rig.pool)


def test_two_columns_of_one_name_are_refused() -> None:
    rig = Rig()
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["value", "value", "value"])
    with pytest.raises(SerializationError, match="two columns 'value'"):
        rig.producer.send_arrow(table, TOPIC)
    others = pa.Table.from_arrays([pa.array(["a"]), pa.array([1]), pa.array([2])], ["value", "other", "other"])
    assert [record.value for record in stored(rig, rig.producer.send_arrow(others, TOPIC))] == [b"a"]


@pytest.mark.parametrize("data", [None, 5, "value", b"value", [b"value"], {"value": ["a"]}])
def test_data_that_is_not_arrow_is_refused(data: Any) -> None:
    rig = Rig()
    with pytest.raises(SerializationError, match=f"PyCapsule interface .*found {type(data).__name__}"):
        rig.producer.send_arrow(data, TOPIC)


def test_array_that_is_no_table_is_refused() -> None:
    rig = Rig()
    with pytest.raises(SerializationError, match="give a table or a record batch, found Arrow data of type string"):
        rig.producer.send_arrow(pa.array(["a"]), TOPIC)


def test_headers_are_refused_in_the_old_format() -> None:
    rig = Rig(record_magic=1)
    batch = pa.record_batch({"value": ["a", "b"], "headers": pa.array([[], [("k", b"v")]], HEADERS)})
    with pytest.raises(SerializationError, match=r"row 1: record\.magic is 1") as raised:
        rig.producer.send_arrow(batch, TOPIC)
    assert raised.value.rows_queued == 1
    rig.ack_all()
    assert_whole(rig.pool)
