"""What the faces share when they translate errors."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from types import ModuleType
from typing import TypeVar

from kafkabuf.compat.shared.names import with_own_names
from kafkabuf.errors import KafkaError
from kafkabuf.process.background import BackgroundCall
from kafkabuf.process.threads import Event
from kafkabuf.tracebacks import without_ours

Error = TypeVar("Error", bound=KafkaError)


def converted(error: KafkaError, kind: type[Error], names: Mapping[str, str]) -> Error:
    """An error of class `kind` with text, fields and cause of `error`; its traceback only with frames of the user.

    `names` has the settings of kafkabuf's that have another name in the face.
    """
    args = tuple(with_own_names(arg, names) if isinstance(arg, str) else arg for arg in error.args)
    other = kind(*args)
    other.__dict__.update(error.__dict__)
    other.__cause__ = error.__cause__
    other.__suppress_context__ = True
    return other.with_traceback(without_ours(error).__traceback__)


def peer_module(name: str) -> ModuleType | None:
    """A module of the other client; None where it is not installed.

    Only an error needs it, so that a producer opens without it. Then a thread of ours imports it: an exception that is
    thrown into the caller (Ctrl-C) interrupts the wait for that thread, and leaves no lock of an import taken.
    """
    if not sys.is_finalizing():  # then no thread starts
        loading, ended = _loading(name, os.getpid())
        ended.wait()
        with suppress(KafkaError):  # no thread could start, or the module is broken
            return loading.result()
    return _imported(name)


@cache
def _loading(name: str, pid: int) -> tuple[BackgroundCall[ModuleType | None], Event]:
    """The import of a module, which runs once in a process: a forked child does not have its parent's threads."""
    ended = Event()
    return BackgroundCall(partial(_imported, name), ended.set, "kafkabuf-peer"), ended


def _imported(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
