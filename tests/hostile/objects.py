"""Every extension type of kafkabuf, made without `__init__` or with nothing but None, every method and function there
is, and odd arguments for all of them.

`python -m tests.hostile.objects` prints a line for each that ends the process; none is good.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import kafkabuf

SECONDS = 0.02  # for what waits: interrupted then
HEAP_TYPE = 1 << 9  # made by a `class` statement
MOST_ARGUMENTS = 12
PASSED_OVER = {"__class__", "__new__", "__init_subclass__", "__subclasshook__", "__dir__", "__getattribute__"}

Tell = Callable[[str], None]


def extensions() -> list[ModuleType]:
    packages = pkgutil.walk_packages(kafkabuf.__path__, "kafkabuf.")
    modules = [importlib.import_module(found.name) for found in packages if "._" in found.name]
    return [module for module in modules if (module.__file__ or "").endswith(".so")]


def types_of(modules: list[ModuleType]) -> list[type]:
    things = [thing for module in modules for thing in vars(module).values() if isinstance(thing, type)]
    ours = {kind.__name__: kind for kind in things if kind.__module__.startswith("kafkabuf.")}
    return [kind for kind in ours.values() if not kind.__flags__ & HEAP_TYPE]


def odd_ones(kind: type) -> Iterator[Any]:
    """By `__new__` alone, by a call, and of a subclass that forgot `__init__`; with as few arguments as will do."""
    kinds = [kind]
    with contextlib.suppress(TypeError):  # it may be final
        kinds.append(type("Forgetful", (kind,), {"__init__": lambda self, *_: None}))
    for one in kinds:
        for make in (one.__new__, type.__call__):
            for count in range(MOST_ARGUMENTS):
                with contextlib.suppress(Exception):
                    yield make(one, *[None] * count)
                    break


def odd_arguments(types: list[type], tell: Tell) -> list[tuple[Any, ...]]:
    ours = []
    for kind in types:
        tell(f"making a {kind.__module__}.{kind.__name__}")
        ours += list(odd_ones(kind))
    plain = [None, 0, -1, 2**40, 1.5, "x", b"x", [None], {}, object(), *ours]
    several: list[tuple[Any, ...]] = [(None,) * count for count in range(MOST_ARGUMENTS)]
    several += [(one,) for one in plain] + [(0, one) for one in plain] + [(one, 0) for one in plain]
    one_of_each = {type(one): one for one in ours}
    return several + list(itertools.permutations(one_of_each.values(), 2))


class Alarm:
    """Interrupts a call that waits, and nothing else: it goes off once, and only while `armed`."""

    def __init__(self) -> None:
        self.armed = False
        signal.signal(signal.SIGALRM, self.go_off)

    def go_off(self, *_: Any) -> None:
        if self.armed:
            raise TimeoutError("it waits")

    def attempt(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(BaseException), contextlib.suppress(BaseException):
            try:
                self.armed = True
                signal.setitimer(signal.ITIMER_REAL, SECONDS)
                call()
            finally:
                self.armed = False


def try_out(kind: type, arguments: list[tuple[Any, ...]], tell: Tell) -> None:
    attempt = Alarm().attempt
    for thing in odd_ones(kind):
        for name in dir(thing):
            if name in PASSED_OVER or getattr(kind, name, None) is getattr(object, name, kind):
                continue
            tell(f"{kind.__module__}.{type(thing).__name__} ({kind.__name__}): {name}")
            attempt(lambda: setattr(thing, name, None))  # noqa: B023 - called at once
            method = getattr(thing, name, None)
            for some in arguments if callable(method) else []:
                attempt(lambda: method(*some))  # type: ignore[misc]  # noqa: B023
        tell(f"{kind.__module__}.{type(thing).__name__} ({kind.__name__}): its end")
        for use in (repr, len, iter, memoryview, hash, gc.get_referents):
            attempt(lambda: use(thing))  # noqa: B023
        gc.collect()


def try_functions(module: ModuleType, arguments: list[tuple[Any, ...]], tell: Tell) -> None:
    attempt = Alarm().attempt
    for name, function in vars(module).items():
        if type(function).__name__ in ("cython_function_or_method", "builtin_function_or_method"):
            tell(f"{module.__name__}.{name}")
            for some in arguments:
                attempt(lambda: function(*some))  # noqa: B023


def in_a_child(what: Callable[[Tell], None]) -> str | None:
    """The last thing it told, where it ended otherwise than it should."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)

        def tell(text: str) -> None:
            os.write(writing, text.encode() + b"\n")

        what(tell)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        last = told.read().decode().strip().rpartition("\n")[2]
    _, status = os.waitpid(child, 0)
    return None if status == 0 else f"{last}: status {status}"


def deaths_of(modules: list[ModuleType], types: list[type]) -> list[str]:
    """All in one child; if it dies, each in one of its own."""
    subjects: list[type | ModuleType] = [*types, *modules]

    def trying(some: list[type | ModuleType]) -> Callable[[Tell], None]:
        def what(tell: Tell) -> None:
            arguments = odd_arguments(types, tell)
            for one in some:
                try_out(one, arguments, tell) if isinstance(one, type) else try_functions(one, arguments, tell)

        return what

    if in_a_child(trying(subjects)) is None:
        return []
    return [death for one in subjects if (death := in_a_child(trying([one]))) is not None] or ["all of them together"]


def main() -> int:
    modules = extensions()
    types = types_of(modules)
    gc.freeze()  # what is collected in the children is theirs
    deaths = deaths_of(modules, types)
    print("\n".join(deaths) or f"{len(types)} types in {len(modules)} modules, and nothing of them ends the process.")
    return len(deaths) > 0


if __name__ == "__main__":
    sys.exit(main())
