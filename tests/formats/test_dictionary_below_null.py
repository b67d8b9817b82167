"""Arrow says nothing of a dictionary's index, or of a view, where a column around it is null: nobody reads it there."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from kafkabuf.errors import SerializationError
from kafkabuf.formats import Avro, Json

WRONG = 120
INDICES = pa.array([0, WRONG, 1], pa.int8())
ITEMS = pa.DictionaryArray.from_arrays(INDICES, pa.array(["x", "y"]), safe=False)
NULL, NOT_NULL = pa.array([False, True, False]), pa.array([False, False, False])
OFFSETS = pa.array([0, 1, 2, 3], pa.int32())
AROUND: dict[str, Callable[[pa.Array], pa.Array]] = {
    "struct": lambda mask: pa.StructArray.from_arrays([ITEMS], ["f"], mask=mask),
    "list": lambda mask: pa.ListArray.from_arrays(OFFSETS, ITEMS, mask=mask),
    "fixed-size list": lambda mask: pa.FixedSizeListArray.from_arrays(ITEMS, 1, mask=mask),
    "list of structs": lambda mask: pa.ListArray.from_arrays(
        pa.array([0, 0, 2, 3], pa.int32()), pa.StructArray.from_arrays([ITEMS], ["f"], mask=mask)
    ),
    "struct of lists": lambda mask: pa.StructArray.from_arrays(
        [pa.ListArray.from_arrays(OFFSETS, ITEMS)], ["f"], mask=mask
    ),
}
EXPECTED = {
    "struct": [b'{"f":"x"}', b"null", b'{"f":"y"}'],
    "list": [b'["x"]', b"null", b'["y"]'],
    "fixed-size list": [b'["x"]', b"null", b'["y"]'],
    "list of structs": [b"[]", b'[{"f":"x"},null]', b'[{"f":"y"}]'],
    "struct of lists": [b'{"f":["x"]}', b"null", b'{"f":["y"]}'],
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("first", [0, 1, 2])
def test_index_below_a_null_is_not_read(name: str, first: int) -> None:
    table = pa.table({"c": AROUND[name](NULL).slice(first)})
    assert Json().encode(table) == [b'{"c":%s}' % text for text in EXPECTED[name][first:]]
    assert len(Avro().encode(table)) == 3 - first


@pytest.mark.parametrize("name", AROUND)
def test_index_that_is_used_is_checked(name: str) -> None:
    table = pa.table({"c": AROUND[name](NOT_NULL)})
    for format in (Json(), Avro()):
        with pytest.raises(SerializationError, match=f"has index {WRONG} into a dictionary of 2 values"):
            format.encode(table)


def test_null_struct_of_a_dictionary_without_values_is_null() -> None:
    kind = pa.struct([("f", pa.dictionary(pa.int8(), pa.string()))])
    assert Json().encode(pa.table({"c": pa.array([None], kind)})) == [b'{"c":null}']


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_view_below_a_null_is_not_read(kind: pa.DataType, first: int) -> None:
    long = "longer than a view holds"
    odd = b"".join(number.to_bytes(4, "little", signed=True) for number in (99, 0, 7, -3))
    _, views, data = pa.array([long, long, "y"], kind).buffers()
    laid = views.to_pybytes()
    items = pa.Array.from_buffers(kind, 3, [None, pa.py_buffer(laid[:16] + odd + laid[32:]), data])
    below = pa.StructArray.from_arrays([items], ["f"], mask=NULL).slice(first)
    table = pa.table({"c": below})
    assert [value is None for value in table["c"].to_pylist()] == NULL.slice(first).to_pylist()
    assert len(Json().encode(table)) == len(Avro().encode(table)) == 3 - first
    assert Json().encode(table)[-1] == (b'{"c":{"f":"y"}}' if kind == pa.string_view() else b'{"c":{"f":"eQ=="}}')
    used = pa.table({"c": pa.StructArray.from_arrays([items], ["f"]).slice(min(first, 1))})
    for format in (Json(), Avro()):
        with pytest.raises(SerializationError, match="has a view of 99 bytes that lies in none of its 1 buffers"):
            format.encode(used)
