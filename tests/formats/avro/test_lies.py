"""Arrow memory that contradicts itself is refused before a row is read, at each level of nested columns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf.errors import RecordTooLargeError, SerializationError
from kafkabuf.formats import Avro
from rigs.arrow_abi import ArrowArray, ArrowSchema, Lying, _get_pointer, child, ints
from rigs.producer import TOPIC, Rig, assert_whole

Lie = Callable[[ArrowArray], None]


def batch() -> pa.RecordBatch:
    return pa.record_batch({
        "n": pa.array([1, 2, None]),
        "s": pa.array(["a", "b", "c"]),
        "l": pa.array([["x"], [], ["y", "z"]]),
        "m": pa.array([[("k", 1)], [], [("l", 2)]], pa.map_(pa.string(), pa.int32())),
        "r": pa.array([{"a": [1]}, {"a": [2]}, {"a": []}]),
        "f": pa.array([[1, 2]] * 3, pa.list_(pa.int8(), 2)),
        "d": pa.array(["u", "v", "u"]).dictionary_encode(),
        "v": pa.array(["longer than a view holds"] * 3, pa.string_view()),
        "b": pa.array([b"12"] * 3, pa.binary(2)),
        "z": pa.nulls(3),
    })  # fmt: skip


N, S, L, M, R, F, D, V, B, Z = range(10)


def put(where: Callable[[ArrowArray], Any], what: Any, value: Any) -> Lie:
    def lie(array: ArrowArray) -> None:
        if isinstance(what, str):
            setattr(where(array), what, value)
        else:
            where(array)[what] = value

    return lie


def at(*path: int) -> Callable[[ArrowArray], ArrowArray]:
    return lambda array: child(array, *path)


LIES: dict[str, tuple[Lie, str]] = {
    "table's rows": (put(at(), "length", 4), "'n' has 3 rows and should have 4"),
    "table's offset": (put(at(), "offset", 1), "'n' has 3 rows and should have 4"),
    "no children": (put(at(), "n_children", 9), "children"),
    "number's rows": (put(at(N), "length", 2), "'n' has 2 rows and should have 3"),
    "number's buffers": (put(at(N), "n_buffers", 3), "'n' has the type int64 but 3 buffers"),
    "no numbers": (put(lambda a: child(a, N).buffers, 1, None), "'n' has 3 rows but a NULL pointer"),
    "no validity": (put(lambda a: child(a, N).buffers, 0, None), "'n' has 1 nulls but no validity"),
    "offset that overflows": (put(at(N), "offset", 2**63 - 2), "'n' has 3 rows at offset"),
    "negative offset": (put(at(N), "offset", -1), "at offset -1"),
    "text's offsets": (put(lambda a: ints(child(a, S), 1), 1, 9), "'s' has offsets that are negative or run backwards"),
    "list's offsets": (put(lambda a: ints(child(a, L), 1), 1, 9), "'l' has offsets"),
    "list's negative offset": (put(lambda a: ints(child(a, L), 1), 0, -1), "'l' has offsets"),
    "list's last offset": (put(lambda a: ints(child(a, L), 1), 3, 9), r"'l\[\]' has 3 rows and should have 9"),
    "items' rows": (put(at(L, 0), "length", 2), r"'l\[\]' has 2 rows and should have 3"),
    "items' offset": (put(at(L, 0), "offset", 2**63 - 3), r"'l\[\]' has 3 rows at offset"),
    "items' offsets": (put(lambda a: ints(child(a, L, 0), 1), 1, 9), r"'l\[\]' has offsets"),
    "list's children": (put(at(L), "n_children", 0), "'l' has the type list but 2 buffers and 0 children"),
    "no list's children": (put(at(L), "children", None), "'l' has a NULL pointer for its buffers or children"),
    "map's offsets": (put(lambda a: ints(child(a, M), 1), 2, 0), "'m' has offsets"),
    "entries' rows": (put(at(M, 0), "length", 1), "'m' has 1 rows and should have 2"),
    "keys' rows": (put(at(M, 0, 0), "length", 1), r"'m\{key\}' has 1 rows and should have 2"),
    "values' rows": (put(at(M, 0, 1), "length", 1), r"'m\{\}' has 1 rows and should have 2"),
    "entries' offset": (put(at(M, 0), "offset", 2**63 - 1), "'m' has 2 rows at offset"),
    "struct's rows": (put(at(R), "length", 2), "'r' has 2 rows and should have 3"),
    "struct's offset": (put(at(R), "offset", 1), "'r.a' has 3 rows and should have 4"),
    "part's offsets": (put(lambda a: ints(child(a, R, 0), 1), 1, -9), "'r.a' has offsets"),
    "fixed list's items": (put(at(F, 0), "length", 5), r"'f\[\]' has 5 rows and should have 6"),
    "fixed list's offset": (put(at(F), "offset", 2**62), r"'f' has"),
    "index": (put(lambda a: ints(child(a, D), 1), 2, 2), "'d' has index 2 into a dictionary of 2 values"),
    "negative index": (put(lambda a: ints(child(a, D), 1), 1, -1), "'d' has index -1"),
    "no dictionary": (put(at(D), "dictionary", None), "'d' has no integer indices, or no dictionary"),
    "dictionary's rows": (put(lambda a: child(a, D).dictionary.contents, "length", -1), "'d' has -1 rows"),
    "view": (put(lambda a: ints(child(a, V), 1), 2, 7), "'v' has a view of 24 bytes that lies in none"),
    "fixed bytes": (put(lambda a: child(a, B).buffers, 1, None), "'b' has 3 rows but a NULL pointer"),
    "null type's rows": (put(at(Z), "length", 2), "'z' has 2 rows and should have 3"),
    "released": (put(at(), "release", None), "was released before"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_malformed_column_is_refused_before_a_row_is_read(name: str) -> None:
    lie, message = LIES[name]
    rig = Rig()
    with Lying(batch(), lie) as data, pytest.raises(SerializationError, match=message) as raised:
        rig.producer.send_arrow(data, TOPIC, value_format=Avro())
    assert raised.value.rows_queued == 0
    assert_whole(rig.pool)


class Schemed:
    """A record batch whose exported schema a test changes."""

    def __init__(self, data: Any, lie: Callable[[ArrowSchema], None]) -> None:
        self.capsules = data.__arrow_c_array__()
        self.schema = ArrowSchema.from_address(_get_pointer(self.capsules[0], b"arrow_schema"))
        self.lie = lie

    def __enter__(self) -> Any:
        self._address, self._memory = ctypes.addressof(self.schema), bytes(self.schema)
        self.lie(self.schema)
        return self

    def __exit__(self, *_: object) -> None:
        ctypes.memmove(self._address, self._memory, len(self._memory))

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self.capsules


def test_circular_schema_is_refused() -> None:
    held: list[Any] = []

    def circle(schema: ArrowSchema) -> None:
        pointers = (ctypes.POINTER(ArrowSchema) * 1)(ctypes.pointer(schema))
        held.append(pointers)
        schema.children = ctypes.cast(pointers, type(schema.children))

    data = pa.record_batch({"a": [1]})
    with Schemed(data, circle) as lying:
        for call in (Avro().encode, Avro().schema_for):
            with pytest.raises(SerializationError, match="more than 64 levels"):
                call(lying)


@pytest.mark.parametrize(("field", "value"), [("n_children", -1), ("n_children", 2**40), ("children", None)])
def test_schema_with_impossible_children_is_refused(field: str, value: Any) -> None:
    with Schemed(pa.record_batch({"a": [1]}), lambda schema: setattr(schema, field, value)) as lying:
        with pytest.raises(SerializationError, match="children"):
            Avro().schema_for(lying)


def test_list_of_countless_items_without_bytes_is_too_large() -> None:
    """Items of the null type take no memory, so that nothing else bounds the time that such a row takes."""

    def lie(array: ArrowArray) -> None:
        ints(child(array, 0), 1, ctypes.c_int64)[1] = 2**62
        child(array, 0, 0).length = 2**62

    rows = pa.record_batch({"l": pa.array([[None]], pa.large_list(pa.null()))})
    rig = Rig()
    with Lying(rows, lie) as data:
        report = rig.producer.send_arrow(data, TOPIC, value_format=Avro())
    assert isinstance(report.exception(0), RecordTooLargeError)
    assert_whole(rig.pool)


def test_values_that_a_dictionary_repeats_do_not_outgrow_the_limit() -> None:
    """A few bytes of indices stand for a gigabyte of values."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int8()), pa.array(["x" * 100_000]))
    rows = pa.record_batch({"l": pa.ListArray.from_arrays(pa.array([0, 10_000], pa.int32()), values)})
    rig = Rig()
    report = rig.producer.send_arrow(rows, TOPIC, value_format=Avro())
    assert isinstance(report.exception(0), RecordTooLargeError)
    assert_whole(rig.pool)


def test_column_nested_too_deep_is_refused() -> None:
    kind: pa.DataType = pa.int8()
    for _ in range(70):
        kind = pa.list_(kind)
    with pytest.raises(SerializationError, match="more than 64 levels"):
        Avro().schema_for(pa.schema([("c", kind)]))
