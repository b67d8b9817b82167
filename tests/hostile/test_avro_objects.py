"""Objects with odd code under Avro's reader of objects: each ends in bytes or in an error, and the next call works."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

from kafkabuf.errors import ClosedError, ConfigError, SerializationError
from kafkabuf.formats import Avro
from kafkabuf.formats.avro._objects import ObjectEncoder
from kafkabuf.testing import MockProducer

LINE: Any = {"type": "record", "name": "L", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]}
ARRAY = Avro({"type": "array", "items": LINE})
MAP = Avro({"type": "map", "values": LINE})
UNION = Avro(["null", "long", LINE, {"type": "array", "items": "long"}])


class Line:
    """Calls `code` when its first field is read."""

    def __init__(self, code: Any) -> None:
        self.code = code
        self.b = "text"

    @property
    def a(self) -> int:
        self.code()
        return 1


ENCODED = b"\x02\x08text"


@pytest.mark.parametrize("error", [ValueError("oh"), RecursionError("oh"), SerializationError("oh"), StopIteration()])
def test_error_of_an_object_becomes_a_serialization_error(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(SerializationError, match=r"oh|StopIteration"):
        ARRAY.encode_object([Line(int), Line(fail)])
    assert ARRAY.encode_object([Line(int)]) == b"\x02" + ENCODED + b"\0"


def test_error_names_the_object_that_raised_it() -> None:
    def fail() -> None:
        raise ValueError("oh")

    with pytest.raises(SerializationError, match=r"^value\[1\]\.a cannot be read: ValueError: oh$"):
        ARRAY.encode_object([Line(int), Line(fail)])
    with pytest.raises(SerializationError, match=r"^value\{\}\.a cannot be read: ValueError: oh$"):
        MAP.encode_object({"k": Line(fail)})


def test_error_without_a_text_is_wrapped() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError

    def fail() -> None:
        raise Silent

    with pytest.raises(SerializationError, match=r"cannot be read: Silent$"):
        ARRAY.encode_object([Line(fail)])


def test_keyboard_interrupt_passes() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ARRAY.encode_object([Line(stop)])


@pytest.mark.parametrize("change", [list.clear, lambda rows: rows.append(rows[0]), lambda rows: rows.pop()])
def test_list_that_changes_while_it_is_read_is_refused(change: Any) -> None:
    rows: list[Any] = []
    rows += [Line(lambda: change(rows)), {"a": 1, "b": ""}, {"a": 2, "b": ""}]
    with pytest.raises(SerializationError, match=r"^value was changed while it was read"):
        ARRAY.encode_object(rows)


@pytest.mark.parametrize(
    "change",
    [
        dict.clear,
        lambda rows: rows.update({str(n): rows["x"] for n in range(1000)}),
        lambda rows: rows.pop("y"),
        lambda rows: (rows.pop("x"), rows.update(z=1)),
    ],
)
def test_dict_that_changes_while_it_is_read_is_no_crash(change: Any) -> None:
    rows: dict[str, Any] = {}
    rows |= {"x": Line(lambda: change(rows)), "y": {"a": 1, "b": ""}}
    with pytest.raises(SerializationError):
        MAP.encode_object(rows)


def test_dict_that_trades_its_entries_while_it_is_read_is_refused() -> None:
    """Each entry that is read makes room for a new one behind it: the size stays, and there is no end."""
    numbers = iter(range(10_000))

    def trade() -> None:
        rows.pop(next(iter(rows)))
        rows[str(next(numbers, "end"))] = Line(trade)

    rows: dict[str, Any] = {"x": Line(trade), "y": Line(trade)}
    with pytest.raises(SerializationError, match="was changed while it was read"):
        MAP.encode_object(rows)


def test_field_that_leaves_its_dict_is_still_read() -> None:
    class Index:
        def __index__(self) -> int:
            record.clear()
            gc.collect()
            return 5

    record = {"a": Index(), "b": "text"}
    with pytest.raises(SerializationError, match=r"value.b is missing"):
        Avro(LINE).encode_object(record)


def test_object_may_encode_another_object() -> None:
    found: list[Any] = []

    def encode() -> None:
        found.append(ARRAY.encode_object([Line(int), {"a": 3, "b": "x" * 100_000}]))

    assert ARRAY.encode_object([Line(encode)] * 3) == b"\x06" + 3 * ENCODED + b"\0"
    assert len(set(found)) == 1
    assert len(found[0]) > 100_000


def test_object_that_encodes_itself_reaches_the_recursion_limit() -> None:
    line: Line = Line(lambda: ARRAY.encode_object([line]))
    with pytest.raises(SerializationError, match="RecursionError"):
        ARRAY.encode_object([line])
    assert ARRAY.encode_object([Line(int)]) == b"\x02" + ENCODED + b"\0"


def test_object_may_close_the_producer() -> None:
    producer = MockProducer(value_serializer=ARRAY)
    with pytest.raises(ClosedError):
        producer.send("t", [Line(producer.close)])


class Odd(Sequence[Any]):
    def __init__(self, size: Any, items: Any) -> None:
        self.size, self.items = size, items

    def __len__(self) -> int:
        return self.size()  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> Any:
        return self.items(index)


def test_sequence_with_an_odd_length_is_refused() -> None:
    for odd in (
        Odd(lambda: 2, lambda index: {"a": 1, "b": ""}),  # never ends
        Odd(lambda: 5, lambda index: [][index]),
        Odd(lambda: -1, int),
        Odd(lambda: sys.maxsize, lambda index: {"a": 1, "b": ""}),
        Odd(lambda: 1 // 0, int),
    ):
        with pytest.raises(SerializationError):
            ARRAY.encode_object(odd)


class OddMapping(Mapping[Any, Any]):
    def __init__(self, keys: list[Any], size: int) -> None:
        self.names, self.size = keys, size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Any]:
        return iter(self.names)

    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key) if key == "b" else ValueError(key)


def test_odd_mapping_is_refused() -> None:
    for mapping in (OddMapping(["a"], 1), OddMapping([], 3), OddMapping([5], 1), OddMapping(["b"] * 9, 1)):
        for avro in (MAP, Avro(LINE), UNION):
            with pytest.raises(SerializationError):
                avro.encode_object(mapping)


def test_subclasses_of_plain_types_are_read_as_these() -> None:
    class Text(str):
        def __hash__(self) -> int:
            raise ValueError

        def encode(self, *args: Any) -> bytes:
            return b"other"

    class Number(int):
        def __index__(self) -> int:
            raise ValueError

    class Table(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise ValueError

        def __len__(self) -> int:
            return 10**9

    assert Avro(LINE).encode_object(Table(a=Number(1), b=Text("text"))) == ENCODED
    assert UNION.encode_object(Table(a=Number(1), b=Text("text"))) == b"\x04" + ENCODED
    with pytest.raises(SerializationError):
        Avro({"type": "enum", "name": "E", "symbols": ["A"]}).encode_object(Text("B"))


def test_decimal_with_odd_methods_is_read_as_decimal() -> None:
    class Odd(Decimal):
        def adjusted(self) -> int:
            return -(10**9)

        def __bool__(self) -> bool:
            raise ValueError

    schema = Avro({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})
    assert schema.encode_object(Odd("1.5")) == b"\x04\x00\x96"
    with pytest.raises(SerializationError, match="more digits"):
        schema.encode_object(Odd("1e999999999"))


def test_class_with_an_odd_metaclass_is_no_crash() -> None:
    class Meta(type):
        def __hash__(cls) -> int:
            raise ValueError("oh")

    class Point(metaclass=Meta):
        a, b = 1, "text"

    with pytest.raises(SerializationError, match="oh"):
        Avro(LINE).encode_object(Point())


def test_ambiguous_branches_end_soon() -> None:
    """Two records of the same fields that fail at the end of a chain: each level has two ways."""
    fields = [{"name": "next", "type": ["null", "A", "B"]}, {"name": "n", "type": "int"}]
    second = {"type": "record", "name": "B", "fields": fields}
    first = {
        "type": "record", "name": "A",
        "fields": [{"name": "next", "type": ["null", "A", second]}, {"name": "n", "type": "int"}],
    }  # fmt: skip
    value: dict[str, Any] = {"next": None, "n": "no number"}
    for _ in range(100):
        value = {"next": value, "n": 1}
    with pytest.raises(SerializationError, match=r"no number|of type str"):
        Avro([first, "B"]).encode_object(value)


def test_threads_share_an_encoder() -> None:
    rows = [{"a": n, "b": "x" * n} for n in range(50)]
    expected = ARRAY.encode_object(rows)
    wrong: list[Any] = []

    def encode() -> None:
        wrong.extend(found for found in (ARRAY.encode_object(rows) for _ in range(200)) if found != expected)

    threads = [threading.Thread(target=encode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_encoder_is_made_by_its_format_only() -> None:
    with pytest.raises(TypeError):
        ObjectEncoder()
    with pytest.raises(TypeError):
        ObjectEncoder.__new__(ObjectEncoder)
    with pytest.raises(TypeError):
        ARRAY.encode_object([], prefix="text")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        Avro().object_serializer("value")
