"""Clusters and waits for tests of what a test asks the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.protocol import messages as m
from tests.broker.raw_client import RawClient

T = TypeVar("T")


class CountedCluster(EmbeddedCluster):
    """Counts the calls into the cluster's thread, and the CPU time that the longest takes there."""

    calls = 0
    looks = 0
    longest = 0.0

    def _call(self, function: Callable[[Cluster], T]) -> T:
        def timed(cluster: Cluster) -> T:
            began = time.thread_time()
            try:
                return function(cluster)
            finally:
                self.longest = max(self.longest, time.thread_time() - began)

        self.calls += 1
        return super()._call(timed)


def producer(cluster: EmbeddedCluster, **settings: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings)


def raw(cluster: EmbeddedCluster, topic: str) -> RawClient:
    """A client of the node that leads the topic's first partition."""
    host, port, _ = cluster.nodes()[cluster.leader(topic, 0)[0]]
    return RawClient(f"{host}:{port}")


def delete_before(client: RawClient, topic: str, offset: int) -> None:
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    client.ask(m.DELETE_RECORDS, 2, topics=topics, timeout=10_000)


def await_parked(cluster: EmbeddedCluster, count: int = 1, partitions: int = 1) -> None:
    """Returns when waits are parked with at least this many partitions, or when no wait is parked (`count` 0)."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if isinstance(cluster, CountedCluster):
            cluster.looks += 1
        watched = cluster._call(lambda c: max(node.fetches.watched for node in c.nodes.values()))
        if (watched >= partitions) if count else not watched:
            return
    raise AssertionError("no wait is parked" if count else "a wait is still parked")


def await_waiting_for_topics(cluster: EmbeddedCluster) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if cluster._call(lambda c: bool(c.catalogue._waiting)):
            return
    raise AssertionError("nobody waits for topics")
