"""A record that is sent alone goes out from its own thread, and nothing that the Sender promises changes by that."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.clock import Clock
from kafkabuf.errors import ClosedError
from kafkabuf.errors import TimeoutError as KafkaTimeoutError
from kafkabuf.network._io import BACKENDS
from kafkabuf.network.client import NetworkClient
from tests.memory.pool_support import in_thread, until

TOPIC = "alone"
PRODUCE = 0
PATIENCE = 60.0


class CountingClient(NetworkClient):
    """Counts the wake-ups of the Sender: send() makes none for a record that goes out from its own thread."""

    wakeups = 0

    def wakeup(self) -> None:
        self.wakeups += 1
        super().wakeup()


class Producer(KafkaProducer[bytes, bytes]):
    client: CountingClient

    def _connect(self, clock: Clock) -> NetworkClient:
        self.client = CountingClient(self.config, clock, self._metadata, ssl_context=self._ssl_context)
        return self.client

    def goes_alone(self, value: bytes = b"v", **more: Any) -> bool:
        """Send a record, wait for its outcome, and return whether it has gone out from this thread."""
        before = self.client.wakeups
        future = self.send(TOPIC, value, **more)
        direct = self.client.wakeups == before
        future.result(PATIENCE)
        return direct

    def until_one_goes_alone(self) -> None:
        until(self.goes_alone)

    def until_no_time_out_is_known(self) -> None:
        """The Sender has looked for requests that are late, has found none, and sleeps for as long as it likes."""
        polls = self.metrics()["producer-metrics"]["select-total"]
        until(lambda: self.metrics()["producer-metrics"]["select-total"] > polls)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3) as cluster:
        cluster.create_topic(TOPIC, partitions=3)
        yield cluster


def open_producer(cluster: EmbeddedCluster, **settings: Any) -> Producer:
    return Producer(bootstrap_servers=cluster.bootstrap_servers, **{"linger_ms": 0, **settings})


def values(cluster: EmbeddedCluster) -> list[bytes | None]:
    return [message.value for message in cluster.messages(TOPIC)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("idempotent", [True, False])
def test_lone_records_go_out_from_their_own_thread_and_arrive_in_order(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, backend: str, idempotent: bool
) -> None:
    monkeypatch.setenv("KAFKABUF_POLLER", backend)
    with open_producer(cluster, enable_idempotence=idempotent) as producer:
        alone = [producer.goes_alone(b"%d" % number, partition=0) for number in range(300)]
    assert sum(alone) > 30
    assert values(cluster) == [b"%d" % number for number in range(300)]


def test_metrics_count_records_that_go_alone(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster) as producer:
        alone = [producer.goes_alone() for _ in range(50)]
        assert any(alone)
        assert producer.metrics()["producer-metrics"]["record-send-total"] == 50
        assert producer.metrics()["producer-metrics"]["batch-size-avg"] > 0


def test_records_behind_a_record_under_way_go_together(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster) as producer:
        producer.until_one_goes_alone()
        cluster.set_latency(0.3, PRODUCE)
        requests = producer.metrics()["producer-metrics"]["request-total"]
        futures = [producer.send(TOPIC, b"v", partition=0) for _ in range(500)]
        for future in futures:
            future.result(PATIENCE)
        # The first goes alone, or the Sender takes some with it. It then has at most five requests in flight.
        assert producer.metrics()["producer-metrics"]["request-total"] - requests < 20


@pytest.mark.parametrize(
    "settings",
    [
        {"linger_ms": 1},
        {"acks": 0, "enable_idempotence": False},
        {"compression_type": "gzip"},
        {"partitioner_availability_timeout_ms": 1},
        {"transactional_id": "t"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_no_record_goes_alone_where_the_sender_has_more_to_decide(
    cluster: EmbeddedCluster, settings: dict[str, Any]
) -> None:
    with open_producer(cluster, **settings) as producer:
        if "transactional_id" in settings:
            producer.init_transactions()
            producer.begin_transaction()
        assert not any(producer.goes_alone() for _ in range(50))
        if "transactional_id" in settings:
            producer.commit_transaction()


def test_broker_that_never_answers_is_noticed_although_the_sender_sleeps(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster, request_timeout_ms=500, delivery_timeout_ms=1000) as producer:
        for _ in range(10):
            producer.until_one_goes_alone()
            producer.until_no_time_out_is_known()
            cluster.set_latency(3600, PRODUCE)
            before = producer.client.wakeups
            future = producer.send(TOPIC, b"late")
            direct = producer.client.wakeups == before
            assert isinstance(future.exception(20), KafkaTimeoutError)
            cluster.set_latency(0, PRODUCE)
            if direct:
                return
    raise AssertionError("no record went alone")


class Waits:
    """A finalizer that waits for the Sender."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.thread = threading.get_ident()
        self.me = self  # only the garbage collector frees it

    def __del__(self) -> None:
        if threading.get_ident() == self.thread:  # the broker must not wait for its client
            self.producer.flush(PATIENCE)


def test_finalizer_that_waits_for_the_sender_does_not_hang(cluster: EmbeddedCluster) -> None:
    thresholds = gc.get_threshold()
    with open_producer(cluster) as producer:
        producer.until_one_goes_alone()
        gc.set_threshold(1)
        try:
            sending = in_thread(lambda: [(Waits(producer), producer.goes_alone())[1] for _ in range(200)])
            assert any(sending.result(PATIENCE))
        finally:
            gc.set_threshold(*thresholds)
        assert gc.isenabled()


def test_collector_that_is_off_stays_off(cluster: EmbeddedCluster) -> None:
    gc.disable()
    try:
        with open_producer(cluster) as producer:
            producer.until_one_goes_alone()
            assert not gc.isenabled()
    finally:
        gc.enable()


def test_threads_that_send_alone_at_the_same_time_lose_nothing(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster) as producer:

        def sends(partition: int) -> list[bool]:
            return [producer.goes_alone(b"%d" % number, partition=partition % 3) for number in range(200)]

        working = [in_thread(lambda partition=partition: sends(partition)) for partition in range(4)]  # type: ignore[misc]
        alone = [record for future in working for record in future.result(PATIENCE)]
        assert len(alone) == 800
        assert any(alone)
        for partition in (1, 2):  # partition 0 has two writers
            got = [message.value for message in cluster.messages(TOPIC, partition)]
            assert got == [b"%d" % number for number in range(200)]
        assert len(cluster.messages(TOPIC, 0)) == 400


def test_records_that_callbacks_send_arrive_once(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster) as producer:

        def callback(metadata: object, error: object) -> None:
            producer.send(TOPIC, b"from a callback", partition=2)

        def sends() -> None:
            for _ in range(200):
                producer.send(TOPIC, b"v", partition=1, callback=callback).result(PATIENCE)

        for working in [in_thread(sends) for _ in range(3)]:
            working.result(PATIENCE)
        producer.flush(PATIENCE)
        assert len(cluster.messages(TOPIC, 2)) == len(cluster.messages(TOPIC, 1)) == 600


def test_close_waits_for_threads_that_send_alone(cluster: EmbeddedCluster) -> None:
    for _ in range(20):
        producer = open_producer(cluster)
        producer.goes_alone()
        queued: list[Any] = []

        def sends(producer: Producer = producer, queued: list[Any] = queued) -> None:
            try:
                while True:
                    queued.append(producer.send(TOPIC, b"v"))
                    queued[-1].result(PATIENCE)
            except ClosedError:
                pass

        working = [in_thread(sends) for _ in range(2)]
        until(lambda queued=queued: len(queued) > 20)  # type: ignore[misc]
        producer.close(PATIENCE)
        for future in working:
            future.result(PATIENCE)
        assert all(future.exception(0) is None for future in queued)


def test_death_of_a_leader_costs_no_record_and_doubles_none(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster) as producer:
        producer.until_one_goes_alone()
        sent = 0
        for _ in range(3):
            leader, _ = cluster.leader(TOPIC, 0)
            killing = in_thread(lambda leader=leader: cluster.kill_node(leader))  # type: ignore[misc]
            while not killing.done() or sent % 50:
                producer.goes_alone(b"%d" % sent, partition=0)
                sent += 1
            cluster.start_node(leader)
        mine = [message.value for message in cluster.messages(TOPIC, 0) if message.value != b"v"]
        assert mine == [b"%d" % number for number in range(sent)]


INTERRUPTED = """
import signal, sys, time
from kafkabuf import KafkaProducer

awaited = False

def interrupt(number, frame):
    global awaited
    if awaited:
        awaited = False
        raise KeyboardInterrupt

with KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=0) as producer:
    producer.send("alone", b"first").result(30)
    futures, interrupts, end = [], 0, time.monotonic() + 2
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
    while time.monotonic() < end:
        try:
            awaited = True
            futures.append(producer.send("alone", b"v"))
            futures[-1].result(30)
            awaited = False
        except KeyboardInterrupt:
            interrupts += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    producer.flush(30)
    assert interrupts > 10, interrupts
    assert all(future.exception(0) is None for future in futures)
"""


NO_MEMORY = """
import sys, time
from kafkabuf import KafkaProducer
from tests.hostile.test_memory_safety import spared

with KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=0) as producer:
    queued = []
    for allocation in range(200):
        producer.send("alone", b"v", partition=1).result(30)
        time.sleep(0.005)  # the Sender goes to sleep, so that the record goes alone
        spared(lambda: queued.append(producer.send("alone", b"%d" % len(queued), partition=0)), allocation % 100)
        producer.flush(30)
    assert len(queued) > 100
    assert all(future.exception(0) is None for future in queued)
    assert producer.metrics()["producer-metrics"]["buffer-available-bytes"] == producer.pool.total
    print(len(queued))
"""


CLOSED_WITHOUT_MEMORY = """
import sys, time
from kafkabuf import KafkaProducer
from rigs.producer import assert_whole
from tests.hostile.test_memory_safety import spared

for allocation in range(60):
    producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=0)
    producer.send("alone", b"v", partition=0).result(30)
    time.sleep(0.005)  # the Sender goes to sleep, so that the record goes alone
    futures = []

    def sends_and_closes():
        spared(lambda: futures.append(producer.send("alone", b"v", partition=0)), allocation)
        producer.close(0)

    sys.setswitchinterval(10)  # the Sender gets the GIL in close(), not before
    sends_and_closes()
    sys.setswitchinterval(0.005)
    assert all(future.done() for future in futures)
    assert_whole(producer.pool)
"""


FORKED = """
import os, sys, warnings
from kafkabuf import KafkaProducer

warnings.simplefilter("ignore", DeprecationWarning)
producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=0)
for number in range(30):
    for _ in range(10):
        producer.send("alone", b"parent's").result(30)
    child = os.fork()
    if child == 0:
        producer.send("alone", b"child's").result(30)
        producer.close()
        os._exit(0)
    producer.send("alone", b"parent's").result(30)
    assert os.waitpid(child, 0)[1] == 0
producer.close()
"""


def run(script: str, cluster: EmbeddedCluster) -> str:
    """In a process of its own: the broker must not lack memory, and no thread of pytest is there to fork."""
    done = subprocess.run(
        [sys.executable, "-c", script, cluster.bootstrap_servers], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_signal_at_any_step_loses_no_record(cluster: EmbeddedCluster) -> None:
    run(INTERRUPTED, cluster)


def test_lack_of_memory_at_any_step_loses_no_record(cluster: EmbeddedCluster) -> None:
    pytest.importorskip("_testcapi", reason="this interpreter has no _testcapi, which makes allocations fail")
    queued = int(run(NO_MEMORY, cluster))
    assert [message.value for message in cluster.messages(TOPIC, 0)] == [b"%d" % number for number in range(queued)]


def test_forced_close_after_lack_of_memory_at_any_step_gives_the_memory_back(cluster: EmbeddedCluster) -> None:
    pytest.importorskip("_testcapi", reason="this interpreter has no _testcapi, which makes allocations fail")
    run(CLOSED_WITHOUT_MEMORY, cluster)


def test_child_that_was_forked_beside_a_sleeping_sender_leaves_its_parent_alone(cluster: EmbeddedCluster) -> None:
    run(FORKED, cluster)
    got = values(cluster)
    assert (got.count(b"parent's"), got.count(b"child's")) == (330, 30)
