"""Whether one Avro schema can read what another writes (Avro's specification, "Schema Resolution").

Java's SchemaCompatibility answers the same question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafkabuf.errors import SerializationError
from kafkabuf.formats.avro.references import Names, malformed
from kafkabuf.formats.avro.schema import PRIMITIVES

# A reader of the type on the left reads what was written as a type on the right.
_PROMOTIONS = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_ROOT = "the value"
_MOST_COMPARISONS = 50_000  # each union in a union's branches multiplies them

Texts = tuple[Sequence[str], str]
"""The texts of the schemas that a schema refers to, in order, and its own text."""


def reasons(reader: Texts, writer: Texts) -> list[str]:
    """Why the reader's schema cannot read what the writer's writes; empty if it can. Raises SerializationError."""
    try:
        return _Comparison(_Names(reader), _Names(writer)).run()
    except SerializationError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise malformed(error) from None


class _Names:
    """A schema with the named types in it."""

    def __init__(self, texts: Texts) -> None:
        names = Names()
        for text in texts[0]:
            names.add(text)
        self.root = names.add(texts[1])
        self._types = names.types

    def __getitem__(self, node: Any) -> Any:
        """The definition of a named type; any other schema as it is."""
        return self._types[node] if isinstance(node, str) and node not in PRIMITIVES else node


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
        kind = definition if isinstance(definition, str) else str(definition["type"])
        return "record" if kind == "error" else kind

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
        return self._compare_names(reader, writer, path) + (unread if missing and reader.get("default") is None else [])

    def _compare_record(self, reader: Any, writer: Any, path: str) -> list[str]:
        pair = reader["name"], writer["name"]
        if pair in self._compared:
            return []
        self._compared.add(pair)
        faults = self._compare_names(reader, writer, path)
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            where = str(field["name"]) if path == _ROOT else f"{path}.{field['name']}"
            names = [field["name"], *field.get("aliases", ())]
            source = next((written[name] for name in names if name in written), None)
            if source is not None:
                faults += self._compare(field["type"], source["type"], where)
            elif "default" not in field:
                faults.append(f"{where}: the writer lacks the field, and the reader has no default")
        return faults

    def _compare_names(self, reader: Any, writer: Any, path: str) -> list[str]:
        """The specification compares names without their namespace; aliases of the reader count as its names."""
        short = writer["name"].rpartition(".")[2]
        same = short == reader["name"].rpartition(".")[2] or writer["name"] in reader["aliases"]
        return [] if same else [f"{path}: {reader['name']} cannot read {writer['name']}"]
