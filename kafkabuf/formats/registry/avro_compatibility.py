"""Whether one Avro schema can read what another writes (Avro's specification, "Schema Resolution").

Java's SchemaCompatibility answers the same question.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kafkabuf.errors import SerializationError
from kafkabuf.formats.avro_schema import LONGEST_NAME, PRIMITIVES

# A reader of the type on the left reads what was written as a type on the right.
_PROMOTIONS = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_NAMED = {"record", "error", "enum", "fixed"}
_ROOT = "the value"
_MOST_COMPARISONS = 50_000  # each union in a union's branches multiplies them

Texts = tuple[Sequence[str], str]
"""The texts of the schemas that a schema refers to, in order, and its own text."""


def reasons(reader: Texts, writer: Texts) -> list[str]:
    """Why the reader's schema cannot read what the writer's writes; empty if it can. Raises SerializationError."""
    try:
        return _Comparison(_Names(reader), _Names(writer)).run()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SerializationError(f"a schema is not a valid Avro schema: {type(error).__name__}: {error}") from None


class _Names:
    """A schema with the named types in it, in its texts' own form. Names are full names."""

    def __init__(self, texts: Texts) -> None:
        self.types: dict[str, dict[str, Any]] = {}
        for text in texts[0]:
            self._resolved(json.loads(text), "")
        self.root = self._resolved(json.loads(texts[1]), "")

    def _resolved(self, node: Any, namespace: str) -> Any:
        """The schema with full names: a primitive's or a named type's name, a list for a union, else a dict."""
        if isinstance(node, str):
            return node if node in PRIMITIVES else _full(node, namespace)
        if isinstance(node, list):
            return [self._resolved(branch, namespace) for branch in node]
        kind = node["type"]
        if kind in _NAMED:
            return self._named(node, kind, namespace)
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return {"type": kind, part: self._resolved(node[part], namespace)}
        return self._resolved(kind, namespace)

    def _named(self, node: dict[str, Any], kind: str, namespace: str) -> str:
        name = _full(node["name"], node.get("namespace", namespace))
        if len(name) > LONGEST_NAME:
            raise SerializationError(f"an Avro schema has a name of more than {LONGEST_NAME} characters: {name:.100}")
        inner = name.rpartition(".")[0]
        aliases = {_full(alias, inner) for alias in node.get("aliases", ())}
        named: dict[str, Any] = {"type": "record" if kind == "error" else kind, "name": name, "aliases": aliases}
        self.types[name] = named  # before the fields, which may refer to it
        if kind == "enum":
            named |= {"symbols": list(node["symbols"]), "default": node.get("default")}
        elif kind == "fixed":
            named["size"] = node["size"]
        else:
            named["fields"] = [field | {"type": self._resolved(field["type"], inner)} for field in node["fields"]]
        return name

    def __getitem__(self, node: Any) -> Any:
        """The definition of a named type; any other schema as it is."""
        if isinstance(node, str) and node not in PRIMITIVES:
            if node not in self.types:
                raise SerializationError(f"an Avro schema names the type {node}, which it does not define")
            return self.types[node]
        return node


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


class _Comparison:
    def __init__(self, reader: _Names, writer: _Names) -> None:
        self._reader = reader
        self._writer = writer
        self._compared: set[tuple[str, str]] = set()  # pairs of records: a type may contain itself
        self._left = _MOST_COMPARISONS

    def run(self) -> list[str]:
        return self._compare(self._reader.root, self._writer.root, _ROOT)

    def _compare(self, reader: Any, writer: Any, path: str) -> list[str]:
        self._left -= 1
        if self._left < 0:
            raise SerializationError(
                f"two Avro schemas take more than {_MOST_COMPARISONS} comparisons: set latest.compatibility.strict or "
                "id.compatibility.strict to false, or give no schema"
            )
        if isinstance(writer, list):  # whichever branch was written
            return [reason for branch in writer for reason in self._compare(reader, branch, path)]
        if isinstance(reader, list):
            before = set(self._compared)
            for branch in reader:
                if not self._compare(branch, writer, path):
                    return []
                self._compared = set(before)
            return [f"{path}: no branch of the reader's union reads {self._kind(self._writer, writer)}"]
        kind, written = self._kind(self._reader, reader), self._kind(self._writer, writer)
        if kind != written:
            return [] if written in _PROMOTIONS.get(kind, ()) else [f"{path}: {kind} cannot read {written}"]
        compare = getattr(self, f"_compare_{kind}", None)
        result: list[str] = [] if compare is None else compare(self._reader[reader], self._writer[writer], path)
        return result

    def _kind(self, names: _Names, node: Any) -> str:
        definition = names[node]
        return definition if isinstance(definition, str) else str(definition["type"])

    def _compare_array(self, reader: Any, writer: Any, path: str) -> list[str]:
        return self._compare(reader["items"], writer["items"], f"{path}[]")

    def _compare_map(self, reader: Any, writer: Any, path: str) -> list[str]:
        return self._compare(reader["values"], writer["values"], f"{path}{{}}")

    def _compare_fixed(self, reader: Any, writer: Any, path: str) -> list[str]:
        different = reader["size"] != writer["size"]
        sizes = [f"{path}: fixed of {reader['size']} bytes cannot read {writer['size']} bytes"]
        return self._compare_names(reader, writer, path) + (sizes if different else [])

    def _compare_enum(self, reader: Any, writer: Any, path: str) -> list[str]:
        known = set(reader["symbols"])
        missing = [symbol for symbol in writer["symbols"] if symbol not in known]
        unread = [f"{path}: the reader's enum lacks the symbols {', '.join(missing)}"]
        return self._compare_names(reader, writer, path) + (unread if missing and reader["default"] is None else [])

    def _compare_record(self, reader: Any, writer: Any, path: str) -> list[str]:
        pair = reader["name"], writer["name"]
        if pair in self._compared:
            return []
        self._compared.add(pair)
        found = self._compare_names(reader, writer, path)
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            where = str(field["name"]) if path == _ROOT else f"{path}.{field['name']}"
            names = [field["name"], *field.get("aliases", ())]
            source = next((written[name] for name in names if name in written), None)
            if source is not None:
                found += self._compare(field["type"], source["type"], where)
            elif "default" not in field:
                found.append(f"{where}: the writer lacks the field, and the reader has no default")
        return found

    def _compare_names(self, reader: Any, writer: Any, path: str) -> list[str]:
        """The specification compares names without their namespace; aliases of the reader count as its names."""
        short = writer["name"].rpartition(".")[2]
        same = short == reader["name"].rpartition(".")[2] or writer["name"] in reader["aliases"]
        return [] if same else [f"{path}: {reader['name']} cannot read {writer['name']}"]
