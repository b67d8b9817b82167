"""A thread that drives a timing wheel, for a purgatory that is used without an event loop."""

from __future__ import annotations

import logging
import threading  # see embedded.py  # noqa: TID251
from types import TracebackType
from typing import Self

from kafkabuf.broker.waiting._timing_wheel import TimingWheel

log = logging.getLogger("kafkabuf.broker")


class ExpirationReaper:
    """Runs due tasks, and sleeps until the wheel's next bucket is due: an empty wheel costs nothing.

    Source: the expired-operation reaper of Kafka's purgatory, which wakes up five times a second. The thread logs the
    errors of tasks. `close` waits until the thread has ended. Tasks that are not due stay in the wheel.
    """

    def __init__(self, wheel: TimingWheel) -> None:
        self._wheel = wheel
        self._wake = threading.Lock()
        self._closed = False
        self._wake.acquire()
        wheel.on_earlier = self._wake_up
        self._thread = threading.Thread(target=self._run, name="kafkabuf-reaper", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        self._wake_up()
        self._thread.join()

    def _run(self) -> None:
        clock = self._wheel.clock
        while not self._closed:
            try:
                self._wheel.advance()
            except Exception:
                log.exception("an expired operation failed")
                continue
            expiry = self._wheel.next_expiry()
            clock.wait(self._wake, None if expiry is None else expiry - clock.monotonic())

    def _wake_up(self) -> None:
        """Wakes the thread. Any thread may call this. The lock stays free until the thread has seen that it was
        woken."""
        try:
            self._wake.release()
        except RuntimeError:
            return
