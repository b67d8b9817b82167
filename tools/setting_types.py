"""Writes kafkabuf/config/keywords.py, the settings as keywords for type checkers: `python -m tools.setting_types`.

The types come from the table of settings (kafkabuf/config/table.py). A test compares the file with the table.
"""

from __future__ import annotations

from pathlib import Path

from kafkabuf.config import table
from kafkabuf.config.kinds import field_of

FILE = Path(table.__file__).with_name("keywords.py")
_HEAD = '''\
"""The settings of a producer as keywords. `python -m tools.setting_types` writes this file from the table of settings.

A mapping takes the same settings under dotted names, and every value as a string as well. None is the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal, TypedDict


class Settings(TypedDict, total=False):
    """Keywords of KafkaProducer and AIOKafkaProducer, except `key_serializer` and `value_serializer`."""

'''
# The producers declare these themselves: the types of keys and values depend on them.
_DECLARED = {"key.serializer", "value.serializer"}
_MIXED = {
    "kafkabuf.buffer.path": "str | PathLike[str]",
    "kafkabuf.buffer.sync": 'Literal["process", "flush"] | int',
}
_TYPES = {"boolean": "bool", "float": "float", "int": "int", "object": "Any", "password": "str", "string": "str"}


def source() -> str:
    """The text of the file."""
    rows = (row for row in table.rows() if row.name not in _DECLARED and not row.here.startswith("Refused: "))
    return _HEAD + "".join(f"    {field_of(row.name)}: {_type(row)} | None\n" for row in rows)


def _type(row: table.Row) -> str:
    if row.name in _MIXED:
        return _MIXED[row.name]
    if row.type == "string" and row.valid:
        return f"Literal[{', '.join(map(_literal, row.valid.split(', ')))}]"
    if row.type == "list":
        return "str | Sequence[Any]" if row.valid == "objects" else "str | Sequence[str]"
    return _TYPES[row.type]


def _literal(choice: str) -> str:
    if choice.lstrip("-").isdecimal():
        return choice
    return '""' if choice == "empty" else f'"{choice}"'


if __name__ == "__main__":
    FILE.write_text(source(), encoding="utf-8")
