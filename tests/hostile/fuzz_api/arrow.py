"""Arrow data for the API fuzzer: tables of many shapes and types, tables that lie, and objects that imitate tables."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from rigs.arrow_abi import ArrowArray, ArrowSchema, Lying, _get_pointer
from tests.append.arrow_support import HEADERS
from tests.append.test_arrow_lies import LIES
from tests.hostile.fuzz_api.objects import Deeds, anything, deeds, mostly

INT64 = [0, 1, 1_700_000_000_000, (1 << 63) - 1, -(1 << 63), -(1 << 63) + 1, -1, None]
_BYTES = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.string_view(), pa.binary_view()]
_OTHERS: list[Callable[[int], pa.Array]] = [
    pa.nulls,
    lambda n: pa.array(range(n), pa.int64()),
    lambda n: pa.array([1.5] * n),
    lambda n: pa.array([[b"x"]] * n),
    lambda n: pa.array([{"a": 1}] * n),
    lambda n: pa.array([True] * n),
    lambda n: pa.array([b"four"] * n, pa.binary(4)),
    lambda n: pa.array(["x"] * n).dictionary_encode(),
    lambda n: pa.RunEndEncodedArray.from_arrays([n], [b"x"]) if n else pa.nulls(0),
    lambda n: pa.UnionArray.from_dense(pa.array([0] * n, pa.int8()), pa.array(range(n), pa.int32()), [pa.nulls(n)]),
]
_texts = st.lists(st.sampled_from(["", "v", "x" * 20, "x" * 600, "x" * 3000, None]), min_size=1, max_size=4)


def _cycled(items: list[Any], rows: int) -> list[Any]:
    return [items[row % len(items)] for row in range(rows)]


@st.composite
def _bytes(draw: st.DrawFn, rows: int) -> pa.Array:
    made = pa.array(_cycled(draw(_texts), rows), draw(st.sampled_from(_BYTES)))
    if draw(st.integers(0, 4)) == 0 and made.type not in (pa.string_view(), pa.binary_view()):
        return made.dictionary_encode()
    return made


@st.composite
def _column(draw: st.DrawFn, name: str, rows: int) -> pa.Array:
    if draw(st.integers(0, 19)) == 0:
        return draw(st.sampled_from(_OTHERS))(rows)
    match name:
        case "partition":
            return pa.array(_cycled(draw(st.lists(st.sampled_from([0, 1, 3, None]), min_size=1)), rows), pa.int32())
        case "timestamp":
            stamps = _cycled(draw(st.lists(st.sampled_from(INT64), min_size=1, max_size=3)), rows)
            return pa.array(stamps, pa.int64()).view(pa.timestamp(draw(st.sampled_from(["s", "ms", "us", "ns"]))))
        case "headers":
            pairs = st.lists(st.sampled_from([("k", b"v"), ("", None), ("k" * 40, b"v" * 400)]), max_size=5)
            return pa.array(_cycled(draw(st.lists(st.none() | pairs, min_size=1, max_size=3)), rows), HEADERS)
        case "topic":
            return pa.array(_cycled(draw(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=2)), rows), pa.string())
    return draw(_bytes(rows))


TOPICS: list[Any] = []  # names for a topic column; the machine sets them


@st.composite
def tables(draw: st.DrawFn) -> Any:
    rows = draw(st.sampled_from([0, 1, 7, 30, 100]))
    names = draw(st.sets(st.sampled_from(["key", "topic", "partition", "timestamp", "headers", "more"]), max_size=2))
    batch = pa.record_batch({name: draw(_column(name, rows)) for name in ["value", *sorted(names)]})
    match draw(st.integers(0, 5)):
        case 0:
            return batch.slice(rows // 3, rows // 2)
        case 1:
            return pa.Table.from_batches([batch, batch.slice(0, rows // 2), batch])
        case 2:
            return pa.RecordBatchReader.from_batches(batch.schema, [batch] * 3)
        case 3:
            return batch.to_struct_array()
    return batch


# ---- lies ------------------------------------------------------------------------------------------------------------


class Lie:
    """Data with a lie that kafkabuf can detect. (Some lies it cannot: the interface has no length for a buffer.)"""

    def __init__(self, make: Callable[[], Any], lie: Callable[[ArrowArray], None]) -> None:
        self._make, self._lie = make, lie
        self._exported: list[Lying] = []

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        lying = Lying(self._make(), self._lie)
        self._exported.append(lying)
        return lying.__enter__().__arrow_c_array__()

    def __del__(self) -> None:
        for lying in self._exported:  # pyarrow needs the true structs to release them
            lying.__exit__()


# ---- objects that imitate tables -------------------------------------------------------------------------------------


class Exporter:
    """A real table that does deeds while it is exported."""

    def __init__(self, batch: Any, names: list[str]) -> None:
        self._batch, self._deed = batch, Deeds(names)

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        self._deed()
        return pa.RecordBatchReader.from_batches(self._batch.schema, self._batches()).__arrow_c_stream__()

    def _batches(self) -> Any:
        for _ in range(3):
            self._deed()
            yield self._batch


class NoCapsules:
    """Returns a drawn value in place of capsules."""

    def __init__(self, value: Any, names: list[str]) -> None:
        self._value, self._deed = value, Deeds(names)

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        self._deed()
        return self._value


class ArrowArrayStream(ctypes.Structure):
    """The ABI's struct of a stream."""

    _fields_ = [
        ("get_schema", ctypes.c_void_p),
        ("get_next", ctypes.c_void_p),
        ("get_last_error", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_GET_LAST_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Stream:
    """A stream whose functions are written in Python, and do deeds."""

    def __init__(self, batch: Any, names: list[str], statuses: list[int], error_text: bytes | None) -> None:
        self._batch, self._deed, self._statuses = batch, Deeds(names), statuses
        self._error_text = ctypes.c_char_p(error_text)
        self._calls = _GET(self._schema), _GET(self._next), _GET_LAST_ERROR(self._error), _RELEASE(self._release)
        self._streams: list[ArrowArrayStream] = []  # the capsules point at them

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        stream = ArrowArrayStream(*(ctypes.cast(call, ctypes.c_void_p).value for call in self._calls), None)
        self._streams.append(stream)
        return _capsule(ctypes.addressof(stream), b"arrow_array_stream", None)

    def _release(self, address: int) -> None:
        ArrowArrayStream.from_address(address).release = None
        with contextlib.suppress(BaseException):
            self._deed()

    def _schema(self, _: int, target: int) -> int:
        return self._move(0, b"arrow_schema", ArrowSchema, target)

    def _next(self, _: int, target: int) -> int:
        if not self._statuses:
            ctypes.memset(target, 0, ctypes.sizeof(ArrowArray))
            return 0
        return self._statuses.pop() or self._move(1, b"arrow_array", ArrowArray, target)

    def _move(self, index: int, name: bytes, kind: Any, target: int) -> int:
        """Move a struct of the batch to the address `target`, as the interface requires."""
        try:
            self._deed()
        except BaseException:
            return 5
        capsule = self._batch.__arrow_c_array__()[index]
        address = _get_pointer(capsule, name)
        ctypes.memmove(target, address, ctypes.sizeof(kind))
        kind.from_address(address).release = None
        return 0

    def _error(self, _: int) -> int | None:
        try:
            self._deed()
        except BaseException:
            return None
        return ctypes.cast(self._error_text, ctypes.c_void_p).value


def _frame() -> Any:
    pandas = __import__("pandas")
    return pandas.DataFrame({"value": ["a", "b"], "timestamp": np.array(["NaT", "2020"], "datetime64[ns]")})


_batches = tables().filter(lambda made: isinstance(made, pa.RecordBatch))
arrow = mostly(
    tables(),
    st.one_of(
        st.sampled_from(sorted(LIES)).map(lambda name: Lie(*LIES[name][:2])),
        st.builds(Exporter, _batches, deeds),
        st.builds(NoCapsules, st.tuples(anything, anything) | anything, deeds),
        st.builds(
            Stream, _batches, deeds, st.lists(st.sampled_from([0, 0, 0, 22]), max_size=3),
            st.sampled_from([None, b"why", b"\xff"]),
        ),
        st.builds(_frame),
        anything,
    ),
    tenths=6,
)  # fmt: skip
