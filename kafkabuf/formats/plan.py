"""Which columns of send_arrow()'s data make the record's key and its value, and with which format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from kafkabuf.arrow.types import ArrowType, Column
from kafkabuf.errors import ConfigError, SerializationError, TimeoutError
from kafkabuf.formats.rows.format import Format, ResolvedFormat, Source
from kafkabuf.formats.rows.raw import Raw

if TYPE_CHECKING:
    from kafkabuf.formats.registry import SchemaRegistry

Encoding = Format | ResolvedFormat
AnyFormat = Encoding | Raw
OWN_COLUMNS = ("key", "value", "topic", "partition", "timestamp", "headers")


def formats_of(
    value_format: AnyFormat | None,
    key_format: AnyFormat | None,
    key: str | Sequence[str] | None,
    registry: SchemaRegistry | None = None,
    *,
    waits: bool = True,
) -> Formats | None:
    """None if send_arrow() has none of these arguments. Raises ConfigError for one of a wrong type."""
    value_encoding = None if isinstance(value_format, Raw) else value_format
    key_encoding = None if isinstance(key_format, Raw) else key_format
    if value_encoding is None and key_encoding is None and key is None:
        return None
    return Formats(value_encoding, key_encoding, key, registry, waits=waits)


class Sources(NamedTuple):
    """Without a source the value is the column `value`, as it is, and the key the column `key_column`."""

    value: Source | None
    key: Source | None
    key_column: str | None


class Formats:
    """The arguments value_format, key_format and key of send_arrow(), and the registry of its producer."""

    def __init__(
        self,
        value_format: Encoding | None,
        key_format: Encoding | None,
        key: str | Sequence[str] | None,
        registry: SchemaRegistry | None = None,
        *,
        waits: bool = True,
    ) -> None:
        """`waits` is False in a thread that must not wait for the registry: then only what it remembers serves."""
        self._formats = {"value": _format("value", value_format), "key": _format("key", key_format)}
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
        self._key, self._names = key, names
        self._registry, self._waits = registry, waits

    @property
    def by_topic(self) -> bool:
        """Whether the formats differ between topics, because a registry is asked."""
        return self._registry is not None and any(isinstance(format, Format) for format in self._formats.values())

    def sources(self, columns: Sequence[ArrowType]) -> Sources:
        """Raises SerializationError if a column is missing."""
        numbered = list(enumerate(columns))
        value = self._value(numbered) if self._formats["value"] is not None else None
        keyed = self._formats["key"] is not None
        if self._key is None:
            if not keyed:
                return Sources(value, None, "key")
            return Sources(value, Source((_column(numbered, "key", "key_format needs it"),), False), None)
        if "key" not in self._names and any(kind.name == "key" for kind in columns):
            raise SerializationError(
                f"the data has a column 'key', and the argument key names {', '.join(self._names)}: drop or rename the "
                f"column, or leave the argument out"
            )
        keys = tuple(_column(numbered, name, "the argument key names it") for name in self._names)
        if not keyed:
            return Sources(value, None, self._names[0])
        return Sources(value, Source(keys, not isinstance(self._key, str)), None)

    def resolved(self, field: Literal["key", "value"], source: Source, topic: str, timeout: float) -> ResolvedFormat:
        """The format of a topic's keys or values; the registry answers within `timeout` seconds.

        Raises SerializationError if the columns do not fit, and the errors of SchemaRegistry.resolve().
        """
        format = self._formats[field]
        assert format is not None  # there is a source
        if isinstance(format, ResolvedFormat):
            return format
        if self._registry is None:
            return ResolvedFormat(format, None)
        from kafkabuf.formats.registry.resolving import resolve_format  # no load: it came with the registry

        if self._waits:
            return resolve_format(self._registry, format, topic, field, source, timeout)
        try:
            return resolve_format(self._registry, format, topic, field, source, 0.0)
        except TimeoutError:
            raise TimeoutError(
                f"the schema of topic {topic!r} is not known yet, and a callback cannot wait for the Schema Registry: "
                "call send_arrow() in another thread"
            ) from None

    def _value(self, columns: list[Column]) -> Source:
        if any(kind.name == "value" for _, kind in columns):
            return Source((_column(columns, "value", "it is the value"),), False)
        fields = tuple((number, kind) for number, kind in columns if kind.name not in OWN_COLUMNS)
        if not fields:
            raise SerializationError(
                f"there is no column for the value: all are the record's own; found: "
                f"{', '.join(kind.name for _, kind in columns) or 'none'}"
            )
        return Source(fields, True)


def _format(field: str, given: Encoding | None) -> Encoding | None:
    if given is not None and not isinstance(given.format if isinstance(given, ResolvedFormat) else given, Format):
        raise ConfigError(
            f"{field}_format must be a format such as kafkabuf.formats.Avro(), found {type(given).__name__}"
        )
    if isinstance(given, ResolvedFormat) and not _is_header(given.header):
        raise ConfigError(
            f"the header of {field}_format must be a pair of str and bytes, or None, found {given.header!r:.200}"
        )
    return given


def _is_header(header: object) -> bool:
    # The walker reads name and value where they lie.
    return header is None or (type(header) is tuple and [type(part) for part in header] == [str, bytes])


def _column(columns: list[Column], name: str, why: str) -> Column:
    named = [column for column in columns if column[1].name == name]
    if len(named) != 1:
        names = ", ".join(kind.name for _, kind in columns) or "none"
        state = "there are two columns" if named else "there is no column"
        raise SerializationError(f"{state} '{name}', and {why}; found: {names}")
    return named[0]
