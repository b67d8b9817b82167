"""What runs for a producer, and its end where nobody closes it: collected, interpreter exit, fork.

A `Running` does not know its producer, so that one that nobody holds can be collected. Each is in `_running` until its
thread has ended.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from typing import Protocol

from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.batches.ending import ending
from kafkabuf.sending.sender import Sender

log = logging.getLogger("kafkabuf.producer")

# At interpreter exit all producers together get this long to send what they hold, and this long to end after that.
# Users are promised five seconds.
EXIT_TIMEOUT = 3.0
FORCED_TIMEOUT = 0.5
EXIT_SWITCH_INTERVAL = 0.0005
# How long close() waits for a Sender that was told to drop everything: it may be in a callback.
CLOSE_TIMEOUT = 5.0


class Disownable(Protocol):
    """A producer, as a fork sees it."""

    def _disown(self) -> None: ...


class _End:
    """An Event that holds no lock of its own while Python runs: a signal's handler that calls close() in the middle of
    close() would wait for its own thread, and an exception thrown into a thread would leave the lock locked for ever.
    """

    def __init__(self) -> None:
        self._over = False
        self._waiters: list[threading.Lock] = []  # locked, until it is over

    def set(self) -> None:
        self._over = True
        for waiter in self._waiters:
            waiter.release()

    def wait(self, timeout: float | None = None) -> bool:
        if self._over:
            return True
        waiter = threading.Lock()
        waiter.acquire()
        # Before the look: whoever comes too late for set() finds that it is over.
        self._waiters.append(waiter)
        try:
            if not self._over:
                waiter.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        finally:
            if not self._over:  # set() may be going through them
                self._waiters.remove(waiter)
        return self._over


class Running:
    """A Sender and its thread. Any thread may call any method."""

    def __init__(self, accumulator: RecordAccumulator, sender: Sender, name: str) -> None:
        self.accumulator = accumulator
        self.sender = sender
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.producer: weakref.ref[Disownable] | None = None
        # Not Thread.join: before Python 3.13 an interrupted join takes a thread that goes on for one that has ended.
        self._ended = _End()

    def start(self, producer: Disownable) -> None:
        self.producer = weakref.ref(producer)
        _end_with_multiprocessing()
        _running.add(self)
        try:
            self.thread.start()
        except BaseException:
            _running.discard(self)
            raise

    def _run(self) -> None:
        self.accumulator.nonwaiting_allocators[threading.get_ident()] = self.accumulator.refuse_callback
        try:
            with ending(self.accumulator.incomplete):
                self.sender.run()
        finally:
            _running.discard(self)
            self._ended.set()

    def finish(self, *, force: bool = False, warned: bool = False) -> None:
        """Take no record any more and end once all have an outcome; with `force` the rest fails.

        `warned`: the user has been warned of the rest.
        """
        self.accumulator.close()
        self.sender.close(force=force, warned=warned)

    def wait(self, timeout: float | None) -> bool:
        """Whether the thread has ended within `timeout` seconds (None: for ever)."""
        ended = self._ended.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        if ended:
            self.thread.join()
        return ended

    def stop(self, timeout: float | None) -> None:
        """finish() and wait; after `timeout` seconds by force."""
        self.finish(force=timeout == 0)
        if self.wait(timeout):
            return
        self.finish(force=True)
        if not self.wait(CLOSE_TIMEOUT):
            log.warning("%s is still busy %g s after a forced close: in a callback?", self.thread.name, CLOSE_TIMEOUT)

    def unsent(self) -> int:
        """Records without an outcome."""
        return sum(batch.count for batch in list(self.accumulator.incomplete))

    def abandon(self) -> None:
        """The producer was collected without close(): the Sender goes on until every record has an outcome."""
        if unsent := self.unsent():
            log.warning("a KafkaProducer was not closed; %d records that it holds are still being sent", unsent)
        self.finish()


_running: set[Running] = set()
_hooked_in: int | None = None  # the process of which multiprocessing knows our _end_all


def _end_all() -> None:
    """The interpreter ends: everything that still runs has EXIT_TIMEOUT to send what it holds."""
    left = list(_running)
    if left:
        # Daemon threads may still be looping over send(): let the Senders, and us, have the GIL sooner.
        sys.setswitchinterval(min(sys.getswitchinterval(), EXIT_SWITCH_INTERVAL))
    for running in left:
        running.finish()
    left = _still_running(left, EXIT_TIMEOUT)
    lost = sum(running.unsent() for running in left)
    for running in left:
        running.finish(force=True, warned=True)
    _still_running(left, FORCED_TIMEOUT)
    if lost:
        # Not by logging, which is silent unless set up: these are lost.
        warnings.warn(
            f"{lost} records were not acknowledged within {EXIT_TIMEOUT:g} s of the interpreter's end and may be lost: "
            f"close() was not called for {len(left)} KafkaProducer(s)",
            RuntimeWarning,
            stacklevel=2,
        )


def _still_running(some: list[Running], timeout: float) -> list[Running]:
    """Those that have not ended `timeout` seconds from now."""
    deadline = time.monotonic() + timeout
    return [running for running in some if not running.wait(max(deadline - time.monotonic(), 0.0))]


def _end_with_multiprocessing() -> None:
    """A child that multiprocessing forked ends without atexit; it has a list of its own, emptied by each fork."""
    global _hooked_in
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _hooked_in != os.getpid():
        _hooked_in = os.getpid()
        util.Finalize(None, _end_all, exitpriority=0)


def _after_fork_in_child() -> None:
    """No Sender of the parent's runs here, and their sockets and locks are the parent's.

    But for a Sender whose callback has forked: its turn goes on here when the callback returns, touches no socket and
    calls nobody back, and is its last.
    """
    for running in list(_running):
        running.accumulator.pool.disown()
        running.accumulator.close()
        running.accumulator.seal_all()  # a serializer may have forked: its record must not go where nobody sends it
        producer = running.producer() if running.producer is not None else None
        if producer is not None:
            producer._disown()
    _running.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
