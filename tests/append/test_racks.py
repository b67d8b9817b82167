"""Records without key stay in the client's zone on a cluster with racks (KIP-1123)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError

TOPIC, PARTITIONS = "t", 6
RACKS = {1: "a", 2: "b", 3: None}


def by_node(cluster: EmbeddedCluster, counts: Counter[int]) -> Counter[int]:
    """Records by leader, of records by partition."""
    nodes: Counter[int] = Counter()
    for partition, count in counts.items():
        nodes[cluster.leader(TOPIC, partition)[0]] += count
    return nodes


def sent(producer: KafkaProducer[Any, Any], key: bytes | None = None) -> Counter[int]:
    """Records of 1 KiB by partition: a hundred times as much as a sticky partition takes."""
    futures = [producer.send(TOPIC, b"x" * 1_000, key=key and key + b"%d" % number) for number in range(1_600)]
    return Counter(future.result(60).partition for future in futures)


def test_records_without_key_go_to_leaders_in_the_clients_rack_while_there_are_any() -> None:
    with EmbeddedCluster(brokers=3, racks=list(RACKS.values())) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "client_rack": "b", "partitioner_rack_aware": True}
        with KafkaProducer(settings) as producer:
            assert by_node(cluster, sent(producer)) == {2: 1_600}
            assert len(sent(producer)) == PARTITIONS // len(RACKS)
            assert len(by_node(cluster, sent(producer, key=b"key"))) == len(RACKS)
            cluster.kill_node(2)
            producer.send(TOPIC, b"finds the new leaders").result(60)
            assert set(by_node(cluster, sent(producer))) == {1, 3}


def test_clients_are_told_the_racks_of_the_nodes() -> None:
    with EmbeddedCluster(brokers=3, racks=list(RACKS.values())) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        described = admin.describe_cluster().result(60)
    assert {node.id: node.rack for node in described.nodes} == RACKS


@pytest.mark.parametrize(
    ("racks", "text"), [(["a"], "1 racks for 2 brokers: give each"), (["a", 2], "racks=2: a str is needed")]
)
def test_racks_that_fit_no_cluster_are_refused(racks: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        EmbeddedCluster(brokers=2, racks=racks)
