"""The API fuzzer's examples: a state machine whose rules call the producers' methods with drawn arguments."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
from tests.hostile.fuzz_api import arrow as fuzz_api_arrow
from tests.hostile.fuzz_api.arrow import arrow
from tests.hostile.fuzz_api.formats import encodings, formatted, objects, serializers
from tests.hostile.fuzz_api.objects import (
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
from tests.hostile.fuzz_api.world import DEEDS, RAISED, World, alarms
from tests.hostile.trapped import ARGUMENTS, Fuse, Passing

_MEMORY = 32 << 10
_INTERVALS = [5e-3, 1e-4, 1e-5, 1e-6]
_RAISING = sorted(
    name for name in RAISED if issubclass(RAISED[name], KeyboardInterrupt | SystemExit | ZeroDivisionError)
)


class Call(NamedTuple):
    """A method with its arguments, and its text in the journal."""

    text: str
    run: Callable[[World], object]


def _call(name: str, *arguments: Any, **named: Any) -> Call:
    """A call of the World's method of that name, which keeps the outcome, or else of the newest producer's."""

    def run(world: World) -> object:
        return getattr(world if hasattr(World, name) else world.producer, name)(*arguments, **named)

    texts = [_text(value) for value in arguments] + [f"{key}={_text(value)}" for key, value in named.items()]
    return Call(f"{name}({', '.join(texts)})", run)


def _text(value: Any) -> str:
    """A plain value's repr(), or the name of the type, since repr() of an odd object would do a deed."""
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
    further = [draw(st.none() | columns(item, count)) for item in (keys, headers, partitions, timestamps)]
    return _call("send_many", draw(topics), draw(columns(data, count)), *further, draw(reports))


@st.composite
def _send_objects(draw: st.DrawFn) -> Call:
    """For a producer with a format as its serializer."""
    if draw(st.booleans()):
        return _call("send", draw(topics), draw(objects), draw(st.none() | objects))
    count = draw(st.sampled_from([1, 5, 30]))
    keys = draw(st.none() | columns(objects, count))
    return _call("send_many", draw(topics), draw(columns(objects, count)), keys, None, None, None, draw(reports))


def _encoding(drawn: tuple[Any, Any]) -> Call:
    made, value = drawn
    return Call(f"encode_object({_text(made)}, {_text(value)})", lambda world: made.encode_object(value))


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
    _send_objects(),
    encodings.map(_encoding),
    st.builds(lambda *arguments: _call("send_arrow", *arguments), arrow, st.none() | topics, reports),
    st.builds(
        lambda data, name, report: _call("send_arrow", data[0], name, report, **data[1]),
        formatted, st.none() | topics, reports,
    ),
    _short,
    _deed,
    st.builds(lambda timeout: _call("flush", timeout), timeouts),
    st.builds(lambda topic: _call("partitions_for", topic), topics),
    st.builds(lambda arguments: _call("send_offsets_to_transaction", *arguments), st.tuples(offsets, groups)),
    st.builds(lambda in_flight: _call("purge", in_flight=in_flight), anything),
    st.builds(lambda name: _call(name), st.sampled_from(["begin_transaction", "commit_transaction", "check_open"])),
    st.builds(
        lambda arguments: _call("prepare", *arguments), st.tuples(topics, keys, data, headers, partitions)
    ),
)  # fmt: skip


_formats: Any = {"value_serializer": serializers, "key_serializer": serializers}
_options = st.builds(
    lambda drawn, formats: drawn | formats, settings, st.just({}) | st.fixed_dictionaries({}, optional=_formats)
)


class RoundOverError(BaseException):
    """The deadline is over. It ends the run: hypothesis would draw all steps of the other examples, for minutes."""


class Machine(RuleBasedStateMachine):
    """One example. Each round makes a subclass."""

    cluster: ClassVar[EmbeddedCluster]
    notes: ClassVar[TextIO]
    deadline: ClassVar[float]
    patience: ClassVar[float]  # seconds of a step
    examples: ClassVar[int] = 0
    over: ClassVar[bool] = False
    failed: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        # The imports may have taken long; and hypothesis runs an example that has failed once more.
        if self.examples > 0 and not self.failed and time.monotonic() > self.deadline:
            type(self).over = True
            raise RoundOverError
        self._before = sys.getswitchinterval()
        self._hooks = sys.unraisablehook, threading.excepthook
        faulthandler.dump_traceback_later(self.patience, exit=True)
        type(self).examples += 1
        self.world = World(self.cluster, self._note, self.patience / 3)
        self._note(f"==== {self.examples}")
        enter(self.world)
        fuzz_api_arrow.TOPICS[:] = [*self.world.topics, None, "\0"]
        no_error = SystemError("the hook was called without an exception")
        sys.unraisablehook = lambda hooked: self.world.judge(hooked.exc_value or no_error, "unraisable")
        threading.excepthook = lambda hooked: self.world.judge(hooked.exc_value or no_error, f"{hooked.thread} ended")

    def _note(self, text: str) -> None:
        self.notes.write(text + "\n")

    def step(self, text: str, action: Callable[[], object]) -> None:
        """Do `action` within the time of a step, and judge the exception that it raises."""
        self._note(text)
        faulthandler.dump_traceback_later(self.patience, exit=True)
        with self._noticed():
            with self.world.judged(text), self.world.step():
                action()
            self.world.require_no_problems()

    @contextmanager
    def _noticed(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            type(self).failed = True
            raise

    # ---- producers

    @initialize(options=_options, interval=st.sampled_from(_INTERVALS), transactional=st.integers(0, 5))
    def open(self, options: dict[str, Any], interval: float, transactional: int) -> None:
        sys.setswitchinterval(interval)
        if transactional == 0:
            options = options | {"acks": "all", "transactional_id": self.world.topic}
        self.step(f"open({options}), switch interval {interval}", lambda: self._open(options))

    def _open(self, options: dict[str, Any]) -> None:
        defaults = {
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "buffer_memory": _MEMORY,
            "request_timeout_ms": 500,
            "delivery_timeout_ms": 2000,
            "retry_backoff_ms": 5,
            "reconnect_backoff_ms": 5,
            "enable_idempotence": options["acks"] == "all",
        }
        self.world.producers.append(KafkaProducer(defaults | options))

    @rule(options=_options)
    def open_another(self, options: dict[str, Any]) -> None:
        if len(self.world.producers) < 3:
            self.step(f"open({options})", lambda: self._open(options))

    @rule()
    def copy(self) -> None:
        """A step and not a deed: an exception thrown into a thread that starts a thread corrupts `threading`."""
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
        """Threads run a program each, several times. Exceptions may be thrown into a thread at any place."""
        texts = [[call.text for call in program] for program in programs]
        text = f"together: {texts}, {main.text}, thrown {thrown}"
        self.step(text, lambda: self._together(programs, main, thrown))

    def _together(self, programs: list[list[Call]], main: Call, thrown: str | None) -> None:
        over = threading.Event()
        begun: list[threading.Thread] = []  # earlier, an exception would hit Python's own code that starts a thread
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
        # The thread stays alive: an exception thrown into a thread that has ended may hit a new thread with its id. It
        # sleeps instead of waiting for the Event, since an exception inside an Event breaks the Event's lock.
        while not over.is_set():
            with self.world.judged("after the calls"):
                time.sleep(0.001)

    @rule(
        call=_short, deed=st.sampled_from(["grow", "grow", "shrink", "purge", "flush", "cut", "refuse", "refuse size"])
    )
    def call_while(self, call: Call, deed: str) -> None:
        """Two threads repeat a short bulk call while a deed changes the cluster or the producer."""
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
            self.step(f"close({_text(timeout)})", lambda: self.world.producer.close(timeout))

    # ---- outcomes

    def _call_newest(self, outcomes: list[Any], name: str, *arguments: Any) -> None:
        for outcome in outcomes[-3:]:
            texts = ", ".join(map(_text, arguments))
            self.step(f"{type(outcome).__name__}.{name}({texts})", partial(getattr(outcome, name), *arguments))

    @rule(timeout=timeouts, name=st.sampled_from(["result", "exception"]))
    def await_future(self, timeout: Any, name: str) -> None:
        self._call_newest(self.world.futures, name, timeout)

    @rule(name=st.sampled_from(["done", "cancel", "cancelled", "running", "__repr__"]))
    def ask_future(self, name: str) -> None:
        self._call_newest(self.world.futures, name)

    @rule(callback=callbacks)
    def add_done_callback(self, callback: Any) -> None:
        self._call_newest(self.world.futures, "add_done_callback", callback)

    @rule(timeout=timeouts, name=st.sampled_from(["result", "exception", "failures", "ranges", "wait"]))
    def await_report(self, timeout: Any, name: str) -> None:
        self._call_newest(self.world.reports, name, timeout)

    # ---- the other producers

    @rule(
        first=st.none() | anything, call=_send(),
        options=st.sampled_from([{}, {"auto_complete": False}, {"cluster": {"t": 3}}]),
        wrong=st.sampled_from([None, KeyError, KeyError("x"), ValueError("x")]), times=st.integers(0, 3),
    )  # fmt: skip
    def mock(self, first: Any, call: Call, options: dict[str, Any], wrong: Any, times: int) -> None:
        """Calls of a MockProducer. Its first record has any topic; later records mostly have a valid topic."""

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

        producer: Any = MockProducer(**options)
        self.step(f"of a MockProducer({options}): send({_text(first)}), {call.text}", run)

    @rule(name=st.sampled_from(sorted(ARGUMENTS)), at=st.integers(1, 12), detour=st.booleans())
    def raise_in_send(self, name: str, at: int, detour: bool) -> None:
        """A send() in which the user's code raises at its call number `at`: a call that raised queued no record."""

        def run() -> None:
            producer = MockProducer(auto_complete=False, interceptor_classes=[Passing()] if detour else ())
            sent = 0
            with suppress(Exception):
                producer.send("t", **{"value": b"v"} | ARGUMENTS[name](Fuse(at)))
                sent = 1
            queued = producer.records_sent
            producer.close()
            if queued != sent:
                self.world.problems.append(f"{sent} calls of send() returned, and {queued} records are queued")

        self.step(f"send() with a {name} that raises at call {at}, intercepted {detour}", run)

    @rule(options=_options, calls=st.lists(_calls, min_size=1, max_size=6), cancelled=st.booleans(), timeout=timeouts)
    def aio(self, options: dict[str, Any], calls: list[Call], cancelled: bool, timeout: Any) -> None:
        """Each call of an AIOKafkaProducer is a task, which may be cancelled."""
        self.step(
            f"asyncio: {options}, {[call.text for call in calls]}, cancelled {cancelled}",
            lambda: asyncio.run(self._aio(options, calls, cancelled, timeout)),
        )

    async def _aio(self, options: dict[str, Any], calls: list[Call], cancelled: bool, timeout: Any) -> None:
        defaults = {
            "bootstrap_servers": self.cluster.bootstrap_servers, "buffer_memory": _MEMORY, "request_timeout_ms": 500,
            "delivery_timeout_ms": 2000, "enable_idempotence": options["acks"] == "all",
        }  # fmt: skip
        producer = AIOKafkaProducer(defaults | options)
        await producer.start()
        world = World.__new__(World)
        world.__dict__ |= self.world.__dict__ | {"producers": [producer], "futures": [], "reports": []}
        supported = [call for call in calls if hasattr(AIOKafkaProducer, call.text.partition("(")[0])]
        tasks = [asyncio.ensure_future(self._await_call(call, world)) for call in supported]
        await asyncio.sleep(0)
        if cancelled:
            for task in tasks[::2]:
                task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, BaseException):
                self.world.judge(result, f"asyncio: {[call.text for call in supported]}")
        with self.world.judged("asyncio: stop()"):
            await producer.stop(timeout)
        await producer.stop()
        while producer._threads.count:  # a call whose task was cancelled still runs in its thread
            await asyncio.sleep(0.001)
        self.world.require_whole(producer._started)

    async def _await_call(self, call: Call, world: World) -> None:
        """Make the call; await its result, and the record or report that this yields."""
        name = call.text.partition("(")[0]
        producer: Any = world.producer
        results: list[Any] = []
        original = producer.__class__

        class Collecting(World):
            def __init__(self) -> None:
                self.__dict__ |= world.__dict__

            def send(self, *arguments: Any, **named: Any) -> None:
                results.append(original.send(producer, *arguments[:6]))

            def _keep(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
                results.append(call(*arguments, **named))

        try:
            returned = call.run(Collecting())
        except BaseException as error:
            self.world.judge(error, f"asyncio: {name}")
            return
        for result in [*results, returned]:
            if hasattr(result, "__await__"):
                outcome = await result
                if hasattr(outcome, "__await__"):
                    await outcome
                elif isinstance(outcome, AIOBulkReport):
                    await outcome.wait()

    # ---- extension types without their constructors

    @rule(index=st.integers(0, 200), arguments=st.lists(anything, max_size=2))
    def make_bare(self, index: int, arguments: list[Any]) -> None:
        kind = _EXTENSION_TYPES[index % len(_EXTENSION_TYPES)]
        self.step(f"{kind.__qualname__}.__new__", lambda: _use_bare(self.world, kind, arguments))

    def teardown(self) -> None:
        try:
            self._note("teardown")
            faulthandler.dump_traceback_later(self.patience, exit=True)
            with self._noticed():
                self.world.close()
                self.world.require_no_problems()
        finally:
            faulthandler.cancel_dump_traceback_later()
            sys.setswitchinterval(self._before)
            sys.unraisablehook, threading.excepthook = self._hooks


def _throw(thread: threading.Thread, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))


def _extension_types() -> list[type]:
    """The producers, and every type of our extensions."""
    root = Path(kafkabuf.__file__).parent
    types: list[type] = [KafkaProducer, MockProducer]
    for path in sorted(root.rglob("*.pyx")):
        name = ".".join(("kafkabuf", *path.relative_to(root).with_suffix("").parts))
        module = importlib.import_module(name)
        types += [
            kind for _, kind in sorted(vars(module).items()) if isinstance(kind, type) and kind.__module__ == name
        ]
    return types


# A bare object would wait in these methods without an end.
_WAITING = ("poll", "wait")
_EXTENSION_TYPES = _extension_types()


def _use_bare(world: World, kind: Any, arguments: list[Any]) -> None:
    """Make an object by __new__ alone, and get and call every attribute. Only a SystemError or a crash is a failure."""
    try:
        made = kind.__new__(kind, *arguments)
    except BaseException:
        made = kind.__new__(kind)
    for name in dir(made):
        if name in _WAITING or (name.startswith("__") and name not in ("__repr__", "__len__", "__reduce__")):
            continue
        for values in (arguments, []):
            try:
                attribute = getattr(made, name)
                if callable(attribute):
                    world.note(f"    {kind.__qualname__}.{name}")
                    attribute(*values)
            except SystemError as error:
                world.judge(error, f"{kind.__qualname__}.{name}, made by __new__")
            except BaseException:
                pass
