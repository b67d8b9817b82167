"""max.connections and its companions while a node runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkabuf.broker import ConnectionLimits, EmbeddedCluster
from kafkabuf.broker.configs.nodes import ALL_NODES
from kafkabuf.protocol.messages import API_VERSIONS
from tests.broker.configs.test_configs import BROKER, change, describe
from tests.broker.raw_client import RawClient
from tests.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


def served(cluster: EmbeddedCluster, source: str = "127.0.0.1") -> RawClient | None:
    """A client that the node serves, or None if the node closes its connection."""
    client = RawClient(cluster.bootstrap_servers, source=source)
    try:
        client.send(API_VERSIONS, 0)
        if client.receive_frame() is not None:
            return client
    except ConnectionError:
        pass  # the node closes the socket with the request unread
    client.socket.close()
    return None


def set_all(client: RawClient, **values: str | None) -> None:
    for name, value in values.items():
        assert change(client, BROKER, ALL_NODES, name.replace("_", "."), value) == (0, None)


def open_connections(cluster: EmbeddedCluster) -> int:
    return cluster.stats().connections


def test_new_limit_bounds_new_connections_until_it_is_deleted(cluster: EmbeddedCluster, client: RawClient) -> None:
    set_all(client, max_connections="2")
    second = served(cluster)
    assert second is not None
    assert served(cluster) is None
    second.socket.close()
    wait_until(lambda: open_connections(cluster) == 1)
    third = served(cluster)
    assert third is not None
    set_all(client, max_connections=None)
    fourth = served(cluster)
    assert fourth is not None
    for other in (third, fourth):
        other.socket.close()


def test_lower_limit_closes_the_connections_that_were_silent_for_longest(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    others = [served(cluster) for _ in range(4)]
    first = others[0]
    assert first is not None
    assert first.ask(API_VERSIONS, 0).error_code == 0
    set_all(client, max_connections="2")
    wait_until(lambda: open_connections(cluster) == 2)
    assert first.ask(API_VERSIONS, 0).error_code == 0
    for other in others[1:]:
        assert other is not None
        assert other.closed()
        other.socket.close()
    assert describe(client, BROKER, "1")["max.connections"].value == "2"
    first.socket.close()


def test_limit_of_an_address_leaves_other_addresses_alone(cluster: EmbeddedCluster, client: RawClient) -> None:
    set_all(client, max_connections_per_ip="2")
    clients = [served(cluster), served(cluster, "127.0.0.2")]
    assert None not in clients
    assert served(cluster) is None
    clients.append(served(cluster, "127.0.0.2"))
    assert clients[-1] is not None
    assert served(cluster, "127.0.0.2") is None
    set_all(client, max_connections_per_ip_overrides="127.0.0.2:3,localhost:1")
    assert served(cluster) is None
    clients.append(served(cluster, "127.0.0.2"))
    assert clients[-1] is not None
    assert open_connections(cluster) == 5, "a limit of an address closes no connection"
    for other in clients:
        assert other is not None
        other.socket.close()


def test_limit_of_an_address_may_be_given_at_the_start() -> None:
    limits = ConnectionLimits(max_connections_per_ip=1)
    with EmbeddedCluster(limits=limits) as cluster, RawClient(cluster.bootstrap_servers) as client:
        assert client.ask(API_VERSIONS, 0).error_code == 0
        assert served(cluster) is None
        assert describe(client, BROKER, "1")["max.connections.per.ip"].value == "1"


def test_node_of_a_larger_cluster_has_its_own_limit() -> None:
    with EmbeddedCluster(2) as cluster:
        addresses = [f"{host}:{port}" for host, port, _ in cluster.nodes().values()]
        with RawClient(addresses[0]) as first, RawClient(addresses[1]) as second:
            assert change(first, BROKER, "1", "max.connections", "1") == (0, None)
            assert second.ask(API_VERSIONS, 0).error_code == 0
            with RawClient(addresses[0]) as refused, RawClient(addresses[1]) as other:
                assert refused.closed()
                assert other.ask(API_VERSIONS, 0).error_code == 0


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("max.connections", "-1", "Value must be at least 0"),
        ("max.connections.per.ip", "0", "only if max.connections.per.ip.overrides property is set"),
        ("max.connections.per.ip.overrides", "127.0.0.1", "an address and a number are needed"),
        ("max.connections.per.ip.overrides", "127.0.0.1:x", 'For input string: "x"'),
        ("max.connections.per.ip.overrides", "somewhere:3", "an address and a number are needed"),
        ("max.connections.per.ip.overrides", "127.0.0.1:" + "9" * 5000, "For input string"),
    ],
)
def test_limit_that_is_not_valid_is_refused(client: RawClient, name: str, value: str, text: str) -> None:
    code, message = change(client, BROKER, ALL_NODES, name, value)
    assert code == 42
    assert text in (message or "")
    assert change(client, BROKER, ALL_NODES, name, None) == (0, None)
