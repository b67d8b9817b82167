"""What a command that reads a long input shows on the way, and how Ctrl-C ends it between two blocks."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

Each = TypeVar("Each")
Show = Callable[[int, int], None]


class Interrupt:
    """Ctrl-C: the first ends the reading, as soon as what was read before has been queued. The second ends the wait for
    acknowledgements, with KeyboardInterrupt."""

    def __init__(self) -> None:
        self.seen = False
        self._reading = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self._reading or self.seen:
            self.seen = True
            raise KeyboardInterrupt
        self.seen = True

    def watched(self, items: Iterator[Each]) -> Iterator[Each]:
        """The items up to Ctrl-C."""
        while not self.seen:
            try:
                self._reading = True
                item = next(items)
            except (StopIteration, KeyboardInterrupt):
                return
            finally:
                self._reading = False
            yield item

    def whole(self, step: Callable[[], object]) -> None:
        """A step of the reading that Ctrl-C does not cut: it ends the reading behind it."""
        self._reading = False
        step()
        self._reading = True
        if self.seen:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Ctrl-C is the Interrupt's, in the main thread: no other gets signals."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt.handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def progress_of(nbytes: int) -> Iterator[Show]:
    """What shows a number of bytes read and of records acknowledged: on a terminal, and nowhere else. `nbytes` is the
    size of the input, or 0."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda nbytes, records: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TextColumn("{task.fields[records]}"))
    began = time.monotonic()
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=nbytes or None, records="")

        def show(nbytes: int, records: int) -> None:
            rate = records / max(time.monotonic() - began, 1e-9)
            progress.update(task, completed=nbytes, records=f"{records:,} records, {rate:,.0f}/s")

        yield show
