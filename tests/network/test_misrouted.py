"""A client tells a broker which cluster and node it means, and leaves a broker that is another one (KIP-1242)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from kafkabuf.protocol import messages
from tests.network.support import ALL_VERSIONS, FakeBroker, Received, Rig, brokers, cluster_of, produce, rig

READS_CLUSTER = {**ALL_VERSIONS, messages.API_VERSIONS: (0, 5)}
REBOOTSTRAP_REQUIRED, UNSUPPORTED_VERSION = 129, 35


@contextmanager
def entry_and_broker(
    versions: dict[int, tuple[int, int]] = READS_CLUSTER, **settings: Any
) -> Iterator[tuple[Rig, FakeBroker, FakeBroker]]:
    """The bootstrap server names broker 0 and is another node."""
    with brokers(count=2, versions=versions) as (entry, first):
        entry.cluster = cluster_of(first) | {"cluster_id": "ours"}
        with rig(entry, **settings) as rigged:
            rigged.poll_until(lambda: rigged.metadata.snapshot.brokers)
            yield rigged, entry, first


def meant(greeting: Received) -> tuple[int, str | None, int]:
    """Version, cluster and node of a handshake."""
    request = greeting.entity()
    return greeting.header.version, getattr(request, "cluster_id", None), getattr(request, "node_id", -1)


def handshake(rigged: Rig, first: FakeBroker) -> Received:
    """The handshake with a broker that does not answer by itself."""
    rigged.client.ready(0)
    rigged.poll_until(lambda: not first.requests.empty())
    return first.next_request()


def test_broker_is_told_the_cluster_and_the_node_once_they_are_known() -> None:
    with entry_and_broker() as (rigged, entry, first):
        rigged.connect(0)
        assert [meant(greeting) for greeting in entry.greetings] == [(3, None, -1)]
        assert [meant(greeting) for greeting in first.greetings] == [(5, "ours", 0)]


@pytest.mark.parametrize("settings", [{"metadata_cluster_check_enable": False}, {"metadata_recovery_strategy": "none"}])
def test_broker_is_not_told_if_the_user_wants_no_check_or_no_rebootstrap(settings: dict[str, Any]) -> None:
    with entry_and_broker(**settings) as (rigged, _, first):
        rigged.connect(0)
        assert [meant(greeting) for greeting in first.greetings] == [(3, None, -1)]


def test_older_cluster_is_greeted_as_before() -> None:
    with entry_and_broker(ALL_VERSIONS) as (rigged, _, first):
        rigged.connect(0)
        assert [meant(greeting) for greeting in first.greetings] == [(3, None, -1)]


def test_older_broker_of_a_newer_cluster_is_greeted_again_on_the_same_connection() -> None:
    with entry_and_broker() as (rigged, _, first):
        first.greets = False
        handshake(rigged, first).reply_entity(version=0, error_code=UNSUPPORTED_VERSION, api_keys=[])
        rigged.poll_until(lambda: not first.requests.empty())
        again = first.next_request()
        assert meant(again) == (3, None, -1)
        again.reply_entity(error_code=0, api_keys=[{"api_key": 0, "min_version": 3, "max_version": 9}])
        rigged.poll_until(lambda: rigged.client.ready(0))
        assert len(first.sockets) == 1


def test_client_asks_the_bootstrap_servers_again_where_a_broker_is_another_one() -> None:
    with entry_and_broker() as (rigged, entry, first), brokers(count=1, versions=READS_CLUSTER) as (second,):
        first.greets = False
        greeting = handshake(rigged, first)
        entry.cluster = cluster_of(second) | {"cluster_id": "ours"}
        greeting.reply_entity(error_code=REBOOTSTRAP_REQUIRED, api_keys=[])

        def moved() -> bool:
            rigged.clock.advance(0.1)
            return rigged.metadata.snapshot.brokers.get(0) is not None and rigged.client.ready(0)

        rigged.poll_until(moved)
        assert [meant(greeting) for greeting in second.greetings] == [(5, "ours", 0)]
        rigged.client.send(0, produce(context="to the right broker"))
        rigged.poll_until(lambda: not second.requests.empty())


def test_broker_that_stays_another_one_is_asked_with_a_growing_back_off() -> None:
    settings: dict[str, Any] = {"reconnect_backoff_ms": 100, "reconnect_backoff_max_ms": 10_000}
    with entry_and_broker(**settings) as (rigged, _, first):
        first.greets = False
        times: list[float] = []

        def refused_often() -> bool:
            rigged.clock.advance(0.05)
            rigged.client.ready(0)
            if not first.requests.empty():
                first.next_request().reply_entity(error_code=REBOOTSTRAP_REQUIRED, api_keys=[])
                times.append(rigged.clock.monotonic())
            return len(times) == 5

        rigged.poll_until(refused_often)
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert all(gap >= least for gap, least in zip(gaps, (0.1, 0.2, 0.4, 0.8), strict=True)), gaps
