"""Ends at a bad moment: Ctrl-C in a call that waits, close(0), interpreter exit, a collected producer."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.clock import Lockable, ManualClock
from kafkabuf.errors import ClosedError, ConfigError
from kafkabuf.protocol.messages import PRODUCE
from rigs.producer import PATIENCE, Rig, assert_whole
from tools.stress_ends import LIMIT, all_runs

RUNS = 12  # every case, most of them with two brokers


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("t")
        yield running


@pytest.fixture
def stuck(cluster: EmbeddedCluster) -> Iterator[KafkaProducer]:
    """A producer whose first request gets no response for a minute."""
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0, enable_idempotence=False)
    cluster.delay_next(PRODUCE, 60)
    yield producer
    cluster.clear_faults()
    producer.close(0)


def test_processes_that_end_at_a_bad_moment_neither_hang_nor_crash_nor_leak() -> None:
    # Four times the limit of the command: here other tests keep the machine busy.
    assert [run for run in all_runs(RUNS, jobs=4, limit=4 * LIMIT) if run.problem] == []


class InterruptedClock(ManualClock):
    """Ctrl-C comes in every wait."""

    def wait(self, lock: Lockable, timeout: float | None) -> bool:
        raise KeyboardInterrupt


def test_interrupted_wait_leaves_no_waiter_behind() -> None:
    rig = Rig(clock=InterruptedClock())
    future = rig.send()
    for wait in (lambda: future.batch.wait(1, rig.clock), lambda: rig.accumulator.flush(None)):
        with pytest.raises(KeyboardInterrupt):
            wait()
    assert future.batch.waiting == 0
    assert not rig.accumulator.flushes


def test_close_can_be_called_again_after_an_interrupt(stuck: KafkaProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    future = stuck.send("t", b"v")
    with monkeypatch.context() as patch:
        patch.setattr(stuck._running._ended, "wait", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            stuck.close()
    assert not future.done()
    stuck.close(0)
    assert isinstance(future.exception(0), ClosedError)
    assert not stuck._thread.is_alive()
    assert_whole(stuck.pool)


def _interrupt(timeout: float | None = None) -> bool:
    raise KeyboardInterrupt


def test_collecting_a_producer_does_not_wait_for_its_broker(stuck: KafkaProducer, cluster: EmbeddedCluster) -> None:
    cluster.delay_next(PRODUCE, 60, times=2)
    forgotten = KafkaProducer(stuck.config)
    running = forgotten._running
    future = forgotten.send("t", b"v")
    started = time.monotonic()
    del forgotten
    gc.collect()
    assert time.monotonic() - started < 20  # the broker responds after 60 s; the machine may be busy
    assert not future.done()
    running.stop(0)
    assert isinstance(future.exception(0), ClosedError)


def test_interrupted_close_leaves_the_producer_to_its_finalizer(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    running = producer._running
    with monkeypatch.context() as patch:
        patch.setattr("kafkabuf.producer.give_back_claims", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
    del producer
    gc.collect()
    assert running.wait(PATIENCE)


@pytest.mark.parametrize("step", ["unsent", "finish"])
def test_interrupted_finalizer_ends_the_sender(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    unraisable: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: unraisable.append(event.exc_type))
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    running = producer._running
    usual = getattr(running, step)

    def interrupted(**given: bool) -> int:
        setattr(running, step, usual)
        raise KeyboardInterrupt

    setattr(running, step, interrupted)
    del producer
    gc.collect()
    assert running.wait(PATIENCE)
    assert unraisable == [KeyboardInterrupt]


def test_thread_ends_whose_start_was_interrupted(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    class Interrupted(threading.Thread):
        def start(self) -> None:
            threads.append(self)
            super().start()
            raise KeyboardInterrupt  # as in the wait of Thread.start for the new thread

    monkeypatch.setattr(
        "kafkabuf.sending.lifetime.new_thread", lambda target, name: Interrupted(target=target, name=name, daemon=True)
    )
    with pytest.raises(KeyboardInterrupt) as held:  # which holds the producer
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()
    assert held


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the test lists the descriptors of the process")
@pytest.mark.parametrize("way", ["closed", "refused", "without a thread"])
def test_descriptors_of_a_producer_do_not_wait_for_the_collector(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers}
    gc.collect()
    gc.disable()
    try:
        before = _epoll_sets()
        if way == "closed":
            producer = KafkaProducer(**settings)
            assert _epoll_sets() == before + 1
            producer.close()
        elif way == "refused":
            with pytest.raises(ConfigError):
                KafkaProducer(**settings, buffer_memory=1 << 62)
        else:
            monkeypatch.setattr("kafkabuf.sending.lifetime.new_thread", _NoThread)
            with pytest.raises(RuntimeError):
                KafkaProducer(**settings)
        assert _epoll_sets() == before
    finally:
        gc.enable()


class _NoThread(threading.Thread):
    def __init__(self, target: Any, name: str) -> None:
        super().__init__(target=target, name=name)

    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def _epoll_sets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += "eventpoll" in os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the listing's own, and those of the cluster's connections
            pass
    return count


class Owner:
    """An object of the user's that has a producer and futures, and whose methods the producer knows."""

    producer: KafkaProducer[Any, Any]
    futures: list[Any]

    def on_acknowledged(self, outcome: object) -> None:
        pass

    def serialize(self, value: bytes) -> bytes:
        return value

    def on_outcome(self, *outcome: object) -> None:
        pass


@pytest.mark.parametrize(
    ("setting", "argument"),
    [("on_acknowledged", None), ("value_serializer", None), (None, "callback"), ("on_acknowledged", "opaque")],
)
@pytest.mark.parametrize("timeout", [None, 0])
def test_object_that_knows_a_closed_producer_and_is_known_to_it_is_collected(
    cluster: EmbeddedCluster, setting: str | None, argument: str | None, timeout: float | None
) -> None:
    owner = Owner()
    known = {"on_acknowledged": owner.on_acknowledged, "value_serializer": owner.serialize}
    given = {"callback": owner.on_outcome, "opaque": owner}
    settings: dict[str, Any] = {setting: known[setting]} if setting else {}
    more: dict[str, Any] = {argument: given[argument]} if argument else {}
    owner.producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings)
    owner.futures = [owner.producer.send("t", b"v", **more) for _ in range(10)]
    owner.producer.close(timeout)
    there, futures = weakref.ref(owner), owner.futures[:1]
    del owner, known, given, settings, more
    gc.collect()
    assert there() is None
    assert futures[0].done()


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan")])
def test_negative_time_out_is_refused(stuck: KafkaProducer, timeout: float) -> None:
    for call in (stuck.flush, stuck.close):
        with pytest.raises(ValueError, match="timeout must be 0 or more seconds"):
            call(timeout)
    assert stuck.partitions_for("t")


def test_time_out_too_long_for_the_system_is_accepted(cluster: EmbeddedCluster) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    producer.flush(1e12)
    producer.close(1e12)


def test_partitions_for_of_a_closed_producer_raises(cluster: EmbeddedCluster) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    producer.close()
    with pytest.raises(ClosedError):
        producer.partitions_for("t")


def test_records_lost_at_exit_are_warned_of() -> None:
    script = (
        "from kafkabuf import KafkaProducer\n"
        "from kafkabuf.sending import lifetime\n"
        "lifetime.EXIT_TIMEOUT = 0.1\n"
        "for _ in range(3):\n"
        "    producer = KafkaProducer(bootstrap_servers='127.0.0.1:1')\n"
        "    producer._accumulator.topic_queues('t', [1])\n"
        "    producer.send('t', b'v'), producer.send('t', b'v')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "RuntimeWarning: 6 records were not acknowledged within 0.1 s" in done.stderr
    assert done.stderr.count("RuntimeWarning") == 1
    assert "Connection refused; is a broker listening there?" in done.stderr, "the reason is logged too"


def test_thread_that_sends_while_the_interpreter_ends_reads_why_it_is_refused(cluster: EmbeddedCluster) -> None:
    script = f"""
import atexit, threading
refused, sent = threading.Event(), threading.Event()
atexit.register(refused.wait, {PATIENCE})  # first: it runs after the producers have ended
from kafkabuf import KafkaProducer
from kafkabuf.errors import ClosedError
producer = KafkaProducer(bootstrap_servers={cluster.bootstrap_servers!r})

def send():
    try:
        while True:
            producer.send("t", b"v")
            sent.set()
    except ClosedError as error:
        print(error)
        refused.set()

threading.Thread(target=send, daemon=True).start()
sent.wait({PATIENCE})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.startswith("the program ends, and the producer takes no further records: join()")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_child_of_multiprocessing_sends_its_records(cluster: EmbeddedCluster) -> None:
    script = (
        "import multiprocessing, sys\n"
        "from kafkabuf import KafkaProducer\n"
        "def work():\n"
        "    global producer\n"
        f"    producer = KafkaProducer(bootstrap_servers={cluster.bootstrap_servers!r}, linger_ms=60_000)\n"
        "    producer.send('children', b'v')\n"
        "for _ in range(2):\n"
        "    child = multiprocessing.get_context('fork').Process(target=work)\n"
        "    child.start(); child.join(); assert child.exitcode == 0\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=PATIENCE, check=True)
    assert cluster.end_offset("children", 0) == 2


def test_close_0_in_a_callback_returns(cluster: EmbeddedCluster) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0)
    closed = threading.Event()

    def close(*_: object) -> None:
        producer.close(0)
        closed.set()

    producer.send("t", b"v", callback=close)
    assert closed.wait(PATIENCE)
    producer.close()
    assert not producer._thread.is_alive()


def test_unreachable_broker_is_reported_a_few_times_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kafkabuf")
    with KafkaProducer(bootstrap_servers="127.0.0.1:1", reconnect_backoff_ms=1, reconnect_backoff_max_ms=1) as producer:
        deadline = time.monotonic() + PATIENCE
        while producer._sender._client.requests.nodes[-1].failures < 50 and time.monotonic() < deadline:
            time.sleep(0.01)
    reports = [record for record in caplog.records if "127.0.0.1:1" in record.getMessage()]
    assert 1 <= len(reports) <= 10


def test_repeated_close_leaves_no_waiters_behind(cluster: EmbeddedCluster) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    ended = producer._running._ended
    assert not ended.wait(0)
    for _ in range(100):
        producer.close()
    assert len(ended._waiters) < 2
