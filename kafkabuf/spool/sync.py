"""What the file survives, as `kafkabuf.buffer.sync` says: the end of the process, or the loss of power too.

    process         nothing is to be done: the kernel has each byte that was stored, and writes it when it likes
    flush           `flushed` returns once the disk has all that was stored before
    milliseconds    a thread has the disk catch up each time that they are over, while batches have no outcome yet. All
                    records that were stored meanwhile share one wait for the disk (group commit)

The wait costs as much as was stored since the last: fdatasync(2) writes the dirty pages of the file, however large it
is. In a forked child nothing is done: the file is the parent's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from kafkabuf.clock import Clock
from kafkabuf.errors import KafkaError
from kafkabuf.process.producer_log import Seldom, client_id_here, log_as, producer_log
from kafkabuf.process.threads import AnyThread, Waiter, new_thread, new_waiter

log = producer_log("kafkabuf.spool")


class Syncable(Protocol):
    """A SpoolFile."""

    def sync(self) -> None: ...


class Syncer:
    """One for each opened file.

    `setting` is "process", "flush" or a number of milliseconds. `in_use` says whether a batch has no outcome yet.
    """

    def __init__(self, file: Syncable, setting: str | int, clock: Clock, in_use: Callable[[], bool]) -> None:
        self._file = file
        self._setting = setting
        self._clock = clock
        self._in_use = in_use
        self._was_in_use = False
        self._client_id = client_id_here()
        self._pid = os.getpid()
        self._thread: AnyThread | None = None
        self._waiter: Waiter | None = None  # the thread waits on it, so the thread has made it
        self._closed = False
        self._failures = Seldom()  # of the disk

    # ---- thread: any -------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start the thread, if the setting is a number. Raises RuntimeError if there are too many threads."""
        if isinstance(self._setting, int):
            thread = new_thread(self._run, name)
            thread.start()
            self._thread = thread

    def flushed(self) -> None:
        """flush() or a commit is about to return: with the setting "flush" the disk catches up first.

        Raises KafkaError if the disk fails.
        """
        if self._setting == "flush":
            self._sync()

    def close(self) -> None:
        """End the thread and wait for it. Unless the setting is "process", the disk catches up a last time.

        Raises KafkaError if the disk fails. A second call does nothing.
        """
        if self._closed or self._is_child():
            return
        self._closed = True
        if self._waiter is not None:
            self._waiter.release()
        if self._thread is not None:
            self._thread.join()
        if self._setting != "process":
            self._sync()

    def _is_child(self) -> bool:
        return os.getpid() != self._pid

    def _sync(self) -> None:
        if self._is_child():
            return
        try:
            self._file.sync()
        except OSError as error:
            raise KafkaError(
                f"the file of kafkabuf.buffer.path could not be written to its disk ({error.strerror}): its records "
                "are in memory, and a loss of power would lose them"
            ) from error

    # ---- its own thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._waiter = waiter = new_waiter()
        if self._closed:  # close() came before, and found no waiter
            return
        with log_as(self._client_id):
            while not self._clock.wait(waiter, int(self._setting) / 1000):
                self._catch_up()

    def _catch_up(self) -> None:
        try:
            in_use = self._in_use()
            if in_use or self._was_in_use:  # the last time is for what was stored before the last outcome
                self._was_in_use = True
                self._sync()
            self._was_in_use = in_use
        except BaseException as error:  # even SystemExit: the thread would end without a word
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        if self._failures.is_due(self._clock.monotonic()):
            log.error("%s", error)
