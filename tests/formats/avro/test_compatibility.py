"""Which Avro schema reads what another writes: the rules of Avro's specification, and of a real registry."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kafkabuf.errors import SerializationError
from kafkabuf.formats.registry import avro_compatibility
from kafkabuf.formats.registry.avro_compatibility import reasons


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)} | more


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind} | more


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols)} | more


LIST = record(field("next", ["null", "R"]))
# Reader, writer, and a part of the reason; None where the reader reads it.
CASES: list[tuple[Any, Any, str | None]] = [
    ("long", "int", None),
    ("int", "long", "the value: int cannot read long"),
    ("double", "long", None),
    ("float", "long", None),
    ("long", "float", "long cannot read float"),
    ("string", "bytes", None),
    ("bytes", "string", None),
    ({"type": "long", "logicalType": "timestamp-millis"}, "long", None),
    (["null", "long"], "int", None),
    (["null", "string"], "int", "no branch of the reader's union reads int"),
    ("long", ["int", "long"], None),
    ("long", ["null", "long"], "long cannot read null"),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, None),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, r"the value\[\]: int cannot read long"),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, r"the value\{\}: int cannot read string"),
    (record(field("a", "long")), record(field("a", "int"), field("b", "int")), None),
    (record(field("a", "long"), field("b", "int")), record(field("a", "int")), "b: the writer lacks the field"),
    (record(field("a", "long"), field("b", "int", default=1)), record(field("a", "int")), None),
    (record(field("b", "int", aliases=["a"])), record(field("a", "int")), None),
    (record(field("a", record(field("x", "int"), name="I"))), record(field("a", record(field("x", "long"), name="I"))),
     r"a\.x: int cannot read long"),
    (enum("a", "b"), enum("a"), None),
    (enum("a"), enum("a", "b", "c"), "lacks the symbols b, c"),
    (enum("a", default="a"), enum("a", "b"), None),
    ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}, "4 bytes cannot read 5"),
    (record(name="Q"), record(name="R"), "Q cannot read R"),
    (record(name="Q", aliases=["R"]), record(name="R"), None),
    (LIST, LIST, None),
    # Both branches have the record I, which does not fit: the second must not take it as compared.
    ([record(field("i", record(field("x", "int"), name="I")), namespace="a"),
      record(field("i", "a.I"), namespace="b")],
     record(field("i", record(field("x", "long"), name="I")), namespace="a"), "no branch of the reader's union"),
    (record(field("next", ["null", "R"]), field("x", "int")), LIST, "x: the writer lacks the field"),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "reason"), CASES)
def test_reader_reads_what_the_specification_says(reader: Any, writer: Any, reason: str | None) -> None:
    found = reasons(([], json.dumps(reader)), ([], json.dumps(writer)))
    if reason is None:
        assert found == []
    else:
        assert len(found) == 1
        assert re.search(reason, found[0]), found


def test_names_are_found_in_the_schemas_that_are_referred_to() -> None:
    inner = json.dumps(record(field("x", "int"), name="I", namespace="n"))
    outer = json.dumps(record(field("i", "I"), namespace="n"))
    other = json.dumps(record(field("x", "long"), name="I", namespace="n"))
    assert reasons(([inner], outer), ([inner], outer)) == []
    assert reasons(([inner], outer), ([other], outer)) == ["i.x: int cannot read long"]


@pytest.mark.parametrize("text", ["{bad", "7", "{}", '{"type":"record","name":"R"}', '{"type":"array"}', '"Unknown"'])
def test_text_that_is_no_schema_is_an_error(text: str) -> None:
    with pytest.raises(SerializationError, match="schema"):
        reasons(([], text), ([], text))


MALFORMED: dict[str, Any] = {
    "symbols": {"type": "enum", "name": "E", "symbols": [{}]},
    "name of a field": {"type": "record", "name": "R", "fields": [{"name": [], "type": "int"}]},
    "no name of a field": {"type": "record", "name": "R", "fields": [{"type": "int"}]},
    "aliases": {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "aliases": None}]},
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_schema_of_a_registry_is_refused(name: str) -> None:
    reader = json.dumps(MALFORMED[name])
    kind = MALFORMED[name]["type"]
    own = {"symbols": ["A"]} if kind == "enum" else {"fields": [{"name": "b", "type": "int"}]}
    writer = json.dumps({"type": kind, "name": MALFORMED[name]["name"]} | own)
    with pytest.raises(SerializationError, match="not a valid Avro schema"):
        reasons(([], reader), ([], writer))


def test_comparisons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level multiplies them by the branches, none of which reads the writer's."""
    monkeypatch.setattr(avro_compatibility, "_MOST_COMPARISONS", 100)
    reader: Any = "string"
    writer: Any = "int"
    for level in range(3):
        name = f"R{level}"
        reader = [record(field("a", reader), name=f"n{branch}.{name}") for branch in range(5)]
        writer = record(field("a", writer), name=name)
    with pytest.raises(SerializationError, match="more than 100 comparisons: set"):
        reasons(([], json.dumps(reader)), ([], json.dumps(writer)))


def test_name_without_an_end_is_refused() -> None:
    schema = json.dumps({"type": "fixed", "name": "F", "namespace": "n" * 1001, "size": 1})
    with pytest.raises(SerializationError, match="a name of more than 1000 characters"):
        reasons(([], schema), ([], '"int"'))
