"""What a Python class is to a format: a mapping of names, an object with attributes, a sequence, or none of these."""

from __future__ import annotations

import array
import dataclasses
import enum
import types
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

NEITHER, MAPPING, SEQUENCE, ATTRIBUTES = range(4)

_SCALARS = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, memoryview, Decimal, date, time, timedelta, UUID),
    *(enum.Enum, type, tuple, list, set, frozenset, BaseException, types.ModuleType, types.FunctionType),
)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the classes of Python code, and some of C


def class_kind(cls: type) -> int:
    """How objects of a class are read where they are no scalar of a type that the format knows."""
    if issubclass(cls, Mapping):
        return MAPPING
    if issubclass(cls, tuple) and declared_names(cls) is not None:
        return ATTRIBUTES
    if issubclass(cls, str | bytes | bytearray | memoryview):
        return NEITHER
    if issubclass(cls, Sequence | array.array) or _is_numpy(cls, "ndarray"):
        return SEQUENCE
    if issubclass(cls, _SCALARS) or _is_numpy(cls, "generic") or not cls.__flags__ & _HEAP_TYPE:
        return NEITHER
    return ATTRIBUTES


def declared_names(cls: type) -> frozenset[str] | None:
    """The fields of a dataclass, a named tuple, or a class of attrs, pydantic or msgspec; None: the class has none."""
    if dataclasses.is_dataclass(cls):
        return frozenset(field.name for field in dataclasses.fields(cls))
    if issubclass(cls, tuple):
        return _texts(getattr(cls, "_fields", None))
    attributes = getattr(cls, "__attrs_attrs__", None)
    if attributes is not None:
        return _texts([attribute.name for attribute in attributes])
    for name in ("__pydantic_fields__", "__struct_fields__"):
        names = _texts(getattr(cls, name, None))
        if names is not None:
            return names
    return None


def _texts(names: Any) -> frozenset[str] | None:
    return None if names is None else frozenset(name for name in names if isinstance(name, str))


def _is_numpy(cls: type, base: str) -> bool:
    return any(base_class.__module__ == "numpy" and base_class.__name__ == base for base_class in cls.__mro__)
