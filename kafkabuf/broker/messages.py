"""`Messages`: the records of a topic, easy to compare with what a test expects, and the words for a difference."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import SequenceMatcher
from typing import Any, SupportsIndex, overload

from kafkabuf.broker.log.decoding import ConsumerRecord

# A description of a difference names at most this many records of each kind, and cuts a value off at this length.
_SHOWN = 20
_CONTEXT = 2
_LONGEST = 120
_FIELDS = tuple(field.name for field in fields(ConsumerRecord))
_PAIR, _TRIPLE = 2, 3


class Messages(list[ConsumerRecord]):
    """Records in the order of their partitions and offsets. It compares with a list of what a test expects:

        cluster.messages("orders") == [b"one", "two", (b"key", b"three"), {"partition": 2, "value": b"four"}]

    An expected item is a value (bytes, None, or a str, which stands for its UTF-8), a tuple (key, value) or (key,
    value, headers), a mapping of fields of `ConsumerRecord`, or a `ConsumerRecord` itself. Each of them may be an
    object that decides by `==`, such as `unittest.mock.ANY`. `in`, `count` and `index` take the same items.
    """

    @property
    def keys(self) -> list[bytes | None]:
        return [record.key for record in self]

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self]

    def differences(self, expected: Iterable[Any], *, any_order: bool = False) -> list[str]:
        """What is wrong, a line each; empty if these are the expected records. With `any_order` each expected item
        takes the first record that matches and that no earlier item has taken. Raises TypeError for a single item."""
        expected = items_of(expected)
        return _unordered(self, expected) if any_order else _ordered(self, expected)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(map(matches, self, other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __contains__(self, item: object) -> bool:
        return any(matches(record, item) for record in self)

    def count(self, item: Any, /) -> int:
        return sum(matches(record, item) for record in self)

    def index(self, item: Any, start: SupportsIndex = 0, stop: SupportsIndex = sys.maxsize, /) -> int:
        """Raises ValueError if no record from `start` to `stop` matches."""
        for index in range(*slice(start, stop).indices(len(self))):
            if matches(self[index], item):
                return index
        raise ValueError(f"no record matches {item!r}")

    @overload
    def __getitem__(self, index: SupportsIndex) -> ConsumerRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Messages: ...
    def __getitem__(self, index: SupportsIndex | slice) -> ConsumerRecord | Messages:
        item = super().__getitem__(index)
        return Messages(item) if isinstance(item, list) else item


def items_of(expected: Iterable[Any]) -> list[Any]:
    """The expected items. Raises TypeError for a single item, such as a str, which is no list of its letters."""
    if isinstance(expected, str | bytes | bytearray | memoryview | Mapping) or not isinstance(expected, Iterable):
        raise TypeError(f"expected: a list of items is needed, found {type(expected).__name__}: put the item into []")
    return list(expected)


def matches(record: ConsumerRecord, item: Any) -> bool:
    """Whether a record is what a test expects: `Messages` says what the item may be."""
    return not any(True for _ in _mismatches(record, item))


def _mismatches(record: ConsumerRecord, item: Any) -> Iterator[tuple[str, Any, Any]]:
    """(field, actual, expected) of each field that differs. Raises TypeError for a mapping with unknown fields."""
    for name, value in _wanted_fields(item).items():
        actual = getattr(record, name)
        same = _same_headers(actual, value) if name == "headers" else _same(actual, value)
        if not same:
            yield name, actual, value


def _wanted_fields(item: Any) -> dict[str, Any]:
    if isinstance(item, ConsumerRecord):
        return {name: getattr(item, name) for name in _FIELDS}
    if isinstance(item, tuple) and len(item) in (_PAIR, _TRIPLE):
        return dict(zip(("key", "value", "headers"), item, strict=False))
    if not isinstance(item, Mapping):
        return {"value": item}
    if unknown := set(item) - {*_FIELDS}:
        raise TypeError(f"a record has no field {min(map(repr, unknown))}: its fields are {', '.join(_FIELDS)}")
    return dict(item)


def _same(actual: Any, wanted: Any) -> bool:
    return bool(actual == (_utf8(wanted) if isinstance(actual, bytes) else wanted))


def _utf8(wanted: Any) -> Any:
    """The UTF-8 of a str. A lone surrogate has no UTF-8: it becomes bytes that no UTF-8 contains."""
    return wanted.encode(errors="surrogatepass") if isinstance(wanted, str) else wanted


def _same_headers(actual: Sequence[tuple[str, bytes | None]], wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        wanted = list(wanted.items())
    if not isinstance(wanted, list | tuple):
        return bool(actual == wanted)
    return len(actual) == len(wanted) and all(map(_same_header, actual, wanted))


def _same_header(actual: tuple[str, bytes | None], wanted: Any) -> bool:
    if not isinstance(wanted, list | tuple):
        return bool(actual == wanted)
    return len(wanted) == _PAIR and all(map(_same, actual, wanted))


# ---- differences


def describe(record: ConsumerRecord) -> str:
    """A record in one line."""
    headers = f", headers {shortened(record.headers)}" if record.headers else ""
    key = "" if record.key is None else f"key {shortened(record.key)}, "
    return f"partition {record.partition}, offset {record.offset}: {key}value {shortened(record.value)}{headers}"


def shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"


def _ordered(records: Sequence[ConsumerRecord], expected: list[Any]) -> list[str]:
    """The part between the equal starts and ends, aligned. Long parts are cut off."""
    shorter = min(len(records), len(expected))
    start = next((at for at in range(shorter) if not matches(records[at], expected[at])), shorter)
    if start == len(records) == len(expected):
        return []
    most = shorter - start
    end = next((at for at in range(most) if not matches(records[-1 - at], expected[-1 - at])), most)
    lines = [_count(records, expected)]
    if start > _CONTEXT:
        lines.append(f"  ... {start - _CONTEXT:,} as expected")
    lines += [f"  {describe(record)}" for record in records[max(start - _CONTEXT, 0) : start]]
    unexpected, missing = list(records[start : len(records) - end]), expected[start : len(expected) - end]
    lines += _aligned(unexpected[:_SHOWN], missing[:_SHOWN])
    lines += _left_out(len(unexpected) - _SHOWN, len(missing) - _SHOWN)
    after = records[len(records) - end :]
    lines += [f"  {describe(record)}" for record in after[:_CONTEXT]]
    if end > _CONTEXT:
        lines.append(f"  ... {end - _CONTEXT:,} as expected")
    return lines


def _aligned(records: Sequence[ConsumerRecord], expected: Sequence[Any]) -> Iterator[str]:
    """Lines with `+` for records that were not expected, `-` for expected records that are missing."""
    # Equal numbers stand for items that match, since items cannot be hashed.
    numbers = [next((at for at, item in enumerate(expected) if matches(record, item)), -1) for record in records]
    wanted = [next((at for at in numbers if at >= 0 and _equal(expected[at], item)), -2 - number)
              for number, item in enumerate(expected)]  # fmt: skip
    for kind, from_, to, wanted_from, wanted_to in SequenceMatcher(None, numbers, wanted, False).get_opcodes():
        if kind == "equal":
            yield from (f"  {describe(record)}" for record in records[from_:to])
        elif to - from_ == wanted_to - wanted_from:
            for record, item in zip(records[from_:to], expected[wanted_from:wanted_to], strict=True):
                yield f"! partition {record.partition}, offset {record.offset}: {_changed(record, item)}"
        else:
            yield from (f"- {_wanted(item)}" for item in expected[wanted_from:wanted_to])
            yield from (f"+ {describe(record)}" for record in records[from_:to])


def _equal(first: Any, second: Any) -> bool:
    return first is second or (type(first) is type(second) and bool(first == second))


def _changed(record: ConsumerRecord, item: Any) -> str:
    return "; ".join(_difference(name, actual, wanted) for name, actual, wanted in _mismatches(record, item))


def _difference(name: str, actual: Any, wanted: Any) -> str:
    if isinstance(actual, bytes):
        wanted = _utf8(wanted)
    if isinstance(actual, bytes) and isinstance(wanted, bytes) and max(len(actual), len(wanted)) > _LONGEST:
        at = next((at for at, pair in enumerate(zip(actual, wanted, strict=False)) if pair[0] != pair[1]),
                  min(len(actual), len(wanted)))  # fmt: skip
        shown, rest = slice(max(at - _SHOWN, 0), at + _SHOWN), f"{len(actual):,} bytes, {len(wanted):,} expected"
        return f"{name} differs from byte {at:,} on: ...{actual[shown]!r}..., expected ...{wanted[shown]!r}... ({rest})"
    return f"{name} is {shortened(actual)}, expected {shortened(wanted)}"


def _unordered(records: Sequence[ConsumerRecord], expected: Sequence[Any]) -> list[str]:
    left, missing = list(records), []
    for item in expected:
        at = next((at for at, record in enumerate(left) if matches(record, item)), None)
        if at is None:
            missing.append(item)
        else:
            del left[at]
    if not (left or missing):
        return []
    lines = [_count(records, expected)]
    lines += [f"- {_wanted(item)}" for item in missing[:_SHOWN]]
    lines += [f"+ {describe(record)}" for record in left[:_SHOWN]]
    return [*lines, *_left_out(len(left) - _SHOWN, len(missing) - _SHOWN)]


def _wanted(item: Any) -> str:
    if isinstance(item, ConsumerRecord):
        return f"expected {describe(item)}"
    return "expected " + ", ".join(f"{name} {shortened(value)}" for name, value in _wanted_fields(item).items())


def _count(records: Sequence[ConsumerRecord], expected: Sequence[Any]) -> str:
    count = f"{len(records):,} {'message' if len(records) == 1 else 'messages'}"
    return f"{count}, {len(expected):,} expected (- missing, + not expected, ! different)"


def _left_out(records: int, expected: int) -> Iterator[str]:
    if expected > 0:
        yield f"- ... and {expected:,} more"
    if records > 0:
        yield f"+ ... and {records:,} more"
