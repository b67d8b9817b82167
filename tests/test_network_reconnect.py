"""Which address is tried when: back-off, several addresses, moved brokers, lost clusters."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kafkabuf.errors import TimeoutError
from kafkabuf.network.backoff import ExponentialBackoff
from kafkabuf.network.resolve import Address, connect
from tests.network_support import FakeBroker, Rig, cluster_of, rig


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
    """Let one attempt fail; the back-off after it."""
    assert not rigged.client.ready(node_id)
    rigged.poll_until(lambda: rigged.client.connection_delay(node_id) < float("inf"))
    return rigged.client.connection_delay(node_id)


def test_back_off_does_not_grow_or_has_no_end() -> None:
    with rig(closed_port(), reconnect_backoff_ms=50, reconnect_backoff_max_ms=500) as rigged:
        delays = []
        for _ in range(6):
            delays.append(fail_once(rigged, -1))
            rigged.clock.advance(delays[-1])
        assert delays == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.5, 0.5])


def test_connection_is_tried_during_the_back_off() -> None:
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


def test_clients_that_failed_together_return_together() -> None:
    delays = {ExponentialBackoff(100, 10_000).delay(3) for _ in range(50)}
    assert len(delays) > 10
    assert all(0.64 <= delay <= 0.96 for delay in delays)
    assert ExponentialBackoff(0, 0).delay(10**9) == 0.0


def test_success_does_not_reset_the_back_off() -> None:
    with broker() as made, rig(made, reconnect_backoff_ms=50) as rigged:
        for _ in range(4):
            rigged.connect(0)
            made.drop_connections()
            rigged.poll_until(lambda: not rigged.client.ready(0))
            assert rigged.client.connection_delay(0) == pytest.approx(0.05)
            rigged.clock.advance(1)


def test_only_the_first_address_of_a_host_is_tried() -> None:
    with broker() as made:
        addresses = [Address(socket.AF_INET, closed_port()), Address(socket.AF_INET, made.address)]

        def two(host: str, port: int) -> list[Address]:
            return addresses if host == "two.example" else [Address(socket.AF_INET, (host, port))]

        with rig(("two.example", 9092), resolver=two) as rigged:
            rigged.connect(0)  # the clock stands still: no back-off lay between the two


def test_dead_bootstrap_server_keeps_the_client_from_the_next() -> None:
    for order in (0.0, 0.99):
        with broker() as made, rig(closed_port(), made, random=lambda order=order: order) as rigged:
            rigged.connect(0)


def test_unanswered_connection_attempt_is_waited_for_for_ever() -> None:
    # With its queue of connections full, Linux drops what else arrives: nothing answers.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        crowd = [connect(Address(socket.AF_INET, address)) for _ in range(3)]
        settings: Any = {"socket_connection_setup_timeout_ms": 1000, "socket_connection_setup_timeout_max_ms": 3000}
        with rig(address, **settings) as rigged:
            for timeout in (1.0, 2.0, 3.0, 3.0):
                rigged.settle()
                assert rigged.client.connection_delay(-1) == float("inf"), "still connecting"
                rigged.clock.advance(timeout * 0.95)
                rigged.settle()
                assert rigged.client.connection_delay(-1) == float("inf"), "not yet time"
                rigged.clock.advance(timeout * 0.1)
                rigged.settle()
                assert 0 < rigged.client.connection_delay(-1) < 2
                rigged.clock.advance(2)
        for sock in crowd:
            sock.close()


def test_broker_that_moved_is_looked_for_at_its_old_address() -> None:
    with broker() as entry, broker() as old, broker() as new:
        entry.cluster = cluster_of(old)
        with rig(entry) as rigged:
            rigged.connect(0)
            entry.cluster = old.cluster = cluster_of(new)
            rigged.clock.advance(1)
            rigged.metadata.request_update()
            rigged.poll_until(lambda: rigged.metadata.snapshot.brokers[0].port == new.port)
            assert not new.greetings, "the old connection still works"
            old.close()
            rigged.poll_until(lambda: not rigged.client.ready(0))
            rigged.clock.advance(1)
            rigged.connect(0)
            assert new.greetings


def test_client_never_returns_to_the_bootstrap_servers() -> None:
    with broker() as entry, broker() as first, broker() as second:
        entry.cluster = cluster_of(first)
        with rig(entry) as rigged:
            rigged.connect(0)
            first.close()
            entry.cluster = cluster_of(second)  # the whole cluster was replaced behind its entry point
            entry.drop_connections()
            rigged.poll_until(lambda: not rigged.client.ready(0))
            rigged.clock.advance(2)

            def moved() -> bool:
                rigged.clock.advance(0.3)
                return bool(rigged.metadata.snapshot.brokers[0].port == second.port)

            rigged.poll_until(moved)
            rigged.clock.advance(2)
            rigged.connect(0)
            assert second.greetings


def test_unknown_broker_makes_the_sender_spin() -> None:
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


def test_topic_wait_does_not_say_why_nobody_answers() -> None:
    host, port = closed_port()
    with rig((host, port)) as rigged:
        fail_once(rigged, -1)
        with pytest.raises(
            TimeoutError, match=f"'t' not present in metadata after 0 ms.*{host}:{port}.*Connection refused"
        ):
            rigged.metadata.await_topic("t", 0)
