"""Administration of the embedded broker, by confluent-kafka's AdminClient and by raw requests."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.protocol import messages
from rigs.real_kafka import RealKafka
from tests.broker.raw_client import NOW, RawClient, batch


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, auto_create_topics=False) as one:
        one.create_topic("t", 2, 2, {"retention.bytes": "5000"})
        yield one


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


def leader_of(cluster: EmbeddedCluster, topic: str, partition: int = 0) -> RawClient:
    host, port, _ = cluster.nodes()[cluster.leader(topic, partition)[0]]
    return RawClient(f"{host}:{port}")


def refused(call: Any) -> int:
    with pytest.raises(KafkaException) as caught:
        call.result(10)
    return int(caught.value.args[0].code())


def test_deleted_topic_is_gone(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    with leader_of(cluster, "t") as client:
        assert client.produce("t", batch([b"x"])).error_code == 0
        done = admin.delete_topics(["t", "none"])
        done["t"].result(10)
        assert refused(done["none"]) == 3
        assert cluster.topics() == {}
        assert client.produce("t", batch([b"x"])).error_code == 3
        # A topic of the same name is another topic.
        cluster.create_topic("t")
        assert cluster.end_offset("t", 0) == 0


def test_topic_is_deleted_by_id(cluster: EmbeddedCluster) -> None:
    topic_id = cluster._call(lambda c: c.catalogue.topic("t").topic_id)
    with leader_of(cluster, "t") as client:
        for expected in (0, 100):
            answer = client.ask(messages.DELETE_TOPICS, 6, topics=[{"name": None, "topic_id": topic_id}], timeout=1000)
            assert answer.responses[0].error_code == expected
        cluster.create_topic("old")
        answer = client.ask(messages.DELETE_TOPICS, 1, topic_names=["old"], timeout=1000)
        assert (answer.responses[0].name, answer.responses[0].error_code) == ("old", 0)


def test_deleting_a_topic_answers_its_parked_fetches(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    with leader_of(cluster, "t") as client:
        wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1}
        topics = [{"topic": "t", "partitions": [wanted]}]
        client.send(messages.FETCH, 12, max_wait=60_000, min_bytes=1, max_bytes=1000, topics=topics)
        leader, _ = cluster.leader("t", 0)
        while cluster._call(lambda c: c.nodes[leader].fetches.delayed) < 2:  # the other is the follower's
            time.sleep(0.001)
        admin.delete_topics(["t"])["t"].result(10)
        assert client.receive(messages.FETCH, 12).responses[0].partitions[0].error_code == 3


def test_added_partitions_are_placed_and_used(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    assert refused(admin.create_partitions([NewPartitions("t", 2)])["t"]) == 37
    assert refused(admin.create_partitions([NewPartitions("none", 9)])["none"]) == 3
    admin.create_partitions([NewPartitions("t", 5)], validate_only=True)["t"].result(10)
    assert cluster.topics() == {"t": 2}
    admin.create_partitions([NewPartitions("t", 4)])["t"].result(10)
    assert cluster.topics() == {"t": 4}
    assert [cluster.leader("t", index)[0] for index in range(4)] == [1, 2, 3, 1]
    with leader_of(cluster, "t", 3) as client:
        assert client.produce("t", batch([b"x"]), partition=3).error_code == 0
    admin.create_partitions([NewPartitions("t", 6, [[3, 1], [2, 3]])])["t"].result(10)
    assert [cluster.leader("t", index)[0] for index in (4, 5)] == [3, 2]
    assert refused(admin.create_partitions([NewPartitions("t", 8, [[1, 2]])])["t"]) == 39
    found = admin.list_topics("t", timeout=10).topics["t"].partitions
    assert [len(found[index].replicas) for index in range(6)] == [2] * 6


def test_deleted_records_are_never_read(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    with leader_of(cluster, "t") as client:
        for first in (0, 3, 6):
            times = [NOW + first + number for number in range(3)]
            client.produce("t", batch([b"a", b"b", b"c"], timestamps=times))
        assert admin.delete_records([TopicPartition("t", 0, 4)])[TopicPartition("t", 0)].result(10).low_watermark == 4
        assert refused(admin.delete_records([TopicPartition("t", 0, 10)])[TopicPartition("t", 0)]) == 1
        assert client.fetch("t", 3).error_code == 1
        # The batch with the first offset left comes whole: the reader skips the records before that offset.
        assert client.fetch("t", 4).records[:8] == (3).to_bytes(8, "big")
        assert offset_by_time(client, NOW) == 4
        # A lower offset does not bring deleted records back.
        assert admin.delete_records([TopicPartition("t", 0, 1)])[TopicPartition("t", 0)].result(10).low_watermark == 4
        assert admin.delete_records([TopicPartition("t", 0, -1)])[TopicPartition("t", 0)].result(10).low_watermark == 9
        assert (client.fetch("t", 9).error_code, client.fetch("t", 9).records) == (0, b"")
        assert offset_by_time(client, NOW) == -1
        assert client.produce("t", batch([b"x"])).base_offset == 9
        assert client.fetch("t", 9).records[:8] == (9).to_bytes(8, "big")
    assert (cluster.log_start_offset("t", 0), len(cluster.records("t", 0))) == (9, 1)


def offset_by_time(client: RawClient, timestamp: int) -> int:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
    return int(client.ask(messages.LIST_OFFSETS, 5, replica_id=-1, topics=topics).topics[0].partitions[0].offset)


def test_dead_node_is_not_described(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    cluster.stop_node(1)
    found = admin.describe_cluster().result(10)
    assert (found.cluster_id, found.controller.id) == ("kafkabuf-embedded", 2)
    nodes = {node: (host, port) for node, (host, port, alive) in cluster.nodes().items() if alive}
    assert {one.id: (one.host, one.port) for one in found.nodes} == nodes
    with leader_of(cluster, "t") as client:
        # confluent-kafka sent Metadata instead.
        answer = client.ask(messages.DESCRIBE_CLUSTER, 0)
        assert {one.broker_id: (one.host, one.port) for one in answer.brokers} == nodes
        answer = client.ask(messages.DESCRIBE_CLUSTER, 1, endpoint_type=2)
        assert (answer.error_code, answer.brokers) == (114, ())


def test_configs_are_those_that_were_set(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    topic, node = ConfigResource("topic", "t"), ConfigResource("broker", "2")
    found = {one: call.result(10) for one, call in admin.describe_configs([topic, node]).items()}
    values = {name: (one.value, one.is_default) for name, one in found[topic].items()}
    assert values["retention.bytes"] == ("5000", False)
    assert values["max.message.bytes"] == ("1048588", True)
    assert {name: one.value for name, one in found[node].items()}["auto.create.topics.enable"] == "false"
    assert refused(admin.describe_configs([none := ConfigResource("topic", "none")])[none]) == 3
    with leader_of(cluster, "t") as client:
        resource = {"resource_type": 2, "resource_name": "t", "configuration_keys": ["retention.bytes"]}
        answer = client.ask(messages.DESCRIBE_CONFIGS, 4, resources=[resource])
        assert [(one.name, one.value, one.config_type) for one in answer.results[0].configs] == [
            ("retention.bytes", "5000", 5)
        ]
        answer = client.ask(
            messages.DESCRIBE_CONFIGS,
            1,
            resources=[{"resource_type": 4, "resource_name": "99", "configuration_keys": None}],
        )
        assert answer.results[0].error_code == 42


# ---- beside real Kafka


def administer(bootstrap: str) -> dict[str, Any]:
    """The responses of a broker with one node to valid and to wrong requests."""
    topic = f"admin-{uuid.uuid4().hex[:8]}"
    answers: dict[str, Any] = {}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    with RawClient(bootstrap) as client:
        node = client.ask(messages.METADATA, 12, topics=[]).brokers[0].node_id

        def grow(name: str, count: int, nodes: list[list[int]] | None = None) -> int:
            assignments = None if nodes is None else [{"broker_ids": one} for one in nodes]
            asked = {"name": name, "count": count, "assignments": assignments}
            answer = client.ask(messages.CREATE_PARTITIONS, 3, topics=[asked], timeout=5000, validate_only=True)
            return int(answer.results[0].error_code)

        answers["grow"] = [grow(topic, 3), grow(topic, 2), grow(topic, 1), grow(topic, 0), grow(f"{topic}-no", 3)]
        placed = [[[node]], [[node], [node]], [[node, node]], [[999]], [[]], []]
        answers["grow to nodes"] = [grow(topic, 3, one) for one in placed]

        def create(replicas: dict[int, list[int]]) -> int:
            assignments = [{"partition_index": index, "broker_ids": nodes} for index, nodes in replicas.items()]
            asked = {"name": f"{topic}-2", "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
            values = {"topics": [{**asked, "configs": []}], "timeout": 5000, "validate_only": True}
            return int(client.ask(messages.CREATE_TOPICS, 7, **values).topics[0].error_code)

        answers["create on nodes"] = [create(one) for one in ({0: [node]}, {0: [999]}, {0: [node, node]}, {1: [node]})]
        client.produce(topic, batch([b"a", b"b", b"c"]))

        def cut(offset: int, partition: int = 0) -> tuple[int, int]:
            asked = {"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}
            one = client.ask(messages.DELETE_RECORDS, 2, topics=[asked], timeout=5000).topics[0].partitions[0]
            return int(one.error_code), one.low_watermark

        answers["cut"] = [cut(2), cut(1), cut(4), cut(-2), cut(0, 1), cut(0, 9), cut(-1), cut(3)]
        one = client.fetch(topic, 2)
        answers["cut away"] = (int(one.error_code), one.log_start_offset, one.high_watermark)

        def configs(kind: int, name: str) -> int:
            asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
            return int(client.ask(messages.DESCRIBE_CONFIGS, 4, resources=[asked]).results[0].error_code)

        answers["configs"] = [configs(2, topic), configs(2, f"{topic}-no"), configs(4, str(node)), configs(4, "999")]
        answers["controllers"] = int(client.ask(messages.DESCRIBE_CLUSTER, 1, endpoint_type=2).error_code)

        def delete(name: str | None, topic_id: uuid.UUID | None = None) -> int:
            asked = {"name": name, "topic_id": topic_id}
            return int(client.ask(messages.DELETE_TOPICS, 6, topics=[asked], timeout=5000).responses[0].error_code)

        answers["delete"] = [delete(f"{topic}-no"), delete(None, uuid.UUID(int=77)), delete(topic), delete(topic)]
    return answers


def test_administration_answers_as_kafka_4_does(kafka_4: RealKafka) -> None:
    with EmbeddedCluster() as cluster:
        ours = administer(cluster.bootstrap_servers)
    assert ours == administer(kafka_4.bootstrap_servers)
