"""Nothing that an error path does ends the Sender: logging, a lack of memory. If it does end, it says why."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ClosedError, KafkaError, NotLeaderOrFollowerError
from kafkabuf.process.producer_log import ProducerLog, producer_log
from kafkabuf.sending import lifetime, sender
from rigs.producer import PATIENCE, assert_whole, only_request, quick_rig

DEAD = "127.0.0.1:1"
NOT_LEADER_OR_FOLLOWER = 6
LOGGERS = ("kafkabuf.producer", "kafkabuf.network")


class Trouble:
    """A filter and a handler of the user's, which raise for every record."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.calls = 0

    def filter(self, record: logging.LogRecord) -> bool:
        self.calls += 1
        raise self.error("working outside of request context")


class RaisingHandler(logging.Handler):
    def __init__(self, trouble: Trouble) -> None:
        super().__init__(logging.DEBUG)
        self.trouble = trouble

    def emit(self, record: logging.LogRecord) -> None:
        self.trouble.filter(record)


@contextmanager
def trouble_in(kind: str, error: type[BaseException]) -> Iterator[Trouble]:
    trouble = Trouble(error)
    handler = RaisingHandler(trouble)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.addFilter(trouble) if kind == "filter" else logger.addHandler(handler)
    try:
        yield trouble
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
            logger.removeFilter(trouble)
            logger.removeHandler(handler)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, MemoryError])
@pytest.mark.parametrize("kind", ["filter", "handler"])
def test_filter_or_handler_that_raises_for_every_line_leaves_the_sender_at_work(
    kind: str, error: type[BaseException]
) -> None:
    with trouble_in(kind, error) as trouble:
        with KafkaProducer(bootstrap_servers=DEAD, reconnect_backoff_ms=1, reconnect_backoff_max_ms=1) as dead:
            until(lambda: trouble.calls > 3)
            assert dead._running.thread.is_alive()
        with (
            EmbeddedCluster(brokers=1) as cluster,
            KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer,
        ):
            seen = trouble.calls
            assert producer.send("orders", b"value").result(PATIENCE).offset == 0
            assert trouble.calls > seen  # the Sender's thread has logged


def test_lost_lines_are_counted_and_the_first_reason_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("kafkabuf.test_error_paths")
    trouble = Trouble(RuntimeError)
    logger.addFilter(trouble)
    log = ProducerLog(logger)
    log.warning("one")
    log.error("two", exc_info=ValueError("x"))
    log.exception("three")
    log.debug("below the level")
    assert log.lost == 3
    told = capsys.readouterr().err
    assert told.count("'kafkabuf.test_error_paths' is lost") == 1
    assert told.count("RuntimeError: working outside of request context") == 1


def test_ctrl_c_within_a_line_reaches_the_caller() -> None:
    logger = logging.getLogger("kafkabuf.test_error_paths.interrupted")
    logger.addFilter(Trouble(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        ProducerLog(logger).warning("text")


def test_line_names_the_place_that_logged_it(caplog: pytest.LogCaptureFixture) -> None:
    producer_log("kafkabuf.producer").warning("text %d", 7)
    record = caplog.records[-1]
    assert (record.getMessage(), record.filename) == ("text 7", "test_error_paths.py")
    try:
        raise ValueError("shown")
    except ValueError:
        producer_log("kafkabuf.producer").exception("text")
    assert "shown" in caplog.text


def test_turn_that_fails_without_memory_for_words_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = quick_rig()

    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(rig.sender.recovery, "run_errands", fail)
    monkeypatch.setattr(rig.clock, "wait", fail)
    rig.sender.purge(in_flight=True)
    assert rig.sender.step() is True
    monkeypatch.undo()
    future = rig.send(b"value")
    rig.ack_all()
    assert future.done()
    assert_whole(rig.pool)


def test_last_steps_of_a_sender_are_repeated_where_they_find_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = quick_rig()
    future = rig.send(b"value")
    calls: list[object] = []
    abort = rig.accumulator.abort

    def scarce(error: KafkaError | None = None) -> object:
        calls.append(error)
        if len(calls) < 3:
            raise MemoryError
        return abort(error)

    monkeypatch.setattr(rig.accumulator, "abort", scarce)
    rig.sender.close(force=True)
    rig.sender.run()
    assert len(calls) == 3
    assert isinstance(future.exception(0), ClosedError)
    assert_whole(rig.pool)


def test_last_step_that_never_finds_memory_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = quick_rig()
    future = rig.send(b"value")

    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(sender, "PAUSE_BETWEEN_TRIES", 0.0)
    monkeypatch.setattr(rig.sender._metadata, "close", fail)
    rig.sender.close(force=True)
    rig.sender.run()
    assert isinstance(future.exception(0), ClosedError)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_close_does_not_wait_for_a_thread_that_ended_at_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise MemoryError

    monkeypatch.setattr(lifetime, "never_wait", fail)
    producer: KafkaProducer[Any, Any] = KafkaProducer(bootstrap_servers=DEAD)
    try:
        assert producer._running.wait(PATIENCE)
    finally:
        producer.close(0)


def test_response_that_could_not_be_handled_without_memory_still_says_what_became_of_its_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = quick_rig(enable_idempotence=False, delivery_timeout_ms=60_000)
    future = rig.send(b"value")
    rig.client.answer(only_request(rig), NOT_LEADER_OR_FOLLOWER)
    errors: list[type[KafkaError]] = []
    retry_or_fail = rig.sender.recovery.retry_or_fail

    def scarce(batch: Any, error: KafkaError, *rest: Any) -> None:
        errors.append(type(error))
        if len(errors) < 3:
            raise MemoryError
        retry_or_fail(batch, error, *rest)

    monkeypatch.setattr(rig.sender.recovery, "retry_or_fail", scarce)
    with pytest.raises(MemoryError):
        rig.turn()
    rig.turn()
    assert errors == [NotLeaderOrFollowerError] * 3
    rig.lead(3)
    rig.clock.advance(1)
    rig.ack_all()
    assert future.result(0).offset >= 0


def test_closing_sender_survives_an_error_of_its_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = quick_rig()

    def fail() -> bool:
        raise MemoryError

    monkeypatch.setattr(rig.sender.upkeep, "is_finished", fail)
    rig.sender.close()
    assert rig.sender.step() is True
    monkeypatch.undo()
    while rig.sender.step():
        pass


def test_completion_that_cannot_be_handled_without_memory_is_handled_by_the_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = quick_rig(delivery_timeout_ms=60_000)
    future = rig.send(b"value")
    rig.client.answer(only_request(rig), NOT_LEADER_OR_FOLLOWER)

    def fail(*arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(rig.sender.recovery, "retry_or_fail", fail)
        patched.setattr(rig.sender.recovery, "go_again", fail)
        with pytest.raises(MemoryError):
            rig.turn()
    assert not future.done()
    rig.lead(3)
    rig.clock.advance(1)
    rig.ack_all()
    assert future.result(0).offset >= 0
    assert_whole(rig.pool)


def test_producer_whose_thread_has_ended_says_that_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    with EmbeddedCluster(brokers=1) as cluster:
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=600_000)
        pending = producer.send("orders", b"value")

        def leave() -> None:
            raise SystemExit("thrown into the thread")

        monkeypatch.setattr(producer._sender.recovery, "run_errands", leave)
        producer.purge()
        producer._running.thread.join(PATIENCE)
        reason = r"thread was ended by SystemExit\('thrown into the thread'\)"
        for call in (
            lambda: producer.send("orders", b"value"),
            lambda: producer.send_many("orders", [b"value"]),
            lambda: producer.partitions_for("unknown"),
            lambda: pending.result(PATIENCE),
        ):
            with pytest.raises(ClosedError, match=reason):
                call()
        producer.close()
        assert_whole(producer.pool)
