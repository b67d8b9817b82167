"""Output that works on a terminal, in a pipe and in a file, in each encoding."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from kafkabuf.errors import KafkaError

if TYPE_CHECKING:
    from rich.console import Console

_UNLIMITED = 100_000  # columns


class StoppedBySignalError(click.ClickException):
    """Ctrl-C or another signal ended the command: its exit status is 128 and the signal's number, as in shells."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.exit_code = 128 + number  # type: ignore[misc]  # click reads it of the instance


class SafeOutputGroup(click.Group):
    """A group whose commands escape what the output's encoding lacks, give the reason if it is full, and end with a
    line at Ctrl-C."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        # --help and --version print here.
        with _safe():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _safe():
            return super().invoke(ctx)


@contextlib.contextmanager
def _safe() -> Iterator[None]:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with safe_output():
            yield
    except KeyboardInterrupt as error:
        raise StoppedBySignalError("interrupted", *error.args[:1]) from None


@contextlib.contextmanager
def safe_output() -> Iterator[None]:
    """Gives the reason if the output is full."""
    try:
        yield
    except OSError as error:
        # click ends the command silently when the reader of a pipe has gone.
        if isinstance(error, KafkaError) or error.errno == errno.EPIPE:
            raise
        if error.filename:
            raise click.ClickException(file_error(error)) from error
        _discard_output()
        raise click.ClickException(f"the output cannot be written: {error.strerror or error}") from error


def file_error(error: OSError) -> str:
    """What is wrong with which file."""
    return f"{error.filename or 'a file'} cannot be read or written: {error.strerror or error}"


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """An OSError of an open file does not name it: one that comes from the `with` names this file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and not isinstance(error, KafkaError):
            error.filename = path
        raise


def console() -> Console:
    """A terminal gets tables of its width. A pipe or a file gets whole lines, for grep and for mails."""
    from rich.console import Console

    width = None if sys.stdout is not None and sys.stdout.isatty() else _UNLIMITED
    return Console(markup=False, highlight=False, emoji=False, width=width)


def _discard_output() -> None:
    """Python flushes stdout when it exits, which would fail again with a traceback."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
