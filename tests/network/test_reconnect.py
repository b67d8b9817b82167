"""Which address is tried when: back-off, several addresses, moved brokers, lost clusters."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.errors import NetworkError, TimeoutError
from kafkabuf.network.resolve import Address, connect
from tests.network.support import PATIENCE, FakeBroker, Rig, cluster_of, produce, rig, topic_of


@contextmanager
def broker() -> Iterator[FakeBroker]:
    made = FakeBroker()
    made.cluster = cluster_of(made, topics={"t": 1})
    try:
        yield made
    finally:
        made.close()


def closed_port() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    return host, port


def fail_once(rigged: Rig, node_id: int) -> float:
    """Let one attempt fail. Returns the back-off after it."""
    assert not rigged.client.ready(node_id)
    rigged.poll_until(lambda: rigged.client.connection_delay(node_id) < float("inf"))
    return rigged.client.connection_delay(node_id)


def test_back_off_grows_up_to_its_maximum() -> None:
    with rig(closed_port(), reconnect_backoff_ms=50, reconnect_backoff_max_ms=500) as rigged:
        delays = []
        for _ in range(6):
            delays.append(fail_once(rigged, -1))
            rigged.clock.advance(delays[-1])
        assert delays == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.5, 0.5])


def test_no_connection_is_tried_during_the_back_off() -> None:
    attempts: list[Address] = []

    def counting(address: Address) -> socket.socket:
        attempts.append(address)
        return connect(address)

    with rig(closed_port(), connector=counting) as rigged:
        delay = fail_once(rigged, -1)
        rigged.clock.advance(delay * 0.9)
        assert not rigged.client.ready(-1)
        rigged.settle()
        assert len(attempts) == 1
        rigged.clock.advance(delay * 0.2)
        rigged.settle()
        assert len(attempts) == 2


def test_back_off_has_jitter() -> None:
    delays = {ExponentialBackoff(100, 10_000).delay(3) for _ in range(50)}
    assert len(delays) > 10
    assert all(0.64 <= delay <= 0.96 for delay in delays)
    assert ExponentialBackoff(0, 0).delay(10**9) == 0.0


def test_success_resets_the_back_off() -> None:
    with broker() as made, rig(made, reconnect_backoff_ms=50) as rigged:
        for _ in range(4):
            rigged.connect(0)
            made.drop_connections()
            rigged.poll_until(lambda: not rigged.client.ready(0))
            assert rigged.client.connection_delay(0) == pytest.approx(0.05)
            rigged.clock.advance(1)


def test_every_address_of_a_host_is_tried_without_a_back_off() -> None:
    with broker() as made:
        addresses = [Address(socket.AF_INET, closed_port()), Address(socket.AF_INET, made.address)]

        def two(host: str, port: int) -> list[Address]:
            return addresses if host == "two.example" else [Address(socket.AF_INET, (host, port))]

        with rig(("two.example", 9092), resolver=two) as rigged:
            rigged.connect(0)  # the clock stands still, so there was no back-off between the two


def test_client_passes_over_a_dead_bootstrap_server() -> None:
    for order in (0.0, 0.99):
        with broker() as made, rig(closed_port(), made, random=lambda order=order: order) as rigged:
            rigged.connect(0)


def test_unanswered_connection_attempt_times_out() -> None:
    # Linux drops further connection attempts while the listener's queue is full: there is no response to them.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        crowd = [connect(Address(socket.AF_INET, address)) for _ in range(3)]
        settings: Any = {"socket_connection_setup_timeout_ms": 1000, "socket_connection_setup_timeout_max_ms": 3000}
        with rig(address, **settings) as rigged:
            for timeout in (1.0, 2.0, 3.0, 3.0):
                rigged.settle()
                assert rigged.client.connection_delay(-1) == float("inf"), "the client does not connect"
                rigged.clock.advance(timeout * 0.95)
                rigged.settle()
                assert rigged.client.connection_delay(-1) == float("inf"), "the attempt timed out too early"
                rigged.clock.advance(timeout * 0.1)
                rigged.settle()
                assert 0 < rigged.client.connection_delay(-1) < 2
                rigged.clock.advance(2)
        for sock in crowd:
            sock.close()


def test_poll_returns_when_the_attempt_that_it_starts_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        crowd = [connect(Address(socket.AF_INET, listener.getsockname())) for _ in range(3)]
        with rig(listener.getsockname(), socket_connection_setup_timeout_ms=20) as rigged:
            rescue = threading.Timer(PATIENCE, rigged.client.wakeup)
            rescue.start()
            rigged.client.poll(None)  # connects; the clock stands still, but poll must return for the time-out
            assert rescue.is_alive()
            rescue.cancel()
        for sock in crowd:
            sock.close()


def test_client_reconnects_to_the_new_address_of_a_broker() -> None:
    with broker() as entry, broker() as old, broker() as new:
        entry.cluster = cluster_of(old)
        with rig(entry) as rigged:
            rigged.connect(0)
            entry.cluster = old.cluster = cluster_of(new)
            rigged.clock.advance(1)
            rigged.metadata.request_update()
            rigged.poll_until(lambda: rigged.metadata.snapshot.brokers[0].port == new.port)
            assert not new.greetings, "the client left a connection that still works"
            old.close()
            rigged.poll_until(lambda: not rigged.client.ready(0))
            rigged.clock.advance(1)
            rigged.connect(0)
            assert new.greetings


def test_client_returns_to_the_bootstrap_servers_when_no_broker_can_be_reached() -> None:
    with broker() as entry, broker() as first, broker() as second:
        entry.cluster = cluster_of(first)
        with rig(entry) as rigged:
            rigged.connect(0)
            first.close()
            entry.cluster = cluster_of(second)  # another cluster replaces the first, under the same bootstrap server
            entry.drop_connections()
            rigged.poll_until(lambda: not rigged.client.ready(0))
            rigged.clock.advance(2)

            def moved() -> bool:
                rigged.clock.advance(0.3)
                brokers = rigged.metadata.snapshot.brokers
                return bool(brokers and brokers[0].port == second.port)

            rigged.poll_until(moved)
            rigged.clock.advance(2)
            rigged.connect(0)
            assert second.greetings


def test_unknown_broker_wakes_the_sender_once() -> None:
    with broker() as made, rig(made) as rigged:
        rigged.connect(0)
        rigged.clock.advance(1)
        rigged.settle()
        woken: list[int] = []
        rigged.metadata.on_update_requested = lambda: woken.append(1)
        for _ in range(10):
            assert not rigged.client.ready(42)
        assert len(woken) == 1
        assert rigged.client.connection_delay(42) == float("inf")


def test_time_out_of_a_topic_names_the_connection_error() -> None:
    host, port = closed_port()
    with rig((host, port)) as rigged:
        fail_once(rigged, -1)
        with pytest.raises(
            TimeoutError, match=f"'t' not present in metadata after 0 ms.*{host}:{port}.*Connection refused"
        ):
            rigged.metadata.await_topic("t", 0)


# ---- rebootstrapping (KIP-899, KIP-1102) -----------------------------------------------------------------------------


@contextmanager
def entry_and_broker(**settings: Any) -> Iterator[tuple[Rig, FakeBroker, FakeBroker]]:
    """A client connected to broker 0. The bootstrap server names broker 0 and is another node."""
    with broker() as entry, broker() as first:
        entry.cluster = cluster_of(first, topics={"t": 1})
        with rig(entry, **settings) as rigged:
            rigged.metadata.add_topic("t")
            rigged.connect(0)
            rigged.poll_until(lambda: "t" in rigged.metadata.snapshot.topics)
            yield rigged, entry, first


def test_rebootstrap_removes_the_leaders_of_a_lost_cluster() -> None:
    with entry_and_broker() as (rigged, entry, first), broker() as second:
        seen: list[tuple[int, list[int]]] = []
        rigged.metadata.listeners.append(lambda c: seen.append((len(c.brokers), c.topics["t"].leaders)))
        first.close()
        # Another cluster under the same bootstrap server. Its epochs start again, below those that the client knows.
        second.cluster = {**cluster_of(second), "topics": [topic_of("t", [0], epoch=-1)]}
        entry.cluster = second.cluster
        entry.drop_connections()
        rigged.poll_until(lambda: not rigged.client.ready(0))

        def moved() -> bool:
            rigged.clock.advance(0.3)
            return bool(seen and seen[-1] == (1, [0]))

        rigged.poll_until(moved)
        assert (0, [-1]) in seen, "in between the topic keeps its partition, without a leader"
        rigged.connect(0)
        assert second.greetings


def test_recovery_strategy_none_never_returns_to_the_bootstrap_servers() -> None:
    with entry_and_broker(metadata_recovery_strategy="none") as (rigged, entry, first):
        address = first.address
        first.close()
        entry.drop_connections()
        rigged.poll_until(lambda: not rigged.client.ready(0))
        known = len(entry.sockets)
        for _ in range(20):
            rigged.clock.advance(30)
            rigged.settle()
        assert len(entry.sockets) == known
        assert rigged.metadata.snapshot.brokers[0].port == address[1]


def test_client_rebootstraps_when_no_broker_gives_metadata() -> None:
    settings = {"metadata_recovery_rebootstrap_trigger_ms": 60_000, "request_timeout_ms": 7_000}
    with entry_and_broker(**settings) as (rigged, entry, first), broker() as second:
        first.cluster = None  # takes requests, but does not respond to Metadata requests
        entry.cluster = cluster_of(second)
        entry.drop_connections()
        rigged.settle()
        rigged.clock.advance(1)
        rigged.connect(0)
        rigged.client.send(0, produce(context="left behind", timeout=1000))
        rigged.metadata.request_update()
        rigged.settle()
        rigged.clock.advance(59)
        rigged.settle()
        assert rigged.metadata.snapshot.brokers[0].port == first.port
        rigged.clock.advance(1.1)
        rigged.settle()

        def moved() -> bool:
            rigged.clock.advance(0.3)
            brokers = rigged.metadata.snapshot.brokers
            return bool(brokers and brokers[0].port == second.port)

        rigged.poll_until(moved)
        rigged.connect(0)
        assert second.greetings


@pytest.mark.parametrize("strategy", ["rebootstrap", "none"])
def test_rebootstrap_required_makes_the_client_rebootstrap_unless_the_strategy_is_none(strategy: str) -> None:
    with entry_and_broker(metadata_recovery_strategy=strategy) as (rigged, entry, first), broker() as second:
        first.cluster = None
        entry.cluster = cluster_of(second)
        entry.drop_connections()
        rigged.settle()
        rigged.clock.advance(1)
        rigged.connect(0)
        rigged.metadata.request_update()
        rigged.poll_until(lambda: not first.requests.empty())
        rigged.client.send(0, produce(context="left behind"))
        first.next_request().reply_entity(error_code=129, brokers=[], topics=[])
        done = rigged.settle()
        if strategy == "none":
            assert done == []
            assert rigged.metadata.snapshot.brokers[0].port == first.port
            return
        assert "the client gave up broker 0" in str(done[0].error)
        assert "a broker asked the client to rebootstrap" in str(done[0].error)
        visits = len(first.sockets)
        rigged.clock.advance(0.2)
        assert not rigged.client.ready(0), "the client has not forgotten broker 0"

        def moved() -> bool:
            rigged.clock.advance(0.3)
            brokers = rigged.metadata.snapshot.brokers
            return bool(brokers and brokers[0].port == second.port)

        rigged.settle()
        assert len(first.sockets) == visits
        rigged.poll_until(moved)


def test_bootstrap_server_that_asks_to_rebootstrap_is_asked_with_a_back_off() -> None:
    with broker() as entry:
        entry.cluster = {"error_code": 129, "brokers": [], "topics": []}
        with rig(entry, retry_backoff_ms=1000, retry_backoff_max_ms=1000) as rigged:
            rigged.poll_until(lambda: entry.metadata_requests)
            for _ in range(50):
                rigged.clock.advance(0.1)
                rigged.client.poll(0.01)
            assert 2 <= len(entry.metadata_requests) <= 6


def test_client_stays_with_a_cluster_that_throttles_it() -> None:
    with entry_and_broker() as (rigged, entry, first):
        entry.close()
        rigged.settle()
        rigged.client.throttle(0, produce(version=9), 10_000)
        rigged.clock.advance(1)
        rigged.metadata.request_update()
        rigged.settle()
        assert rigged.metadata.snapshot.brokers
        asked = len(first.metadata_requests)
        rigged.clock.advance(9.5)
        rigged.poll_until(lambda: len(first.metadata_requests) > asked)


def test_back_off_never_exceeds_its_maximum() -> None:
    assert {ExponentialBackoff(500, 100).delay(failures) for failures in (0, 1, 9)} == {0.1}
    assert ExponentialBackoff(100, 100, lambda: 0.0).delay(0) == 0.1


# ---- requests that any node can answer -------------------------------------------------------------------------------


def test_node_is_unreachable_until_a_connection_succeeds() -> None:
    with broker() as entry, broker() as gone:
        entry.cluster = cluster_of(entry, gone)
        with rig(entry) as rigged:
            rigged.connect(1)
            assert rigged.client.unreachable(1) is None
            gone.close()
            rigged.poll_until(lambda: not rigged.client.ready(1) and rigged.client.unreachable(1))
            rigged.clock.advance(1)
            assert not rigged.client.ready(1)
            rigged.poll_until(lambda: "refused" in str(rigged.client.unreachable(1)))
            with broker() as again:
                entry.cluster = cluster_of(entry, again)
                again.cluster = entry.cluster

                def connected() -> bool:
                    rigged.clock.advance(0.1)  # for the back-offs of metadata and connection
                    return rigged.client.ready(1)

                rigged.poll_until(connected)
                assert rigged.client.unreachable(1) is None
            assert rigged.client.connection_error() is None, "no known broker has failed since"


def test_node_is_unreachable_once_its_connection_attempt_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, broker() as entry:
        crowd = [connect(Address(socket.AF_INET, listener.getsockname())) for _ in range(3)]
        entry.cluster = cluster_of(entry)
        host, port = listener.getsockname()
        entry.cluster["brokers"].append({"node_id": 1, "host": host, "port": port})
        with rig(entry, socket_connection_setup_timeout_ms=1000) as rigged:
            rigged.connect(0)
            assert not rigged.client.ready(1)
            rigged.settle()
            assert rigged.client.unreachable(1) is None
            rigged.clock.advance(1.1)
            rigged.settle()
            assert "not established in time" in str(rigged.client.unreachable(1))
        for sock in crowd:
            sock.close()


def test_node_that_metadata_does_not_name_is_unreachable() -> None:
    with broker() as made, rig(made) as rigged:
        rigged.connect(0)
        assert not rigged.client.ready(42)
        assert "broker 42" in str(rigged.client.unreachable(42))


def test_connection_error_is_that_of_the_latest_failed_connection() -> None:
    with rig(closed_port()) as rigged:
        assert rigged.client.connection_error() is None
        fail_once(rigged, -1)
        assert "refused" in str(rigged.client.connection_error())


def test_node_asked_in_vain_is_chosen_only_if_no_other_is_ready() -> None:
    with broker() as first, broker() as second:
        first.cluster = second.cluster = cluster_of(first, second)
        with rig(first) as rigged:
            rigged.connect(0)
            rigged.client.fail_connection(-1, NetworkError("cut"))
            assert rigged.client.least_loaded(connect=False, avoid=0) == 0
            assert not second.greetings, "with connect=False the client must not connect"
            assert rigged.client.least_loaded(connect=True, avoid=0) == 0
            rigged.poll_until(lambda: rigged.client.least_loaded(connect=True, avoid=0) == 1)
            assert rigged.client.least_loaded(connect=True, avoid=1) == 0
