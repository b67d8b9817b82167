"""Odd objects for every argument of the producers' methods, as strategies of hypothesis.

An odd object has a list of deeds (world.py), and does the next deed whenever Python calls one of its methods.
Its return values change, too. Most of the other objects are valid, so that most calls run to their end.
"""

from __future__ import annotations

import array
import ctypes
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kafkabuf.interceptors import ProducerRecord
from tests.hostile.fuzz_api.world import DEEDS, RAISED, World

Strategy = st.SearchStrategy[Any]

_now: list[World] = []


def enter(world: World) -> None:
    """Odd objects that are made from now on belong to this world."""
    _now[:] = [world]


class Deeds:
    """Does the next deed at each call, and begins again after the last."""

    def __init__(self, names: list[str]) -> None:
        self._world = _now[0]
        self._next = itertools.cycle(names)

    def __call__(self) -> None:
        self._world.do(next(self._next))


# Most deeds are harmless: an object that raises at once ends the call at its first step.
_DEEDS = st.sampled_from([*["nothing", "yield"] * 12, *["collect", "change lists"] * 3, *DEEDS, *RAISED])
deeds = st.lists(_DEEDS, min_size=1, max_size=4)


# ---- objects whose methods do deeds ----------------------------------------------------------------------------------


class Odd:
    def __init__(self, names: list[str], answers: Any = ()) -> None:
        self.deed = Deeds(names)
        self.answers = itertools.cycle(answers or [None])

    def answer(self) -> Any:
        self.deed()
        return next(self.answers)


class OddIndex(Odd):
    def __index__(self) -> Any:
        return self.answer()

    __int__ = __float__ = __index__


class OddNumber(float):
    """A float, for a time-out."""

    def __new__(cls, names: list[str], value: float) -> OddNumber:
        made = super().__new__(cls, value)
        made.deed = Deeds(names)
        return made

    deed: Deeds

    def __ge__(self, other: Any) -> bool:
        self.deed()
        return True

    __le__ = __gt__ = __lt__ = __ge__

    def __float__(self) -> float:
        self.deed()
        return super().__float__()


class OddSequence(Odd):
    """A sequence whose length changes from call to call."""

    def __init__(self, names: list[str], items: list[Any], lengths: list[int]) -> None:
        super().__init__(names, lengths)
        self.items = items

    def __len__(self) -> int:
        return self.answer() or len(self.items)

    def __getitem__(self, index: Any) -> Any:
        self.deed()
        return self.items[index]

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            self.deed()
            yield item


class OddList(list[Any]):
    """A list whose items C code reads without calling these methods."""

    deed: Deeds

    def __len__(self) -> int:
        self.deed()
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        self.deed()
        return super().__iter__()


class OddClass(Odd):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.answer() or Odd


class OddAttributes(Odd):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and not name.startswith("__arrow"):
            raise AttributeError(name)
        return self.answer()


class OddText(str):
    deed: Deeds

    def __eq__(self, other: object) -> bool:
        self.deed()
        return super().__eq__(other)

    def __hash__(self) -> int:
        self.deed()
        return super().__hash__()

    def __repr__(self) -> str:
        self.deed()
        return super().__repr__()


class OddBytes(bytes):
    deed: Deeds

    def __len__(self) -> int:
        self.deed()
        return 1 << 40

    def __bytes__(self) -> bytes:
        self.deed()
        return b"other"


class OddBuffer(Odd):
    """An object with the buffer protocol, from Python 3.12 on."""

    def __buffer__(self, flags: int) -> memoryview:
        self.deed()
        return memoryview(bytearray(b"odd"))

    def __release_buffer__(self, view: memoryview) -> None:
        self.deed()


class OddCall(Odd):
    """A callback, a serializer or a partitioner."""

    def __call__(self, *_: Any) -> Any:
        return self.answer()

    def __repr__(self) -> str:
        return "OddCall()"


class OddInterceptor(Odd):
    def on_send(self, record: ProducerRecord) -> Any:
        return self.answer() or record

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        self.deed()

    def close(self) -> None:
        self.deed()


class OddMapping(dict[Any, Any]):
    deed: Deeds

    def items(self) -> Any:
        self.deed()
        return super().items()

    def __iter__(self) -> Iterator[Any]:
        self.deed()
        return super().__iter__()


def with_deeds(made: Any, names: list[str]) -> Any:
    made.deed = Deeds(names)
    return made


def mapping(items: list[tuple[Any, Any]]) -> OddMapping:
    """A mapping of those items whose keys can be hashed."""
    made = OddMapping()
    for key, value in items:
        with suppress(BaseException):
            made[key] = value
    return made


def listed(made: Any) -> Any:
    """Register a list or a bytearray, which the deed "change lists" then changes."""
    _now[0].lists.append(made)
    return made


# ---- anything --------------------------------------------------------------------------------------------------------


def _released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


_PLAIN: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: 0, lambda: -1, lambda: 1 << 31, lambda: -(1 << 63), lambda: 1 << 63,
    lambda: 1 << 1000, lambda: 0.5, lambda: float("nan"), lambda: float("inf"), lambda: "", lambda: "x" * 300,
    lambda: "\ud800", lambda: "a\0b", lambda: b"", lambda: b"bytes", lambda: bytearray(b"array"), list,
    lambda: (), dict, lambda: {1}, lambda: [None], lambda: [[]], lambda: object(), lambda: type, lambda: ...,
    lambda: iter([b"a"]), lambda: range(3), lambda: (lambda *_: None), lambda: memoryview(b"abcdef")[::2],
    lambda: memoryview(b"readonly"), lambda: memoryview(bytearray(8)).cast("I"), _released,
    lambda: memoryview(b"").cast("B"), lambda: array.array("d", [1.5]), lambda: np.arange(9)[::2],
    lambda: np.array(5), lambda: np.array([object()]), lambda: np.zeros((2, 2), order="F"), lambda: np.int64(1),
    lambda: np.float64("nan"), lambda: np.datetime64("NaT"), lambda: (ctypes.c_char * 5)(), lambda: ctypes.c_int(7),
    lambda: NotImplemented, lambda: Exception("as a value"),
]  # fmt: skip

numbers = st.sampled_from([0, 1, 2, 3, 5, 40, -1, 1 << 31, (1 << 31) - 1, 1 << 63, -(1 << 63), 10**30, None, "1", 0.0])
texts = st.sampled_from(["", "t", "\ud800", "a\0b", "x" * 250])
plain = st.sampled_from(_PLAIN).map(lambda make: make())
odd_numbers = st.builds(OddIndex, deeds, st.lists(numbers, min_size=1, max_size=3))
odd_sequences = st.builds(
    lambda names, items, lengths: OddSequence(names, items, lengths),
    deeds, st.lists(plain, max_size=5), st.lists(st.sampled_from([0, 1, 5, 1 << 62, -1]), max_size=2),
)  # fmt: skip
odd = st.one_of(
    odd_numbers,
    odd_sequences,
    st.builds(OddClass, deeds, st.sampled_from([(), (str,), (list, dict), (type,)])),
    st.builds(OddAttributes, deeds, st.sampled_from([(), (b"x",), (lambda: 5,), (lambda: (1, 2),)])),
    st.builds(lambda text, names: with_deeds(OddText(text), names), texts, deeds),
    st.builds(lambda names: with_deeds(OddBytes(b"odd bytes"), names), deeds),
    st.builds(OddBuffer, deeds),
    st.builds(OddCall, deeds, st.lists(plain, max_size=2)),
    st.builds(lambda items, names: listed(with_deeds(OddList(items), names)), st.lists(plain, max_size=5), deeds),
    st.builds(lambda names: with_deeds(OddMapping(k=b"v"), names), deeds),
    st.builds(OddNumber, deeds, st.sampled_from([0.0, -1.0, 0.01, float("nan")])),
)
anything = plain | odd


def mostly(right: Strategy, wrong: Strategy = anything, tenths: int = 8) -> Strategy:
    return st.integers(0, 9).flatmap(lambda drawn: right if drawn < tenths else wrong)


# ---- arguments of the methods ----------------------------------------------------------------------------------------

topics = mostly(
    st.sampled_from([0, 1, 1, 1]).map(lambda number: _now[0].topics[number]), st.none() | anything, tenths=9
)
data = mostly(
    st.one_of(
        st.sampled_from([b"", b"v", b"x" * 100, b"x" * 1500, b"x" * 3000, None]),
        st.builds(lambda size: listed(bytearray(size)), st.sampled_from([0, 1, 1000])),
        st.sampled_from([memoryview(b"view"), array.array("i", range(5)), np.arange(4)]),
    )
)
keys = st.none() | data
_pair = st.tuples(mostly(texts | st.just("name"), tenths=9), data)
_pairs = mostly(_pair | st.builds(lambda pair, names: OddSequence(names, list(pair), [2]), _pair, deeds))
headers = st.none() | mostly(
    st.one_of(
        st.lists(_pairs, max_size=12).map(listed),
        st.lists(_pairs, max_size=4).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b"]), data),
        st.builds(lambda pairs, names: OddSequence(names, pairs, []), st.lists(_pairs, max_size=4), deeds),
    )
)
partitions = st.none() | mostly(st.sampled_from([0, 0, 1, 3]) | odd_numbers)
timestamps = st.none() | mostly(st.sampled_from([0, 1, 1_700_000_000_000, (1 << 63) - 1]) | odd_numbers)
callbacks = st.none() | mostly(st.builds(OddCall, deeds))
timeouts = mostly(st.sampled_from([0, 0.001, 0.02, 0.1]) | st.builds(OddNumber, deeds, st.just(0.01)))
reports = mostly(st.sampled_from(["rows", "rows", "errors"]), tenths=9)
offsets = mostly(
    st.builds(
        lambda items, names: with_deeds(mapping(items), names),
        st.lists(
            st.tuples(st.tuples(mostly(st.just("t0")), mostly(st.integers(0, 3))), mostly(st.just(5))), max_size=3
        ),
        deeds,
    )
)
groups = mostly(st.sampled_from(["group", ("group", 1, "m", None)]))


@st.composite
def columns(draw: st.DrawFn, item: Strategy, count: int) -> Any:
    """A sequence for send_many of about `count` items."""
    few = draw(st.lists(item, min_size=1, max_size=3))
    many = list(itertools.islice(itertools.cycle(few), count))
    match draw(st.integers(0, 9)):
        case 0:
            return OddSequence(draw(deeds), many, draw(st.lists(st.sampled_from([0, 1, count, 1 << 40]), max_size=2)))
        case 1:
            return listed(with_deeds(OddList(many), draw(deeds)))
        case 2:
            return draw(anything)
        case 3:
            return tuple(many)
    return listed(many)


# ---- settings --------------------------------------------------------------------------------------------------------

_serializers = st.none() | st.builds(
    OddCall, deeds, st.lists(st.sampled_from([b"v", b"", None, bytearray(7), "text", 5]), min_size=1, max_size=3)
)
_partitioners = st.none() | st.builds(OddCall, deeds, st.lists(numbers, min_size=1, max_size=3))
_records = st.lists(st.builds(ProducerRecord, topics, data, keys, headers, partitions, timestamps) | plain, max_size=2)
_users = st.fixed_dictionaries(
    {},
    optional={
        "key_serializer": _serializers,
        "value_serializer": _serializers,
        "partitioner_class": _partitioners,
        "interceptor_classes": st.lists(st.builds(OddInterceptor, deeds, _records), max_size=2),
    },
)
settings = st.builds(
    lambda plain, users: plain | users,
    st.fixed_dictionaries(
        {
            "batch_size": st.sampled_from([0, 600, 2048]),
            "linger_ms": st.sampled_from([0, 1, 10]),
            "acks": st.sampled_from(["all", "all", "1", "0"]),
            "compression_type": st.sampled_from(["none", "none", "lz4", "zstd"]),
            "max_in_flight_requests_per_connection": st.sampled_from([1, 5]),
            "max_block_ms": st.sampled_from([0, 50, 200]),
            "metadata_max_age_ms": st.sampled_from([20, 1000]),
            "partitioner_ignore_keys": st.booleans(),
        }
    ),
    st.just({}) | _users,
)
