"""Brokers that ask to be left alone (KIP-219), and name servers that take their time."""

from __future__ import annotations

import socket
import threading

import pytest

from kafkabuf.errors import NetworkError
from kafkabuf.network._metrics import ProducerStats
from kafkabuf.network.resolve import Address
from kafkabuf.protocol import messages
from tests.network.support import PATIENCE, FakeBroker, Rig, brokers, cluster_of, one_broker, produce, rig

NEVER = float("inf")


def ask(rigged: Rig, broker: FakeBroker, pause: int, version: int = 3) -> None:
    """A FindCoordinator that broker 0 answers with a pause in milliseconds."""
    entity = messages.build_request(messages.FIND_COORDINATOR, version, key="k", key_type=0)
    rigged.client.send_entity(0, entity)
    rigged.client.poll(0)
    received = broker.next_request()
    received.reply_entity(node_id=4, host="h", port=1, error_code=0, throttle_time=pause)
    rigged.completions(1)


# Kafka: testQuotaMetrics
def test_every_throttle_time_is_reported() -> None:
    with brokers() as (broker,), rig(broker) as rigged:
        rigged.connect(0)
        rigged.client.requests.stats = ProducerStats()
        for pause in (100, 0, 300):
            ask(rigged, broker, pause)
            rigged.clock.advance(1)
        rigged.client.throttle(0, produce(version=9), 200)
        count, total, largest, _ = rigged.client.requests.stats.throttle.recent(rigged.clock.monotonic())
        assert (count, total, largest) == (4, 600, 300)


def test_throttled_node_is_not_ready_until_its_pause_ends() -> None:
    with one_broker() as (rigged, broker):
        ask(rigged, broker, 3000)
        assert not rigged.client.ready(0)
        assert not rigged.client.takes_ahead(0)
        assert rigged.client.connection_delay(0) == pytest.approx(3.0)
        rigged.clock.advance(2.9)
        assert not rigged.client.ready(0)
        assert rigged.client.connection_delay(0) == pytest.approx(0.1)
        rigged.clock.advance(0.2)
        assert rigged.client.ready(0)
        assert rigged.client.takes_ahead(0)
        assert rigged.client.connection_delay(0) == NEVER


def test_broker_that_pauses_before_it_responds_is_not_muted_again() -> None:
    with one_broker() as (rigged, broker):
        ask(rigged, broker, 3000, version=1)  # in version 1 the broker responds after the pause
        assert rigged.client.ready(0)


def test_shorter_pause_does_not_end_a_longer_pause() -> None:
    with one_broker() as (rigged, broker):
        for pause in (3000, 1000):
            ask(rigged, broker, pause)
        assert rigged.client.connection_delay(0) == pytest.approx(3.0)


def test_throttle_time_of_a_produce_response_mutes_the_node() -> None:
    with one_broker() as (rigged, _):
        modern, old = produce(version=6), produce(version=5)
        rigged.client.throttle(0, old, 500)
        assert rigged.client.ready(0)
        rigged.client.throttle(0, modern, 500)
        assert not rigged.client.ready(0)
        rigged.client.throttle(77, modern, 500)  # a node that no longer exists


def test_pause_extends_the_time_out_of_a_request() -> None:
    with one_broker(request_timeout_ms=2000) as (rigged, broker):
        rigged.client.send(0, produce(context="slow"))
        rigged.client.throttle(0, produce(version=9), 5000)
        rigged.clock.advance(6.9)
        assert rigged.settle() == [], "timed out before 5 s of pause and 2 s of request.timeout.ms"
        rigged.clock.advance(0.2)
        (done,) = rigged.completions(1)
        assert isinstance(done.error, NetworkError)
        broker.next_request()


def test_metadata_is_asked_of_a_node_that_is_not_throttled() -> None:
    with brokers(2) as (first, second), rig(first) as rigged:
        rigged.connect(0)
        rigged.connect(1)
        rigged.client.poll(0)
        for node in (0, -1):
            rigged.client.throttle(node, produce(version=9), 60_000)
        before = len(first.metadata_requests)
        for _ in range(3):
            rigged.clock.advance(1)
            seen = rigged.metadata.snapshot.version
            rigged.metadata.request_update()
            rigged.poll_until(lambda seen=seen: rigged.metadata.snapshot.version > seen)  # type: ignore[misc]
        assert len(first.metadata_requests) == before
        assert len(second.metadata_requests) == 3


# ---- names -----------------------------------------------------------------------------------------------------------


class NameServer:
    """Knows one host. From the second lookup on it responds when the test sets `go`."""

    def __init__(self, host: str, address: tuple[str, int]) -> None:
        self.host = host
        self.address = address
        self.go = threading.Event()
        self.asked: list[str] = []  # the names of the threads that looked the host up

    def __call__(self, host: str, port: int) -> list[Address]:
        if host != self.host:
            return [Address(socket.AF_INET, (host, port))]
        self.asked.append(threading.current_thread().name)
        if len(self.asked) > 1 and not self.go.wait(PATIENCE):
            raise NetworkError("the test forgot")
        return [Address(socket.AF_INET, self.address)]


def test_slow_name_server_does_not_stop_the_sender() -> None:
    with brokers(2) as (good, slow):
        names = NameServer("slow.example", slow.address)
        names.asked.append("in place of the lookup at construction")
        good.cluster = cluster_of(good, slow)
        good.cluster["brokers"][1]["host"] = "slow.example"
        try:
            with rig(good, resolver=names) as rigged:
                rigged.connect(0)
                assert not rigged.client.ready(1)
                rigged.settle()  # returns while the lookup is under way
                assert not rigged.client.ready(1)
                assert names.asked[1:] == ["kafkabuf-resolve-slow.example"]
                rigged.client.send(0, produce(b"meanwhile"))
                rigged.client.poll(0)
                good.next_request().reply(b"")
                assert rigged.completions(1)[0].error is None
                names.go.set()
                rigged.connect(1)
                assert slow.greetings
        finally:
            names.go.set()


def test_attempts_share_one_thread_for_a_name_server_that_hangs() -> None:
    with brokers() as (broker,):
        names = NameServer("slow.example", broker.address)
        try:
            with rig(("slow.example", 9092), resolver=names, socket_connection_setup_timeout_ms=1000) as rigged:
                for _ in range(3):
                    rigged.settle()
                    assert rigged.client.connection_delay(-1) == NEVER, "no lookup is under way"
                    rigged.clock.advance(10)
                    rigged.settle()  # the attempt times out
                    rigged.clock.advance(2)
                assert len(names.asked) == 2, "more than the constructor's lookup and the one under way"
                names.go.set()
                rigged.connect(0)
        finally:
            names.go.set()


def test_error_of_a_resolver_fails_only_the_attempt() -> None:
    with brokers() as (broker,):
        asked: list[str] = []

        def names(host: str, port: int) -> list[Address]:
            asked.append(host)
            if len(asked) == 2:
                raise NetworkError(f"host name {host!r} cannot be resolved: try later")
            if len(asked) == 3:
                raise MemoryError("an error of the resolver itself")
            return [Address(socket.AF_INET, broker.address)] if len(asked) != 4 else []

        with rig(("flaky.example", 9092), resolver=names) as rigged:
            for _ in range(3):
                rigged.poll_until(lambda: 0 < rigged.client.connection_delay(-1) < NEVER)
                rigged.clock.advance(2)
            rigged.connect(0)
            assert asked == ["flaky.example"] * 5 + ["127.0.0.1"]


def test_close_does_not_wait_for_a_name_server() -> None:
    with brokers() as (broker,):
        names = NameServer("slow.example", broker.address)
        with rig(("slow.example", 9092), resolver=names) as rigged:
            rigged.settle()
            rigged.client.close()
        names.go.set()  # the lookup's thread finds a closed client
