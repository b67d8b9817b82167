"""send_arrow refuses data that contradicts itself, before it reads a row; no row is queued."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf.errors import BufferExhaustedError, SerializationError
from rigs.arrow_abi import ArrowArray, Lying, child, ints, table
from rigs.producer import TOPIC, Rig, assert_whole
from tests.append.arrow_support import HEADERS

LONG = "a value that no view holds by itself"


def texts() -> pa.RecordBatch:
    return table(["a", "bc", None], pa.string())


def large() -> pa.RecordBatch:
    return table(["a", "bc", None], pa.large_string())


def views() -> pa.RecordBatch:
    return table(["a", LONG, None, LONG * 2], pa.string_view())


def dictionary() -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(["a", "b", "a", None]).dictionary_encode()})


def with_headers() -> pa.RecordBatch:
    return table(["v"] * 2, pa.string(), headers=pa.array([[("k", b"v")], [("l", b"w")]], HEADERS))


def with_partition() -> pa.RecordBatch:
    return table(["v"] * 2, pa.string(), partition=pa.array([0, 0], pa.int32()))


def put(where: Callable[[ArrowArray], Any], what: Any, value: Any) -> Callable[[ArrowArray], None]:
    def lie(array: ArrowArray) -> None:
        if isinstance(what, str):
            setattr(where(array), what, value)
        else:
            where(array)[what] = value

    return lie


def column(array: ArrowArray) -> ArrowArray:
    return child(array, 0)


def second(array: ArrowArray) -> ArrowArray:
    return child(array, 1)


def sizes(array: ArrowArray) -> Any:
    """The sizes of a view column's variadic buffers."""
    return ints(column(array), column(array).n_buffers - 1, ctypes.c_int64)


LIES: dict[str, tuple[Callable[[], Any], Callable[[ArrowArray], None], str]] = {
    "negative rows": (texts, put(lambda a: a, "length", -1), "has -1 rows"),
    "more rows than the column": (texts, put(lambda a: a, "length", 4), "has 3 rows and should have 4"),
    "fewer rows in the column": (texts, put(column, "length", 2), "has 2 rows and should have 3"),
    "offset of the table": (texts, put(lambda a: a, "offset", 1), "has 3 rows and should have 4"),
    "negative offset": (texts, put(column, "offset", -1), "at offset -1"),
    "offset that overflows": (texts, put(column, "offset", 2**63 - 2), "at offset 9223372036854775806"),
    "negative offset of the table": (texts, put(lambda a: a, "offset", -1), "at offset -1"),
    "one buffer": (texts, put(column, "n_buffers", 2), "has the type string but 2 buffers"),
    "children missing": (texts, put(lambda a: a, "n_children", 0), "1 buffers and 0 children"),
    "no children": (texts, put(lambda a: a, "children", None), "NULL pointer for its buffers or children"),
    "no buffers": (texts, put(column, "buffers", None), "NULL pointer for its buffers or children"),
    "no validity": (texts, put(lambda a: column(a).buffers, 0, None), "has 1 nulls but no validity bitmap"),
    "no offsets": (texts, put(lambda a: column(a).buffers, 1, None), "NULL pointer for their buffer"),
    "no bytes": (texts, put(lambda a: column(a).buffers, 2, None), "NULL pointer for its bytes"),
    "offsets back": (texts, put(lambda a: ints(column(a), 1), 1, 7), "negative or run backwards"),
    "negative first": (texts, put(lambda a: ints(column(a), 1), 0, -1), "negative or run backwards"),
    "large offsets back": (large, put(lambda a: ints(column(a), 1, ctypes.c_int64), 1, 2**40), "run backwards"),
    "large negative first": (large, put(lambda a: ints(column(a), 1, ctypes.c_int64), 0, -(2**40)), "run backwards"),
    "no values": (with_partition, put(lambda a: second(a).buffers, 1, None), "'partition' .*NULL pointer"),
    "view's buffer": (views, put(lambda a: ints(column(a), 1), 6, 1), "a view of 36 bytes that lies in none of its 1"),
    "view's negative buffer": (views, put(lambda a: ints(column(a), 1), 6, -1), "that lies in none"),
    "view's offset": (views, put(lambda a: ints(column(a), 1), 7, 100), "that lies in none"),
    "view's negative offset": (views, put(lambda a: ints(column(a), 1), 7, -1), "that lies in none"),
    "view's size": (views, put(lambda a: ints(column(a), 1), 4, 2**31 - 1), "a view of 2147483647 bytes"),
    "view's negative size": (views, put(lambda a: ints(column(a), 1), 0, -1), "a view of -1 bytes"),
    "view's buffer is short": (views, lambda a: put(sizes, 0, 107)(a), "a view of 72 bytes"),
    "no sizes": (views, lambda a: put(lambda b: b.buffers, 3, None)(column(a)), "no buffer with the sizes"),
    "index": (dictionary, put(lambda a: ints(column(a), 1), 2, 2), "has index 2 into a dictionary of 2 values"),
    "negative index": (dictionary, put(lambda a: ints(column(a), 1), 0, -1), "has index -1"),
    "no dictionary": (dictionary, put(column, "dictionary", None), "no integer indices, or no dictionary"),
    "dictionary's rows": (
        dictionary, lambda a: put(lambda b: b.dictionary.contents, "length", -1)(column(a)), "has -1 rows"
    ),
    "headers' items": (with_headers, put(lambda a: child(a, 1, 0), "length", 1), "has 1 rows and should have 2"),
    "headers' keys": (with_headers, put(lambda a: child(a, 1, 0, 0), "length", 1), "headers.key.* 1 rows and"),
    "headers' offsets": (with_headers, put(lambda a: ints(second(a), 1), 1, 5), "'headers' .*run backwards"),
    "headers' key offsets": (with_headers, put(lambda a: ints(child(a, 1, 0, 0), 1), 1, 5), "headers.key.*backwards"),
    "released": (texts, put(lambda a: a, "release", None), "was released before"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_malformed_array_is_refused_before_a_row_is_read(name: str) -> None:
    make, lie, message = LIES[name]
    rig = Rig()
    with Lying(make(), lie) as data, pytest.raises(SerializationError, match=message) as raised:
        rig.producer.send_arrow(data, TOPIC)
    assert (raised.value.rows_queued, raised.value.report.rows) == (0, 0)
    assert_whole(rig.pool)


def test_uncounted_nulls_and_garbage_behind_them_are_accepted() -> None:
    def lie(array: ArrowArray) -> None:
        column(array).null_count = -1
        ints(column(array), 1)[2 * 4] = -5  # the null view's size

    rig = Rig()
    with Lying(views(), lie) as data:
        report = rig.producer.send_arrow(data, TOPIC)
    rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"a", LONG.encode(), None, LONG.encode() * 2]
    assert report.rows == 4


def test_null_structs_are_refused() -> None:
    rig = Rig()
    struct = pa.array([{"value": "a"}, None], pa.struct([("value", pa.string())]))
    with pytest.raises(SerializationError, match="row 1 is a null struct"):
        rig.producer.send_arrow(struct, TOPIC)
    headers = pa.array([[("k", b"v"), None]], HEADERS)
    with pytest.raises(SerializationError, match="row 0: a header has no key"):
        rig.producer.send_arrow(pa.record_batch({"value": ["a"], "headers": headers}), TOPIC)
    assert_whole(rig.pool)


@pytest.mark.parametrize("given", [(None, None), (1, 2), table(["a"], pa.string()).__arrow_c_array__()[::-1]])
def test_object_that_returns_no_capsule_is_refused(given: Any) -> None:
    rig = Rig()
    odd = type("Odd", (), {"__arrow_c_array__": lambda _: given})
    with pytest.raises(SerializationError, match="must return a capsule 'arrow_schema'"):
        rig.producer.send_arrow(odd(), TOPIC)


@pytest.mark.parametrize("rows", [0, 3])
def test_stream_whose_capsule_is_given_again_is_refused(rows: int) -> None:
    """The first call has read the stream: the second call must not find a stream without rows."""
    rig = Rig()
    capsule = pa.table({"value": ["a", "b", "c"][:rows]}).__arrow_c_stream__()
    again = type("Again", (), {"__arrow_c_stream__": lambda _: capsule})()
    assert rig.producer.send_arrow(again, TOPIC).rows == rows
    with pytest.raises(SerializationError, match="read or released"):
        rig.producer.send_arrow(again, TOPIC)


def test_capsules_count_as_released_while_their_data_is_read() -> None:
    """Otherwise another thread that holds the capsules could release the data while this thread waits for memory."""
    rig = Rig(slabs=1)
    data = Lying(table(["v" * 400] * 20, pa.string()), lambda array: None)
    seen: list[int | None] = []
    rig.pool.on_exhausted = lambda: seen.append(data.array.release)
    with pytest.raises(BufferExhaustedError):
        rig.producer.send_arrow(data, TOPIC)
    assert seen
    assert set(seen) == {None}
    assert data.array.release is not None
    rig.accumulator.abort()
    assert_whole(rig.pool)
