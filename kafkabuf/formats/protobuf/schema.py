"""Nodes of Protobuf messages and enums, read from a descriptor set: proto2, proto3, and the editions 2023 and 2024.

Extensions and services are not read. A message may use itself, so that its fields are set after it exists.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkabuf.errors import ConfigError
from kafkabuf.formats.protobuf.descriptor import Parsed, files_in
from kafkabuf.formats.rows.symbols import symbol_table

_TYPES = (
    "", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message",
    "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
UNPACKABLE = frozenset({"string", "bytes", "message", "group"})
_LABEL_REQUIRED, _LABEL_REPEATED = 2, 3
_MAX_NUMBER = 2**29 - 1
MAX_DEPTH = 64
# Each type has its package's name: a hostile file of 2 MB would have 100 GB of names.
_LONGEST_NAME = 1000
# A type without a leading dot is looked for in each scope around its field: 400 parts made 20 s of a file of 4 MB.
_MOST_PARTS = 100
_MOST_TYPES = 100_000
_MAP_KEYS = frozenset(_TYPES) - {"", "double", "float", "bytes", "message", "group", "enum"}

# google.protobuf.FeatureSet: the numbers of its fields, and those of their values that matter here.
_PRESENCE, _ENUM_TYPE, _ENCODING, _MESSAGE_ENCODING = 1, 2, 3, 5
_IMPLICIT, _REQUIRED, _CLOSED, _PACKED, _DELIMITED = 2, 3, 2, 1, 2
_FEATURES = (_PRESENCE, _ENUM_TYPE, _ENCODING, _MESSAGE_ENCODING)
Features = dict[int, int]
_PROTO2 = {_PRESENCE: 1, _ENUM_TYPE: _CLOSED, _ENCODING: 2, _MESSAGE_ENCODING: 1}
_PROTO3 = {_PRESENCE: _IMPLICIT, _ENUM_TYPE: 1, _ENCODING: _PACKED, _MESSAGE_ENCODING: 1}
_EDITION_2023 = {_PRESENCE: 1, _ENUM_TYPE: 1, _ENCODING: _PACKED, _MESSAGE_ENCODING: 1}
_EDITIONS = {998: _PROTO2, 999: _PROTO3, 1000: _EDITION_2023, 1001: _EDITION_2023}


@dataclass(frozen=True)
class Enum:
    """`closed`: a number that no symbol has is refused, as in proto2."""

    name: str
    symbols: tuple[tuple[str, int], ...]
    closed: bool

    # Kept, because many fields may be of one enum of many symbols.

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        return dict(self.symbols)

    @functools.cached_property
    def known(self) -> frozenset[int] | None:
        """The numbers that a field may have; None: all of them."""
        return frozenset(self.numbers.values()) if self.closed else None

    @functools.cached_property
    def table(self) -> bytes:
        return symbol_table(self.symbols)

    def __str__(self) -> str:
        return f"enum {self.name}"


@dataclass(frozen=True)
class Field:
    """`presence`: a zero is written. `oneof` is "" if the field is in none."""

    name: str
    json_name: str
    number: int
    type: str
    repeated: bool
    packed: bool
    required: bool
    presence: bool
    oneof: str
    target: Enum | Message | None

    def __str__(self) -> str:
        return f"{'repeated ' if self.repeated else ''}{self.kind}"

    @property
    def kind(self) -> str:
        return str(self.target) if self.target is not None else self.type

    @property
    def entry(self) -> Message | None:
        """The message of a map's entries; None: the field is no map."""
        return self.target if isinstance(self.target, Message) and self.target.map_entry and self.repeated else None


@dataclass(eq=False)
class Message:
    """`fields` in ascending number. `path` has the indexes of the message in its file."""

    name: str
    path: tuple[int, ...]
    file: str
    map_entry: bool
    fields: tuple[Field, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"message {self.name}"


class _Type(NamedTuple):
    """A message or an enum as its file has it."""

    parsed: Parsed
    scope: str
    features: Features
    node: Message | Enum


def parse(descriptors: bytes, name: str) -> Message:
    """The message of this full name; of several, that of the first file. Raises ConfigError."""
    types: dict[str, _Type] = {}
    for kind in (kind for file in reversed(files_in(descriptors)) for kind in _types_in(file)):
        types[kind.node.name] = kind
        if len(types) > _MOST_TYPES:
            raise ConfigError(f"the descriptors have more than {_MOST_TYPES} messages and enums")
    root = types.get(name.removeprefix("."))
    if root is None or not isinstance(root.node, Message):
        messages = ", ".join(
            n for n, kind in types.items() if isinstance(kind.node, Message) and not kind.node.map_entry
        )
        raise ConfigError(f"there is no message {name!r} in the descriptors: they have {messages[:500] or 'none'}")
    pending, seen = [root], {root.node.name}
    while pending:
        kind = pending.pop()
        message = kind.node
        assert isinstance(message, Message)
        message.fields = _fields(kind, types)
        for each in message.fields:
            if isinstance(each.target, Message) and each.target.name not in seen:
                seen.add(each.target.name)
                pending.append(types[each.target.name])
    for name in seen:
        _check_maps(types[name].node)
    return root.node


def declares(file: bytes, name: str) -> bool:
    """Whether a FileDescriptorProto has the message of this full name."""
    return any(kind.node.name == name for kind in _types_in(Parsed(file)))


# ---- types -----------------------------------------------------------------------------------------------------------


def _types_in(file: Parsed) -> Iterator[_Type]:
    features = _file_features(file)
    package, name = file.text(2), file.text(1)
    for enum in file.messages(5):
        yield _enum(enum, package, features)
    for index, message in enumerate(file.messages(4)):
        yield from _messages(message, package, features, name, (index,))


def _file_features(file: Parsed) -> Features:
    edition = file.number(14) or {"proto3": 999}.get(file.text(12), 998)
    if edition not in _EDITIONS:
        raise ConfigError(f"{file.text(1)} has the Protobuf edition {edition}: proto2, proto3, 2023 and 2024 are known")
    return _merged(_EDITIONS[edition], file.message(8), 50)


def _merged(features: Features, options: Parsed, number: int) -> Features:
    """A file's features, and those of its part's options, whose field `number` they are.

    The features that matter here are a file's, an enum's or a field's: Protobuf refuses them elsewhere.
    """
    if not options.has(number):
        return features
    own = options.message(number)
    return features | {name: value for name in _FEATURES if (value := own.number(name))}


def _messages(message: Parsed, scope: str, features: Features, file: str, path: tuple[int, ...]) -> Iterator[_Type]:
    if len(path) > MAX_DEPTH:
        raise ConfigError(f"the messages of {file} are nested deeper than {MAX_DEPTH} levels")
    name = _name(scope, message)
    yield _Type(message, name, features, Message(name, path, file, bool(message.message(7).number(7))))
    for enum in message.messages(4):
        yield _enum(enum, name, features)
    for index, nested in enumerate(message.messages(3)):
        yield from _messages(nested, name, features, file, (*path, index))


def _name(scope: str, part: Parsed) -> str:
    name = _join(scope, part.text(1))
    if len(name) > _LONGEST_NAME:
        raise ConfigError(f"a name in the descriptors has more than {_LONGEST_NAME} characters: {name[:100]!r}")
    if name.count(".") >= _MOST_PARTS:
        raise ConfigError(f"a name in the descriptors has more than {_MOST_PARTS} parts: {name[:100]!r}")
    return name


def _enum(enum: Parsed, scope: str, features: Features) -> _Type:
    name = _name(scope, enum)
    features = _merged(features, enum.message(3), 7)
    symbols = tuple((value.text(1), value.number(2) or 0) for value in enum.messages(2))
    return _Type(enum, scope, features, Enum(name, symbols, features[_ENUM_TYPE] == _CLOSED))


# ---- fields ----------------------------------------------------------------------------------------------------------


def _fields(kind: _Type, types: dict[str, _Type]) -> tuple[Field, ...]:
    oneofs = kind.parsed.messages(8)
    fields = sorted((_field(parsed, kind, oneofs, types) for parsed in kind.parsed.messages(2)), key=lambda f: f.number)
    for before, after in itertools.pairwise(fields):
        if before.number == after.number:
            raise ConfigError(f"{kind.node} has two fields of number {after.number}: {before.name} and {after.name}")
    return tuple(fields)


def _field(parsed: Parsed, parent: _Type, oneofs: list[Parsed], types: dict[str, _Type]) -> Field:
    name, number, label = _name("", parsed), parsed.number(3) or 0, parsed.number(4)
    where = f"{parent.node}, field {name}"
    if not 0 < number <= _MAX_NUMBER:
        raise ConfigError(f"{where}: the number must be 1 to {_MAX_NUMBER}, found {number}")
    target = _target(parsed.text(6), parent.scope, types, where)
    features = _merged(parent.features, parsed.message(8), 21)
    type_name = _type_name(parsed.number(5) or 0, target, where)
    if type_name == "message" and features[_MESSAGE_ENCODING] == _DELIMITED and not _in_map(parent, target):
        type_name = "group"
    repeated = label == _LABEL_REPEATED
    packed = parsed.message(8).number(2)
    return Field(
        name, parsed.text(10) or json_name(name), number, type_name, repeated,
        packed=type_name not in UNPACKABLE and (features[_ENCODING] == _PACKED if packed is None else bool(packed)),
        required=label == _LABEL_REQUIRED or (not repeated and features[_PRESENCE] == _REQUIRED),
        presence=type_name == "message" or parsed.number(9) is not None or features[_PRESENCE] != _IMPLICIT,
        oneof=_oneof(parsed, parent, oneofs), target=target,
    )  # fmt: skip


def _check_maps(message: Message | Enum) -> None:
    for each in message.fields if isinstance(message, Message) else ():
        if each.entry is None:
            continue
        parts = each.entry.fields
        if (
            [part.number for part in parts] != [1, 2]
            or parts[0].type not in _MAP_KEYS
            or any(p.repeated for p in parts)
        ):
            raise ConfigError(f"{message}, field {each.name}: the entries of a map are no key and value")


def _oneof(parsed: Parsed, parent: _Type, oneofs: list[Parsed]) -> str:
    """The name of the field's oneof. A proto3 optional field is alone in a oneof that the compiler has made."""
    index = parsed.number(9)
    if index is None:
        return ""
    if not 0 <= index < len(oneofs):
        raise ConfigError(f"{parent.node} has no oneof {index}, which its field {parsed.text(1)} names")
    return oneofs[index].text(1)


def _target(name: str, scope: str, types: dict[str, _Type], where: str) -> Enum | Message | None:
    """A name with a leading dot is a full name; another is looked for from the innermost scope on."""
    if not name:
        return None
    scopes = (
        [""]
        if name.startswith(".")
        else [scope, *(scope[:i] for i in reversed(range(len(scope))) if scope[i] == "."), ""]
    )
    for prefix in scopes:
        if target := types.get(_join(prefix, name.removeprefix("."))):
            return target.node
    raise ConfigError(
        f"{where}: there is no type {name!r:.{_LONGEST_NAME}} in the descriptors: add the files that the .proto file "
        f"imports, as protoc does with --include_imports"
    )


def _type_name(number: int, target: Enum | Message | None, where: str) -> str:
    """A descriptor that was made by hand may leave out the type of a field that names a message or an enum."""
    if not 0 <= number < len(_TYPES):
        raise ConfigError(f"{where}: there is no Protobuf type of number {number}")
    type_name = _TYPES[number] or ("enum" if isinstance(target, Enum) else "message" if target is not None else "")
    fits = isinstance(target, Message) == (type_name in ("message", "group")) and isinstance(target, Enum) == (
        type_name == "enum"
    )
    if not type_name or not fits:
        raise ConfigError(f"{where}: the type {type_name or 'none'!r} contradicts the type's name {target}")
    return type_name


def _in_map(parent: _Type, target: Enum | Message | None) -> bool:
    """No group is in a map, whatever the file's features say."""
    return any(isinstance(node, Message) and node.map_entry for node in (parent.node, target))


def json_name(name: str) -> str:
    """The name of a field in JSON, as protoc makes it: `carrier_code` becomes `carrierCode`."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _join(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name
