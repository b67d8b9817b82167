"""Loads kio's schemas before the first node listens: in the event loop every client would wait meanwhile.

kio imports hypothesis where that is installed, and registers strategies for its types, which takes 130 ms or more and
which no cluster needs. So kio's one module that asks for hypothesis is loaded without it, unless the process has
hypothesis already. (A thread could load both meanwhile, but until CPython 3.11.8 two threads that parse Python, as
hypothesis and pytest do, break each other: python/cpython #106905.)
"""

from __future__ import annotations

import builtins
import datetime
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from typing import Any

from kafkabuf.protocol.messages import load_schemas

_ASKS = "kio.static._phantom"


def load_early() -> None:
    with _real_datetime():
        if "hypothesis" not in sys.modules and _ASKS not in sys.modules:
            _load_without_hypothesis()
        load_schemas()


@contextmanager
def _real_datetime() -> Iterator[None]:
    """kio has a subclass of datetime, which cannot be made of the class that freezegun puts in its place."""
    patched = datetime.datetime
    real = next(base for base in patched.__mro__ if type(base) is type)
    datetime.datetime = real  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        datetime.datetime = patched  # type: ignore[misc]


def _load_without_hypothesis() -> None:
    spec = find_spec(_ASKS)
    if spec is None or spec.loader is None:
        return  # another kio, which may not ask
    module = module_from_spec(spec)
    # Python looks __import__ up in the builtins of the module that imports: no other module notices.
    module.__dict__["__builtins__"] = vars(builtins) | {"__import__": _import_without_hypothesis}
    spec.loader.exec_module(module)
    sys.modules[_ASKS] = module


def _import_without_hypothesis(name: str, *arguments: Any) -> Any:
    if name.partition(".")[0] == "hypothesis":
        raise ImportError(name)
    return builtins.__import__(name, *arguments)
