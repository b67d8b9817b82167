"""Avro schemas that refer to types of other schemas, which a Schema Registry keeps apart.

Names are resolved as Java's parser (1.12) does. It reads the references first, each after those that it refers to
itself, and keeps every named type that it meets, however deep. A name without a dot is looked for in the namespace
around it, then without a namespace, among the definitions that have ended. Where no definition is known, the text must
define the type in the namespace around the name, before or later. A type may be defined again in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kafkabuf.errors import SerializationError
from kafkabuf.formats.avro.schema import LONGEST_NAME, PRIMITIVES

_RECORDS = {"record", "error"}
_NAMED = _RECORDS | {"enum", "fixed"}
_PARTS = {"array": "items", "map": "values"}
_NO_DIFFERENCE = {"doc", "aliases"}  # definitions that differ in these are the same


def merged(schema: str, references: Sequence[tuple[str, str]]) -> str:
    """One schema's text, where each referenced type is defined at its first use. `references` has names and texts.

    Raises SerializationError for a malformed schema, a name that no text defines, and one that two texts define.
    """
    try:
        names = Names()
        for _, text in references:
            names.add(text)
        return json.dumps(_Merge(names.types).node(names.add(schema)))
    except SerializationError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise malformed(error) from None


def malformed(error: Exception) -> SerializationError:
    return SerializationError(f"a schema is not a valid Avro schema: {type(error).__name__}: {error}")


class Names:
    """The named types of several texts, by their full names.

    A resolved schema is the full name of a type or that of a primitive, a list for a union, or a dict: an array, a map,
    or a primitive with attributes. The definitions in `types` have resolved parts, and full names as aliases.
    """

    def __init__(self) -> None:
        self.types: dict[str, dict[str, Any]] = {}
        # While a text is read: the types whose definition has not ended, the names that were used before their type
        # was known, and where in that list the names of a type's parts are.
        self._open: set[str] = set()
        self._awaited: list[str] = []
        self._awaited_by: dict[str, slice] = {}

    def add(self, text: str) -> Any:
        """The text's resolved schema. Its types are known from now on. A malformed schema raises a builtin error."""
        self._awaited, self._awaited_by = [], {}
        schema = self._resolved(json.loads(text), "")
        for full in self._awaited:
            if full not in self.types:
                raise SerializationError(
                    f"an Avro schema names the type {full:.200}, which neither it nor a reference defines"
                )
        return schema

    def _resolved(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, str):
            return self._resolved_name(schema, namespace)
        if isinstance(schema, list):
            return _union([self._resolved(branch, namespace) for branch in schema])
        kind = schema["type"]
        if not isinstance(kind, str):
            return self._resolved(kind, namespace)
        if kind in _NAMED:
            return self._define(schema, namespace)
        if part := _PARTS.get(kind):
            return schema | {part: self._resolved(schema[part], namespace)}
        return schema if kind in PRIMITIVES else self._resolved_name(kind, namespace)

    def _resolved_name(self, name: str, namespace: str) -> str:
        if name in PRIMITIVES:
            return name
        full = _full(name, namespace)
        if full in self.types:
            return full
        if name in self.types:
            return name
        self._awaited.append(full)
        return full

    def _define(self, schema: dict[str, Any], namespace: str) -> str:
        full, before = _full_name(schema, namespace), len(self._awaited)
        inner = full.rpartition(".")[0]
        definition = schema | {"name": full, "aliases": [_full(alias, inner) for alias in schema.get("aliases", ())]}
        definition.pop("namespace", None)
        if schema["type"] in _RECORDS:
            if full in self._open:
                raise SerializationError(f"the Avro type {full} is defined within itself: name it there")
            self._open.add(full)
            fields = [field | {"type": self._resolved(field["type"], inner)} for field in schema["fields"]]
            self._open.remove(full)
            definition["fields"] = fields
        awaited = slice(before, len(self._awaited))
        if full not in self.types:
            self.types[full], self._awaited_by[full] = definition, awaited
        elif _compared(self.types[full]) != _compared(definition) or not self._awaits_the_same(full, awaited):
            raise SerializationError(f"the Avro type {full} is defined twice, and differently: rename one of them")
        return full

    def _awaits_the_same(self, full: str, awaited: slice) -> bool:
        """Whether a second definition in a text knew as little as the first: Java takes no other for equal."""
        first = self._awaited_by.get(full)
        return first is None or self._awaited[first] == self._awaited[awaited]


def _union(branches: list[Any]) -> list[Any]:
    """The branches. Raises SerializationError: the parser does not see a part of a reference that nobody uses."""
    kinds = [branch["type"] if isinstance(branch, dict) else branch for branch in branches]
    if any(isinstance(kind, list) for kind in kinds):
        raise SerializationError("a union of an Avro schema is the branch of another union")
    if len(set(kinds)) < len(kinds):
        raise SerializationError(f"a union of an Avro schema has two branches of the same type: {', '.join(kinds)}")
    return branches


def _full_name(schema: dict[str, Any], namespace: str) -> str:
    space = schema.get("namespace")
    full = _full(schema["name"], namespace if space is None else space)
    if len(full) > LONGEST_NAME:
        raise SerializationError(f"an Avro schema has a name of more than {LONGEST_NAME} characters: {full:.100}")
    return full


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _compared(definition: dict[str, Any]) -> dict[str, Any]:
    """What makes two definitions different."""
    kept = {name: value for name, value in definition.items() if name not in _NO_DIFFERENCE}
    if "fields" in kept and definition["type"] in _RECORDS:
        kept["fields"] = [
            {name: value for name, value in field.items() if name not in _NO_DIFFERENCE} for field in kept["fields"]
        ]
    return kept


class _Merge:
    def __init__(self, types: dict[str, dict[str, Any]]) -> None:
        self._types = types
        self._used: set[str] = set()

    def node(self, schema: Any) -> Any:
        if isinstance(schema, str):
            return schema if schema in PRIMITIVES else self._named(schema)
        if isinstance(schema, list):
            return [self.node(branch) for branch in schema]
        part = _PARTS.get(schema["type"])
        return schema | {part: self.node(schema[part])} if part else schema

    def _named(self, full: str) -> Any:
        space, _, name = full.rpartition(".")
        if full in self._used:
            # The dot tells a name without a namespace from the same name in the namespace around it.
            return full if space else f".{full}"
        self._used.add(full)
        definition = self._types[full] | {"name": name, "namespace": space}
        del definition["aliases"]
        if definition["type"] in _RECORDS:
            fields = [field | {"type": self.node(field["type"])} for field in definition["fields"]]
            definition["fields"] = fields
        return definition
