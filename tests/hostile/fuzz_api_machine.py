"""The API fuzzer's examples: a state machine whose rules call the producers' methods with what is drawn."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import importlib
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TextIO

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import kafkabuf
from kafkabuf.aio import AIOBulkReport, AIOKafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.producer import KafkaProducer
from kafkabuf.testing import MockProducer
from tests.hostile import fuzz_api_arrow
from tests.hostile.fuzz_api_arrow import arrow
from tests.hostile.fuzz_api_objects import (
    anything,
    callbacks,
    columns,
    data,
    enter,
    groups,
    headers,
    keys,
    offsets,
    partitions,
    reports,
    settings,
    timeouts,
    timestamps,
    topics,
)  # fmt: skip
from tests.hostile.fuzz_api_world import DEEDS, RAISED, World, alarms

_MEMORY = 32 << 10
_INTERVALS = [5e-3, 1e-4, 1e-5, 1e-6]
_RAISING = sorted(
    name for name in RAISED if issubclass(RAISED[name], KeyboardInterrupt | SystemExit | ZeroDivisionError)
)


class Call(NamedTuple):
    """A method with its arguments, and how it reads in the journal."""

    text: str
    run: Callable[[World], object]


def _call(name: str, *arguments: Any, **named: Any) -> Call:
    """Of the World where it has the method, so that it keeps what comes of it, or of the newest producer."""

    def run(world: World) -> object:
        return getattr(world if hasattr(World, name) else world.producer, name)(*arguments, **named)

    said = [_said(one) for one in arguments] + [f"{key}={_said(one)}" for key, one in named.items()]
    return Call(f"{name}({', '.join(said)})", run)


def _said(value: Any) -> str:
    """repr() of an odd object would do a deed."""
    plain = type(value) in (int, str, bytes, float, bool, type(None)) and repr(value)
    return plain if plain and len(plain) < 40 else type(value).__name__


@st.composite
def _send(draw: st.DrawFn) -> Call:
    return _call(
        "send", draw(topics), draw(data), draw(keys), draw(headers), draw(partitions), draw(timestamps), draw(callbacks)
    )


@st.composite
def _send_many(draw: st.DrawFn) -> Call:
    count = draw(st.sampled_from([0, 1, 5, 30, 100]))
    others = [draw(st.none() | columns(item, count)) for item in (keys, headers, partitions, timestamps)]
    return _call("send_many", draw(topics), draw(columns(data, count)), *others, draw(reports))


_short = st.builds(
    lambda name, many: _call("send_many", name, [b"x" * 40] * many), topics, st.sampled_from([1, 10, 60])
) | st.builds(
    lambda name, rows: _call("send_arrow", pa.table({"value": [b"x" * 40] * rows}), name),
    topics, st.sampled_from([1, 10, 60]),
)  # fmt: skip
_deed = st.sampled_from(sorted(DEEDS)).map(lambda name: Call(f"deed {name}", DEEDS[name]))
_calls = st.one_of(
    _send(),
    _send(),
    _send_many(),
    _send_many(),
    st.builds(lambda *given: _call("send_arrow", *given), arrow, st.none() | topics, reports),
    _short,
    _deed,
    st.builds(lambda timeout: _call("flush", timeout), timeouts),
    st.builds(lambda topic: _call("partitions_for", topic), topics),
    st.builds(lambda given: _call("send_offsets_to_transaction", *given), st.tuples(offsets, groups)),
    st.builds(lambda given: _call("purge", in_flight=given), anything),
    st.builds(lambda name: _call(name), st.sampled_from(["begin_transaction", "commit_transaction", "check_open"])),
    st.builds(
        lambda given: _call("prepare", *given), st.tuples(topics, keys, data, headers, partitions)
    ),
)  # fmt: skip


class Machine(RuleBasedStateMachine):
    """One example. Subclassed for each round."""

    cluster: ClassVar[EmbeddedCluster]
    notes: ClassVar[TextIO]
    deadline: ClassVar[float]
    patience: ClassVar[float]  # seconds of a step
    examples: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.over = self.examples > 0 and time.monotonic() > self.deadline  # to import all may have taken long
        self._before = sys.getswitchinterval()
        self._hooks = sys.unraisablehook, threading.excepthook
        faulthandler.dump_traceback_later(self.patience, exit=True)
        type(self).examples += not self.over
        self.world = World(self.cluster, self._note, self.patience / 3)
        self._note(f"==== {self.examples}")
        enter(self.world)
        fuzz_api_arrow.TOPICS[:] = [*self.world.topics, None, "\0"]
        sys.unraisablehook = lambda hooked: self.world.judge(hooked.exc_value or SystemError("none"), "unraisable")
        threading.excepthook = lambda hooked: self.world.judge(
            hooked.exc_value or SystemError("none"), f"{hooked.thread} ended"
        )

    def _note(self, text: str) -> None:
        self.notes.write(text + "\n")

    def step(self, text: str, what: Callable[[], object]) -> None:
        """Do something, with an eye on the clock, and judge what comes of it."""
        if self.over:
            return
        self._note(text)
        faulthandler.dump_traceback_later(self.patience, exit=True)
        with self.world.judged(text), self.world.step():
            what()
        self.world.require_none()

    # ---- producers

    @initialize(given=settings, interval=st.sampled_from(_INTERVALS), transactional=st.integers(0, 5))
    def open(self, given: dict[str, Any], interval: float, transactional: int) -> None:
        sys.setswitchinterval(interval)
        if transactional == 0:
            given = given | {"acks": "all", "transactional_id": self.world.topic}
        self.step(f"open({given}), switch interval {interval}", lambda: self._open(given))

    def _open(self, given: dict[str, Any]) -> None:
        small = {
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "buffer_memory": _MEMORY,
            "request_timeout_ms": 500,
            "delivery_timeout_ms": 2000,
            "retry_backoff_ms": 5,
            "reconnect_backoff_ms": 5,
            "enable_idempotence": given["acks"] == "all",
        }
        self.world.producers.append(KafkaProducer(small | given))

    @rule(given=settings)
    def open_another(self, given: dict[str, Any]) -> None:
        if len(self.world.producers) < 3:
            self.step(f"open({given})", lambda: self._open(given))

    @rule()
    def copy(self) -> None:
        """No deed, for what is thrown into a thread that starts another breaks Python's own books."""
        if self.world.producers:
            self.step("copy()", self.world.copy)

    # ---- calls

    @rule(call=_calls, times=st.sampled_from([1, 1, 1, 5]))
    def call(self, call: Call, times: int) -> None:
        for _ in range(times):
            self.step(call.text, lambda: self._run(call))

    def _run(self, call: Call) -> None:
        if self.world.producers:
            call.run(self.world)

    @rule(
        programs=st.lists(st.lists(_calls, min_size=1, max_size=3), min_size=2, max_size=3),
        main=_calls,
        thrown=st.sampled_from([None, None, *_RAISING]),
    )
    def call_together(self, programs: list[list[Call]], main: Call, thrown: str | None) -> None:
        """In threads, each its program a few times over; exceptions may be thrown into them, wherever they wait."""
        text = f"together: {[[one.text for one in program] for program in programs]}, {main.text}, thrown {thrown}"
        self.step(text, lambda: self._together(programs, main, thrown))

    def _together(self, programs: list[list[Call]], main: Call, thrown: str | None) -> None:
        over = threading.Event()
        begun: list[threading.Thread] = []  # not sooner, for then an exception would strike what Python does to begin
        threads = [
            threading.Thread(target=self._all_of, args=(program, begun, over), daemon=True) for program in programs
        ]
        for thread in threads:
            thread.start()
        for _ in range(3):
            with self.world.judged(main.text):
                self._run(main)
            if thrown is not None:
                for thread in begun:
                    _throw(thread, RAISED[thrown])
        over.set()
        for thread in threads:
            thread.join()

    def _all_of(self, program: list[Call], begun: list[threading.Thread], over: threading.Event) -> None:
        with self.world.judged("between calls"):
            begun.append(threading.current_thread())
            for _ in range(4):
                for call in program:
                    with self.world.judged(call.text):
                        self._run(call)
        # What is thrown into a thread that has ended may strike another with its number. Asleep: what is thrown into an
        # Event breaks its lock.
        while not over.is_set():
            with self.world.judged("after the calls"):
                time.sleep(0.001)

    @rule(
        call=_short, deed=st.sampled_from(["grow", "grow", "shrink", "purge", "flush", "cut", "refuse", "refuse size"])
    )
    def call_while(self, call: Call, deed: str) -> None:
        """Short bulk calls one after another, from two threads, and something happens to the cluster meanwhile."""
        self.step(f"{call.text} while {deed}", lambda: self._while(call, deed))

    def _while(self, call: Call, deed: str) -> None:
        over = threading.Event()

        def repeat() -> None:
            while not over.is_set() and time.monotonic() < end:
                with self.world.judged(call.text):
                    self._run(call)

        end = time.monotonic() + 0.05
        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        try:
            with self.world.judged(deed):
                DEEDS[deed](self.world)
            repeat()
        finally:
            over.set()
            thread.join()

    @rule(
        call=_calls | _short,
        deed=st.sampled_from([*sorted(DEEDS), *_RAISING]),
        seconds=st.sampled_from([2e-5, 1e-4, 5e-4, 2e-3]),
    )
    def call_under_signals(self, call: Call, deed: str, seconds: float) -> None:
        def run() -> None:
            with alarms(self.world, deed, seconds):
                for _ in range(3):
                    self._run(call)

        self.step(f"{call.text} while signals do {deed!r} every {seconds} s", run)

    @rule(timeout=timeouts)
    def close(self, timeout: Any) -> None:
        if self.world.producers:
            self.step(f"close({_said(timeout)})", lambda: self.world.producer.close(timeout))

    # ---- outcomes

    def _ask(self, some: list[Any], name: str, *arguments: Any) -> None:
        for one in some[-3:]:
            said = ", ".join(map(_said, arguments))
            self.step(f"{type(one).__name__}.{name}({said})", partial(getattr(one, name), *arguments))

    @rule(timeout=timeouts, name=st.sampled_from(["result", "exception"]))
    def await_future(self, timeout: Any, name: str) -> None:
        self._ask(self.world.futures, name, timeout)

    @rule(name=st.sampled_from(["done", "cancel", "cancelled", "running", "__repr__"]))
    def ask_future(self, name: str) -> None:
        self._ask(self.world.futures, name)

    @rule(callback=callbacks)
    def add_done_callback(self, callback: Any) -> None:
        self._ask(self.world.futures, "add_done_callback", callback)

    @rule(timeout=timeouts, name=st.sampled_from(["result", "exception", "failures", "ranges", "wait"]))
    def await_report(self, timeout: Any, name: str) -> None:
        self._ask(self.world.reports, name, timeout)

    # ---- the other producers

    @rule(
        first=st.none() | anything, call=_send(),
        given=st.sampled_from([{}, {"auto_complete": False}, {"cluster": {"t": 3}}]),
        wrong=st.sampled_from([None, KeyError, KeyError("x"), ValueError("x")]), times=st.integers(0, 3),
    )  # fmt: skip
    def mock(self, first: Any, call: Call, given: dict[str, Any], wrong: Any, times: int) -> None:
        """Whose first record has any topic; the later ones most likely a right one."""

        def run() -> None:
            with self.world.judged("the first send()"):
                producer.send(first, b"v")
            world = World.__new__(World)
            world.__dict__ |= self.world.__dict__ | {"producers": [producer], "futures": [], "reports": []}
            for _ in range(times + 1):
                with self.world.judged(call.text):
                    call.run(world)
            producer.complete_next()
            if wrong is not None:
                producer.error_next(wrong)
            producer.clear()
            producer.close()

        producer: Any = MockProducer(**given)
        self.step(f"of a MockProducer({given}): send({_said(first)}), {call.text}", run)

    @rule(given=settings, calls=st.lists(_calls, min_size=1, max_size=6), cancelled=st.booleans(), timeout=timeouts)
    def aio(self, given: dict[str, Any], calls: list[Call], cancelled: bool, timeout: Any) -> None:
        """Calls of an AIOKafkaProducer as tasks of their own, which may be cancelled."""
        self.step(
            f"asyncio: {given}, {[call.text for call in calls]}, cancelled {cancelled}",
            lambda: asyncio.run(self._aio(given, calls, cancelled, timeout)),
        )

    async def _aio(self, given: dict[str, Any], calls: list[Call], cancelled: bool, timeout: Any) -> None:
        small = {
            "bootstrap_servers": self.cluster.bootstrap_servers, "buffer_memory": _MEMORY, "request_timeout_ms": 500,
            "delivery_timeout_ms": 2000, "enable_idempotence": given["acks"] == "all",
        }  # fmt: skip
        producer = AIOKafkaProducer(small | given)
        await producer.start()
        world = World.__new__(World)
        world.__dict__ |= self.world.__dict__ | {"producers": [producer], "futures": [], "reports": []}
        able = [call for call in calls if hasattr(AIOKafkaProducer, call.text.partition("(")[0])]
        tasks = [asyncio.ensure_future(self._awaited(call, world)) for call in able]
        await asyncio.sleep(0)
        if cancelled:
            for task in tasks[::2]:
                task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(end, BaseException):
                self.world.judge(end, f"asyncio: {[call.text for call in able]}")
        with self.world.judged("asyncio: stop()"):
            await producer.stop(timeout)
        await producer.stop()
        producer._threads.shutdown()  # calls whose tasks were cancelled go on
        self.world.require_whole(producer._started)

    async def _awaited(self, call: Call, world: World) -> None:
        """What send() and its like return is awaited, too."""
        name = call.text.partition("(")[0]
        producer: Any = world.producer
        ended: list[Any] = []
        original = producer.__class__

        class Catches(World):
            def __init__(self) -> None:
                self.__dict__ |= world.__dict__

            def send(self, *arguments: Any, **named: Any) -> None:
                ended.append(original.send(producer, *arguments[:6]))

            def _keep(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
                ended.append(call(*arguments, **named))

        try:
            made = call.run(Catches())
        except BaseException as error:
            self.world.judge(error, f"asyncio: {name}")
            return
        for one in [*ended, made]:
            if hasattr(one, "__await__"):
                found = await one
                if hasattr(found, "__await__"):
                    await found
                elif isinstance(found, AIOBulkReport):
                    await found.wait()

    # ---- extension types without their constructors

    @rule(index=st.integers(0, 200), arguments=st.lists(anything, max_size=2))
    def make_bare(self, index: int, arguments: list[Any]) -> None:
        kind = _EXTENSION_TYPES[index % len(_EXTENSION_TYPES)]
        self.step(f"{kind.__qualname__}.__new__", lambda: _use_bare(self.world, kind, arguments))

    def teardown(self) -> None:
        try:
            if not self.over:
                self._note("teardown")
                faulthandler.dump_traceback_later(self.patience, exit=True)
                self.world.close()
                self.world.require_none()
        finally:
            faulthandler.cancel_dump_traceback_later()
            sys.setswitchinterval(self._before)
            sys.unraisablehook, threading.excepthook = self._hooks


def _throw(thread: threading.Thread, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))


def _extension_types() -> list[type]:
    """Of all our extensions, those that can be made from Python."""
    root = Path(kafkabuf.__file__).parent
    found: list[type] = [KafkaProducer, MockProducer]
    for path in sorted(root.rglob("*.pyx")):
        name = ".".join(("kafkabuf", *path.relative_to(root).with_suffix("").parts))
        module = importlib.import_module(name)
        found += [one for _, one in sorted(vars(module).items()) if isinstance(one, type) and one.__module__ == name]
    return found


# They wait for what will not come.
_WAITING = ("poll", "wait")
_EXTENSION_TYPES = _extension_types()


def _use_bare(world: World, kind: Any, arguments: list[Any]) -> None:
    """Made by __new__ alone, and every attribute asked for and called. Only a SystemError is refused; and a crash."""
    try:
        made = kind.__new__(kind, *arguments)
    except BaseException:
        made = kind.__new__(kind)
    for name in dir(made):
        if name in _WAITING or (name.startswith("__") and name not in ("__repr__", "__len__", "__reduce__")):
            continue
        for given in (arguments, []):
            try:
                one = getattr(made, name)
                if callable(one):
                    world.note(f"    {kind.__qualname__}.{name}")
                    one(*given)
            except SystemError as error:
                world.judge(error, f"{kind.__qualname__}.{name}, made by __new__")
            except BaseException:
                pass
