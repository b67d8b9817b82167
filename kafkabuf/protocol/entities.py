"""Makes the classes of the messages in tables.py, when they are first needed."""

from __future__ import annotations

import re
from dataclasses import MISSING
from functools import cache
from typing import Any, NamedTuple

from kafkabuf.protocol.schema import FieldSpec, Shape, convert
from kafkabuf.protocol.tables import TABLES

_API = re.compile(r"^(\d+) (\w+) (\d+)-(\d+)(?: flexible (\d+))?\n((?:  .*\n)*)", re.M)
_VERSIONS = r"(\d+\+|\d+-\d+|\d+)"
_FIELD = re.compile(
    rf"( *)(\w+): (\[\])?(\w+|{{}})(?: {_VERSIONS})?( null(?: {_VERSIONS})?)?(?: tag (\d+))?(?: = (.*))?"
)
_DEFAULTS: dict[str, Any] = {"null": None, "true": True, "false": False, "''": "", "[]": ()}
_NEVER = range(0)


class Entity:
    """A message, or an item of an array in a message. The fields are its slots."""

    __slots__: tuple[str, ...] = ()
    __flexible__: bool
    __fields__: tuple[FieldSpec, ...]

    def __init__(self, **values: Any) -> None:
        if values.keys() != set(self.__slots__):
            raise TypeError(f"{type(self).__name__} has the fields {self.__slots__}, found {tuple(values)}")
        for name, value in values.items():
            setattr(self, name, value)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Entity) and other._values() == self._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(self.__slots__, self._values(), strict=True))
        return f"{type(self).__name__}({shown})"


class Api(NamedTuple):
    """What the head of a table says."""

    name: str
    versions: range
    flexible: int | None
    """The first flexible version; None: no version is flexible."""
    lines: str

    def is_flexible(self, version: int) -> bool:
        return self.flexible is not None and version >= self.flexible


class _Line(NamedTuple):
    name: str
    kafka_type: str
    array: bool
    versions: range
    null: range
    tag: int | None
    default: Any
    below: list[_Line]


@cache
def apis() -> dict[int, Api]:
    """The tables by API key."""
    by_key = {}
    for key, name, first, last, flexible, lines in _API.findall(TABLES):
        by_key[int(key)] = Api(name, range(int(first), int(last) + 1), int(flexible) if flexible else None, lines)
    return by_key


@cache
def message_class(api_key: int, version: int, kind: str) -> type[Entity] | None:
    """The class of a request or response (`kind`). None if the tables lack the API, or the version."""
    api = apis().get(api_key)
    if api is None or version not in api.versions or not api.lines:
        return None
    name = f"{api.name.title().replace('_', '')}{kind.title()}"
    common = {"__api_key__": api_key, "__version__": version, "__flexible__": api.is_flexible(version)}
    return _class(name, _lines(api_key)[kind], version, common)


@cache
def _lines(api_key: int) -> dict[str, list[_Line]]:
    api = apis()[api_key]
    by_message: dict[str, list[_Line]] = {}
    level: list[list[_Line]] = []
    for text in api.lines.splitlines():
        if text.strip() in ("request", "response"):
            level = [by_message.setdefault(text.strip(), [])]
            continue
        match = _FIELD.fullmatch(text)
        assert match is not None, text
        indent, name, array, kafka_type, versions, null, null_versions, tag, default = match.groups()
        known = _range(versions, api.versions)
        line = _Line(
            name,
            kafka_type,
            array is not None,
            known,
            _range(null_versions, known) if null else _NEVER,
            None if tag is None else int(tag),
            MISSING if default is None else _DEFAULTS[default] if default in _DEFAULTS else int(default),
            below=[],
        )
        depth = len(indent) // 2 - 2
        level[depth].append(line)
        level[depth + 1 :] = [line.below]
    return by_message


def _range(text: str | None, every: range) -> range:
    if text is None:
        return every
    first, _, last = text.rstrip("+").partition("-")
    return range(int(first), every.stop if text.endswith("+") else int(last or first) + 1)


def _class(name: str, lines: list[_Line], version: int, common: dict[str, Any]) -> type[Entity]:
    fields = tuple(_spec(name, line, version, common) for line in lines if version in line.versions)
    return type(name, (Entity,), {**common, "__slots__": tuple(spec.name for spec in fields), "__fields__": fields})


def _spec(owner: str, line: _Line, version: int, common: dict[str, Any]) -> FieldSpec:
    entity = None
    if line.kafka_type == "{}":
        entity = _class(f"{owner}{line.name.title().replace('_', '')}", line.below, version, common)
    shape = Shape("" if entity else line.kafka_type, entity, line.array, version in line.null)
    default = line.default if line.array or line.default is MISSING else convert(line.kafka_type, line.default)
    return FieldSpec(line.name, shape, line.tag, default)
