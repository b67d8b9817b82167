"""Serializers turn keys and values into bytes: Java's serializers, JSON, and adapters for the user's serializers.

`key.serializer` and `value.serializer` take any of these:

- a callable `f(data)` that returns a bytes-like object or None (Kafka's null);
- an object with `serialize(topic, headers, data)`, like Java's Serializer; `headers` is a list of pairs, to which the
  serializer may add pairs; the producer's close() calls the serializer's `close()`, if it has one;
- `kafkabuf.formats.Avro(schema)`;
- a serializer of confluent-kafka, also of its Schema Registry (`pip install 'confluent-kafka[schemaregistry]'`); the
  producer calls it with (data, SerializationContext(topic, "key" or "value", headers));
- a name: string, bytes, json, short, integer, long, float, double, uuid, boolean, or the name of the Java class.

The producer also passes None to a serializer. The serializers of this module return None for it (Kafka's null), as
Java's do.
"""

from __future__ import annotations

import codecs
import json
import struct
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from kafkabuf.errors import ConfigError

HeaderList = list[tuple[str, bytes | None]]

# Java encodes these two as big-endian; Python uses the machine's byte order and writes a byte-order mark. The second
# entry is the mark that Java writes.
_BIG_ENDIAN = {"utf-16": ("utf-16-be", b"\xfe\xff"), "utf-32": ("utf-32-be", b"")}


@runtime_checkable
class Serializer(Protocol):
    """Java's Serializer. `close()` is optional."""

    def serialize(self, topic: str, headers: HeaderList, data: Any, /) -> Any: ...


class StringSerializer:
    """str in an encoding, by default UTF-8. A character outside the encoding is an error (Java writes `?`)."""

    def __init__(self, encoding: str = "utf-8") -> None:
        try:
            name = codecs.lookup(encoding).name
        except LookupError:
            raise ConfigError(f"Python has no encoding {encoding!r}: give the name of one of its codecs") from None
        self.encoding, self._mark = _BIG_ENDIAN.get(name, (encoding, b""))

    def __call__(self, data: str | None) -> bytes | None:
        if data is None:
            return None
        _check(data, str)
        return self._mark + data.encode(self.encoding) if data else b""


class BytesSerializer:
    """A bytes-like object, unchanged."""

    def __call__(self, data: Any) -> Any:
        if data is not None:
            memoryview(data)  # raises TypeError
        return data


class JsonSerializer:
    """JSON in UTF-8, without spaces. None becomes Kafka's null, not JSON's. `options` are the options of json.dumps."""

    def __init__(self, **options: Any) -> None:
        self._options: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False} | options

    def __call__(self, data: Any) -> bytes | None:
        return None if data is None else json.dumps(data, **self._options).encode()


class _IntSerializer:
    bits: int

    def __call__(self, data: int | None) -> bytes | None:
        if data is None:
            return None
        _check(data, int)
        limit = 1 << self.bits - 1
        if not -limit <= data < limit:
            raise ValueError(f"{data} does not fit into {self.bits} bits: the range is {-limit} to {limit - 1}")
        return data.to_bytes(self.bits // 8, "big", signed=True)


class ShortSerializer(_IntSerializer):
    """int as 2 bytes, big-endian."""

    bits = 16


class IntegerSerializer(_IntSerializer):
    """int as 4 bytes, big-endian."""

    bits = 32


class LongSerializer(_IntSerializer):
    """int as 8 bytes, big-endian."""

    bits = 64


class FloatSerializer:
    """float (or int) as 4 bytes, rounded. A number too large for 4 bytes is an error (Java's cast makes infinity)."""

    def __call__(self, data: float | None) -> bytes | None:
        return None if data is None else struct.pack(">f", _check(data, float, int))


class DoubleSerializer:
    """float (or int) as 8 bytes."""

    def __call__(self, data: float | None) -> bytes | None:
        return None if data is None else struct.pack(">d", _check(data, float, int))


class UUIDSerializer:
    """UUID as its 36 characters, not its 16 bytes."""

    def __call__(self, data: UUID | None) -> bytes | None:
        return None if data is None else str(_check(data, UUID)).encode()


class BooleanSerializer:
    """bool as one byte, 1 or 0."""

    def __call__(self, data: bool | None) -> bytes | None:
        if data is None:
            return None
        if type(data) is not bool:
            raise TypeError(f"expected bool, found {type(data).__name__}: {data!r}")
        return b"\x01" if data else b"\x00"


_BY_NAME: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "string": StringSerializer,
    "bytes": BytesSerializer,
    "json": JsonSerializer,
    "short": ShortSerializer,
    "integer": IntegerSerializer,
    "long": LongSerializer,
    "float": FloatSerializer,
    "double": DoubleSerializer,
    "uuid": UUIDSerializer,
    "boolean": BooleanSerializer,
}


def serialize_with(setting: Any, field: str) -> tuple[Callable[..., Any] | None, bool]:
    """The serializer for a value of the setting, and whether it takes (topic, headers, data) instead of (data).

    `field` is "key" or "value". Raises ConfigError for a class, and for a format that has no schema.
    """
    if isinstance(setting, str):
        return _BY_NAME[setting](), False
    if isinstance(setting, type):
        raise ConfigError(f"{field}.serializer must be the serializer itself, not a class; found the class {setting!r}")
    if callable(getattr(type(setting), "object_serializer", None)):  # a format: formats/ imports this layer
        return setting.object_serializer(field), False
    if _is_protocol(setting):
        return setting.serialize, True
    if setting is not None and _is_confluent(setting):
        return _with_confluent_context(setting, field), True
    return setting, False


def _check(data: Any, *types: type) -> Any:
    if not isinstance(data, types) or isinstance(data, bool):
        raise TypeError(f"expected {types[0].__name__}, found {type(data).__name__}: {data!r}")
    return data


def _is_protocol(setting: Any) -> bool:
    return callable(getattr(setting, "serialize", None))


def _is_confluent(setting: Any) -> bool:
    return any(base.__module__.startswith("confluent_kafka.") for base in type(setting).__mro__)


def _with_confluent_context(serializer: Any, field: str) -> Callable[[str, HeaderList, Any], Any]:
    # Imported here because the package is optional. It is installed: the user's serializer comes from it.
    from confluent_kafka.serialization import MessageField, SerializationContext

    part: Any = MessageField.KEY if field == "key" else MessageField.VALUE

    def serialize(topic: str, headers: Any, data: Any) -> Any:
        return serializer(data, SerializationContext(topic, part, headers))

    return serialize
