"""Parses Avro schemas into nodes: https://avro.apache.org/docs/1.12.0/specification/.

A schema is JSON text, the name of a primitive type, or the same as Python values (dict, list, str), as fastavro has it.
A named type may use itself. A logical type that the specification does not know, or whose attributes contradict its
type, is ignored, as the specification says.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafkabuf.errors import ConfigError
from kafkabuf.formats.rows.symbols import symbol_table

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
# Logical types by the type that they annotate. `duration` needs a fixed of 12 bytes, `uuid` a string or one of 16.
_LOGICAL = {
    "int": {"date", "time-millis"},
    "long": {
        "time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos",
        "local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos",
    },
    "string": {"uuid"},
}  # fmt: skip
_FIXED_SIZES = {"duration": 12, "uuid": 16}
_PARTS = {"array": "items", "map": "values", "record": "fields", "error": "fields"}
_FASTAVRO_MARKS = ("__fastavro_parsed", "__named_schemas")  # the first is True
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_DEPTH = 64
MAX_PRECISION = 1 << 14  # the time for a value grows with the square of its digits
LONGEST_NAME = 1000  # each type has its namespace's name: a hostile schema of 2 MB would have 50 GB of names
MAX_BRANCHES = 1 << 12  # the branch's number then takes two bytes
_NAMED_BRANCHES = 16  # in an error


class Missing:
    """The default of a field that has none: None is a default."""


MISSING = Missing()


@dataclass(frozen=True)
class Primitive:
    type: str
    logical: str = ""
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return _annotated(self.type, self)


@dataclass(frozen=True)
class Fixed:
    name: str
    bytes: int
    logical: str = ""
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return _annotated(f"fixed {self.name} of {self.bytes} bytes", self)


@dataclass(frozen=True)
class Enum:
    name: str
    symbols: tuple[str, ...]

    # Kept, because many fields may be of one enum of many symbols.

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.symbols)}

    @functools.cached_property
    def table(self) -> bytes:
        return symbol_table(self.numbers.items())

    def __str__(self) -> str:
        return f"enum {self.name}"


@dataclass(frozen=True)
class Array:
    items: Node

    def __str__(self) -> str:
        return "array"


@dataclass(frozen=True)
class Map:
    values: Node

    def __str__(self) -> str:
        return "map"


@dataclass(frozen=True)
class Union:
    branches: tuple[Node, ...]

    def __str__(self) -> str:
        names = list(map(str, self.branches[:_NAMED_BRANCHES]))
        more = len(self.branches) - len(names)
        return f"union of {', '.join(names)}" + (f" and {more} more" if more else "")


@dataclass(frozen=True)
class Field:
    name: str
    aliases: tuple[str, ...]
    node: Node
    default: Any


@dataclass(eq=False)
class Record:
    """A field may use the record itself, so the fields are set after the record exists."""

    name: str
    fields: tuple[Field, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"record {self.name}"


Node = Primitive | Fixed | Enum | Array | Map | Union | Record


def canonical(schema: Any) -> str:
    """The schema as JSON text, without fastavro's marks. Raises ConfigError."""
    value = _loaded(schema) if isinstance(schema, str) else schema
    try:
        return json.dumps(_cleaned(value, 0), ensure_ascii=False, allow_nan=False)
    except RecursionError as error:
        raise ConfigError(f"the Avro schema is nested deeper than {MAX_DEPTH} levels") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the Avro schema is no JSON: {error}") from error


def parse(text: str) -> Node:
    """The root node of a schema. Raises ConfigError, which names the faulty type by its path."""
    return _Parser().node(_loaded(text), "", "schema", 0)


def _loaded(text: str) -> Any:
    if text.strip() in PRIMITIVES:
        return text.strip()
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ConfigError(f"the Avro schema is nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise ConfigError(f"the Avro schema is neither JSON nor a primitive type's name: {error}") from error


def _cleaned(schema: Any, depth: int) -> Any:
    """A schema, or a record's fields, without what fastavro.parse_schema() adds to records. All else stays."""
    _check_depth(depth)
    if isinstance(schema, list | tuple):
        return [_cleaned(branch, depth + 1) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    place = _PARTS.get(kind) if isinstance(kind, str) else "type"
    marks = _FASTAVRO_MARKS if place == "fields" and schema.get(_FASTAVRO_MARKS[0]) is True else ()
    return {
        name: (_cleaned if name == place else _plain)(value, depth + 1)
        for name, value in schema.items()
        if name not in marks
    }


def _plain(value: Any, depth: int) -> Any:
    """What is no schema: an attribute or a default."""
    _check_depth(depth)
    if isinstance(value, dict):
        return {name: _plain(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    return value


def _check_depth(depth: int) -> None:
    if depth > 8 * MAX_DEPTH:  # objects and lists both count here
        raise ConfigError(f"the Avro schema is nested deeper than {MAX_DEPTH} levels")


def _annotated(name: str, node: Primitive | Fixed) -> str:
    if node.logical == "decimal":
        return f"decimal({node.precision}, {node.scale}) as {name}"
    return f"{node.logical} as {name}" if node.logical else name


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, Node] = {}

    def node(self, schema: Any, namespace: str, path: str, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise ConfigError(f"the Avro schema is nested deeper than {MAX_DEPTH} levels, at {path[:200]}")
        if isinstance(schema, list):
            return self._union(schema, namespace, path, depth)
        if isinstance(schema, str):
            return self._reference(schema, namespace, path)
        if not isinstance(schema, dict):
            raise ConfigError(f"{path}: {schema!r:.200} is no Avro type")
        return self._complex(schema, namespace, path, depth)

    def _complex(self, schema: dict[str, Any], namespace: str, path: str, depth: int) -> Node:
        kind = schema.get("type")
        match kind:
            case "record" | "error":
                return self._record(schema, namespace, path, depth)
            case "enum":
                return self._enum(schema, namespace, path)
            case "fixed":
                return self._fixed(schema, namespace, path)
            case "array":
                return Array(self.node(_needed(schema, "items", path), namespace, f"{path}.items", depth + 1))
            case "map":
                return Map(self.node(_needed(schema, "values", path), namespace, f"{path}.values", depth + 1))
            case str() if kind in PRIMITIVES:
                return _primitive(kind, schema)
            case str() | dict() | list():
                return self.node(kind, namespace, path, depth + 1)
        raise ConfigError(f"{path}: an Avro type needs the attribute 'type', found {schema!r:.200}")

    def _reference(self, name: str, namespace: str, path: str) -> Node:
        if name in PRIMITIVES:
            return Primitive(name)
        node = self._named.get(name if "." in name or not namespace else f"{namespace}.{name}")
        node = node or self._named.get(name.removeprefix("."))  # references.py writes the dot
        if node is None:
            raise ConfigError(
                f"{path}: there is no Avro type {name!r}; a named type must be defined before its use. "
                "with_schema() takes types of other schemas, as references"
            )
        return node

    def _union(self, schema: list[Any], namespace: str, path: str, depth: int) -> Node:
        if not 0 < len(schema) <= MAX_BRANCHES:
            raise ConfigError(f"{path}: a union needs 1 to {MAX_BRANCHES} branches, found {len(schema)}")
        branches = tuple(self.node(branch, namespace, f"{path}[{i}]", depth + 1) for i, branch in enumerate(schema))
        if any(isinstance(branch, Union) for branch in branches):
            raise ConfigError(f"{path}: a union must not be the branch of another union")
        kinds = list(map(_union_key, branches))
        if len(set(kinds)) < len(kinds):
            raise ConfigError(f"{path}: a union has two branches of the same type: {', '.join(kinds)}")
        return Union(branches)

    def _record(self, schema: dict[str, Any], namespace: str, path: str, depth: int) -> Node:
        record = Record(self._full_name(schema, namespace, path))
        self._define(record.name, record, schema, path)
        fields = _needed(schema, "fields", path)
        if not isinstance(fields, list):
            raise ConfigError(f"{path}: the fields of a record are a list, found {fields!r:.200}")
        inner = record.name.rpartition(".")[0]
        record.fields = tuple(self._fields(fields, inner, path, depth))
        names = [each.name for each in record.fields]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{path}: {record} has two fields {twice!r}")
        return record

    def _fields(self, fields: list[Any], namespace: str, path: str, depth: int) -> Iterator[Field]:
        for entry in fields:
            name = entry.get("name") if isinstance(entry, dict) else None
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ConfigError(f"{path}: a field needs a name of letters, digits and _, found {entry!r:.200}")
            node = self.node(_needed(entry, "type", f"{path}.{name}"), namespace, f"{path}.{name}", depth + 1)
            yield Field(name, _texts(entry, "aliases", f"{path}.{name}"), node, entry.get("default", MISSING))

    def _enum(self, schema: dict[str, Any], namespace: str, path: str) -> Node:
        symbols = _texts(schema, "symbols", path)
        if not symbols or len(set(symbols)) < len(symbols) or not all(map(_NAME.fullmatch, symbols)):
            raise ConfigError(
                f"{path}: an enum needs different symbols of letters, digits and _, found {symbols!s:.200}"
            )
        default = schema.get("default")
        if isinstance(default, str) and default not in symbols:  # Java takes what is no text for no default
            raise ConfigError(f"{path}: the enum's default {default!r:.200} is not among its symbols")
        enum = Enum(self._full_name(schema, namespace, path), symbols)
        return self._define(enum.name, enum, schema, path)

    def _fixed(self, schema: dict[str, Any], namespace: str, path: str) -> Node:
        size = _needed(schema, "size", path)
        if not _is_int(size) or not 0 <= size < 2**31:
            raise ConfigError(f"{path}: the size of a fixed is an int from 0 to 2^31 - 1, found {size!r}")
        logical, precision, scale = _logical(schema)
        if logical != "decimal" and _FIXED_SIZES.get(logical) != size:
            logical = ""
        fixed = Fixed(self._full_name(schema, namespace, path), size, logical, precision, scale)
        return self._define(fixed.name, fixed, schema, path)

    def _full_name(self, schema: dict[str, Any], namespace: str, path: str) -> str:
        name = _needed(schema, "name", path)
        space = schema.get("namespace")
        if not isinstance(name, str) or not isinstance(space, str | None):
            raise ConfigError(f"{path}: name and namespace are strings, found {name!r:.200} and {space!r:.200}")
        space = namespace if space is None else space
        full = name if "." in name or not space else f"{space}.{name}"
        if len(full) > LONGEST_NAME:
            raise ConfigError(f"{path}: a name has more than {LONGEST_NAME} characters: {full[:100]!r}")
        if not all(map(_NAME.fullmatch, full.split("."))):
            raise ConfigError(f"{path}: {full!r} is no Avro name, which has letters, digits and _ between dots")
        return full

    def _define(self, name: str, node: Node, schema: dict[str, Any], path: str) -> Node:
        if name in self._named or name in PRIMITIVES:
            raise ConfigError(f"{path}: the name {name!r} is defined twice")
        _texts(schema, "aliases", path)  # they serve readers of older data; no schema refers to a type by them
        self._named[name] = node
        return node


def _union_key(node: Node) -> str:
    """What no two branches of a union may share: a name, or the type of an unnamed one."""
    return node.type if isinstance(node, Primitive) else str(node).partition(" of ")[0]


def _primitive(kind: str, schema: dict[str, Any]) -> Primitive:
    logical, precision, scale = _logical(schema)
    if logical == "decimal" and kind == "bytes":
        return Primitive(kind, logical, precision, scale)
    return Primitive(kind, logical if logical in _LOGICAL.get(kind, ()) else "")


def _logical(schema: dict[str, Any]) -> tuple[str, int, int]:
    """Logical type, precision and scale; an empty name if they contradict each other. Raises ConfigError."""
    logical, precision, scale = schema.get("logicalType", ""), schema.get("precision", 0), schema.get("scale", 0)
    if not isinstance(logical, str):
        return "", 0, 0
    if logical == "decimal" and not (_is_int(precision) and _is_int(scale) and 0 <= scale <= precision > 0):
        return "", 0, 0
    if logical == "decimal" and precision > MAX_PRECISION:
        raise ConfigError(f"a decimal has at most {MAX_PRECISION} digits, found the precision {str(precision)[:20]}")
    return logical, precision, scale


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _needed(schema: dict[str, Any], name: str, path: str) -> Any:
    if name not in schema:
        raise ConfigError(f"{path}: the attribute {name!r} is missing in {schema!r:.200}")
    return schema[name]


def _texts(schema: dict[str, Any], name: str, path: str) -> tuple[str, ...]:
    texts: Sequence[Any] = schema.get(name) or ()
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{path}: {name} is a list of strings, found {texts!r:.200}")
    return tuple(texts)
