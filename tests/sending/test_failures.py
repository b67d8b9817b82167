"""The producer warns once of records that were lost, with their number, and errors name the last cause."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import time
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.batches._batch import RecordFuture
from kafkabuf.clock import ManualClock
from kafkabuf.errors import (
    BufferExhaustedError,
    ClosedError,
    NetworkError,
    NotLeaderOrFollowerError,
    PurgedError,
    SaslAuthenticationError,
    TimeoutError,
)
from kafkabuf.protocol.messages import END_TXN, INIT_PRODUCER_ID
from kafkabuf.sending import sender, unseen_failures
from kafkabuf.sending.recovery import Recovery
from kafkabuf.sending.sender import Sender
from rigs.producer import PATIENCE, SLAB, TOPIC, Rig, assert_whole, quick_rig
from tests.network.support import rig as network_rig
from tests.network.test_reconnect import broker, closed_port
from tests.transactions.rig import TransactionalRig

LOST = NetworkError("cannot connect to broker 1 at h:9092: Connection refused")


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kafkabuf")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "their errors were not read" in record.getMessage()]


def end(rig: Rig) -> None:
    rig.accumulator.close()
    rig.sender.close(force=True)
    rig.sender.run()
    assert_whole(rig.pool)


def expired(rig: Rig, records: int = 3, **more: Any) -> list[RecordFuture]:
    """Records that fail because their leader cannot be reached."""
    rig.client.unready.add(1)
    rig.client.errors[1] = LOST
    futures = [rig.send(**more) for _ in range(records)]
    rig.clock.advance(1)
    rig.turn()
    assert all(future.done() for future in futures)
    return futures


# ---- failures that the user has not seen -----------------------------------------------------------------------------


def test_close_warns_of_failures_that_the_user_has_not_seen(caplog: pytest.LogCaptureFixture) -> None:
    rig = quick_rig(leaders=(1, 1))
    expired(rig, 3)
    expired(rig, 4, partition=1)
    rig.sender.close()
    rig.sender.run()
    (text,) = warnings(caplog)
    assert text.startswith("7 records were not delivered")
    assert "of orders-0: TimeoutError: 3 record(s)" in text
    assert "Connection refused" in text
    assert [record.levelname for record in caplog.records if record.getMessage() == text] == ["WARNING"]


@pytest.mark.parametrize("seen_by", ["result", "exception", "callback", "done callback", "late callback", "purge"])
def test_failures_that_the_user_has_seen_are_not_warned_of(seen_by: str, caplog: pytest.LogCaptureFixture) -> None:
    rig = quick_rig()
    if seen_by == "callback":
        expired(rig, callback=lambda metadata, error: None)
    elif seen_by == "done callback":
        rig.client.unready.add(1)
        for _ in range(3):
            rig.send().add_done_callback(lambda future: None)
        rig.clock.advance(1)
        rig.turn()
    elif seen_by == "purge":
        rig.send()
        rig.accumulator.abort(PurgedError("purged"))
    else:
        futures = expired(rig)
        if seen_by == "result":
            with pytest.raises(TimeoutError):
                futures[1].result(0)
        elif seen_by == "exception":
            assert futures[1].exception(0)
        else:
            futures[1].add_done_callback(lambda future: None)
    end(rig)
    assert warnings(caplog) == []


@pytest.mark.parametrize("seen_by", ["result", "failures", "exception"])
@pytest.mark.parametrize("keep", ["rows", "errors"])
def test_failures_that_the_user_read_in_a_report_are_not_warned_of(
    seen_by: str, keep: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = quick_rig(leaders=(1, 1))
    rig.client.unready.add(1)
    report = rig.producer.send_many(TOPIC, [b"v"] * 4, partitions=[0, 1, 0, 1], report=keep)
    rig.clock.advance(1)
    rig.turn()
    if keep == "errors":
        report.fold()
        seen_by = "failures" if seen_by == "result" else seen_by
    if seen_by == "result":
        with pytest.raises(TimeoutError, match="4 of 4 rows failed"):
            report.result(0)
    else:
        assert getattr(report, seen_by)(0) is not None
    end(rig)
    assert warnings(caplog) == []


def test_only_records_without_callbacks_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = quick_rig()
    rig.send(callback=lambda metadata, error: None)
    expired(rig, 2)
    end(rig)
    assert warnings(caplog)[0].startswith("2 records")


def test_failures_are_warned_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    rig = quick_rig()
    expired(rig)
    rig.sender.run_once()
    assert rig.client.waits[-1] == pytest.approx(60)  # and not for ever
    rig.clock.advance(58)
    expired(rig)
    assert warnings(caplog) == []
    rig.clock.advance(1)
    rig.turn()
    assert [text[:9] for text in warnings(caplog)] == ["6 records"]
    expired(rig, 1)
    rig.clock.advance(58)
    rig.turn()
    assert len(warnings(caplog)) == 1
    end(rig)
    assert [text[:9] for text in warnings(caplog)] == ["6 records", "1 records"]


def test_failures_hold_a_limited_number_of_batches(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unseen_failures, "MOST_BATCHES", 2)
    rig = quick_rig(leaders=(1, 1, 1, 1))
    for partition in range(4):
        expired(rig, 1, partition=partition)
    gc.collect()
    assert sum(type(batch).__name__ == "Batch" for batch in rig.sender.recovery.unseen._unseen) == 2
    end(rig)
    assert warnings(caplog)[0].startswith("4 records")


def test_failures_of_a_transaction_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    rig = TransactionalRig().begun()
    rig.send()
    rig.accumulator.abort(LOST)
    rig.sender.close()
    rig.sender.run()
    assert warnings(caplog) == []


def test_warning_is_printed_if_logging_is_not_set_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("kafkabuf"), "propagate", False)
    rig = quick_rig()
    expired(rig)
    end(rig)
    assert capsys.readouterr().err.count("3 records were not delivered") == 1


@pytest.mark.parametrize("collected", [True, False])
def test_producer_that_is_not_closed_warns_of_its_failures(collected: bool) -> None:
    script = (
        "import time\n"
        "from kafkabuf import KafkaProducer\n"
        "from kafkabuf.sending import lifetime\n"
        "lifetime.EXIT_TIMEOUT = 0.1\n"
        "producer = KafkaProducer(bootstrap_servers='127.0.0.1:1', linger_ms=0, request_timeout_ms=1, "
        "delivery_timeout_ms=2)\n"
        "producer._accumulator.topic_queues('t', [1])\n"
        "future = producer.send('t', b'v')\n"
        "while not future.done(): time.sleep(0.001)\n"
        f"if {collected}:\n"
        "    running = producer._running\n"
        "    del producer\n"
        "    running.wait(10)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stderr.count("1 records were not delivered") == 1
    assert "Traceback" not in done.stderr


# ---- no failure ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [True, False])
def test_close_during_init_producer_id_logs_no_warning(force: bool, caplog: pytest.LogCaptureFixture) -> None:
    rig = quick_rig()
    rig.client.gives_ids = False
    state = rig.accumulator.producer_state
    assert state is not None
    state.set_producer_id_and_epoch(-1, -1)
    rig.turn()
    assert rig.client.asked
    rig.client.close = lambda: rig.client.refuse_id(ClosedError("closed")) or rig.client._taken()  # type: ignore[method-assign, func-returns-value]
    rig.sender.close(force=force)
    rig.sender.run()
    assert [
        record for record in caplog.records if record.levelno >= logging.WARNING and record.name != "kafkabuf.config"
    ] == []


@pytest.mark.parametrize("held", [INIT_PRODUCER_ID, END_TXN])
def test_close_during_a_transactional_request_logs_no_warning(held: int, caplog: pytest.LogCaptureFixture) -> None:
    rig = TransactionalRig(delivery_timeout_ms=1_000, max_block_ms=10)
    if held == END_TXN:
        rig.begun().send()
        rig.turns()
    rig.hold(held)
    if held == INIT_PRODUCER_ID:
        with pytest.raises(TimeoutError):
            rig.manager.init()
    else:
        rig.sender.close()
        rig.sender.upkeep.wait_while_closing(rig.clock.monotonic())
        rig.turns()
    (asked,) = rig.cluster.waiting
    close = rig.cluster.close

    def closed() -> Any:
        rig.cluster._answer(asked, ClosedError("the producer was closed before the response came"))
        return close()

    rig.cluster.close = closed  # type: ignore[method-assign]
    rig.sender.close(force=True)
    rig.sender.run()
    assert [
        record for record in caplog.records if record.levelno >= logging.WARNING and record.name != "kafkabuf.config"
    ] == []


# ---- reasons ---------------------------------------------------------------------------------------------------------


def test_expiry_names_the_connection_error_of_the_leader() -> None:
    (future,) = expired(quick_rig(), 1)
    text = str(future.exception(0))
    assert "within delivery.timeout.ms (1000 ms); there is no connection to its leader" in text
    assert "Connection refused" in text
    assert "security.protocol" in text
    assert "attempts failed" not in text


def test_expiry_advises_no_settings_where_the_leader_has_responded_before() -> None:
    rig = quick_rig()
    rig.client.answered.add(1)
    (future,) = expired(rig, 1)
    text = str(future.exception(0))
    assert "Connection refused: check that the broker is up" in text
    assert "security.protocol" not in text
    assert "advertise" not in text


def test_expiry_names_the_last_refusal() -> None:
    rig = quick_rig()
    future = rig.send()
    (sent,) = rig.sent_after_turn()
    rig.client.answer(sent, NotLeaderOrFollowerError.code, message="moved away")
    rig.turn()
    rig.clock.advance(1)
    rig.turn()
    assert "1 attempts failed; broker 1 leads orders-0; the last attempt failed: moved away" in str(future.exception(0))


def test_refusal_is_forgotten_with_the_next_success() -> None:
    rig = quick_rig(delivery_timeout_ms=10_000)
    rig.send()
    (sent,) = rig.sent_after_turn()
    rig.client.answer(sent, NotLeaderOrFollowerError.code)
    rig.turn()
    assert rig.queue().last_error is not None
    rig.ack_all()
    assert rig.queue().last_error is None


def test_expiry_without_a_leader_names_the_error_of_metadata() -> None:
    rig = quick_rig()
    rig.lead(-1)
    future = rig.send()
    rig.metadata.on_failure(LOST)
    rig.clock.advance(1)
    rig.turn()
    text = str(future.exception(0))
    assert "no leader of orders-0 is known" in text
    assert "bootstrap servers: localhost:9; last error: cannot connect to broker 1" in text


def test_expiry_says_that_no_broker_gave_a_producer_id() -> None:
    rig = quick_rig()
    state = rig.accumulator.producer_state
    assert state is not None
    state.set_producer_id_and_epoch(-1, -1)
    rig.client.gives_ids = False
    future = rig.send()
    rig.turn()
    rig.clock.advance(1)
    rig.turn()
    assert "no broker has given a producer id" in str(future.exception(0))


def test_every_time_out_names_the_last_error() -> None:
    rig = Rig(clock=ManualClock(auto_advance=True), slabs=1, max_block_ms=10, linger_ms=0)
    rig.client.unready.add(1)
    rig.client.errors[1] = LOST
    future = rig.send(b"x" * (SLAB - 200))
    report = None
    for call, kind in (
        (lambda: rig.accumulator.flush(1), TimeoutError),
        (lambda: future.result(0), TimeoutError),
        (lambda: future.exception(0), TimeoutError),
        (lambda: rig.send(b"x" * (SLAB - 200)), BufferExhaustedError),
    ):
        with pytest.raises(kind, match=r"Connection refused.*security\.protocol") as raised:
            call()
        if kind is BufferExhaustedError:
            assert "buffer.memory is full" in str(raised.value)
    rig.accumulator.abort()
    assert "Connection refused" in str(future.exception(0))
    assert isinstance(future.exception(0), ClosedError)
    report = rig.producer.send_many(TOPIC, [b"v"])
    with pytest.raises(TimeoutError, match=r"not all of 1 rows.*Connection refused"):
        report.wait(0)
    rig.accumulator.abort()


def test_forced_close_says_that_the_broker_has_not_answered() -> None:
    rig = quick_rig(leaders=(1,))
    future = rig.send()
    rig.turn()
    end(rig)
    assert "broker 1, which leads orders-0, has not responded yet" in str(future.exception(0))


def test_failure_to_find_the_reason_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = quick_rig()
    rig.send()

    def broken(node_id: int) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rig.client, "last_error", broken)
    with pytest.raises(TimeoutError, match=r"within 1 s$"):
        rig.accumulator.flush(1)


def test_client_remembers_the_last_connection_error_of_a_node() -> None:
    with network_rig(closed_port()) as rigged:
        assert rigged.client.last_error(-1) is None
        rigged.poll_until(lambda: rigged.client.last_error(-1))
        assert "Connection refused" in str(rigged.client.last_error(-1))
    with broker() as made, network_rig(made) as rigged:
        rigged.connect(0)
        made.drop_connections()
        rigged.poll_until(lambda: rigged.client.last_error(0))
        rigged.clock.advance(60)
        rigged.connect(0)
        assert rigged.client.last_error(0) is None
        assert rigged.client.last_error(99) is None


def test_flush_names_the_error_of_a_refused_connection() -> None:
    producer = KafkaProducer(bootstrap_servers="127.0.0.1:1", linger_ms=0)
    producer._accumulator.topic_queues("t", [1])
    producer.send("t", b"v")
    deadline = time.monotonic() + PATIENCE
    while producer._metadata._last_error is None and time.monotonic() < deadline:
        time.sleep(0.001)
    with pytest.raises(TimeoutError, match=r"127\.0\.0\.1:1.*Connection refused"):
        producer.flush(0)
    producer.purge()
    producer.close(0)


def test_timeout_of_a_record_that_lingers_names_linger_ms() -> None:
    rig = Rig(linger_ms=60_000, delivery_timeout_ms=120_000)
    future = rig.send()
    rig.turn()
    with pytest.raises(TimeoutError, match=r"linger\.ms \(60000 ms\): flush\(\) sends it at once"):
        future.result(1)


def test_refusal_by_every_broker_fails_the_records_of_partitions_without_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = quick_rig(leaders=[-1, 1])
    waits, goes = rig.send(partition=0), rig.send(partition=1)
    rig.turn()
    assert not waits.done()
    refusal = SaslAuthenticationError("the password was changed")

    def refused() -> None:
        raise refusal

    monkeypatch.setattr(rig.client, "connection_error", refused)
    rig.turn()
    assert waits.exception(0) is refusal
    rig.ack_all()
    assert goes.exception(0) is None
    assert_whole(rig.pool)


# ---- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("step", ["_end_transactions", "_fail_rest", "tell"])
def test_exception_thrown_into_the_senders_end_leaves_no_record_without_an_outcome(
    error: type[BaseException], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = quick_rig()
    future = rig.send()
    owner = Recovery if step == "tell" else Sender
    usual, thrown = getattr(owner, step), [error]

    def interrupted(self: object) -> None:
        if thrown:
            raise thrown.pop()
        usual(self)

    monkeypatch.setattr(owner, step, interrupted)
    steps = tuple(interrupted if each is usual else each for each in sender._LAST_STEPS)
    monkeypatch.setattr(sender, "_LAST_STEPS", steps)
    rig.accumulator.close()
    rig.sender.close(force=True, warned=step == "tell")
    try:
        rig.sender.run()
    except error:
        assert step == "tell"
    assert thrown == []
    assert isinstance(future.exception(0), ClosedError)
    assert_whole(rig.pool)
