"""What a test needs, found from its code: a JVM of Apache Kafka or of Spark, other processes, or the Cython core alone.

A test with the fixture `spark` also gets the marker `session`: those tests run in one process, which has the session.

The code of a test, of its fixtures and of the helpers that they call is searched for names, as far as names lead within
tests/ and rigs/. So nobody has to give a new test its marker `kafka`, `spark` or `processes`. A test that starts a JVM
in a way that names do not show (through a command, say) bears its marker by hand, and fails without it: `forbid_java`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# Whether the sanitizers watch this process: everything takes longer then.
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")


class Need:
    """What a test may need: things whose full names begin with one of `names`, and fixtures that a string may name."""

    def __init__(self, *names: str, fixtures: Iterable[str] = (), not_through: Iterable[str] = ()) -> None:
        self.names = names
        self.not_through = tuple(not_through)
        self.fixtures = frozenset(fixtures)
        self._without: dict[int, Any] = {}  # values from which no name leads to it, by id; the dict keeps them alive

    def leads_from(self, value: object) -> bool:
        """Whether a function, a class, or a collection of them and of names of fixtures leads to it."""
        seen: dict[int, Any] = {}
        found = self._leads_from(value, seen)
        if not found:
            self._without.update(seen)
        return found

    def _leads_from(self, value: Any, seen: dict[int, Any]) -> bool:
        if isinstance(value, str):
            return value in self.fixtures
        if id(value) in seen or id(value) in self._without:
            return False
        seen[id(value)] = value
        if isinstance(value, (dict, list, tuple)):
            members = iter(value.values() if isinstance(value, dict) else value)
        else:
            name = _full_name(value)
            if name.startswith(self.names):
                return True
            followed = name.startswith(("tests.", "rigs.")) and not name.startswith(self.not_through)
            members = _used_by(value) if followed else iter(())
        return any(self._leads_from(each, seen) for each in members)


# What starts a JVM, or fetches the jars for it.
KAFKA = Need(
    "rigs.jars.java.",
    "rigs.jars.resolve",
    "rigs.real_cluster.RealCluster.",
    "rigs.real_registry.RealRegistry.",
    "rigs.real_kafka.RealKafka.",
    "tests.real.test_",
    fixtures=["kafka_4", "kafka_3_9", "real_cluster"],
)
SPARK = Need("pyspark.", "tests.spark.", fixtures=["spark"])
# What starts another process. Certificates are made by openssl, which is quick.
PROCESSES = Need(
    "subprocess.",
    "multiprocessing.",
    "tests.hostile.forked.",
    "tests.hostile.fuzz_api.__main__.fuzz.",
    "tools.stress_ends.",
    fixtures=["pytester"],
    not_through=["tests.network.tls.certificates."],
)
# The extensions, and what lies above the Cython core.
CORE = Need(*(".".join(each.relative_to(ROOT).with_suffix("").parts) + "." for each in ROOT.glob("kafkabuf/**/*.pyx")))
ABOVE_CORE = Need("kafkabuf.producer.", "kafkabuf.aio.", "kafkabuf.broker.embedded.")


def mark(item: pytest.Item) -> None:
    """Give a test the markers `kafka`, `spark` and `processes`, if its code leads there."""
    for need, marker in ((KAFKA, pytest.mark.kafka), (SPARK, pytest.mark.spark), (PROCESSES, pytest.mark.processes)):
        if leads_to(item, need):
            item.add_marker(marker)
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.session)


def starts_a_jvm(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) is not None for name in ("kafka", "spark"))


def is_of_the_core(item: pytest.Item) -> bool:
    """Whether a test leads to an extension and to neither producer nor cluster."""
    return leads_to(item, CORE) and not leads_to(item, ABOVE_CORE)


@contextmanager
def forbid_java() -> Iterator[None]:
    """Let a JVM that is started within fail, and say why: for tests that bear neither marker."""
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = "/this-test-starts-a-JVM/mark-it-kafka-or-spark"
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before


def leads_to(item: pytest.Item, need: Need) -> bool:
    """Whether the code of a test, its fixtures or its parameters lead to the need."""
    assert isinstance(item, pytest.Function)
    if not need.fixtures.isdisjoint(item.fixturenames):
        return True
    definitions = (each for several in item._fixtureinfo.name2fixturedefs.values() for each in several)
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    strings = (each for each in parameters if isinstance(each, (str, tuple)))
    return any(need.leads_from(each) for each in (item.function, *(each.func for each in definitions), *strings))


def _used_by(value: Any) -> Iterator[Any]:
    """The values that the code of a function, or of a class's methods, names."""
    if isinstance(value, type):
        yield from (each for base in value.__mro__ for each in vars(base).values() if callable(each))
    function = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
    if isinstance(function, FunctionType):
        names = set(_names(function.__code__))
        known = function.__globals__
        named = [known[name] for name in names if name in known]
        yield from named
        modules = [vars(each) for each in named if isinstance(each, ModuleType)]
        yield from (module[name] for module in modules for name in names if name in module)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _full_name(value: Any) -> str:
    """`module.name.` of a class or function, `module.` of a module and of an object of that module's classes."""
    if isinstance(value, ModuleType):
        return f"{value.__name__}."
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str):
        return ""
    return f"{module}.{name}." if isinstance(name, str) else f"{module}."
