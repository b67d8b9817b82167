"""No thread of ours ends, and no call stays undone, because a log handler, a hook or a callback of the user raises."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.aio._futures import BatchEnds
from kafkabuf.aio.threads import Call, Threads
from kafkabuf.batches.compression_thread import CompressionThread
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import KafkaError, NetworkError
from kafkabuf.network.resolve import Lookup
from kafkabuf.process import log_handover
from kafkabuf.process.background import BackgroundCall, CallsInTurn, tell
from kafkabuf.process.producer_log import producer_log
from kafkabuf.testing import MockProducer

PATIENCE = 60.0


class Raising(logging.Handler):
    """Raises for every line."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(logging.DEBUG)
        self.error = error
        self.lines = 0

    def handle(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("kafkabuf"):  # asyncio's own lines are not ours
            return False
        self.lines += 1
        raise self.error("a handler of the user's")


@pytest.fixture(params=["root", "kafkabuf"])
def logger(request: pytest.FixtureRequest) -> logging.Logger:
    return logging.getLogger(None if request.param == "root" else "kafkabuf")


@pytest.fixture(params=[ValueError, SystemExit, MemoryError, KeyboardInterrupt])
def raising(logger: logging.Logger, request: pytest.FixtureRequest) -> Iterator[Raising]:
    handler, before = Raising(request.param), logger.level
    ours = logging.getLogger("kafkabuf")
    level = ours.level
    ours.setLevel(logging.DEBUG)
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)
    ours.setLevel(level)


class UnspeakableError(Exception):
    """An error of the user's that has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def in_a_thread(call: Callable[[], object]) -> None:
    """A KeyboardInterrupt in the main thread is the user's, and goes through."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not errors


def test_a_line_of_ours_raises_nothing(raising: Raising) -> None:
    in_a_thread(lambda: producer_log("kafkabuf.producer").error("a line"))
    assert raising.lines == 1


def test_compression_thread_outlives_a_codec_that_raises_and_a_log_that_raises(raising: Raising) -> None:
    calls: list[int] = []
    again = threading.Event()

    def compress_ahead() -> bool:
        calls.append(len(calls))
        if len(calls) > 1:
            again.set()
            return False
        raise raising.error("a codec of the user's")

    thread = CompressionThread.started(compress_ahead, "compression")
    assert thread is not None
    while not again.wait(0.01):
        assert thread._thread.is_alive()
        thread.wake()
    thread.stop()
    assert not thread._thread.is_alive()


def test_end_of_a_background_call_is_told_again_where_there_was_no_memory() -> None:
    told: list[int] = []

    def on_done() -> None:
        told.append(1)
        if len(told) < 3:
            raise MemoryError

    tell(on_done)
    assert len(told) == 3


def test_calls_in_turn_go_on_behind_an_end_that_could_not_be_told(raising: Raising) -> None:
    def on_done() -> None:
        raise SystemExit

    calls, ended = CallsInTurn("calls"), threading.Event()
    first = calls.start(lambda: 1, on_done)
    second = calls.start(lambda: 2, ended.set)
    assert ended.wait(PATIENCE)
    assert (first.result(), second.result()) == (1, 2)


def test_calls_in_turn_go_on_behind_a_thread_that_found_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def start(self) -> None:
            raise MemoryError

    calls, ended = CallsInTurn("calls"), threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr("kafkabuf.process.background.new_thread", lambda run, name: Failing())
        failed = calls.start(lambda: 1, lambda: None)
        with pytest.raises(KafkaError, match="MemoryError"):
            failed.result()
        alone = BackgroundCall(lambda: 1, lambda: None, "call")
        assert alone.done
    held = calls.start(lambda: 2, ended.set)
    assert ended.wait(PATIENCE)
    assert held.result() == 2


def test_error_without_a_text_is_the_cause_of_ours() -> None:
    def raises() -> None:
        raise UnspeakableError

    ended = threading.Event()
    call = BackgroundCall(raises, ended.set, "call")
    assert ended.wait(PATIENCE)
    with pytest.raises(KafkaError, match="UnspeakableError"):
        call.result()


@pytest.mark.parametrize("error", [UnspeakableError, SystemExit, MemoryError])
def test_lookup_that_raises_is_done(error: type[BaseException]) -> None:
    def resolver(host: str, port: int) -> Any:
        raise error

    ended = threading.Event()
    lookup = Lookup("a.name", 9092, resolver, ended.set)
    assert ended.wait(PATIENCE)
    assert lookup.done
    assert isinstance(lookup.error, NetworkError)


def test_lines_go_on_behind_a_line_whose_handler_raises(raising: Raising) -> None:
    record = logging.LogRecord("kafkabuf.producer", logging.ERROR, "", 0, "a line", None, None)
    logger = logging.getLogger("kafkabuf.producer")
    before = raising.lines
    for _ in range(3):
        log_handover._hand_over(log_handover._Line(logger, record))
    done = threading.Event()
    while log_handover._running:
        done.wait(0.001)
    assert raising.lines == before + 3
    assert not log_handover._queue


class Reluctant(asyncio.SelectorEventLoop):
    """A loop that takes a call from another thread at the third attempt."""

    attempts = 0

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *arguments: Any, context: Any = None
    ) -> asyncio.Handle:
        self.attempts += 1
        if self.attempts < 3:
            raise MemoryError
        return super().call_soon_threadsafe(callback, *arguments, context=context)


def test_task_wakes_though_its_loop_had_no_memory_for_the_wake() -> None:
    producer, loop = MockProducer(auto_complete=False), Reluctant()
    ends = BatchEnds(loop)
    future = ends.future_of(producer.send("t", b"v"))

    async def test() -> Any:
        waits = asyncio.ensure_future(asyncio.wait_for(future, PATIENCE))
        while not ends._awaited:
            await asyncio.sleep(0)
        threading.Thread(target=producer.complete_next).start()
        return await waits

    assert loop.run_until_complete(test()).topic == "t"
    assert loop.attempts == 3
    loop.close()


def test_thread_for_a_loop_makes_each_call_that_it_takes_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late:
        """Its start() raises, and the thread runs all the same."""

        def __init__(self, run: Callable[[], None]) -> None:
            self.run = run

        def start(self) -> None:
            self.run()
            raise MemoryError

    class Failing:
        def start(self) -> None:
            raise MemoryError

    class Ignored:
        def end(self, value: object, error: BaseException | None) -> None: ...

    made: list[str] = []
    threads = Threads(1, "calls", idle_time=0)
    with monkeypatch.context() as patched:
        patched.setattr("kafkabuf.aio.threads.new_thread", lambda run, name: Failing())
        with pytest.raises(MemoryError):
            threads.start(Call("refused", lambda: made.append("refused"), Ignored()))
        patched.setattr("kafkabuf.aio.threads.new_thread", lambda run, name: Late(run))
        threads.start(Call("taken", lambda: made.append("taken"), Ignored()))
    assert made == ["taken"]
    assert threads.count == 0


class Hooks:
    """An interceptor, and callbacks, that raise."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, *arguments: object) -> None:
        self.calls += 1
        raise self.error("a hook of the user's")

    def on_acknowledgement(self, metadata: object, error: object) -> None:
        self()

    def close(self) -> None:
        self()


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_records_arrive_though_every_hook_and_every_line_raises(cluster: EmbeddedCluster, raising: Raising) -> None:
    hooks = Hooks(ValueError if raising.error is KeyboardInterrupt else raising.error)

    def send() -> None:
        producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers,
            interceptor_classes=[hooks],
            on_acknowledged=hooks,
            compression_type="gzip",
            compression_thread_enable=True,
        )
        for _ in range(3):
            assert producer.send("hooks", b"v", callback=hooks).exception(PATIENCE) is None
        producer.flush(PATIENCE)
        assert producer._running.thread.is_alive()
        with suppress(hooks.error):  # of the interceptor's close()
            producer.close(PATIENCE)
        assert producer._running.wait(PATIENCE)

    in_a_thread(send)
    assert raising.lines
    assert hooks.calls


def test_records_of_a_loop_arrive_though_every_line_raises(cluster: EmbeddedCluster, raising: Raising) -> None:
    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            for _ in range(3):
                assert (await producer.send_and_wait("hooks-of-a-loop", b"v")).offset >= 0
            await producer.flush()
            assert producer._started._running.thread.is_alive()

    in_a_thread(lambda: asyncio.run(send()))
    assert raising.lines
