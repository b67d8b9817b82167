"""The entries of Arrow's map are a key and a value, in this order. Arrow leaves the names of both open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf.errors import SerializationError
from kafkabuf.formats import Avro, Json, Protobuf
from tests.formats.protobuf.support import PROTO3, FieldProto, MessageProto, row_class

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "c", "type": {"type": "map", "values": "string"}}]}


def with_map() -> Any:
    entry = MessageProto(name="CEntry", options={"map_entry": True})
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, label=FieldProto.LABEL_OPTIONAL, type=FieldProto.TYPE_STRING)
    field = {"name": "c", "number": 1, "label": FieldProto.LABEL_REPEATED, "type": FieldProto.TYPE_MESSAGE}
    return row_class(field | {"type_name": ".test.rows.Row.CEntry"}, syntax=PROTO3, nested_type=[entry])


FORMATS: dict[str, Callable[[], Any]] = {
    "avro": lambda: Avro(SCHEMA),
    "derived avro": Avro,
    "json": Json,
    "json of spark": lambda: Json(dialect="spark"),
    "protobuf": lambda: Protobuf(with_map()),
}


def table_of(key: str, value: str) -> pa.Table:
    kind = pa.map_(pa.field(key, pa.string(), nullable=False), pa.field(value, pa.string(), nullable=False))
    return pa.table({"c": pa.array([[("name", "text")]], kind)})


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("names", [("k", "v"), ("value", "v"), ("", ""), ("KEY", "VALUE")])
def test_first_of_a_maps_entries_is_its_key_whatever_the_names_are(name: str, names: tuple[str, str]) -> None:
    format = FORMATS[name]()
    assert format.encode(table_of(*names)) == format.encode(table_of("key", "value"))


@pytest.mark.parametrize("name", FORMATS)
def test_map_whose_names_say_the_opposite_is_refused(name: str) -> None:
    format = FORMATS[name]()
    message = "column 'c' is a map whose keys are named 'value' and whose values are named 'key'"
    with pytest.raises(SerializationError, match=message):
        format.encode(table_of("value", "key"))


@pytest.mark.parametrize("derive", [Avro().schema_for, Json().schema_for])
def test_schema_of_a_map_whose_names_say_the_opposite_is_refused(derive: Callable[[pa.Table], str]) -> None:
    with pytest.raises(SerializationError, match="is a map whose keys are named 'value'"):
        derive(table_of("value", "key"))
