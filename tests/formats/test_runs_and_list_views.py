"""Run-end encoded columns and list views: every format writes what it writes for the plain column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.type.money_pb2 import Money

from kafkabuf.errors import SerializationError
from kafkabuf.formats import Avro, Json, Protobuf
from rigs.arrow_abi import ArrowArray, Lying, child, ints

RUNS = {
    "numbers": pa.array([1, 1, 1, 2, None, None, 7]),
    "text": pa.array(["a", "a", None, "b", "b", "b", "c"]),
    "views": pa.array(["longer than a view holds"] * 3 + [None, "b", "b", "c"], pa.string_view()),
    "structs": pa.array([{"f": 1}, {"f": 1}, None, {"f": None}, {"f": 2}, {"f": 2}, {"f": 2}]),
    "lists": pa.array([[1], [1], None, [], [2, 3], [2, 3], [4]]),
    "all null": pa.array([None] * 7, pa.int64()),
    "one": pa.array([True] * 7),
}


def encoded_runs(column: pa.Array, width: pa.DataType) -> pa.Array:
    """As pc.run_end_encode, for types that it does not take."""
    ends: list[int] = []
    starts: list[int] = []
    rows = column.to_pylist()
    for row, value in enumerate(rows):
        if row == 0 or value != rows[row - 1]:
            starts.append(row)
        else:
            ends.pop()
        ends.append(row + 1)
    return pa.RunEndEncodedArray.from_arrays(
        pa.array(ends, width), pa.array([rows[row] for row in starts], column.type)
    )


def texts(format: Any, column: pa.Array) -> list[bytes | None]:
    encoded: list[bytes | None] = format.encode(pa.table({"c": column}))
    return encoded


@pytest.mark.parametrize("width", [pa.int16(), pa.int32(), pa.int64()])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("format", [Avro(), Json()])
def test_run_end_encoded_column_is_written_as_its_rows(format: Any, name: str, width: pa.DataType) -> None:
    column = encoded_runs(RUNS[name], width)
    assert pa.types.is_run_end_encoded(column.type)
    for first in range(7):
        for size in (1, 3, 7):
            part = slice(first, first + size)
            assert texts(format, column[part]) == texts(format, RUNS[name][part])


def test_runs_of_arrows_own_encoder_are_read_in_chunks() -> None:
    plain = pa.chunked_array([[5, 5, 6], [6, 6], [None, None, 5]])
    encoded = pa.chunked_array([pc.run_end_encode(chunk) for chunk in plain.chunks])
    assert Json().encode(pa.table({"c": encoded})) == Json().encode(pa.table({"c": plain}))


@pytest.mark.parametrize("format", [Avro(), Json()])
def test_runs_lie_below_other_columns(format: Any) -> None:
    runs = encoded_runs(RUNS["text"], pa.int32())
    mask = pa.array([False, True, False, False, True, False, False])
    offsets = pa.array([0, 2, 2, 5, 7], pa.int32())
    for plain, encoded in (
        (pa.StructArray.from_arrays([each], ["f"], mask=mask) for each in (RUNS["text"], runs)),
        (pa.ListArray.from_arrays(offsets, each) for each in (RUNS["text"], runs)),
    ):
        assert texts(format, encoded) == texts(format, plain)
        assert texts(format, encoded[2:]) == texts(format, plain[2:])


def test_protobuf_takes_runs_and_list_views() -> None:
    prices = {"currency_code": pa.array(["EUR", "EUR", None]), "units": pa.array([1, 1, 2])}
    runs = {name: encoded_runs(column, pa.int32()) for name, column in prices.items()}
    assert Protobuf(Money).encode(pa.table(runs)) == Protobuf(Money).encode(pa.table(prices))
    views = pa.ListViewArray.from_arrays(pa.array([1, 0], pa.int32()), pa.array([2, 1], pa.int32()), ["a", "b", "c"])
    masks = [FieldMask.FromString(value or b"") for value in Protobuf(FieldMask).encode(pa.table({"paths": views}))]
    assert [list(mask.paths) for mask in masks] == [["b", "c"], ["a"]]


def test_run_end_encoded_dictionary_is_refused() -> None:
    values = pa.array(["a", "b"]).dictionary_encode()
    column = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), values)
    for format in (Avro(), Json()):
        with pytest.raises(SerializationError, match="run_end_encoded"):
            texts(format, column)


VIEWS = {
    "in order": ([0, 2, 2], [2, 0, 3], None),
    "backwards": ([3, 0, 1], [2, 2, 1], None),
    "in common": ([0, 0, 1], [5, 5, 4], None),
    "null with odd places": ([0, 99, 1], [5, -7, 4], [False, True, False]),
    "all empty": ([0, 3, 1], [0, 0, 0], None),
}
ITEMS = [1, 2, None, 4, 5]


@pytest.mark.parametrize("format", [Avro(), Json()])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_list_view_is_written_as_its_lists(format: Any, name: str, large: bool) -> None:
    offsets, sizes, mask = VIEWS[name]
    kind, width = (pa.LargeListViewArray, pa.int64()) if large else (pa.ListViewArray, pa.int32())
    nulls: Any = {} if mask is None else {"mask": pa.array(mask)}
    column = kind.from_arrays(pa.array(offsets, width), pa.array(sizes, width), pa.array(ITEMS), **nulls)
    rows = [
        None if mask is not None and mask[row] else ITEMS[begin : begin + size]
        for row, (begin, size) in enumerate(zip(offsets, sizes, strict=True))
    ]
    plain = pa.array(rows, pa.list_(pa.int64()))
    for first in range(3):
        assert texts(format, column[first:]) == texts(format, plain[first:])


def test_list_view_below_a_null_struct_is_not_read() -> None:
    views = pa.ListViewArray.from_arrays(pa.array([0, 99], pa.int32()), pa.array([2, 5], pa.int32()), pa.array(ITEMS))
    for mask, expected in (([False, True], [b'{"c":{"f":[1,2]}}', b'{"c":null}']), ([False, False], None)):
        column = pa.StructArray.from_arrays([views], ["f"], mask=pa.array(mask))
        if expected is not None:
            assert texts(Json(), column) == expected
        else:
            with pytest.raises(SerializationError, match=r"'c\.f\[\]' has 5 rows and should have 104"):
                texts(Json(), column)


# ---- memory that contradicts itself ----------------------------------------------------------------------------------


def lying() -> pa.RecordBatch:
    views = pa.ListViewArray.from_arrays(pa.array([0, 2], pa.int32()), pa.array([2, 3], pa.int32()), pa.array(ITEMS))
    return pa.record_batch({"r": encoded_runs(pa.array([1, 2]), pa.int32()), "v": views})


def put(path: tuple[int, ...], buffer: int, index: int, value: int) -> Callable[[ArrowArray], None]:
    return lambda array: ints(child(array, *path), buffer).__setitem__(index, value)


LIES: dict[str, tuple[Callable[[ArrowArray], None], str]] = {
    "run that ends before it begins": (put((0, 0), 1, 1, 1), "'r' has a run that ends at 1 after one that ends at 1"),
    "run without rows": (put((0, 0), 1, 0, 0), "'r' has a run that ends at 0"),
    "negative run": (put((0, 0), 1, 0, -1), "'r' has a run that ends at -1"),
    "too few runs": (lambda array: setattr(child(array, 0, 0), "length", 1), "'r' has runs that end at row 1"),
    "too few values": (lambda array: setattr(child(array, 0, 1), "length", 1), "'r' has 1 rows and should have 2"),
    "no values": (lambda array: setattr(child(array, 0), "n_children", 1), "children"),
    "no run ends": (lambda array: child(array, 0, 0).buffers.__setitem__(1, None), "'r' has 2 rows but a NULL pointer"),
    "negative offset": (put((1,), 1, 1, -1), "'v' has a list of 3 items at -1"),
    "negative size": (put((1,), 2, 1, -1), "'v' has a list of -1 items at 2"),
    "list behind the items": (put((1,), 2, 1, 4), r"'v\[\]' has 5 rows and should have 6"),
    "no sizes": (lambda array: child(array, 1).buffers.__setitem__(2, None), "no buffer of sizes"),
    "two buffers": (lambda array: setattr(child(array, 1), "n_buffers", 2), "'v' has the type .* but 2 buffers"),
}


@pytest.mark.parametrize("name", LIES)
def test_malformed_runs_and_views_are_refused_before_a_row_is_read(name: str) -> None:
    lie, message = LIES[name]
    for format in (Avro(), Json()):
        with Lying(lying(), lie) as data, pytest.raises(SerializationError, match=message):
            format.encode(data)
