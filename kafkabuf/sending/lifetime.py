"""The life of a producer's Sender thread, and its end without close(): by collection, interpreter exit or fork.

A `Running` holds only a weak reference to its producer, so that an abandoned producer can be collected. `_running`
holds each Running until its thread has ended.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Protocol

from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.batches.ending import ending
from kafkabuf.process._time import monotonic
from kafkabuf.process.log_handover import never_wait
from kafkabuf.process.producer_log import log_as, producer_log
from kafkabuf.process.threads import Event, get_ident, new_thread
from kafkabuf.sending.sender import Sender

log = producer_log("kafkabuf.producer")

# At interpreter exit all producers together get EXIT_TIMEOUT to send their records, and then FORCED_TIMEOUT to end. The
# documentation promises five seconds to users.
EXIT_TIMEOUT = 3.0
FORCED_TIMEOUT = 0.5
WAITING_SLICE = 0.01  # seconds between two looks at records that wait before the queues
EXIT_SWITCH_INTERVAL = 0.0005
ENDED_BY_EXIT = (
    "the program ends, and the producer takes no further records: join() the threads that send before the main thread "
    "ends, or do not make them daemon threads"
)
# How long close() waits for a Sender after a forced close: the Sender may be in a callback.
CLOSE_TIMEOUT = 5.0


class Disownable(Protocol):
    """The method of a producer that a fork needs."""

    def _disown(self) -> None: ...


class Running:
    """A Sender and its thread. Any thread may call any method."""

    def __init__(self, accumulator: RecordAccumulator, sender: Sender, client_id: str) -> None:
        self.accumulator = accumulator
        self.sender = sender
        self.client_id = client_id
        self.thread = new_thread(self._run, f"kafkabuf-{client_id}")
        self.producer: weakref.ref[Disownable] | None = None
        # How many records a face holds before the queues, for topics that no broker has described yet. It must not keep
        # the face from being collected.
        self.waiting: Callable[[], int] = lambda: 0
        # Called once the Sender has ended and uses the producer's memory no more.
        self.at_end: Callable[[], object] = lambda: None
        # Called first in a forked child, to keep what the child changes from the parent.
        self.in_child: Callable[[], object] = lambda: None
        self.warned = False  # the interpreter ends, and a warning counts the records that wait there
        # Not Thread.join: before Python 3.13 an interrupted join takes a running thread for ended.
        self._ended = Event()
        self._ident: int | None = None  # of the thread, while it runs. A patched `threading` gives others

    def start(self, producer: Disownable) -> None:
        self.producer = weakref.ref(producer)
        _end_with_multiprocessing()
        _running.add(self)
        _orphans.discard(producer)
        try:
            self.thread.start()
        except BaseException:
            # An exception of a signal handler may come after the thread has started: then the thread ends by itself.
            self.finish()
            _running.discard(self)
            raise

    def _run(self) -> None:
        try:
            never_wait()
            self._ident = get_ident()
            self.accumulator.nonwaiting_allocators[self._ident] = self.accumulator.refuse_callback
            with log_as(self.client_id), ending(self.accumulator.incomplete):
                self.accumulator.start_compression_thread(f"{self.thread.name}-compression")
                self.sender.run()
        finally:
            try:
                self.accumulator.pool.forget_hooks()
                self.at_end()
            finally:  # close() waits for this event: an error must not leave it out
                _running.discard(self)
                self._ident = None
                self._ended.set()
            if self.accumulator.pool.disowned:
                # A callback forked, and this thread is the child's first. The child ends when its last thread has, so
                # the Senders of the child's own producers must end too.
                _end_all()

    def runs_here(self) -> bool:
        """Whether the calling thread is the Sender's."""
        return self.runs_in(get_ident())

    def runs_in(self, ident: int | None) -> bool:
        """Whether `ident` is that of the Sender's thread. None is that of no thread."""
        return ident is not None and self._ident == ident

    def finish(self, *, force: bool = False, warned: bool = False) -> None:
        """Take no further record, and end once all records have an outcome; with `force` fail the rest.

        `warned`: the user has been warned of the records that fail now.
        """
        self.accumulator.close()
        self.sender.close(force=force, warned=warned)

    def wait(self, timeout: float | None) -> bool:
        """Wait for the thread's end, up to `timeout` seconds (None: for ever). Returns whether the thread has ended."""
        ended = self._ended.wait(timeout)
        if ended:
            self.thread.join()
        return ended

    def stop(self, timeout: float | None) -> None:
        """Finish and wait. After `timeout` seconds finish by force."""
        self.finish(force=timeout == 0)
        if self.wait(timeout):
            return
        self.finish(force=True)
        if not self.wait(CLOSE_TIMEOUT):
            log.warning("%s is still busy %g s after a forced close: in a callback?", self.thread.name, CLOSE_TIMEOUT)

    @property
    def has_file(self) -> bool:
        """Whether the records outlive this process."""
        return self.accumulator.tables is not None

    def unsent(self) -> int:
        """The number of records without an outcome."""
        return sum(batch.count for batch in self.accumulator.incomplete_batches())

    def let_in(self, deadline: float) -> int:
        """Wait until no record stands before the queues. Returns how many do at the deadline."""
        while (left := self.waiting()) and (seconds := deadline - monotonic()) > 0:
            self._ended.wait(min(seconds, WAITING_SLICE))
        return left

    def abandon(self) -> None:
        """The producer was collected without close(): the Sender goes on until every record has an outcome.

        Nobody calls this again if a signal handler raises here. The Sender must end all the same.
        """
        try:
            if unsent := self.unsent():
                with log_as(self.client_id):
                    log.warning("a KafkaProducer was not closed; %d records that it holds are still being sent", unsent)
        finally:
            try:
                self.finish()
            except BaseException:
                self.finish()
                raise


_running: set[Running] = set()
_orphans: weakref.WeakSet[Disownable] = weakref.WeakSet()  # in a forked child: what it has not reopened yet
_hooked_in: int | None = None  # id of the process in which multiprocessing calls _end_all at its end


def _end_all() -> None:
    """The interpreter ends: every Sender that still runs has EXIT_TIMEOUT to send its records."""
    unfinished = list(_running)
    if unfinished:
        # Daemon threads may still loop over send(): the Senders and this thread must get the GIL sooner.
        sys.setswitchinterval(min(sys.getswitchinterval(), EXIT_SWITCH_INTERVAL))
    deadline = monotonic() + EXIT_TIMEOUT
    outside: dict[Running, int] = {}
    for running in sorted(unfinished, key=lambda each: each.waiting() > 0):  # the others send meanwhile
        if left := running.let_in(deadline):
            outside[running] = left
            running.warned = True
        running.accumulator.closed_because = running.accumulator.closed_because or ENDED_BY_EXIT
        running.finish()
    unfinished = _still_running(unfinished, deadline)
    lost = sum(running.unsent() for running in unfinished if not running.has_file) + sum(outside.values())
    for running in unfinished:
        running.finish(force=True, warned=True)
    _still_running(unfinished, monotonic() + FORCED_TIMEOUT)
    if lost:
        # Records are lost, so this is a warning: logging is silent unless the user has set it up.
        warnings.warn(
            f"{lost} records were not acknowledged within {EXIT_TIMEOUT:g} s of the interpreter's end and may be lost: "
            f"close() was not called for {len(outside.keys() | unfinished)} KafkaProducer(s)",
            RuntimeWarning,
            stacklevel=2,
        )


def _still_running(candidates: list[Running], deadline: float) -> list[Running]:
    """Wait until the deadline at most, and return the candidates that have not ended."""
    return [running for running in candidates if not running.wait(max(deadline - monotonic(), 0.0))]


def _end_with_multiprocessing() -> None:
    """Have multiprocessing call _end_all: a child that it forked ends without atexit.

    Each fork empties multiprocessing's list of such calls.
    """
    global _hooked_in
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _hooked_in != os.getpid():
        _hooked_in = os.getpid()
        util.Finalize(None, _end_all, exitpriority=0)


def _after_fork_in_child() -> None:
    """Disown all producers: their Senders run in the parent only, and their sockets and locks are the parent's.

    A fork copies steps that are half done, and locks that another thread of the parent held. So nothing of the copies
    is used. The child's first call on a producer (`check_open`) makes pool, accumulator, client and Sender anew. A call
    that was under way at the fork belongs to the parent: `check_still_open` raises in the child after the user's code.

    There is one exception: a Sender whose callback has forked. Its turn goes on here when the callback returns. The
    turn touches no socket, runs no further callback, and is the Sender's last turn here.
    """
    for running in list(_running):
        running.in_child()
        running.accumulator.pool.disown()
        running.accumulator.close()
        running.accumulator.close_open_batches()  # a serializer may have forked: no batch here may take its record
        producer = running.producer() if running.producer is not None else None
        if producer is not None:
            _orphans.add(producer)
    _running.clear()
    # Again after a fork of the child: another thread of the child may have been opening a producer.
    for orphan in list(_orphans):
        orphan._disown()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
