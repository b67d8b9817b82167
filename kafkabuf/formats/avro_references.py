"""One Avro schema made of a schema and those that it refers to: each referenced type is defined where it is used first.

A Schema Registry keeps a schema and its references apart. A parser of Avro needs each type before its use.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kafkabuf.errors import SerializationError
from kafkabuf.formats.avro_schema import PRIMITIVES

_NAMED = {"record", "error", "enum", "fixed"}


def merged(schema: str, references: Sequence[tuple[str, str]]) -> str:
    """The text of one schema. `references` has names and texts. Raises SerializationError for a malformed schema."""
    try:
        definitions = [json.loads(text) for _, text in references]
        return json.dumps(_Merge(definitions).node(json.loads(schema), ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SerializationError(f"a schema is not a valid Avro schema: {type(error).__name__}: {error}") from None


class _Merge:
    def __init__(self, definitions: Sequence[Any]) -> None:
        # By full name; a definition leaves when it has been used.
        self._unused = {_full_name(each, ""): each for each in definitions if isinstance(each, dict)}

    def node(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, str):
            return self._named(schema, namespace)
        if isinstance(schema, list):
            return [self.node(branch, namespace) for branch in schema]
        kind = schema["type"]
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return schema | {part: self.node(schema[part], namespace)}
        if isinstance(kind, str) and kind in _NAMED:
            return self._definition(schema, namespace)
        return schema | {"type": self.node(kind, namespace)}

    def _named(self, name: str, namespace: str) -> Any:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        definition = None if name in PRIMITIVES else self._unused.pop(full, None)
        return name if definition is None else self._definition(definition, "")

    def _definition(self, schema: dict[str, Any], namespace: str) -> dict[str, Any]:
        full = _full_name(schema, namespace)
        self._unused.pop(full, None)
        if "fields" not in schema:
            return schema
        inner = full.rpartition(".")[0]
        return schema | {"fields": [each | {"type": self.node(each["type"], inner)} for each in schema["fields"]]}


def _full_name(schema: dict[str, Any], namespace: str) -> str:
    name, own = schema["name"], schema.get("namespace", namespace)
    return name if "." in name or not own else f"{own}.{name}"
