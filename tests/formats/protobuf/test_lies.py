"""Arrow memory that contradicts itself is refused for Protobuf's steps too, before a row is read; rows are bounded.

tests/formats/avro/test_lies.py has the lies that every format meets in the same way. These are about wrappers and
oneofs, whose steps have no column of their own, and about the lengths that Protobuf writes afterwards.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf.errors import RecordTooLargeError, SerializationError
from kafkabuf.formats import Protobuf
from rigs.arrow_abi import ArrowArray, Lying, child, ints
from rigs.producer import TOPIC, Rig, assert_whole
from tests.formats.protobuf.support import OPTIONAL, REPEATED, FieldProto, MessageProto, row_class

Lie = Callable[[ArrowArray], None]
INT32 = {"type": FieldProto.TYPE_INT32}
WRAPPER = {"type": FieldProto.TYPE_MESSAGE, "type_name": ".google.protobuf.Int64Value"}
ROW = {"type": FieldProto.TYPE_MESSAGE, "type_name": ".test.rows.Row"}


def message() -> Any:
    entry = MessageProto(name="MEntry", options={"map_entry": True})
    entry.field.add(name="key", number=1, label=OPTIONAL, type=FieldProto.TYPE_STRING)
    entry.field.add(name="value", number=2, label=OPTIONAL, **WRAPPER)
    return row_class(
        {"name": "w", **WRAPPER}, {"name": "l", **WRAPPER, "label": REPEATED},
        {"name": "m", "type": FieldProto.TYPE_MESSAGE, "type_name": ".test.rows.Row.MEntry", "label": REPEATED},
        {"name": "a", **INT32, "oneof_index": 0}, {"name": "b", **WRAPPER, "oneof_index": 0}, {"name": "r", **ROW},
        {"name": "p", **INT32, "label": REPEATED}, {"name": "s", "type": FieldProto.TYPE_STRING},
        {"name": "t", "type": FieldProto.TYPE_STRING, "label": REPEATED},
        oneof_decl=[{"name": "choice"}], nested_type=[entry],
    )  # fmt: skip


def batch() -> pa.RecordBatch:
    return pa.record_batch({
        "w": pa.array([1, None, 3]),
        "l": pa.array([[1], [], [2, 3]]),
        "m": pa.array([[("k", 1)], [], [("l", 2)]], pa.map_(pa.string(), pa.int64())),
        "a": pa.array([1, None, 3]),
        "b": pa.array([None, 5, None]),
        "r": pa.array([{"w": 1}, {"w": 2}, None]),
        "p": pa.array([[1, 2]] * 3, pa.list_(pa.int8(), 2)),
    })  # fmt: skip


W, L, M, A, B, R, P = range(7)


def put(where: tuple[int, ...], field: str, value: Any) -> Lie:
    return lambda array: setattr(child(array, *where), field, value)


def no_buffer(*where: int) -> Lie:
    def lie(array: ArrowArray) -> None:
        child(array, *where).buffers[1] = None

    return lie


LIES: dict[str, tuple[Lie, str]] = {
    "wrapper's rows": (put((W,), "length", 2), "'w' has 2 rows and should have 3"),
    "wrapper's numbers": (no_buffer(W), "'w' has 3 rows but a NULL pointer"),
    "wrapped items": (put((L, 0), "length", 2), r"'l\[\]' has 2 rows and should have 3"),
    "wrapped items' numbers": (no_buffer(L, 0), r"'l\[\]' has 3 rows but a NULL pointer"),
    "list's children": (put((L,), "n_children", 0), "'l' has the type list but 2 buffers and 0 children"),
    "wrapped values": (put((M, 0, 1), "length", 1), r"'m\{\}' has 1 rows and should have 2"),
    "wrapped values' numbers": (no_buffer(M, 0, 1), r"'m\{\}' has 2 rows but a NULL pointer"),
    "oneof's first": (no_buffer(A), "'a' has 3 rows but a NULL pointer"),
    "oneof's wrapper": (no_buffer(B), "'b' has 3 rows but a NULL pointer"),
    "wrapper in a struct": (no_buffer(R, 0), "'r.w' has 3 rows but a NULL pointer"),
    "wrapper's rows in a struct": (put((R, 0), "length", 1), "'r.w' has 1 rows and should have 3"),
    "packed items": (put((P, 0), "length", 5), r"'p\[\]' has 5 rows and should have 6"),
    "no children": (put((), "n_children", 6), "children"),
}


@pytest.mark.parametrize("name", LIES)
def test_malformed_column_is_refused_before_a_row_is_read(name: str) -> None:
    lie, expected = LIES[name]
    rig = Rig()
    with Lying(batch(), lie) as data, pytest.raises(SerializationError, match=expected) as raised:
        rig.producer.send_arrow(data, TOPIC, value_format=Protobuf(message()))
    assert raised.value.rows_queued == 0
    assert_whole(rig.pool)


def test_honest_columns_are_sent() -> None:
    """Without a lie, the rows of the tests above are valid."""
    assert len(Protobuf(message()).encode(batch())) == 3


@pytest.mark.parametrize("column", ["s", "t"])
def test_row_of_more_than_max_request_size_is_left_out(column: str) -> None:
    """A few bytes of indices stand for a gigabyte of values, or a struct holds a text that is too long."""
    if column == "t":
        values = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int8()), pa.array(["x" * 100_000]))
        rows = pa.record_batch({"t": pa.ListArray.from_arrays(pa.array([0, 10_000], pa.int32()), values)})
    else:
        rows = pa.record_batch({"r": pa.array([{"s": "x" * 2_000_000}])})
    rig = Rig()
    report = rig.producer.send_arrow(rows, TOPIC, value_format=Protobuf(message()))
    assert isinstance(report.exception(0), RecordTooLargeError)
    assert_whole(rig.pool)


def test_packed_list_of_countless_items_is_too_large() -> None:
    """The items are a dictionary's, whose indices take a byte each; a list of them is written until the row's limit."""
    items = pa.DictionaryArray.from_arrays(pa.array([0] * 3_000_000, pa.int8()), pa.array([-1]))
    rows = pa.record_batch({"p": pa.ListArray.from_arrays(pa.array([0, 3_000_000], pa.int32()), items)})
    rig = Rig()
    report = rig.producer.send_arrow(rows, TOPIC, value_format=Protobuf(message()))
    assert isinstance(report.exception(0), RecordTooLargeError)
    assert_whole(rig.pool)


def test_packed_list_of_copied_items_is_bounded_too() -> None:
    """The second list is a lie about its size, whose product with 8 bytes leaves 64 bits."""
    message = row_class({"name": "d", "type": FieldProto.TYPE_DOUBLE, "label": REPEATED})
    rows = pa.record_batch({"d": pa.array([[0.5] * 200_000], pa.large_list(pa.float64()))})

    def lie(array: ArrowArray) -> None:
        ints(child(array, 0), 1, ctypes.c_int64)[1] = 2**61
        child(array, 0, 0).length = 2**61

    for untrue in (lambda array: None, lie):
        rig = Rig()
        with Lying(rows, untrue) as data:
            report = rig.producer.send_arrow(data, TOPIC, value_format=Protobuf(message))
        assert isinstance(report.exception(0), RecordTooLargeError)
        assert_whole(rig.pool)


def test_list_of_countless_nulls_ends_at_the_first() -> None:
    def lie(array: ArrowArray) -> None:
        ints(child(array, 0), 1, ctypes.c_int64)[1] = 2**62
        child(array, 0, 0).length = 2**62

    rows = pa.record_batch({"t": pa.array([[None]], pa.large_list(pa.null()))})
    with (
        Lying(rows, lie) as data,
        pytest.raises(SerializationError, match=r"row 0: column 't\[\]' of type null is null"),
    ):
        Protobuf(message()).encode(data)
