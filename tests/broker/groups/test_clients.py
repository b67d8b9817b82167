"""Groups with clients of others: incremental rebalances, static members, administration, restarts."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kafka.admin import KafkaAdminClient

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient
from tests.conformance.groups import joining

# kafka-python leaves sockets open when it gives a connection up; test_cluster.py checks ours.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
SECONDS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, default_partitions=4) as one:
        one.create_topic("t", 4)
        yield one


@pytest.fixture(autouse=True)
def forgotten_sockets_are_not_found_later() -> Iterator[None]:
    yield
    gc.collect()


def member(cluster: EmbeddedCluster, group: str, **more: Any) -> confluent_kafka.Consumer:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    return confluent_kafka.Consumer({**settings, "heartbeat.interval.ms": 100, **more})


def polled(until: Callable[[], bool], *members: confluent_kafka.Consumer) -> None:
    deadline = time.monotonic() + SECONDS
    while not until():
        assert time.monotonic() < deadline
        for one in members:
            one.poll(0.02)


def owned(one: confluent_kafka.Consumer) -> set[int]:
    return {part.partition for part in one.assignment()}


def test_cooperative_member_gives_up_only_the_partitions_that_the_other_member_gets(cluster: EmbeddedCluster) -> None:
    """When a second member joins, the first loses only the partitions that the second gets (KIP-429)."""
    settings = {"partition.assignment.strategy": "cooperative-sticky"}
    one, two = (member(cluster, "cooperative", **settings) for _ in range(2))
    revoked: set[int] = set()
    one.subscribe(["t"], on_revoke=lambda _, parts: revoked.update(part.partition for part in parts))
    polled(lambda: owned(one) == {0, 1, 2, 3}, one)
    two.subscribe(["t"])
    polled(lambda: len(owned(one)) == len(owned(two)) == 2, one, two)
    assert owned(one) | owned(two) == {0, 1, 2, 3}
    assert revoked == owned(two)
    two.close()
    polled(lambda: owned(one) == {0, 1, 2, 3}, one)
    one.close()


def test_static_member_comes_back_without_a_rebalance(cluster: EmbeddedCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    one, two = (member(cluster, "static", **{"group.instance.id": name}) for name in ("one", "two"))
    revoked: list[Any] = []
    one.subscribe(["t"], on_revoke=lambda _, parts: revoked.extend(parts))
    two.subscribe(["t"])
    polled(lambda: len(owned(one)) == len(owned(two)) == 2, one, two)
    before = owned(two)
    revoked.clear()
    two.close()
    again = member(cluster, "static", **{"group.instance.id": "two"})
    again.subscribe(["t"])
    polled(lambda: owned(again) == before, one, again)
    assert revoked == []
    (described,) = (call.result(SECONDS) for call in admin.describe_consumer_groups(["static"]).values())
    assert sorted(str(found.group_instance_id) for found in described.members) == ["one", "two"]
    one.close()
    again.close()


def test_confluent_admin_manages_groups(cluster: EmbeddedCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    asked = ConsumerGroupTopicPartitions("managed", [TopicPartition("t", 0, 7), TopicPartition("t", 1, 8)])
    (call,) = admin.alter_consumer_group_offsets([asked]).values()
    assert [part.error for part in call.result(SECONDS).topic_partitions] == [None, None]
    listed = admin.list_consumer_groups().result(SECONDS).valid
    assert ("managed", "EMPTY", "CLASSIC") in {(one.group_id, one.state.name, one.type.name) for one in listed}
    (call,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("managed")]).values()
    assert {part.partition: part.offset for part in call.result(SECONDS).topic_partitions} == {0: 7, 1: 8}
    admin.delete_consumer_groups(["managed"])["managed"].result(SECONDS)
    assert "managed" not in {one.group_id for one in admin.list_consumer_groups().result(SECONDS).valid}


def test_other_admins_manage_groups(cluster: EmbeddedCluster) -> None:
    consumer = member(cluster, "seen")
    consumer.subscribe(["t"])
    polled(lambda: len(owned(consumer)) == 4, consumer)
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    assert "seen" in {one["group_id"] for one in admin.list_groups()}
    described = admin.describe_groups(["seen"])["seen"]
    assert (described["group_state"], len(described["members"])) == ("Stable", 1)
    consumer.close()
    assert admin.delete_groups(["seen"]) == {"seen": "OK"}
    admin.close()

    async def listed() -> set[str]:
        other = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        await other.start()
        try:
            return {name for name, _ in await other.list_consumer_groups()}
        finally:
            await other.close()

    assert "seen" not in asyncio.run(listed())


def test_restart_keeps_deletions_and_settings(tmp_path: Path) -> None:
    with EmbeddedCluster(data_dir=tmp_path) as cluster:
        cluster.create_topic("t")
        cluster.create_topic("gone")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        for group, topic in (("deleted", "t"), ("kept", "t"), ("kept", "gone")):
            asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 5)])
            for call in admin.alter_consumer_group_offsets([asked]).values():
                call.result(SECONDS)
        admin.delete_consumer_groups(["deleted"])["deleted"].result(SECONDS)
        admin.delete_topics(["gone"])["gone"].result(SECONDS)
        setting = ConfigEntry("max.message.bytes", "777", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", "t", incremental_configs=[setting])
        admin.incremental_alter_configs([resource])[resource].result(SECONDS)
    with EmbeddedCluster(data_dir=tmp_path) as cluster:
        cluster.create_topic("gone")
        with RawClient(cluster.bootstrap_servers) as client:
            for group, topics in (("deleted", []), ("kept", ["t"])):
                answer = client.ask(messages.OFFSET_FETCH, 5, group_id=group, topics=None)
                assert [topic.name for topic in answer.topics] == topics
            wanted = {"resource_type": 2, "resource_name": "t", "configuration_keys": ["max.message.bytes"]}
            (one,) = client.ask(messages.DESCRIBE_CONFIGS, 4, resources=[wanted]).results[0].configs
            assert (one.value, one.config_source) == ("777", 1)
        assert cluster.topics() == {"gone": 1, "t": 1}


def test_changed_topic_settings_take_effect(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("limited")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    errors: list[Any] = []
    for limit, refused in (("100", True), ("10000", False)):
        setting = ConfigEntry("max.message.bytes", limit, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", "limited", incremental_configs=[setting])
        admin.incremental_alter_configs([resource])[resource].result(SECONDS)
        producer.produce("limited", b"x" * 500, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(SECONDS) == 0
        assert (errors.pop() is not None) == refused


def test_joining_member_stays_when_its_connection_ends(cluster: EmbeddedCluster) -> None:
    """As in Kafka, the group does not wait for the member to join again."""
    with RawClient(cluster.bootstrap_servers.split(",")[0]) as client:
        found = client.ask(messages.FIND_COORDINATOR, 0, key="parked")
        address = f"{found.host}:{found.port}"

    def members(client: RawClient) -> int:
        return len(client.ask(messages.DESCRIBE_GROUPS, 0, groups=["parked"]).groups[0].members)

    with RawClient(address) as one, RawClient(address) as two:
        first = one.ask(messages.JOIN_GROUP, 3, **joining("parked", version=3))
        with RawClient(address) as gone:
            gone.send(messages.JOIN_GROUP, 3, **joining("parked", version=3))
            polled(lambda: members(one) == 2)
        two.send(messages.JOIN_GROUP, 3, **joining("parked", version=3))
        polled(lambda: members(one) == 3)
        again = one.ask(messages.JOIN_GROUP, 3, **joining("parked", first.member_id, version=3))
        assert (again.error_code, len(again.members)) == (0, 3)
        assert two.receive(messages.JOIN_GROUP, 3).generation_id == again.generation_id
