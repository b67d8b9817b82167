"""CRC-32C from a library: the broker must not check batches with the client's own code."""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Protocol, cast

from kafkabuf.extras import needs


class _Crc32c(Protocol):
    def __call__(self, data: bytes | bytearray | memoryview, value: int = 0, /) -> int: ...


def _extension(package: ModuleSpec | None) -> ModuleSpec | None:
    """The compiled module of the package; None if it has another name now."""
    where = None if package is None else package.submodule_search_locations
    return PathFinder.find_spec("crc32c._crc32c", where) if where else None


def _load() -> _Crc32c:
    """The library's function. The package itself imports argparse, and email to learn its own version: a tenth of the
    time that the broker takes to import. So only its compiled module is loaded if it is where it was."""
    spec = _extension(find_spec("crc32c"))
    if spec is None or spec.loader is None:
        return cast(_Crc32c, import_module("crc32c").crc32c)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(_Crc32c, module.crc32c)


# The broker cannot do without kio either. `messages` imports kio only when a request needs it: too late for an advice.
with needs("broker", "kafkabuf.broker"):
    import kio  # noqa: F401

    crc32c = _load()
