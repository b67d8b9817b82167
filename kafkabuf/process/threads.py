"""Threads and locks that are real, whatever the program has patched, and waits that stop no hub of greenlets.

gevent and eventlet replace `threading`, `_thread` and `socket`. A thread of ours that became a greenlet would block its
hub in C for ever, and with it each greenlet that waits for the thread. So this module takes the primitives from a copy
of `_thread` that nobody else has. It does not matter whether the program patches before or after it imports kafkabuf.

A greenlet that waits for a record must not stop its hub either: the hub's other greenlets run meanwhile. So a thread
waits on the lock that `new_waiter` returns. In a thread that has a hub this is an event of the hub, and a release in
another thread wakes the hub. The module imports neither library: it looks for them in `sys.modules`.

The greenlets of one thread share its stack, and a switch copies it away: no other thread may hold an address of a
waiting call's stack, so the pool's waiters are on the heap. They share the thread's ident too. Nobody waits while it
holds a lock of ours, so that no greenlet finds one held by another greenlet of its thread.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from importlib import import_module
from importlib.machinery import BuiltinImporter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from kafkabuf.process._guard import Guard
from kafkabuf.process._time import monotonic

T = TypeVar("T")


class Lockable(Protocol):
    """The part of `threading.Lock` that a thread needs to wait."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...


class Waiter(Lockable, Protocol):
    """And the part that another thread needs to wake it."""

    def release(self) -> None: ...


if TYPE_CHECKING:
    import _thread
    from threading import TIMEOUT_MAX as TIMEOUT_MAX
    from threading import Lock as Lock
    from threading import RLock as RLock
    from threading import get_ident as get_ident
    from threading import local

    Local = local
else:

    def _own_copy():
        spec = BuiltinImporter.find_spec("_thread")
        module = BuiltinImporter.create_module(spec)
        BuiltinImporter.exec_module(module)
        return module

    _thread = _own_copy()

    class Lock(Guard):
        __slots__ = ()

        def __init__(self):
            super().__init__(_thread.allocate_lock())

    class RLock(Guard):
        __slots__ = ()

        def __init__(self):
            super().__init__(_thread.RLock())

    get_ident = _thread.get_ident
    Local = _thread._local  # of a thread, and not of a greenlet
    TIMEOUT_MAX = _thread.TIMEOUT_MAX


def are_patched() -> bool:
    """Whether `threading` makes greenlets in place of threads at present."""
    return threading.get_ident.__module__ != "_thread"


def this_line() -> Hashable:
    """The greenlet that runs here, or the ident of the thread where there are no greenlets."""
    greenlets = sys.modules.get("greenlet")
    return get_ident() if greenlets is None else cast(Hashable, greenlets.getcurrent())


# ---- threads ---------------------------------------------------------------------------------------------------------


class AnyThread(Protocol):
    """What a threading.Thread and a RealThread have in common."""

    name: str

    @property
    def ident(self) -> int | None: ...
    def start(self) -> None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


def is_main_thread() -> bool:
    """Whether this is the main thread, in which Python raises KeyboardInterrupt."""
    return get_ident() == threading.main_thread().ident


def new_thread(target: Callable[[], object], name: str) -> AnyThread:
    """A thread that has not started yet. It is a daemon: the interpreter does not wait for it."""
    if are_patched():
        return RealThread(target, name)
    return _Thread(target, name)


class _Thread(threading.Thread):
    """A thread whose start() returns though the new thread found no memory to begin: it raises MemoryError then.

    threading's own start() waits for ever for such a thread.
    """

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        # start() waits for it. The thread must be able to set it without memory, and threading's own has a lock that
        # would stay held: the end of a `with` block takes memory.
        self._started = _Beginning()
        self._runs = target
        self._began = False
        self._failed = False

    def start(self) -> None:
        super().start()
        if self._failed:
            raise MemoryError("no memory to begin a thread")

    def run(self) -> None:
        self._began = True
        self._runs()

    def _bootstrap_inner(self) -> None:
        """threading's, which tells start() that the thread has begun, and calls run()."""
        try:
            super()._bootstrap_inner()  # type: ignore[misc]
        except BaseException:
            if self._began:
                raise
            self._failed = True
        while self._failed:
            try:
                self._started.set()
                return
            except MemoryError:  # nobody else would wake the thread that waits in start()
                pass


class RealThread:
    """A thread of the system in a program whose `threading` makes greenlets. `threading` does not know of it."""

    def __init__(self, target: Callable[[], object], name: str) -> None:
        self._target = target
        self._began = False
        self._ended = Event()
        self.name = name
        self.ident: int | None = None

    def start(self) -> None:
        """Raises RuntimeError if there are too many threads."""
        self._began = True
        try:
            _thread.start_new_thread(self._run, ())
        except BaseException:
            self._began = False
            raise

    def _run(self) -> None:
        self.ident = get_ident()
        try:
            self._target()
        finally:
            _destroy_hub()
            self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return self._began and not self._ended.is_set()


def aside(call: Callable[[], T], name: str, interrupt: Callable[[], object] | None = None) -> T:
    """The result of a call that blocks its thread, such as a lookup of a host name.

    If this thread has a hub of greenlets, another thread makes the call, and the hub goes on meanwhile. An exception
    that is thrown into the waiting greenlet ends the wait, and the call goes on. With `interrupt`, which makes the call
    return soon, the exception is raised once the call has ended: then nobody uses what the call uses.
    """
    if not _has_hub():
        return call()
    result: list[T] = []
    errors: list[BaseException] = []
    ended = Event()

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            errors.append(error)
        ended.set()

    RealThread(run, name).start()
    try:
        ended.wait()
    except BaseException:
        if interrupt is not None:
            interrupt()
            _outlast(ended)
        raise
    if errors:
        raise errors.pop()
    return result[0]


def _outlast(event: Event) -> None:
    """Wait for the event, whatever is thrown into this greenlet meanwhile."""
    while not event.is_set():
        try:
            event.wait()
        except BaseException:
            pass  # the caller raises the first


def sleep(seconds: float) -> None:
    """Pause this thread. A greenlet pauses alone."""
    acquire_in_turns(new_waiter(), seconds)


# ---- waits -----------------------------------------------------------------------------------------------------------


TURN = 0.5


def acquire_in_turns(lock: Lockable, timeout: float | None) -> bool:
    """Acquire a lock within `timeout` seconds (None: for ever), so that a handler of a signal runs within TURN seconds.

    A signal may come to the thread between Python's last look for signals and the system call of the wait. It wakes
    nobody then: a Ctrl-C would end the wait only when the lock is released. So a wait has turns, and Python looks for
    signals between two of them.
    """
    left = TIMEOUT_MAX if timeout is None else min(max(timeout, 0.0), TIMEOUT_MAX)
    if left <= TURN:
        return lock.acquire(timeout=left)
    until = monotonic() + left
    while not lock.acquire(timeout=min(left, TURN)):
        left = until - monotonic()
        if left <= 0:
            return False
    return True


class Event:
    """A `threading.Event` that holds no lock of its own while Python runs.

    With such a lock a signal handler that calls close() in the middle of close() would wait for its own thread, and an
    exception thrown into a thread would leave the lock locked for ever.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: deque[Waiter] = deque()  # each is held until `set`. A list may need memory to give one away

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        while self._waiters:
            try:
                waiter = self._waiters.popleft()
            except IndexError:  # another thread took the last
                break
            waiter.release()

    def clear(self) -> None:
        """Only the thread that waits may call it."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds (None: for ever). Returns whether the event is set."""
        if self._is_set:
            return True
        waiter = new_waiter()
        # Append first, then read `_is_set`: a thread that comes too late for set() finds it true.
        self._waiters.append(waiter)
        try:
            if not self._is_set:
                acquire_in_turns(waiter, timeout)
        finally:
            try:
                self._waiters.remove(waiter)
            except ValueError:  # set() has taken it
                pass
        return self._is_set


class _Beginning(Event):
    """Set once a thread has begun."""

    def _at_fork_reinit(self) -> None:
        """threading calls it in a forked child, where no thread waits for the beginning of another."""


def new_waiter() -> Waiter:
    """A lock that is held. A thread waits in `acquire` until another thread calls `release`, once.

    Only the thread that has made the waiter may wait on it. `release` never raises. A waiter of a hub that has been
    released stays free.
    """
    gevent_hub = _gevent_hub()
    if gevent_hub is not None:
        return _GeventWaiter(gevent_hub)
    eventlet_hub = _eventlet_hub()
    if eventlet_hub is not None:
        return _EventletWaiter(_bell_of(eventlet_hub))
    lock: Waiter = _thread.allocate_lock()
    lock.acquire()
    return lock


def _has_hub() -> bool:
    return _gevent_hub() is not None or _eventlet_hub() is not None


def _gevent_hub() -> Any:
    """The gevent hub of this thread. None: the thread has no hub, or the hub runs this code."""
    module = sys.modules.get("gevent._hub_local")
    if module is None:
        return None
    hub = module.get_hub_if_exists()
    if hub is None or hub.loop is None or sys.modules["greenlet"].getcurrent() is hub:
        return None
    return hub


def _eventlet_hub() -> Any:
    """The eventlet hub of this thread, in the same way."""
    module = sys.modules.get("eventlet.hubs")
    if module is None:
        return None
    hub = getattr(module._threadlocal, "hub", None)
    if hub is None or sys.modules["greenlet"].getcurrent() is hub.greenlet:
        return None
    return hub


def _destroy_hub() -> None:
    """A library that this thread has called may have made a gevent hub for it: its descriptors end with the thread."""
    hub = _gevent_hub()
    if hub is not None:
        hub.destroy(destroy_loop=True)


class _HubWaiter:
    """A waiter on an event of a hub, which must be set in the hub's thread."""

    def __init__(self) -> None:
        self._released = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._released and blocking:
            self._wait(None if timeout < 0 else timeout)
        return self._released

    def release(self) -> None:
        self._released = True
        try:
            self._wake()
        except Exception:  # the hub has ended: nobody waits
            pass

    def _wait(self, timeout: float | None) -> None:
        raise NotImplementedError

    def _wake(self) -> None:
        raise NotImplementedError


class _GeventWaiter(_HubWaiter):
    def __init__(self, hub: Any) -> None:
        super().__init__()
        self._loop = hub.loop
        self._event = import_module("gevent.event").Event()

    def _wait(self, timeout: float | None) -> None:
        self._event.wait(timeout)

    def _wake(self) -> None:
        self._loop.run_callback_threadsafe(self._event.set)


class _EventletWaiter(_HubWaiter):
    def __init__(self, bell: _Bell) -> None:
        super().__init__()
        self._bell = bell
        self._event = import_module("eventlet.event").Event()

    def _wait(self, timeout: float | None) -> None:
        self._event.wait(timeout)

    def _wake(self) -> None:
        self._bell.ring(self._event)


class _Bell:
    """Wakes greenlets of an eventlet hub from other threads: a greenlet of the hub reads a pipe.

    eventlet's own pool of threads would do the same with a thread for each wait. It has 20 threads, so that the 21st
    wait would last longer than its time-out.
    """

    def __init__(self, spawn: Callable[[Callable[[], None]], object]) -> None:
        self.pid = os.getpid()
        self._due: deque[Any] = deque()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        spawn(self._serve)

    def ring(self, event: Any) -> None:
        self._due.append(event)
        try:
            # posix.write and not os.write: eventlet replaces the latter.
            sys.modules["posix"].write(self._writing, b"\0")
        except BlockingIOError:  # the pipe is full of calls that the hub has not read yet
            pass

    def _serve(self) -> None:
        hubs = import_module("eventlet.hubs")
        while True:
            hubs.trampoline(self._reading, read=True)
            sys.modules["posix"].read(self._reading, 4096)
            while self._due:
                event = self._due.popleft()
                if not event.ready():
                    event.send(True)


_bells: weakref.WeakKeyDictionary[Any, _Bell] = weakref.WeakKeyDictionary()


def _bell_of(hub: Any) -> _Bell:
    bell = _bells.get(hub)
    if bell is None or bell.pid != os.getpid():  # the parent of a forked child reads the other end of its pipe
        bell = _bells[hub] = _Bell(import_module("eventlet").spawn_n)
    return bell
