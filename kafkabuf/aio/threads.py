"""The threads in which an AIOKafkaProducer makes calls that wait.

Not concurrent.futures.ThreadPoolExecutor: where there is no memory, its submit() raises after it has queued the call,
and its threads end without a word. Here a call that `start` has taken runs, and a call that it refuses does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from kafkabuf.process.threads import AnyThread, Lock, new_thread

IDLE_TIME = 60.0  # seconds after which a thread without a call ends


class Wait(Protocol):
    """What the caller waits for."""

    def end(self, value: object, error: BaseException | None, /) -> object:
        """Needs no memory, and never raises."""


class Call:
    """A function to call, its name for errors, and the wait that ends with its value or its error."""

    __slots__ = ("_function", "_name", "_wait", "began")

    def __init__(self, name: str, function: Callable[[], object], wait: Wait) -> None:
        self._name = name
        self._function = function
        self._wait = wait
        self.began = False

    def __call__(self) -> None:
        """Make the call, and raise nothing. A MemoryError from a call that has not begun is one for want of a frame."""
        self.began = True
        value, failure = None, None
        try:
            try:
                value = self._function()
            except StopIteration as error:  # a coroutine cannot raise it
                raise RuntimeError(f"{self._name}() raised StopIteration") from error
        except BaseException as error:
            failure = error
        self._wait.end(value, failure)


class Threads:
    """Up to `most` threads. Each makes one call at a time; further calls wait for a thread."""

    def __init__(self, most: int, name: str, idle_time: float = IDLE_TIME) -> None:
        self._most = most
        self._name = name
        self._idle_time = idle_time
        # ---- guarded by `_lock`. No `with` block takes it where the thread must get on without memory: its beginning
        #      takes some
        self._lock = Lock()
        self.count = 0  # of threads
        self._idle: deque[_Worker] = deque()
        self._waiting: deque[Call] = deque()
        self._ended = False

    def start(self, call: Call) -> None:
        """Have a thread make the call. Raises RuntimeError or MemoryError if no thread can: then nobody makes it."""
        with self._lock:
            if self._ended:
                raise RuntimeError("the producer is closed")
            if self._idle:
                worker = self._idle[-1]
                worker.calls.append(call)  # first: where it raises, nothing has happened
                self._idle.pop()
                worker.work.release()
                return
            if self.count >= self._most:
                self._waiting.append(call)
                return
            self.count += 1
        self._start_thread(call)

    def _start_thread(self, call: Call) -> None:
        worker: _Worker | None = None
        try:
            worker = _Worker(self, call)
            worker.thread = new_thread(worker.run, self._name)
            worker.thread.start()
        except BaseException:
            # The thread may run all the same, if the error is one of the wait for it. Whoever takes the call decides.
            if worker is None or worker.take() is not None:
                if worker is not None:
                    worker.counted = False
                self._lock.acquire()
                try:
                    self.count -= 1
                finally:
                    self._lock.release()
                raise

    def end(self) -> None:
        """Take no further call. The threads end with their calls; nobody waits for them."""
        with self._lock:
            self._ended = True
            while self._idle:
                self._idle.pop().work.release()

    def next_of(self, worker: _Worker) -> bool:
        """The worker has made its call. False: its thread ends, as it does where there is no memory to wait."""
        came = is_idle = False
        try:
            self._lock.acquire()
            try:
                if worker.calls:  # it came while the worker stood in `_idle` and did not wait
                    return True
                if self._waiting:
                    worker.calls.append(self._waiting.popleft())
                    return True
                if self._ended:
                    return False
                if worker not in self._idle:  # as after a lack of memory behind the wait
                    self._idle.append(worker)
                is_idle = True
            finally:
                self._lock.release()
            came = worker.work.acquire(timeout=self._idle_time)
        except MemoryError:
            if not is_idle:
                raise  # nobody has released `work`: the next turn tries again
        if came:
            return True
        self._lock.acquire()
        try:
            if worker in self._idle:
                self._idle.remove(worker)
                return False
        finally:
            self._lock.release()
        # A call, or the end, came at the last moment. Its release is taken here: the worker would find it later, stand
        # in `_idle` twice, and lose the first of two calls.
        worker.work.acquire()
        return True

    def left(self) -> None:
        self._lock.acquire()
        try:
            self.count -= 1
        finally:
            self._lock.release()


class _Worker:
    """A thread, and the call that it makes."""

    def __init__(self, threads: Threads, call: Call) -> None:
        self._threads = threads
        self.calls = deque((call,))  # one at most: to append it needs no memory
        self.counted = True  # in `Threads.count`
        self.work = Lock()  # released when there is a call to take, or an end
        self.work.acquire()
        self.thread: AnyThread | None = None

    def take(self) -> Call | None:
        """The call, once: for the thread that makes it, or for the caller who could not start the thread."""
        try:
            return self.calls.pop() if self.calls else None
        except IndexError:  # the other one was quicker
            return None

    def run(self) -> None:
        try:
            goes_on = True
            while goes_on:
                try:
                    goes_on = self._turn()
                except MemoryError:  # the call is where it was
                    self._pause()
        finally:
            if self.counted:
                self._threads.left()

    def _turn(self) -> bool:
        call = self.take()
        if call is not None:
            try:
                call()
            except MemoryError:
                if not call.began:
                    self.calls.append(call)
                raise
            del call
        return self._threads.next_of(self)

    def _pause(self) -> None:
        try:
            self.work.acquire(True, 0.001)  # whoever releases it has left a call, which the next turn takes
        except MemoryError:
            pass
