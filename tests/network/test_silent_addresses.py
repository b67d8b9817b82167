"""A frozen process lets all its connections stand: one time-out at its address counts for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafkabuf.network.connection_state import State
from tests.network.support import FakeBroker, Rig, brokers, cluster_of, produce, rig

TIME_OUT = 5.0
SETTINGS: dict[str, Any] = {"request_timeout_ms": 5_000}


@contextmanager
def frozen_bootstrap_server(**settings: Any) -> Iterator[tuple[Rig, FakeBroker, FakeBroker]]:
    """A client of two brokers. It has two connections to broker 0, which also is its bootstrap server, and freezes."""
    with brokers(2) as (frozen, other), rig(frozen, **SETTINGS, **settings) as rigged:
        rigged.connect(0)
        frozen.cluster = None
        yield rigged, frozen, other


def let_a_request_time_out(rigged: Rig, node_id: int = 0) -> None:
    rigged.client.send(node_id, produce())
    rigged.settle()
    rigged.clock.advance(TIME_OUT + 0.1)
    rigged.poll_until(lambda: not rigged.client.in_flight(node_id))


def test_metadata_is_asked_of_another_broker_when_the_bootstrap_server_is_the_frozen_leader() -> None:
    with frozen_bootstrap_server() as (rigged, frozen, other):
        let_a_request_time_out(rigged)
        rigged.poll_until(lambda: other.metadata_requests)
        assert frozen.next_request().header.api_key == 0
        assert frozen.requests.empty(), "the bootstrap server was asked, and would cost a second time-out"


def test_bootstrap_server_is_chosen_only_while_no_broker_is_known() -> None:
    with brokers() as (broker,), rig(broker) as rigged:
        broker.cluster = None
        rigged.connect(-1)
        assert rigged.client.least_loaded(connect=False) == -1
        rigged.poll_until(lambda: not broker.requests.empty())
        broker.next_request().reply_entity(**cluster_of(broker))
        rigged.poll_until(lambda: rigged.metadata.snapshot.brokers)
        assert rigged.client.ready(-1)
        assert rigged.client.least_loaded(connect=False) is None
        rigged.poll_until(lambda: rigged.client.least_loaded(connect=True) == 0)


def test_node_at_the_address_of_a_time_out_is_chosen_last() -> None:
    with brokers(2) as (frozen, other):
        frozen.cluster = other.cluster = cluster_of(frozen, frozen, other)
        with rig(other, **SETTINGS) as rigged:
            rigged.connect(0)
            rigged.connect(1)
            let_a_request_time_out(rigged, 0)
            rigged.clock.advance(1)
            assert rigged.client.ready(1)
            assert rigged.client.least_loaded(connect=False) == 1, "there is no other"
            rigged.poll_until(lambda: rigged.client.least_loaded(connect=True) == 2)


def test_address_counts_again_once_a_connection_to_it_is_ready() -> None:
    with frozen_bootstrap_server() as (rigged, _frozen, other):
        let_a_request_time_out(rigged)
        rigged.poll_until(lambda: other.metadata_requests)
        assert rigged.client.connections.is_silent(rigged.client.requests.nodes[0])
        assert rigged.client.connections.is_silent(rigged.client.requests.nodes[-1])
        rigged.clock.advance(1)
        rigged.poll_until(lambda: rigged.client.ready(0))
        assert not rigged.client.connections.is_silent(rigged.client.requests.nodes[0])
        assert not rigged.client.connections.is_silent(rigged.client.requests.nodes[-1])


def test_client_does_not_wait_for_a_connection_to_a_silent_address() -> None:
    """The Sender connects to the frozen leader again: it takes the connection, but not the handshake."""
    with frozen_bootstrap_server() as (rigged, frozen, other):
        let_a_request_time_out(rigged)
        rigged.poll_until(lambda: other.metadata_requests)
        rigged.client.connections._close_connection(rigged.client.requests.nodes[1], rigged.clock.monotonic(), None)
        frozen.greets = False
        rigged.clock.advance(1)
        assert not rigged.client.ready(0)
        rigged.poll_until(lambda: rigged.client.requests.nodes[0].state is State.HANDSHAKING)
        rigged.poll_until(lambda: rigged.client.least_loaded(connect=True) == 1)


def test_silent_address_is_asked_where_no_other_is_left() -> None:
    with brokers() as (broker,), rig(broker, **SETTINGS) as rigged:
        rigged.connect(0)
        let_a_request_time_out(rigged)
        asked = len(broker.metadata_requests)
        rigged.clock.advance(1)
        rigged.poll_until(lambda: len(broker.metadata_requests) > asked)


def test_node_asked_in_vain_is_avoided_under_its_other_id_too() -> None:
    """A broker without a producer id or a coordinator was asked as bootstrap server, and metadata names it since."""
    with brokers(2) as (first, _second), rig(first) as rigged:
        rigged.connect(0)
        rigged.connect(1)
        for _ in range(20):
            assert rigged.client.least_loaded(connect=True, avoid=-1) == 1


def test_host_by_name_and_by_address_are_one_place() -> None:
    with brokers(2) as (frozen, _other), rig(("localhost", frozen.port), **SETTINGS) as rigged:
        rigged.connect(0)
        let_a_request_time_out(rigged)
        assert rigged.client.connections.is_silent(rigged.client.requests.nodes[-1])


def test_ready_bootstrap_server_gives_metadata_while_no_known_broker_can_be_reached() -> None:
    """The brokers name addresses that this host cannot reach. The client need not connect again and again."""
    with brokers(2) as (entry, gone):
        entry.cluster = cluster_of(gone)
        gone.close()
        with rig(entry) as rigged:
            rigged.poll_until(lambda: rigged.metadata.snapshot.brokers)

            def asked_often() -> bool:
                rigged.clock.advance(0.3)
                rigged.client.ready(0)
                return len(entry.metadata_requests) > 5

            rigged.poll_until(asked_often)
            assert len(entry.sockets) == 1
            assert "advertised.listeners" in str(rigged.client.last_error(0))
