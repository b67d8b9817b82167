"""Arrow C data that lies: a real record batch whose exported structs a test changes before the import."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any, Self

import pyarrow as pa

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class ArrowSchema(ctypes.Structure):
    format: Any
    metadata: Any
    dictionary: Any
    children: Any


class ArrowArray(ctypes.Structure):
    length: int
    null_count: int
    offset: int
    n_buffers: int
    n_children: int
    buffers: Any
    children: Any
    dictionary: Any
    release: Any


ArrowSchema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowSchema))),
    ("dictionary", ctypes.POINTER(ArrowSchema)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
ArrowArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowArray))),
    ("dictionary", ctypes.POINTER(ArrowArray)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class Lying:
    """The exported structs of a record batch. `lie` changes them when the context begins; its end restores them."""

    def __init__(self, data: Any, lie: Callable[[ArrowArray], None]) -> None:
        self.capsules = data.__arrow_c_array__()
        self.array = ArrowArray.from_address(_get_pointer(self.capsules[1], b"arrow_array"))
        self.truth = list(_memory(self.array))
        self.lie = lie

    def __enter__(self) -> Self:
        self.lie(self.array)
        return self

    def __exit__(self, *_: object) -> None:
        # pyarrow reads the structs once more, to release them.
        for address, memory in self.truth:
            ctypes.memmove(address, memory, len(memory))

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.capsules  # type: ignore[no-any-return]


def _memory(array: ArrowArray) -> Iterator[tuple[int, bytes]]:
    """Address and content of the struct, of its list of buffers, and of the same of its children and dictionary."""
    yield ctypes.addressof(array), bytes(array)
    if array.n_buffers:
        address = ctypes.cast(array.buffers, ctypes.c_void_p).value or 0
        yield address, ctypes.string_at(address, 8 * array.n_buffers)
    for number in range(array.n_children):
        yield from _memory(child(array, number))
    if array.dictionary:
        yield from _memory(array.dictionary.contents)


def child(array: ArrowArray, *path: int) -> ArrowArray:
    """The descendant of an array at the end of a path of children's indices."""
    for number in path:
        array = array.children[number].contents
    return array


def ints(array: ArrowArray, buffer: int, kind: Any = ctypes.c_int32) -> Any:
    """A buffer as an array of integers."""
    return ctypes.cast(array.buffers[buffer], ctypes.POINTER(kind))


def table(values: list[Any], kind: pa.DataType, **columns: pa.Array) -> pa.RecordBatch:
    """A record batch with a column `value` of type `kind`, and further columns."""
    return pa.record_batch({"value": pa.array(values, kind), **columns})
