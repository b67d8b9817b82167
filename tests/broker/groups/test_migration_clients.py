"""Rolling changes of a group's protocol, with librdkafka on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.protocol import messages as m
from tests.broker.configs.test_configs import BROKER, describe
from tests.broker.groups.test_consumer_group_clients import ALL, FAST, consumer, coordinator, owned, polled, produce
from tests.broker.raw_client import RawClient

# The leader's assignment has data of the assignor from the second generation on: Kafka upgrades no such group.
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
QUICK = {"heartbeat.interval.ms": 50, "session.timeout.ms": 6_000}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, groups=FAST) as embedded:
        embedded.create_topic("t", 4)
        yield embedded


def classic(cluster: EmbeddedCluster, group: str, **more: Any) -> confluent_kafka.Consumer:
    return consumer(cluster, group, **{"group.protocol": "classic", **QUICK, **more})


def share(*members: confluent_kafka.Consumer) -> bool:
    """Whether the members own all partitions together, each partition once, and none is without one."""
    sets = [owned(member) for member in members]
    return all(sets) and set().union(*sets) == ALL and sum(map(len, sets)) == len(ALL)


def kind(cluster: EmbeddedCluster, group: str) -> str:
    with RawClient(coordinator(cluster, group)) as raw:
        listed = raw.ask(m.LIST_GROUPS, 5, states_filter=[], types_filter=[]).groups
    return next(str(entry.group_type) for entry in listed if entry.group_id == group)


def start(member: confluent_kafka.Consumer) -> confluent_kafka.Consumer:
    member.subscribe(["t"])
    return member


@pytest.mark.parametrize("instance", [None, "i"])
def test_group_rolls_to_the_consumer_protocol_and_back(cluster: EmbeddedCluster, instance: str | None) -> None:
    group = f"rolling-{instance}"

    def named(number: int) -> dict[str, Any]:
        return {} if instance is None else {"group.instance.id": f"{instance}-{number}"}

    old = [start(classic(cluster, group, **named(number))) for number in range(2)]
    polled(lambda: share(*old), *old)
    first = start(consumer(cluster, group, **named(2)))
    polled(lambda: share(*old, first), *old, first)
    assert kind(cluster, group) == "consumer"
    old.pop().close()
    polled(lambda: share(*old, first), *old, first)
    second = start(consumer(cluster, group, **named(3)))
    polled(lambda: share(*old, first, second), *old, first, second)
    first.close()
    second.close()
    polled(lambda: share(*old) and kind(cluster, group) == "classic", *old)
    for member in old:
        member.close()


def test_cooperative_consumer_joins_consumers_and_outlives_them(cluster: EmbeddedCluster) -> None:
    new = start(consumer(cluster, "cooperating"))
    polled(lambda: share(new), new)
    old = [start(classic(cluster, "cooperating", **COOPERATIVE)) for _ in range(2)]
    polled(lambda: share(new, *old), new, *old)
    new.close()
    polled(lambda: share(*old) and kind(cluster, "cooperating") == "classic", *old)
    for member in old:
        member.close()


def test_mixed_group_reads_and_commits_each_record_once(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("read", 4)
    settings = {"enable.auto.commit": False}
    members = [classic(cluster, "reading", **settings)]
    members[0].subscribe(["read"])
    produce(cluster, "read", *(b"%d" % number for number in range(8)))
    seen: list[bytes | None] = []

    def read(count: int) -> None:
        def have_all() -> bool:
            for member in members:
                for message in member.consume(10, 0.02):
                    assert message.error() is None, message.error()
                    seen.append(message.value())
                    member.commit(message=message, asynchronous=False)
            return len(seen) >= count

        polled(have_all)

    read(8)
    members.append(consumer(cluster, "reading", **settings))
    members[1].subscribe(["read"])
    polled(lambda: all(len(owned(member)) == 2 for member in members), *members)
    produce(cluster, "read", *(b"%d" % number for number in range(8, 16)))
    read(16)
    assert sorted(int(value or b"") for value in seen) == list(range(16))
    for member in members:
        member.close()


def test_policy_has_kafkas_name_among_the_settings() -> None:
    config = {"group.consumer.migration.policy": "Disabled"}
    with EmbeddedCluster(config=config) as cluster, RawClient(cluster.bootstrap_servers) as client:
        assert describe(client, BROKER, "1")["group.consumer.migration.policy"].value == "Disabled"
        cluster.create_topic("t", 4)
        member = start(classic(cluster, "stays"))
        polled(lambda: share(member), member)
        values = {"group_id": "stays", "member_id": "one", "topic_partitions": [], "rebalance_timeout": 1000}
        refused = client.ask(m.CONSUMER_GROUP_HEARTBEAT, 1, member_epoch=0, subscribed_topic_names=["t"], **values)
        assert refused.error_message.endswith("because online upgrade is disabled.")
        member.close()


def roll_there_and_back(cluster: EmbeddedCluster, group: str) -> None:
    old, new = start(classic(cluster, group)), consumer(cluster, group)
    polled(lambda: share(old), old)
    start(new)
    polled(lambda: share(old, new), old, new)
    new.close()
    polled(lambda: share(old) and kind(cluster, group) == "classic", old)
    old.commit(offsets=[TopicPartition("t", 0, 7)], asynchronous=False)
    old.close()


def test_group_is_of_its_last_kind_after_a_restart(tmp_path: Path) -> None:
    with EmbeddedCluster(data_dir=tmp_path, groups=FAST) as cluster:
        cluster.create_topic("t", 4)
        roll_there_and_back(cluster, "kept")
    with EmbeddedCluster(data_dir=tmp_path, groups=FAST) as cluster:
        assert kind(cluster, "kept") == "classic"
        again = consumer(cluster, "kept")
        assert again.committed([TopicPartition("t", 0)], 10)[0].offset == 7
        again.close()
