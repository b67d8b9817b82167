"""What a command that reads a long input shows on the way, and how Ctrl-C or SIGTERM ends it between two blocks."""

from __future__ import annotations

import signal
import sys
import threading  # asks whether this is the main thread  # noqa: TID251
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from kafkabuf.process._time import monotonic

Each = TypeVar("Each")
Show = Callable[[int, int], None]


class Interrupt:
    """Ctrl-C, or another signal that ends the command: the first ends the reading, as soon as what was read before has
    been queued. The second ends the wait for acknowledgements, with KeyboardInterrupt. `number` is the first's; 0: none
    has come. With `at_once` the first, too, is a KeyboardInterrupt."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.number = 0
        self._reading = at_once

    @property
    def seen(self) -> bool:
        return self.number != 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        again = self.seen
        self.number = self.number or number
        if self._reading or again:
            raise KeyboardInterrupt(number)

    def watched(self, items: Iterator[Each]) -> Iterator[Each]:
        """The items up to Ctrl-C."""
        while True:
            try:
                self._reading = True
                if self.seen:  # a signal that comes later raises
                    return
                item = next(items)
            except (StopIteration, KeyboardInterrupt):
                return
            finally:
                self._reading = False
            yield item

    def cut(self, wait: Callable[[], Each]) -> Each | None:
        """A wait that a signal ends at once, with None."""
        return next(self.watched(wait() for _ in range(1)), None)

    def whole(self, step: Callable[[], object]) -> None:
        """A step of the reading that Ctrl-C does not cut: it ends the reading behind it."""
        self._reading = False
        step()
        self._reading = True
        if self.seen:
            raise KeyboardInterrupt


@contextmanager
def interruptible(*, at_once: bool = False) -> Iterator[Interrupt]:
    """The signals that end the command are the Interrupt's, in the main thread: no other gets them."""
    interrupt = Interrupt(at_once=at_once)
    with handled(interrupt.handle):
        yield interrupt


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[dict[int, Any]]:
    """Ctrl-C, SIGTERM and SIGHUP call the handler, unless the command was started to ignore them, as by nohup. Gives
    what they called before. A handler that others have set meanwhile, as Spark does, stays."""
    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, handler)
        yield before
    finally:
        for handled_number, previous in before.items():
            if signal.getsignal(handled_number) == handler:
                signal.signal(handled_number, previous)


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
    began = monotonic()
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=nbytes or None, records="")

        def show(nbytes: int, records: int) -> None:
            rate = records / max(monotonic() - began, 1e-9)
            progress.update(task, completed=nbytes, records=f"{records:,} records, {rate:,.0f}/s")

        yield show
