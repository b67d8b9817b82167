"""Python objects as JSON text, for serializers. orjson writes them; the extra `json` installs it.

orjson itself knows dicts with text as keys, lists, tuples, str, int, float, bool, None, dates and times, UUIDs, enums,
dataclasses and NumPy's arrays. For other objects it calls `_known`: what Json writes of columns has the same text here.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from kafkabuf.errors import SerializationError
from kafkabuf.extras import needs
from kafkabuf.formats.object_classes import MAPPING, SEQUENCE, class_kind

_DEEPEST = 300  # orjson refuses what is nested deeper
_MOST_DIGITS = 1 << 14  # a short text such as 1E+999999999 would become a gibibyte
_MICROSECOND = timedelta(microseconds=1)


def object_serializer(name: str, prefix: bytes) -> Callable[[Any], bytes | None]:
    """A callable: `prefix` and the JSON text of an object, in UTF-8; None for None, Kafka's null.

    `name`, "value" or "key", begins errors. The callable raises SerializationError, which names the path to what cannot
    be written. Raises MissingExtraError without orjson.
    """
    with needs("json", "Json as a serializer"):
        import orjson
    dumps, options, fragment = orjson.dumps, orjson.OPT_SERIALIZE_NUMPY, orjson.Fragment

    def write(value: Any) -> bytes:
        text: bytes = dumps(value, known, options)
        return text

    def known(value: Any) -> Any:
        return fragment(_decimal(value)) if isinstance(value, Decimal) else _known(value)

    def serialize(value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            return prefix + dumps(value, known, options) if prefix else write(value)
        except orjson.JSONEncodeError as error:
            path, reason = _blamed(value, write, error)
            raise SerializationError(f"{name}{path} cannot be written as JSON: {reason}") from None

    return serialize


def _known(value: Any) -> Any:
    """What orjson can write for an object that it does not know. Raises TypeError."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        return _duration(value)
    if getattr(type(value), "__pydantic_root_model__", False):
        return value.root
    fields = _fields(value)
    if fields is not None:
        return fields
    kind = class_kind(type(value))
    if kind == MAPPING:
        return dict(value)
    if kind == SEQUENCE:
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON text")


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise TypeError(f"JSON has no {value}")
    if abs(value.adjusted()) > _MOST_DIGITS:
        raise TypeError(f"{value} has more than {_MOST_DIGITS} digits")
    return format(value, "f")


def _duration(value: timedelta) -> str:
    """ISO 8601 in seconds."""
    sign, micros = ("-", -(value // _MICROSECOND)) if value < timedelta(0) else ("", value // _MICROSECOND)
    fraction = f"{micros % 10**6:06}".rstrip("0")
    return f"{sign}PT{micros // 10**6}{'.' if fraction else ''}{fraction}S"


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of an object that is no dataclass, and what a model of pydantic has beside them; None: it has none."""
    names = _field_names(type(value))
    if names is None:
        return None
    extra = getattr(value, "__pydantic_extra__", None)
    return {name: getattr(value, name) for name in names} | (extra if isinstance(extra, dict) else {})


def _field_names(cls: type) -> tuple[str, ...] | None:
    """The fields, in their order, of a named tuple or a class of attrs, pydantic or msgspec; None: it is none."""
    if issubclass(cls, tuple):
        return getattr(cls, "_fields", None)
    if (attributes := getattr(cls, "__attrs_attrs__", None)) is not None:
        return tuple(attribute.name for attribute in attributes)
    for name in ("__pydantic_fields__", "__struct_fields__"):
        if (found := getattr(cls, name, None)) is not None:
            return tuple(found)
    return None


def _blamed(value: Any, write: Callable[[Any], bytes], error: Exception) -> tuple[str, str]:
    """The path to the innermost part of `value` that cannot be written, and the reason."""
    path = ""
    for _ in range(_DEEPEST):
        try:
            parts = _parts(value)
        except Exception:  # of the object's own code, as the error that is to be explained
            break
        for step, part in parts:
            try:
                write(part)
            except type(error) as found:
                path, value, error = path + step, part, found
                break
        else:
            break
    return path, str(error.__cause__ or error)


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r:.100}]", part) for key, part in value.items()]
    names = _dataclass_names(value)
    fields = {name: getattr(value, name) for name in names} if names else _fields(value)
    if fields is not None:
        return [(f".{name}", part) for name, part in fields.items()]
    if isinstance(value, list | tuple):
        return [(f"[{place}]", part) for place, part in enumerate(value)]
    return []


def _dataclass_names(value: Any) -> tuple[str, ...] | None:
    return tuple(field.name for field in dataclasses.fields(value)) if dataclasses.is_dataclass(value) else None
