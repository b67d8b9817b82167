"""A signal handler interrupts its thread at any point, and may call the producer from there."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.clock import ManualClock, SystemClock
from kafkabuf.errors import KafkaError
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.sending.lifetime import Running
from kafkabuf.transactions.result import Result
from rigs.producer import Rig
from tests.network.support import PATIENCE, config_for


def within_metadata() -> None:
    metadata = Metadata(config_for(("boot", 9092)), ManualClock(auto_advance=True))
    with metadata._lock:
        metadata.add_topic("t")
        metadata.request_update()


def within_the_end_of_a_transaction() -> None:
    result = Result("commit")
    with result._lock:
        assert not result.wait(0, SystemClock())
        result.end()


@pytest.mark.parametrize("handler", [within_metadata, within_the_end_of_a_transaction])
def test_handler_is_not_kept_waiting_by_its_own_thread(handler: Callable[[], None]) -> None:
    thread = threading.Thread(target=handler, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_handler_that_closes_may_come_at_any_line_of_close() -> None:
    """The tracer runs at each line, in place of the handler."""
    rig = Rig()
    running = Running(rig.accumulator, rig.sender, "test")

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        lines.add((frame.f_code.co_name, frame.f_lineno))
        assert not running.wait(0)  # Python traces no tracer
        return trace

    def close() -> None:
        sys.settrace(trace)
        try:
            running.wait(0.001)
        finally:
            sys.settrace(None)

    lines: set[tuple[str, int]] = set()
    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert len(lines) > 5


@contextmanager
def raising_at(function: str, text: str, handler: Callable[[], object]) -> Iterator[None]:
    """Run `handler`, as a signal would, before the first line of the function that contains `text`."""

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        return trace_line if frame.f_code.co_name == function else None

    def trace_line(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "line" and text in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
            sys.settrace(None)
            handler()
        return trace_line

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_topic_whose_first_send_was_interrupted_can_be_sent_to() -> None:
    with EmbeddedCluster() as cluster, KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send("other", b"v").result(PATIENCE)
        for line in ("self._requested += 1", "self._topics[name] = now", "if wake:"):
            name = f"topic{line.count('s')}-{len(line)}"
            cluster.create_topic(name)
            with pytest.raises(KeyboardInterrupt), raising_at("add_topic", line, interrupt):
                producer.send(name, b"v")
            producer.send(name, b"v").result(PATIENCE)


@pytest.mark.parametrize("operation", ["init_transactions", "commit_transaction", "abort_transaction"])
def test_transaction_call_that_was_interrupted_can_be_made_again(operation: str) -> None:
    with EmbeddedCluster() as cluster:
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "transactional_id": "tx", "max_block_ms": 5_000}
        with KafkaProducer(settings) as producer:
            if operation != "init_transactions":
                producer.init_transactions()
                producer.begin_transaction()
                producer.send("t", b"v")
            with pytest.raises(KeyboardInterrupt), raising_at("push", "heapq.heappush", interrupt):
                getattr(producer, operation)()
            getattr(producer, operation)()
            producer.begin_transaction()
            producer.send("t", b"v")
            producer.commit_transaction()


def test_close_in_a_handler_that_interrupts_metadata_returns() -> None:
    with EmbeddedCluster() as cluster:
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, max_block_ms=2_000)
        producer.send("other", b"v").result(PATIENCE)
        closed: list[bool] = []

        def close() -> None:
            producer.close()
            closed.append(True)

        def run() -> None:
            with suppress(KafkaError), raising_at("_await", "self._waiters.append", close):
                producer.send("new", b"v")

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert closed
        producer.close(PATIENCE)
