"""Arrow says nothing of the index of a dictionary where a column around it is null: no format reads it there."""

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
