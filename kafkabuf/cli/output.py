"""Output that works on a terminal, in a pipe and in a file, in each encoding."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console

from kafkabuf.errors import KafkaError

_UNLIMITED = 100_000  # columns


class SafeOutputGroup(click.Group):
    """A group whose commands escape what the output's encoding lacks, and give the reason if it is full."""

    def invoke(self, ctx: click.Context) -> Any:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        with safe_output():
            return super().invoke(ctx)


@contextlib.contextmanager
def safe_output() -> Iterator[None]:
    """Gives the reason if the output is full."""
    try:
        yield
    except OSError as error:
        # click ends the command silently when the reader of a pipe has gone.
        if isinstance(error, KafkaError) or error.errno == errno.EPIPE:
            raise
        _discard_output()
        raise click.ClickException(f"the output cannot be written: {error.strerror or error}") from error


def console() -> Console:
    """A terminal gets tables of its width. A pipe or a file gets whole lines, for grep and for mails."""
    width = None if sys.stdout is not None and sys.stdout.isatty() else _UNLIMITED
    return Console(markup=False, highlight=False, emoji=False, width=width)


def _discard_output() -> None:
    """Python flushes stdout when it exits, which would fail again with a traceback."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
