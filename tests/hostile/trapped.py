"""Arguments that raise: objects of ordinary types, of which every method may be the one that raises.

A `Fuse` counts the calls of the methods of all objects that hold it, and burns at a chosen one. A test that tries every
count has had the user's code raise at each place where a call runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kafkabuf.interceptors import ProducerRecord

METHODS = (
    "__len__", "__iter__", "__getitem__", "__contains__", "__eq__", "__hash__", "__bool__", "__index__", "__int__",
    "__float__", "__str__", "__repr__", "__bytes__", "__format__", "__lt__", "__le__", "__gt__", "__ge__", "__mul__",
    "__add__", "__radd__", "__ceil__", "__trunc__", "__next__", "__getattribute__",
)  # fmt: skip


class BurntError(Exception):
    """What a trapped object raises: no code of kafkabuf expects it."""


class Fuse:
    """Burns at the call number `at`, counted from 1."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.calls = 0

    def touch(self, name: str) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise BurntError(name)


def trapped(fuse: Fuse, base: type, *arguments: Any) -> Any:
    """An object of a subclass of `base`, whose methods touch the fuse before they do what the base's do."""

    def method(name: str) -> Callable[..., Any]:
        original = getattr(base, name)

        def touching(self: Any, *given: Any, **named: Any) -> Any:
            fuse.touch(name)
            return original(self, *given, **named)

        return touching

    members = {name: method(name) for name in METHODS if hasattr(base, name)}
    return type(f"Trapped{base.__name__}", (base,), members)(*arguments)


class Whole:
    """A number by its `__index__` alone."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


class Called:
    """A callback, or the end of a record, that does nothing."""

    def __call__(self, *_: object) -> None:
        pass


class Passing:
    """An interceptor that sees each record."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record


def pairs(fuse: Fuse) -> Iterator[tuple[str, bytes]]:
    fuse.touch("next")
    yield "a", b"1"
    fuse.touch("next")
    yield "b", b"2"
    fuse.touch("next")


ARGUMENTS: dict[str, Callable[[Fuse], dict[str, Any]]] = {
    "value of a subclass of bytes": lambda fuse: {"value": trapped(fuse, bytes, b"v")},
    "value of a subclass of bytearray": lambda fuse: {"value": trapped(fuse, bytearray, b"v")},
    "value of a subclass of str": lambda fuse: {"value": trapped(fuse, str, "v")},
    "key of a subclass of bytes": lambda fuse: {"key": trapped(fuse, bytes, b"k")},
    "key of a subclass of str": lambda fuse: {"key": trapped(fuse, str, "k")},
    "headers of a subclass of list": lambda fuse: {"headers": trapped(fuse, list, [("a", b"1"), ("b", b"2")])},
    "headers of a subclass of dict": lambda fuse: {"headers": trapped(fuse, dict, {"a": b"1"})},
    "headers of an iterator": lambda fuse: {"headers": pairs(fuse)},
    "headers of one pair of a subclass of tuple": lambda fuse: {"headers": [trapped(fuse, tuple, ("a", b"1"))]},
    "header's name of a subclass of str": lambda fuse: {"headers": [(trapped(fuse, str, "a"), b"1")]},
    "header's value of a subclass of bytes": lambda fuse: {"headers": [("a", trapped(fuse, bytes, b"1"))]},
    "partition of a subclass of int": lambda fuse: {"partition": trapped(fuse, int, 0)},
    "partition with __index__": lambda fuse: {"partition": trapped(fuse, Whole, 0)},
    "time of a subclass of int": lambda fuse: {"timestamp_ms": trapped(fuse, int, 5)},
    "time of a subclass of float": lambda fuse: {"timestamp_ms": trapped(fuse, float, 5.0)},
    "time with __index__": lambda fuse: {"timestamp_ms": trapped(fuse, Whole, 5)},
    "callback": lambda fuse: {"callback": trapped(fuse, Called)},
    "opaque": lambda fuse: {"opaque": trapped(fuse, Called)},
}
