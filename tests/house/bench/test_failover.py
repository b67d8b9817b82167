"""`make bench-failover` on embedded nodes in place of Kafka's: it stops nodes, measures, and heals the cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.claim import Job
from bench.sending import failover
from kafkabuf.broker import EmbeddedCluster
from rigs.real_cluster import RealCluster

CONTROLLER = 2


class Cluster:
    """An embedded cluster with the methods of RealCluster; `done` lists the calls that changed it."""

    def __init__(self, embedded: EmbeddedCluster) -> None:
        self.embedded = embedded
        self.bootstrap_servers = embedded.bootstrap_servers
        addresses = {node: f"{host}:{port}" for node, (host, port, _) in embedded.nodes().items()}
        self.nodes = {node: SimpleNamespace(bootstrap_servers=address) for node, address in addresses.items()}
        self.done: list[str] = []

    def create_topic(self, name: str, partitions: int) -> None:
        self.embedded.create_topic(name, partitions)

    def leader(self, topic: str, partition: int = 0) -> int:
        if topic == failover.COORDINATORS:
            return 1
        return self.embedded.leader(topic, partition)[0]

    def __getattr__(self, name: str) -> Any:
        def do(*arguments: Any) -> None:
            self.done.append(name)
            node = {"kill": "kill_node", "restart": "start_node", "pause": "pause_node", "resume": "resume_node"}
            if name in node:
                getattr(self.embedded, node[name])(*arguments)

        return do


@pytest.mark.parametrize("peer", [failover.OURS, failover.CONFLUENT])
@pytest.mark.parametrize(
    ("whom", "trouble"), [("leader", "killed"), ("coordinator", "paused"), (failover.ENTRY, "paused")]
)
def test_producer_recovers_from_a_killed_or_paused_node(
    peer: str, whom: str, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "REQUEST_TIMEOUT_MS", 1_000)
    monkeypatch.setattr(failover.Nodes, "_controller", lambda self: CONTROLLER)
    with EmbeddedCluster(brokers=3, broker_session_timeout_ms=300) as embedded:
        cluster = Cluster(embedded)
        with failover.commanded(failover.Nodes(cast(RealCluster, cluster))):
            case = failover.CLAIM.case(failover.name_of(peer, whom, trouble))
            assert 0 < case.run(Job(1, cluster.bootstrap_servers))["recovery_s"] < 10
    ways = {"killed": ["kill", "restart"], "paused": ["pause", "resume"]}
    assert [name for name in cluster.done if name != "await_in_sync"] == ways[trouble]


def test_case_that_fails_leaves_its_cluster_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover.Nodes, "_controller", lambda self: CONTROLLER)
    with EmbeddedCluster(brokers=3) as embedded:
        cluster = Cluster(embedded)
        with failover.commanded(failover.Nodes(cast(RealCluster, cluster))):
            first = failover.Commands()
            topic, partition, victim = first("place", coordinator=False)
            assert victim == embedded.leader(topic, partition)[0]
            assert victim not in (1, CONTROLLER)
            first("kill", node=victim)
            first.close()
            second = failover.Commands()  # served after the first has ended and its cluster is healed
            second("place", coordinator=True)
            second.close()
    assert cluster.done == ["kill", "restart", "await_in_sync"]


def test_failover_refuses_bootstrap_servers() -> None:
    done = CliRunner().invoke(main, ["failover", "--bootstrap-servers", "localhost:9"])
    assert done.exit_code
    assert "a cluster of its own" in done.output
