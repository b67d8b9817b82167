"""Calls every method and function of the extensions with odd arguments. The objects lack `__init__`, or got only None.

`python -m tests.hostile.objects` prints a line for each type or module that ends the process. There should be no line.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import operator
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import kafkabuf

SECONDS = 0.02  # after which a call that waits is interrupted
HEAP_TYPE = 1 << 9  # made by a `class` statement
MOST_ARGUMENTS = 12
SKIPPED_NAMES = {"__class__", "__new__", "__init_subclass__", "__subclasshook__", "__dir__", "__getattribute__"}

Tell = Callable[[str], None]


def extensions() -> list[ModuleType]:
    packages = pkgutil.walk_packages(kafkabuf.__path__, "kafkabuf.")
    modules = [importlib.import_module(package.name) for package in packages if "._" in package.name]
    return [module for module in modules if (module.__file__ or "").endswith(".so")]


def types_of(modules: list[ModuleType]) -> list[type]:
    things = [thing for module in modules for thing in vars(module).values() if isinstance(thing, type)]
    ours = {kind.__name__: kind for kind in things if kind.__module__.startswith("kafkabuf.")}
    return [kind for kind in ours.values() if not kind.__flags__ & HEAP_TYPE]


def odd_instances(kind: type) -> Iterator[Any]:
    """Objects made by `__new__`, by a call, and of a subclass without `__init__`, each with the fewest arguments.

    A call goes to the slot tp_vectorcall, where the type has one, and `type.__call__` to tp_new and tp_init.
    """
    kinds = [kind]
    with contextlib.suppress(TypeError):  # it may be final
        kinds.append(type("Forgetful", (kind,), {"__init__": lambda self, *_: None}))
    for made in kinds:
        for make in (made.__new__, type.__call__, operator.call):
            for count in range(MOST_ARGUMENTS):
                with contextlib.suppress(Exception):
                    yield make(made, *[None] * count)
                    break


def odd_arguments(types: list[type], tell: Tell) -> list[tuple[Any, ...]]:
    ours = []
    for kind in types:
        tell(f"making a {kind.__module__}.{kind.__name__}")
        ours += list(odd_instances(kind))
    plain = [None, 0, -1, 2**40, 1.5, "x", b"x", [None], {}, object(), *ours]
    several: list[tuple[Any, ...]] = [(None,) * count for count in range(MOST_ARGUMENTS)]
    several += [(value,) for value in plain] + [(0, value) for value in plain] + [(value, 0) for value in plain]
    instance_of = {type(instance): instance for instance in ours}
    return several + list(itertools.permutations(instance_of.values(), 2))


class Alarm:
    """Interrupts a call that waits. It goes off once, and only while `armed`."""

    def __init__(self) -> None:
        self.armed = False
        signal.signal(signal.SIGALRM, self.go_off)

    def go_off(self, *_: Any) -> None:
        if self.armed:
            raise TimeoutError("the call waits")

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
    for thing in odd_instances(kind):
        for name in dir(thing):
            if name in SKIPPED_NAMES or getattr(kind, name, None) is getattr(object, name, kind):
                continue
            tell(f"{kind.__module__}.{type(thing).__name__} ({kind.__name__}): {name}")
            attempt(lambda: setattr(thing, name, None))  # noqa: B023 - called at once
            method = None
            with contextlib.suppress(Exception):  # a property may raise: a field that it reads is None now
                method = getattr(thing, name, None)
            for values in arguments if callable(method) else []:
                attempt(lambda: method(*values))  # type: ignore[misc]  # noqa: B023
        tell(f"{kind.__module__}.{type(thing).__name__} ({kind.__name__}): its destruction")
        for use in (repr, len, iter, memoryview, hash, gc.get_referents):
            attempt(lambda: use(thing))  # noqa: B023
        gc.collect()


def try_functions(module: ModuleType, arguments: list[tuple[Any, ...]], tell: Tell) -> None:
    attempt = Alarm().attempt
    for name, function in vars(module).items():
        if type(function).__name__ in ("cython_function_or_method", "builtin_function_or_method"):
            tell(f"{module.__name__}.{name}")
            for values in arguments:
                attempt(lambda: function(*values))  # noqa: B023


def death_in_a_child(work: Callable[[Tell], None]) -> str | None:
    """Run `work` in a child. None where the child ends well, else the last line that it told."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)

        def tell(text: str) -> None:
            os.write(writing, text.encode() + b"\n")

        work(tell)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as lines:
        last = lines.read().decode().strip().rpartition("\n")[2]
    _, status = os.waitpid(child, 0)
    return None if status == 0 else f"{last}: status {status}"


def deaths_of(modules: list[ModuleType], types: list[type]) -> list[str]:
    """Try all subjects in one child. If the child dies, try each subject in a child of its own."""
    subjects: list[type | ModuleType] = [*types, *modules]

    def trying(chosen: list[type | ModuleType]) -> Callable[[Tell], None]:
        def work(tell: Tell) -> None:
            arguments = odd_arguments(types, tell)
            for subject in chosen:
                if isinstance(subject, type):
                    try_out(subject, arguments, tell)
                else:
                    try_functions(subject, arguments, tell)

        return work

    if death_in_a_child(trying(subjects)) is None:
        return []
    deaths = [death_in_a_child(trying([subject])) for subject in subjects]
    return [death for death in deaths if death is not None] or ["all of them together"]


def main() -> int:
    modules = extensions()
    types = types_of(modules)
    gc.freeze()  # the children collect only objects of their own
    deaths = deaths_of(modules, types)
    print("\n".join(deaths) or f"{len(types)} types in {len(modules)} modules: none of them ends the process.")
    return len(deaths) > 0


if __name__ == "__main__":
    sys.exit(main())
