"""A schema as the writers of Python objects follow it (_object_writer.pxd): its types, by number."""

from __future__ import annotations

from typing import NamedTuple

from kafkabuf.formats.rows.program import INT64_MAX, INT64_MIN


class Part(NamedTuple):
    """A type, or a field of Protobuf; `kind` is the name of the enum in _object_writer.pxd, without its prefix.

    A type that is used in several places has one part, and a recursive type refers to itself.
    """

    kind: str
    target: str  # the type's name in the schema, for errors
    parts: tuple[int, ...] = ()  # numbers of the fields' types, of the items' type, or of the branches
    names: tuple[str, ...] = ()  # of the fields, or of the branches
    defaults: tuple[bytes | str, ...] = ()  # encoded; text: why the field needs a value
    symbols: dict[str, int] | None = None  # numbers of an enum's symbols, of a union's branches, of a message's names
    low: int = INT64_MIN
    high: int = INT64_MAX
    unit: int = 0  # units of a time for each second
    size: int = -1  # of a fixed, in bytes
    precision: int = 0
    scale: int = 0
    null_branch: int = 0
    value_branch: int = 0
    # Only Protobuf's fields have these.
    alias: str | None = None  # the field's name in JSON, where it is another
    numbers: frozenset[int] | None = None  # of a closed enum's symbols
    oneof: int = -1  # the number of its oneof in the message, if other fields are in it, too
    tag: bytes = b""
    presence: bool = False  # a zero is written
    required: bool = False
    is_unsigned: bool = False  # an integer of 64 bits without a sign
    packed: bool = False
    special: int = 0  # a message that stands for one value: see protobuf/objects.py
