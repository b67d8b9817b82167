"""A pytest plugin, `-p tests.hostile.sanitized`: of the tests, those that `make sanitize` runs.

These are all but what starts a JVM, for then little of ours runs in this process, and the files of `REASONS`. Whether a
test starts one its code says, with that of its fixtures and of what both call, as far as names lead: a new test is in
without a word. With `--core` only what leads to an extension and to neither producer nor cluster, found the same way:
the tests of the Cython core, which are quick.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

# Files, and tests, that cannot be run under sanitizers, each with its reason.
REASONS = {
    "house/test_bootstrap.py": "is about the virtual environment: none of our code",
    "house/test_bench.py": "measures, and the sanitizers with it",
    "house/test_bench_kernels.py": "is for valgrind, which cannot run a sanitized process",
    "house/test_gate.py": "is for valgrind, which cannot run a sanitized process",
    "house/test_layering.py": "reads sources: none of our code runs",
    "broker/test_hostile.py::test_as_many_items_of_another_request_become_objects": "bounds memory and time",
    "broker/test_hostile.py::test_bomb_goes_off": "bounds memory, of which sanitizers take more",
    "faces/test_cli.py::test_demo_interrupted_leaves_nothing_behind": "starts a JVM, by a command of ours",
    "sending/test_lifetime.py::test_collecting_a_producer_waits_for_its_broker": "times a collection",
    "ground/test_pool.py::test_memory_that_is_not_needed_is_touched": "counts pages, and the sanitizers touch one more",
    "hostile/test_fuzz_requests.py": "bounds memory and time; `make sanitize` runs its fuzzer beside the tests",
    "hostile/test_fuzz_api.py": "is about the fuzzer, which `make sanitize` runs beside the tests",
}
_STARTS_A_JVM = ("pyspark", "rigs.jars", "rigs.real_", "tests.real.", "tests.spark.")
_ROOT = Path(__file__).parents[2]
_CORE = tuple(".".join(source.relative_to(_ROOT).with_suffix("").parts) for source in _ROOT.glob("kafkabuf/**/*.pyx"))
_NOT_CORE = ("kafkabuf.producer", "kafkabuf.aio", "kafkabuf.broker.embedded")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core", action="store_true", help="only the Cython core's own tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    core = config.getoption("--core")
    kept = [
        item
        for item in items
        if not is_excluded(item)
        and not leads_to(item, _STARTS_A_JVM)
        and (not core or (leads_to(item, _CORE) and not leads_to(item, _NOT_CORE)))
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def is_excluded(item: pytest.Item) -> bool:
    name = item.name.partition("[")[0]
    file = item.path.relative_to(_ROOT / "tests").as_posix()
    return file in REASONS or f"{file}::{name}" in REASONS


def leads_to(item: pytest.Item, modules: tuple[str, ...]) -> bool:
    """Whether what a test runs is of modules whose names begin so."""
    assert isinstance(item, pytest.Function)
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    seen: set[int] = set()
    return any(_leads_to(one, modules, seen) for one in (item.obj, *(each.func for some in fixtures for each in some)))


def _leads_to(value: Any, modules: tuple[str, ...], seen: set[int]) -> bool:
    if id(value) in seen:
        return False
    seen.add(id(value))
    module = _module_of(value)
    if module.startswith(modules):
        return True
    if not module.startswith(("tests.", "rigs.")):
        return False
    return any(_leads_to(one, modules, seen) for one in _used_by(value))


def _used_by(value: Any) -> Iterator[Any]:
    """What the code of a function, or of a class's methods, names."""
    if isinstance(value, type):
        yield from (each for base in value.__mro__ for each in vars(base).values() if callable(each))
    function = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
    if isinstance(function, FunctionType):
        names = set(_names(function.__code__))
        yield from (one for name, one in function.__globals__.items() if name in names)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _module_of(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""
