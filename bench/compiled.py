"""Compiles a .pyx of the bench at its first use: for what Python would make slow, or cannot call."""

from __future__ import annotations

import fcntl
import functools
import importlib.util
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import ModuleType

from Cython.Build import cythonize
from setuptools import Distribution, Extension  # type: ignore[import-untyped]
from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

import kafkabuf

ROOT = Path(__file__).parent.parent
BUILT = Path("build", "bench", "compiled")
HEADERS = Path(kafkabuf.__file__).parent


@functools.cache
def load(name: str) -> ModuleType:
    """The module bench.NAME, from its .pyx. It is compiled again after a change to it or to a module it cimports."""
    module = f"bench.{name}"
    source = f"bench/{name.replace('.', '/')}.pyx"
    with chdir(ROOT), _alone():
        extension = Extension(module, [source], include_dirs=[str(HEADERS)], extra_compile_args=["-O3"])
        sources = cythonize([extension], build_dir=str(BUILT), quiet=True)  # type: ignore[no-untyped-call]
        command = build_ext(Distribution({"ext_modules": sources}))
        command.build_lib, command.build_temp = str(BUILT), str(BUILT / "temp")
        command.ensure_finalized()
        command.run()
        path = Path(command.get_ext_fullpath(module)).resolve()
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@contextmanager
def _alone() -> Iterator[None]:
    """Other processes wait: the workers of pytest would write the same files."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
