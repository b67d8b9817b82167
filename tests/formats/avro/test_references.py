"""Schemas that refer to others: names are resolved as Apache Avro's Java library does, and Java reads the values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.formats import Avro
from kafkabuf.formats.avro.references import merged
from kafkabuf.formats.avro.schema import Array, Enum, Fixed, Map, Node, Primitive, Record, Union, parse
from kafkabuf.formats.registry.avro_compatibility import reasons
from tests.formats.avro.java import Case, Schema, decode
from tests.formats.avro.test_java import drawn

# Few names, so that texts often use each other's, and the same name in two namespaces.
_NAMES = ["A", "B", "C"]
_SPACES = ["n", "m.k"]
_PRIMITIVES = ["int", "string", "null"]
_DEEPEST = 6


def _enum(name: str, **more: Any) -> Schema:
    return {"type": "enum", "name": name, "symbols": ["x", "y"], **more}


def _record(name: str, *types: Schema, **more: Any) -> Schema:
    fields = [{"name": f"f{place}", "type": kind} for place, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields, **more}


class _Drawing:
    """Draws texts. Most names that it draws are those of types that it drew before."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw
        self._defined: list[str] = []

    def schema(self, namespace: str, depth: int) -> Schema:
        kinds = ["name", "name", "primitive"] + ["record", "record", "enum", "fixed", "array", "map", "union"] * (
            depth < 3
        )
        match self._draw(st.sampled_from(kinds)):
            case "primitive":
                return self._draw(st.sampled_from(_PRIMITIVES))
            case "name":
                name = self._name(namespace)
                return self._draw(st.sampled_from([name, name, {"type": name}]))
            case "array":
                return {"type": "array", "items": self.schema(namespace, depth + 1)}
            case "map":
                return {"type": "map", "values": self.schema(namespace, depth + 1)}
            case "union":
                return ["null", *(self.schema(namespace, depth + 1) for _ in range(self._draw(st.integers(1, 2))))]
            case kind:
                return self._definition(kind, namespace, depth)

    def _name(self, namespace: str) -> str:
        names = self._defined + [f"{namespace}.{name}" if namespace else name for name in _NAMES[:1]] + _NAMES[:1]
        full: str = self._draw(st.sampled_from(names))
        space, _, short = full.rpartition(".")
        return short if space == namespace and self._draw(st.booleans()) else full

    def _definition(self, kind: str, namespace: str, depth: int) -> Schema:
        name, space = self._draw(st.sampled_from(_NAMES)), self._draw(st.sampled_from([None, None, "", *_SPACES]))
        found: Schema = {"type": kind, "name": name}
        if space and self._draw(st.booleans()):
            found["name"] = f"{space}.{name}"
        elif space is not None:
            found["namespace"] = space
        inner = namespace if space is None else space
        self._defined.append(f"{inner}.{name}" if inner else name)
        if self._draw(st.integers(0, 3)) == 0:
            found["aliases"] = [self._draw(st.sampled_from(_NAMES))]
        if self._draw(st.integers(0, 3)) == 0:
            found["doc"] = self._draw(st.sampled_from(["", "a"]))
        if kind == "record":
            types = [self.schema(inner, depth + 1) for _ in range(self._draw(st.integers(0, 3)))]
            return found | {"fields": _record("", *types)["fields"]}
        return found | ({"size": self._draw(st.integers(1, 2))} if kind == "fixed" else {"symbols": ["x", "y"]})


@st.composite
def _texts(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[Schema, list[Schema]]:
    drawing = _Drawing(draw)
    references = [drawing.schema("", 0) for _ in range(draw(st.integers(1, 3)))]
    return drawing.schema("", 0), references


def _merged(main: Schema, references: list[Schema]) -> Node | None:
    """The merged schema; None: it is refused."""
    try:
        text = merged(json.dumps(main), [("", json.dumps(reference)) for reference in references])
        Avro(text)
        return parse(text)
    except (SerializationError, ConfigError):
        return None


def _shape(node: Node, named: set[str]) -> Any:
    """As DecodeAvro.java has it."""
    match node:
        case Union():
            return ["union", [_shape(branch, named) for branch in node.branches]]
        case Array():
            return ["array", _shape(node.items, named)]
        case Map():
            return ["map", _shape(node.values, named)]
        case Record() if node.name not in named:
            named.add(node.name)
            return ["record", node.name, [[field.name, _shape(field.node, named)] for field in node.fields]]
        case Enum():
            return ["enum", node.name, list(node.symbols)]
        case Fixed():
            return ["fixed", node.name, node.bytes]
        case Primitive():
            return node.type
    return node.name


def _value(node: Node, depth: int) -> tuple[Any, Any]:
    """A value, and what DecodeAvro.java makes of it. Raises RecursionError for a type that has no finite value."""
    if depth > 4 * _DEEPEST:
        raise RecursionError
    match node:
        case Union():
            branch = node.branches[-1 if depth < _DEEPEST else 0]
            value, found = _value(branch, depth + 1)
            name = branch.name if isinstance(branch, Record | Enum | Fixed) else str(branch)
            return (name, value), found
        case Array():
            items = [_value(node.items, depth + 1)] if depth < _DEEPEST else []
            return [value for value, _ in items], ["array", [found for _, found in items]]
        case Map():
            value, found = _value(node.values, depth + 1) if depth < _DEEPEST else ("", "")
            return ({"k": value}, ["map", {"k": found}]) if depth < _DEEPEST else ({}, ["map", {}])
        case Record():
            fields = {field.name: _value(field.node, depth + 1) for field in node.fields}
            found = {name: pair[1] for name, pair in fields.items()}
            return {name: pair[0] for name, pair in fields.items()}, ["record", node.name.rpartition(".")[2], found]
        case Enum():
            return "y", ["enum", node.name.rpartition(".")[2], "y"]
        case Fixed():
            return b"\1" * node.bytes, ["fixed", node.name.rpartition(".")[2], "01" * node.bytes]
    value = {"int": 7, "string": "s", "null": None}[node.type]
    return value, None if value is None else [node.type, value]


def _check(texts: list[tuple[Schema, list[Schema]]]) -> tuple[int, int]:
    """Compare what Java and kafkabuf make of the texts. How many of them resolve, and how many values Java has read."""
    nodes, cases = [], []
    for main, references in texts:
        node = _merged(main, references)
        encoded, expected = [], []
        if node is not None:
            try:
                value, found = _value(node, 0)
            except RecursionError:
                value = None
            if value is not None:
                text = merged(json.dumps(main), [("", json.dumps(reference)) for reference in references])
                encoded, expected = [Avro(text).encode_object(value) or b""], [found]
        nodes.append(node)
        cases.append(Case(main, encoded, expected, references=references))
    for node, case, java in zip(nodes, cases, decode(cases), strict=True):
        if node is None:
            assert "error" in java, case
        else:
            assert java.get("shape") == _shape(node, set()), (case, java)
            assert java["values"] == case.expected, case
    return sum(node is not None for node in nodes), sum(len(case.encoded) for case in cases)


def test_any_reference_is_resolved_as_java_resolves_it() -> None:
    texts = [texts for (texts,) in drawn(4000, _texts())]
    resolved, read = _check(texts)
    assert resolved > len(texts) // 10
    assert read > len(texts) // 20


# What each text defines, and how another text uses it.
_CASES: dict[str, tuple[list[Schema], Schema]] = {
    "type nested in a record": ([_record("n.A", _record("B", _enum("m.C")))], _record("n.R", "B", "m.C", "n.A")),
    "union": ([[_enum("n.E"), _record("n.A", "int")]], _record("n.R", "E", ["null", "A"])),
    "array": ([{"type": "array", "items": _enum("n.E")}], _record("n.R", "n.E")),
    "map": ([{"type": "map", "values": _enum("n.E")}], {"type": "array", "items": "n.E"}),
    "primitive": (["string", _enum("n.E")], _record("n.R", "n.E")),
    "name without a namespace": ([_enum("E"), _record("n.A", "E")], _record("m.R", "E", "n.A")),
    "same name with and without a namespace": (
        [_enum("E"), _record("n.A", "E"), {"type": "fixed", "name": "n.E", "size": 2}],
        _record("n.R", "A", "E", "A"),
    ),
    "null as namespace": ([_record("n.A", _enum("E", namespace=None))], _record("R", "n.E")),
    "empty namespace": ([_record("n.A", _enum("E", namespace=""), "E")], _record("R", "E", "n.A")),
    "type in quotes of a dict": ([_enum("n.E")], _record("n.R", {"type": "E"})),
    "same type in two references": ([_record("n.A", _enum("n.E")), _record("n.B", _enum("n.E", doc="x"))],
                                    _record("n.R", "A", "B")),
    "type that the schema defines again": ([_enum("n.E")], _record("n.R", "E", _enum("E"))),
    "type before its definition": ([_enum("n.E")], _record("n.R", "B", _record("B", "E"))),
    "recursive types": (
        [_record("n.A", ["null", "n.A"])], _record("n.R", {"type": "map", "values": ["null", "R", "A"]})
    ),
    "error": ([{"type": "error", "name": "n.X", "fields": []}], _record("n.R", "n.X")),
    "name alone": ([_enum("n.E")], "n.E"),
}  # fmt: skip
_UNRESOLVED: dict[str, tuple[list[Schema], Schema, str]] = {
    "alias": ([_enum("n.E", aliases=["G"])], _record("n.R", "n.G"), "n.G, which neither it nor a reference defines"),
    "unknown": ([_enum("n.E")], _record("n.R", "Q"), "names the type n.Q"),
    "reference to a later one": ([_record("n.A", "n.E"), _enum("n.E")], _record("n.R", "A"), "names the type n.E"),
    "different definitions": (
        [_enum("n.E"), {"type": "fixed", "name": "n.E", "size": 2}], _record("n.R", "E"), "n.E is defined twice"
    ),
    "different definition in the schema": ([_enum("n.E")], _record("n.R", _record("E")), "n.E is defined twice"),
}  # fmt: skip


def test_java_reads_what_refers_to_types_in_every_way() -> None:
    texts = [(main, references) for references, main in _CASES.values()]
    assert _check(texts) == (len(texts), len(texts))


def test_java_resolves_none_of_what_is_refused() -> None:
    assert _check([(main, references) for references, main, _ in _UNRESOLVED.values()]) == (0, 0)


@pytest.mark.parametrize("name", _CASES)
def test_type_of_a_reference_is_known_however_it_is_named(name: str) -> None:
    references, main = _CASES[name]
    texts = [("", json.dumps(reference)) for reference in references]
    node = _merged(main, references)
    assert node is not None
    made = Avro("int").with_schema(json.dumps(main), b"", texts)
    assert made.encode_object(_value(node, 0)[0]) is not None
    schema = [text for _, text in texts], json.dumps(main)
    assert reasons(schema, schema) == []


@pytest.mark.parametrize("name", _UNRESOLVED)
def test_name_that_is_not_resolved_is_named(name: str) -> None:
    references, main, message = _UNRESOLVED[name]
    with pytest.raises(SerializationError, match=message) as caught:
        merged(json.dumps(main), [("", json.dumps(reference)) for reference in references])
    assert "Error:" not in str(caught.value)
