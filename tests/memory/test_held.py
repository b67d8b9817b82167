"""The memory that send() borrows from its caller: headers that change while send() reads them or waits for memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kafkabuf._records import MemoryRecordsBuilder
from kafkabuf.errors import SerializationError
from rigs.producer import TOPIC, Rig, TurningClock, assert_whole
from tests.wire.record_support import decoded_by_kafka_python

Pair = tuple[str, bytes | None]


def read_back(headers: Any) -> tuple[Pair, ...]:
    builder = MemoryRecordsBuilder(write_limit=1 << 20)
    assert builder.append(1, None, b"v", headers) == 0
    decoded: tuple[Pair, ...] = decoded_by_kafka_python(builder.close())[0][1].headers
    return decoded


@pytest.mark.parametrize("count", [7, 8, 9, 100])
@pytest.mark.parametrize("shape", [list, tuple, dict, iter])
def test_any_number_of_headers_in_any_shape_is_written(count: int, shape: Any) -> None:
    pairs = tuple((f"name-{n}", b"%d" % n if n % 3 else None) for n in range(count))
    assert read_back(shape(pairs)) == pairs


class Meddler:
    """A pair that changes its own list while it is unpacked."""

    def __init__(self, pairs: list[Any], change: Any) -> None:
        self.pairs, self.change = pairs, change

    def __iter__(self) -> Iterator[object]:
        self.change(self.pairs)
        return iter(("meddler", b"m"))


@pytest.mark.parametrize("shape", ["at hand", "beyond"])
def test_list_that_shrinks_meanwhile_is_read_to_its_new_end(shape: str) -> None:
    pairs: list[Any] = [("a", b"1")]
    pairs += [Meddler(pairs, list.clear), *[("b", b"2")] * (2 if shape == "at hand" else 20)]
    expected = (("a", b"1"), ("meddler", b"m"))
    assert read_back(pairs) == (expected if shape == "at hand" else (*expected, *[("b", b"2")] * 20))


def test_list_that_grows_meanwhile_is_read_to_its_first_length() -> None:
    pairs: list[Any] = []
    pairs += [Meddler(pairs, lambda list_: list_.extend([("x", b"y")] * 1000)), *[("b", b"2")] * 7]
    assert read_back(pairs) == (("meddler", b"m"), *[("b", b"2")] * 7)


def test_headers_changed_during_the_wait_for_memory_are_written_as_measured() -> None:
    clock = TurningClock()
    rig = Rig(slabs=1, linger_ms=0, clock=clock)
    rig.fill()
    freed = bytearray(b"still " * 50)
    headers: list[Any] = [(f"name-{n}", b"value-%d" % n) for n in range(4)] + [["pair", freed]]
    expected = [(name, bytes(value)) for name, value in headers]
    turns: list[int] = []

    def turn() -> None:
        if not turns:
            headers[4][:] = ["another", b"pair"]
            headers[:] = [("changed" * 40, b"changed" * 40)] * 9
            with pytest.raises(BufferError):
                freed.clear()
        turns.append(1)
        rig.turn()
        rig.ack_under_way()

    clock.turn = turn
    rig.send(b"v", headers=headers)
    rig.ack_all()
    assert turns, "the send found memory without waiting"
    assert rig.log[TOPIC, 0][-1].headers == expected
    assert_whole(rig.pool)


@pytest.mark.parametrize("bad", [("a", 1), (1, b"a"), ("\ud800", b""), 7, ("a", "b"), ("a", b"b", b"c")])
@pytest.mark.parametrize("count", [2, 20])
def test_no_header_is_held_after_the_call(count: int, bad: Any) -> None:
    name, value, memory = "".join(["na", "me"]), bytes(300), bytearray(b"abc")
    good: list[Any] = [(name, value), (name, memory)] * count
    before = sys.getrefcount(name), sys.getrefcount(value)
    for _ in range(3):
        read_back(good)
        with pytest.raises(SerializationError):
            MemoryRecordsBuilder().append(1, None, b"v", [*good, bad])
        with pytest.raises(SerializationError):
            MemoryRecordsBuilder(1).append(1, None, b"v", good)
        with pytest.raises(SerializationError):
            MemoryRecordsBuilder().append(1, "text", b"v", good)  # type: ignore[arg-type]
    assert (sys.getrefcount(name), sys.getrefcount(value)) == before
    memory.clear()


class OfObjects(ctypes.Structure):
    _fields_ = (("Order", ctypes.c_int), ("object", ctypes.py_object))


HOLDING_OBJECTS = [
    np.array([object()]),
    np.zeros(1, [("number", "i4"), ("object", "O")]),
    np.zeros(1, [("object", "O"), ("number", "i4")]),
    np.zeros(1, [("nested", [("object", "O")]), ("number", "i4")]),
    OfObjects(1, object()),
]


@pytest.mark.parametrize("held", HOLDING_OBJECTS, ids=lambda held: memoryview(held).format)
def test_no_address_of_an_object_is_written(held: Any) -> None:
    builder = MemoryRecordsBuilder()
    for key, value, headers in ((held, None, ()), (None, held, ()), (None, None, [("name", held)])):
        with pytest.raises(SerializationError, match="only their addresses would be sent"):
            builder.append(1, key, value, headers)


def test_name_of_a_field_may_have_an_o() -> None:
    numbers: Any = np.zeros(1, [("Order", "u1"), ("O", "u1")])
    assert MemoryRecordsBuilder().append(1, numbers, numbers, [("name", numbers)]) == 0


def test_columns_first_are_refused_everywhere() -> None:
    """Their bytes lie side by side, and in another order than that of the elements."""
    data: Any = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    for key, value, headers in ((data, None, ()), (None, data, ()), (None, None, [("name", data)])):
        with pytest.raises(SerializationError, match="contiguous"):
            MemoryRecordsBuilder().append(1, key, value, headers)
