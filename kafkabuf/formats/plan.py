"""Which columns of send_arrow()'s data make the record's key and its value, and with which program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.formats.arrow_types import ArrowType, Column
from kafkabuf.formats.format import Format
from kafkabuf.formats.program import Program

OWN_COLUMNS = ("key", "value", "topic", "partition", "timestamp", "headers")


def formats_of(
    value_format: Format | None, key_format: Format | None, key: str | Sequence[str] | None
) -> Formats | None:
    """None if send_arrow() has none of these arguments. Raises ConfigError for one of a wrong type."""
    if value_format is None and key_format is None and key is None:
        return None
    return Formats(value_format, key_format, key)


class Plan(NamedTuple):
    """Without a program the value is the column `value`, as it is, and the key the column `key_column`."""

    value: Program | None
    key: Program | None
    key_column: str | None


class Formats:
    """The arguments value_format, key_format and key of send_arrow()."""

    def __init__(self, value_format: Format | None, key_format: Format | None, key: str | Sequence[str] | None) -> None:
        for name, given in (("value_format", value_format), ("key_format", key_format)):
            if given is not None and not isinstance(given, Format):
                raise ConfigError(
                    f"{name} must be a format such as kafkabuf.formats.Avro(), found {type(given).__name__}"
                )
        # A copy: the caller's list may change.
        names = tuple(key) if isinstance(key, list | tuple) else () if key is None else (key,)
        if not all(isinstance(name, str) for name in names):
            raise ConfigError(f"key must be a column's name or a list of names, found {key!r:.200}")
        if refused := [name for name in names if name in OWN_COLUMNS and name != "key"]:
            raise ConfigError(f"key cannot be the column '{refused[0]}', which is another part of the record")
        if key is not None and not isinstance(key, str):
            if key_format is None:
                raise ConfigError(f"a key of several columns needs a key_format, found key={key!r:.200} without it")
            if not names:
                raise ConfigError("key has no column: name one, or leave the argument out")
        self._value_format, self._key_format = value_format, key_format
        self._key, self._names = key, names

    def plan(self, columns: Sequence[ArrowType]) -> Plan:
        """Raises SerializationError if a column is missing or does not fit."""
        numbered = list(enumerate(columns))
        value = self._value(numbered) if self._value_format is not None else None
        if self._key is None:
            if self._key_format is None:
                return Plan(value, None, "key")
            return Plan(value, self._key_format.column_program(_column(numbered, "key", "key_format needs it")), None)
        if "key" not in self._names and any(kind.name == "key" for kind in columns):
            raise SerializationError(
                f"the data has a column 'key', and the argument key names {', '.join(self._names)}: drop or rename the "
                f"column, or leave the argument out"
            )
        keys = [_column(numbered, name, "the argument key names it") for name in self._names]
        if self._key_format is None:
            return Plan(value, None, self._names[0])
        if isinstance(self._key, str):
            return Plan(value, self._key_format.column_program(keys[0]), None)
        return Plan(value, self._key_format.rows_program(keys), None)

    def _value(self, columns: list[Column]) -> Program:
        assert self._value_format is not None
        if any(kind.name == "value" for _, kind in columns):
            return self._value_format.column_program(_column(columns, "value", "it is the value"))
        fields = [(number, kind) for number, kind in columns if kind.name not in OWN_COLUMNS]
        if not fields:
            raise SerializationError(
                f"there is no column for the value: all are the record's own; found: "
                f"{', '.join(kind.name for _, kind in columns) or 'none'}"
            )
        return self._value_format.rows_program(fields)


def _column(columns: list[Column], name: str, why: str) -> Column:
    named = [column for column in columns if column[1].name == name]
    if len(named) != 1:
        found = ", ".join(kind.name for _, kind in columns) or "none"
        state = "there are two columns" if named else "there is no column"
        raise SerializationError(f"{state} '{name}', and {why}; found: {found}")
    return named[0]
