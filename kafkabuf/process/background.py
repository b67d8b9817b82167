"""Calls that take long, in other threads: the Sender must not wait for them.

The Sender sleeps until a call is done, or until something else wakes it. So a thread that has no memory to tell the end
of its call tries again, and nothing else that goes wrong there ends the thread.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from kafkabuf.errors import KafkaError, shown
from kafkabuf.process.producer_log import producer_log
from kafkabuf.process.threads import Lock, new_thread, sleep

log = producer_log("kafkabuf.network")

T = TypeVar("T")
PAUSE = 0.001  # seconds before the next attempt, where there is no memory


def tell(on_done: Callable[[], None]) -> None:
    """Call `on_done`, until there is memory for it. An error of it is logged, and never raised."""
    goes_on = True
    while goes_on:
        goes_on = False
        try:
            on_done()
        except MemoryError:
            goes_on = True
            _pause()
        except BaseException as error:  # even SystemExit: the thread may have further calls to make
            log.error("the end of a call in the background could not be told", exc_info=error)


def _pause() -> None:
    try:
        sleep(PAUSE)
    except MemoryError:
        pass


class Call(Generic[T]):
    """A call and its outcome. `run` sets `done` last, and then calls `on_done`."""

    def __init__(self, call: Callable[[], T], on_done: Callable[[], None]) -> None:
        self._call = call
        self._on_done = on_done
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._began = False
        self.done = False

    def run(self) -> None:
        self._began = True
        try:
            self._result.append(self._call())
        except BaseException as error:
            self._error = error
        self.done = True
        tell(self._on_done)

    def fail(self, error: BaseException) -> None:
        """In place of `run`. Does nothing if a thread runs the call all the same."""
        if not self._began:
            self._error = error
            self.done = True
            tell(self._on_done)

    def result(self) -> T:
        """The result of the call. Raises the call's error: as it is, or as the cause of a KafkaError."""
        if self._error is None:
            return self._result[0]
        if isinstance(self._error, KafkaError):
            raise self._error
        try:
            text = f"{type(self._error).__name__}: {self._error}"
        except Exception:  # an error of the user's has no text
            text = shown(self._error)
        raise KafkaError(text) from self._error


class BackgroundCall(Call[T]):
    """A call in a thread of its own. If no thread can start, the call has failed when the constructor returns."""

    def __init__(self, call: Callable[[], T], on_done: Callable[[], None], name: str) -> None:
        super().__init__(call, on_done)
        try:
            new_thread(self.run, name).start()
        except (RuntimeError, MemoryError) as error:  # there are too many threads
            self.fail(error)


class CallsInTurn:
    """Calls that one thread runs, one after the other. The thread lives while there are calls.

    A call that waits for its turn is left out if nobody holds it any more. So callers that give up, and try again,
    cannot make ever more threads or ever more calls, whatever the calls wait for.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._waiting: deque[weakref.ref[Call[Any]]] = deque()
        self._running = False

    def start(self, call: Callable[[], T], on_done: Callable[[], None]) -> Call[T]:
        """Run the call as soon as its turn comes. The caller must hold what this method returns."""
        added = Call(call, on_done)
        with self._lock:
            self._waiting.append(weakref.ref(added))
            if self._running:
                return added
            self._running = True
        try:
            new_thread(self._run, self._name).start()
        except (RuntimeError, MemoryError) as error:
            while (each := self._next()) is not None:
                each.fail(error)
        return added

    def _run(self) -> None:
        while (each := self._next()) is not None:
            each.run()

    def _next(self) -> Call[Any] | None:
        """The next call that somebody holds. None: there is no such call, and the next `start` needs a new thread."""
        with self._lock:
            while self._waiting:
                if (call := self._waiting.popleft()()) is not None:
                    return call
            self._running = False
            return None
