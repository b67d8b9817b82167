"""Python objects as JSON text, for serializers. orjson writes them; the extra `json` installs it.

orjson itself knows dicts with text as keys, lists, tuples, str, int, float, bool, None, dates and times, UUIDs, enums
and dataclasses. For other objects it calls `known`: what Json writes of columns has the same text here. The arrays and
scalars of NumPy go back to orjson, which writes them fast. Times do not: orjson cuts off their nanoseconds, and refuses
NaT. NumPy and pandas are never imported for this: where they are not loaded, no value is of their types.
"""

from __future__ import annotations

import base64
import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from kafkabuf.errors import SerializationError
from kafkabuf.extras import needs
from kafkabuf.formats.rows.object_classes import MAPPING, SEQUENCE, class_kind

_DEEPEST = 300  # orjson refuses what is nested deeper
_MOST_DIGITS = 1 << 14  # a short text such as 1E+999999999 would become a gibibyte
_SECOND = 10**9
# In nanoseconds, the units of NumPy's times that always are as long.
_UNITS = {
    "W": 604_800 * _SECOND, "D": 86_400 * _SECOND, "h": 3600 * _SECOND, "m": 60 * _SECOND, "s": _SECOND,
    "ms": 10**6, "us": 1000, "ns": 1,
}  # fmt: skip
_TIMES = "mM"  # the kinds of NumPy's timedelta64 and datetime64
_EPOCH = datetime(1970, 1, 1)


def object_serializer(name: str, prefix: bytes) -> Callable[[Any], bytes | None]:
    """A callable: `prefix` and the JSON text of an object, in UTF-8; None for None, Kafka's null.

    `name`, "value" or "key", begins errors. The callable raises SerializationError, which names the path to what cannot
    be written. Raises MissingExtraError without orjson.
    """
    with needs("json", "Json as a serializer"):
        import orjson
    dumps, numpy_option, fragment = orjson.dumps, orjson.OPT_SERIALIZE_NUMPY, orjson.Fragment

    def write(value: Any) -> bytes:
        text: bytes = dumps(value, known)
        return text

    def known(value: Any) -> Any:
        if isinstance(value, Decimal):
            return fragment(_decimal(value))
        if _is_numpy(value) and value.dtype.kind not in _TIMES and value.dtype.isnative:
            return fragment(dumps(value, unread, numpy_option))
        return _known(value)

    def unread(value: Any) -> Any:
        """What of NumPy orjson does not write at once, or what is in an array of objects."""
        return _numpy_parts(value) if _is_numpy(value) else known(value)

    def serialize(value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            return prefix + dumps(value, known) if prefix else write(value)
        except orjson.JSONEncodeError as error:
            path, reason = _blamed(value, write, error)
            raise SerializationError(f"{name}{path} cannot be written as JSON: {reason}") from None

    return serialize


def _known(value: Any) -> Any:
    """What orjson can write for an object that it does not know. Raises TypeError."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, date | time | timedelta):
        return _time_text(value)
    if _is_numpy(value):
        return _numpy_time(value) if value.dtype.kind in _TIMES and not value.ndim else _numpy_parts(value)
    if _is_missing(value):
        return None
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


# ---- times -----------------------------------------------------------------------------------------------------------


def _time_text(value: date | time | timedelta) -> Any:
    """For a timedelta, and for an object of a subclass, which orjson does not know. Nanoseconds of pandas are kept."""
    if value != value:  # pandas.NaT
        return None
    if isinstance(value, timedelta):
        micros = (value.days * 86_400 + value.seconds) * 10**6 + value.microseconds
        return _duration(micros * 1000 + getattr(value, "nanoseconds", 0))
    if isinstance(value, time):
        return time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold)
    if not isinstance(value, datetime):
        return date(value.year, value.month, value.day)
    moment = datetime.combine(
        date(value.year, value.month, value.day),
        time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold),
    )
    nanos = getattr(value, "nanosecond", 0)
    return _with_nanos(moment, nanos) if nanos else moment


def _with_nanos(moment: datetime, nanos: int) -> str:
    text = moment.isoformat(timespec="microseconds")
    return f"{text[:26]}{nanos:03}{text[26:]}"


def _duration(nanos: int) -> str:
    """ISO 8601 in seconds."""
    seconds, rest = divmod(abs(nanos), _SECOND)
    fraction = f"{rest:09}".rstrip("0")
    return f"{'-' if nanos < 0 else ''}PT{seconds}{'.' if fraction else ''}{fraction}S"


# ---- NumPy and pandas ------------------------------------------------------------------------------------------------


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray))


def _is_missing(value: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and value is getattr(pandas, "NA", value)


def _numpy_parts(value: Any) -> Any:
    if value.ndim:
        return list(value)
    item = value.item()
    if _is_numpy(item):
        raise TypeError(f"{type(value).__name__} has no JSON text")
    return item


def _numpy_time(value: Any) -> Any:
    """The value for JSON of a datetime64 or a timedelta64, which may be an array without a dimension."""
    if value != value:  # NaT
        return None
    is_moment = value.dtype.kind == "M"
    if is_moment and value.dtype.str[4:-1] in ("Y", "M"):
        value = value.astype("M8[D]")
    unit, count = sys.modules["numpy"].datetime_data(value.dtype)
    if unit not in _UNITS:
        raise TypeError(f"{value.dtype} has no JSON text")
    nanos = int(value.astype("i8")) * count * _UNITS[unit]
    if not is_moment:
        return _duration(nanos)
    seconds, rest = divmod(nanos, _SECOND)
    try:
        moment = _EPOCH + timedelta(seconds=seconds, microseconds=rest // 1000)
    except OverflowError:
        raise TypeError(f"{value} is not within the years 1 to 9999") from None
    return _with_nanos(moment, rest % 1000) if rest % 1000 else moment


# ---- objects of fields -----------------------------------------------------------------------------------------------


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of an object that is no dataclass, and a pydantic model's extra values; None: it has no fields."""
    names = _field_names(type(value))
    if names is None:
        return None
    extra = getattr(value, "__pydantic_extra__", None)
    return {name: getattr(value, name) for name in names} | (extra if isinstance(extra, dict) else {})


def _field_names(cls: type) -> tuple[str, ...] | None:
    """The fields, in their order, of a named tuple or a class of attrs, pydantic or msgspec; None: another class."""
    if issubclass(cls, tuple):
        return getattr(cls, "_fields", None)
    if (attributes := getattr(cls, "__attrs_attrs__", None)) is not None:
        return tuple(attribute.name for attribute in attributes)
    for name in ("__pydantic_fields__", "__struct_fields__"):
        if (fields := getattr(cls, name, None)) is not None:
            return tuple(fields)
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
            except type(error) as error_of_part:
                path, value, error = path + step, part, error_of_part
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
