"""Compiles a .pyx of the bench at its first use: a load that would cost more in Python than the code it measures."""

from __future__ import annotations

import functools
import importlib.util
from contextlib import chdir
from pathlib import Path
from types import ModuleType

from Cython.Build import cythonize
from setuptools import Distribution, Extension  # type: ignore[import-untyped]
from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

ROOT = Path(__file__).parent.parent
BUILT = Path("build", "bench", "compiled")


@functools.cache
def load(name: str) -> ModuleType:
    """The module bench.NAME, from its .pyx. It is compiled again after a change to it or to a module it cimports."""
    module = f"bench.{name}"
    with chdir(ROOT):
        extension = Extension(module, [f"bench/{name.replace('.', '/')}.pyx"], extra_compile_args=["-O3"])
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
