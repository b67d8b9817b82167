"""Consumer groups of KIP-848 with librdkafka and raw requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from kafkabuf.broker import EmbeddedCluster, GroupSettings
from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient
from tests.conformance.groups import joining

SECONDS = 20
FAST = GroupSettings(group_consumer_heartbeat_interval_ms=50, group_consumer_session_timeout_ms=2_000)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, default_partitions=4, groups=FAST) as embedded:
        embedded.create_topic("t", 4)
        yield embedded


def consumer(cluster: EmbeddedCluster, group: str, **more: Any) -> confluent_kafka.Consumer:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    return confluent_kafka.Consumer({**settings, "group.protocol": "consumer", **more})


def produce(cluster: EmbeddedCluster, topic: str, *values: bytes) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for index, value in enumerate(values):
        producer.produce(topic, value, partition=index % 4)
    assert producer.flush(SECONDS) == 0


def polled(until: Callable[[], bool], *consumers: confluent_kafka.Consumer) -> None:
    """Polls until the condition holds."""
    deadline = time.monotonic() + SECONDS
    while not until():
        assert time.monotonic() < deadline, [member.assignment() for member in consumers]
        for member in consumers:
            if (message := member.poll(0.02)) is not None:
                assert message.error() is None, message.error()


def owned(member: confluent_kafka.Consumer) -> set[tuple[str, int]]:
    return {(part.topic, part.partition) for part in member.assignment()}


ALL = {("t", index) for index in range(4)}


def owns_all(member: confluent_kafka.Consumer) -> bool:
    return owned(member) == ALL


def test_consumer_reads_commits_and_goes_on(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("read", 4)
    produce(cluster, "read", b"one", b"two", b"three")
    first = consumer(cluster, "reading", **{"enable.auto.commit": False})
    first.subscribe(["read"])
    records: list[bytes | None] = []
    deadline = time.monotonic() + SECONDS
    while len(records) < 3:
        assert time.monotonic() < deadline
        records += [message.value() for message in first.consume(3, 0.1) if message.error() is None]
    assert set(records) == {b"one", b"two", b"three"}
    committed = first.commit(asynchronous=False)
    assert {part.partition: part.offset for part in committed if part.offset > 0} == {0: 1, 1: 1, 2: 1}
    first.close()
    produce(cluster, "read", b"four")
    second = consumer(cluster, "reading")
    second.subscribe(["read"])
    late: list[bytes | None] = []
    while not late:
        assert time.monotonic() < deadline
        late += [message.value() for message in second.consume(3, 0.1) if message.error() is None]
    assert late == [b"four"]
    second.close()


def test_second_consumer_gets_half_and_gives_it_back(cluster: EmbeddedCluster) -> None:
    one, two = consumer(cluster, "sharing"), consumer(cluster, "sharing")
    revoked: set[int] = set()
    one.subscribe(["t"], on_revoke=lambda _, parts: revoked.update(part.partition for part in parts))
    polled(lambda: owned(one) == ALL, one)
    two.subscribe(["t"])
    polled(lambda: len(owned(one)) == len(owned(two)) == 2, one, two)
    assert owned(one) | owned(two) == ALL
    assert {("t", index) for index in revoked} == owned(two), "only what the other gets is taken away"
    two.close()
    polled(lambda: owned(one) == ALL, one)
    one.close()


def test_partitions_of_a_dead_consumer_go_to_the_others(cluster: EmbeddedCluster) -> None:
    one = consumer(cluster, "dying")
    one.subscribe(["t"])
    polled(lambda: owned(one) == ALL, one)
    with RawClient(coordinator(cluster, "dying")) as raw:
        values = {"group_id": "dying", "member_id": "dead", "topic_partitions": [], "rebalance_timeout": 1000}
        names = {"subscribed_topic_names": ["t"], "member_epoch": 0}
        assert raw.ask(messages.CONSUMER_GROUP_HEARTBEAT, 1, **values, **names).error_code == 0
        polled(lambda: len(owned(one)) == 2, one)
    polled(lambda: owned(one) == ALL, one)
    one.close()


def coordinator(cluster: EmbeddedCluster, group: str) -> str:
    with RawClient(cluster.bootstrap_servers.split(",")[0]) as raw:
        found = raw.ask(messages.FIND_COORDINATOR, 0, key=group)
        return f"{found.host}:{found.port}"


def test_expression_follows_new_topics(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("orders-eu", 1)
    one = consumer(cluster, "matching")
    one.subscribe(["^orders-.*"])
    polled(lambda: owned(one) == {("orders-eu", 0)}, one)
    cluster.create_topic("orders-us", 2)
    polled(lambda: owned(one) == {("orders-eu", 0), ("orders-us", 0), ("orders-us", 1)}, one)
    one.close()


def test_new_partitions_are_assigned(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("growing", 1)
    one = consumer(cluster, "growing")
    one.subscribe(["growing"])
    polled(lambda: len(owned(one)) == 1, one)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_partitions([NewPartitions("growing", 3)])["growing"].result(SECONDS)
    polled(lambda: len(owned(one)) == 3, one)
    one.close()


def test_static_consumer_comes_back_to_its_partitions(cluster: EmbeddedCluster) -> None:
    one, two = (consumer(cluster, "static", **{"group.instance.id": name}) for name in ("one", "two"))
    revoked: list[Any] = []
    one.subscribe(["t"], on_revoke=lambda _, parts: revoked.extend(parts))
    two.subscribe(["t"])
    polled(lambda: len(owned(one)) == len(owned(two)) == 2, one, two)
    before = owned(two)
    revoked.clear()
    two.close()
    again = consumer(cluster, "static", **{"group.instance.id": "two"})
    again.subscribe(["t"])
    polled(lambda: owned(again) == before, one, again)
    assert revoked == []
    one.close()
    again.close()


def test_consumer_chooses_the_assignor(cluster: EmbeddedCluster) -> None:
    one = consumer(cluster, "ranges", **{"group.remote.assignor": "range"})
    one.subscribe(["t"])
    polled(lambda: owned(one) == ALL, one)
    with RawClient(coordinator(cluster, "ranges")) as raw:
        (described,) = raw.ask(messages.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["ranges"]).groups
    assert (described.assignor_name, described.group_state) == ("range", "Stable")
    one.close()


def test_administrator_sees_and_deletes_a_consumer_group(cluster: EmbeddedCluster) -> None:
    one = consumer(cluster, "administered")
    one.subscribe(["t"])
    polled(lambda: owned(one) == ALL, one)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    listed = {group.group_id: group for group in admin.list_consumer_groups().result(SECONDS).valid}
    assert (listed["administered"].type.name, listed["administered"].state.name) == ("CONSUMER", "STABLE")
    assert deletion(admin, "administered") == "NON_EMPTY_GROUP"
    one.close()
    assert deletion(admin, "administered") is None


def deletion(admin: AdminClient, group: str) -> str | None:
    """The name of the error, or None."""
    try:
        admin.delete_consumer_groups([group])[group].result(SECONDS)
    except confluent_kafka.KafkaException as refusal:
        return str(refusal.args[0].name())
    return None


def test_group_moves_to_the_other_protocol_and_back_with_its_offsets(cluster: EmbeddedCluster) -> None:
    for protocol in ("classic", "consumer", "classic"):
        member = consumer(cluster, "moving", **{"group.protocol": protocol})
        member.subscribe(["t"])
        polled(partial(owns_all, member), member)
        (before,) = member.committed([TopicPartition("t", 0)], SECONDS)
        member.commit(offsets=[TopicPartition("t", 0, max(before.offset, 0) + 1)], asynchronous=False)
        member.close()
    reader = consumer(cluster, "moving", **{"group.protocol": "classic"})
    assert [part.offset for part in reader.committed([TopicPartition("t", 0)], SECONDS)] == [3]
    reader.close()


def test_consumer_outlives_its_coordinator() -> None:
    with EmbeddedCluster(brokers=3, groups=FAST) as cluster:
        cluster.create_topic("t", 4)
        one = consumer(cluster, "moved", **{"topic.metadata.refresh.interval.ms": 500})
        one.subscribe(["t"])
        polled(lambda: owned(one) == ALL, one)
        port = int(coordinator(cluster, "moved").rpartition(":")[2])
        (node_id,) = [node for node, (_, listens, _) in cluster.nodes().items() if listens == port]
        cluster.kill_node(node_id)
        produce(cluster, "t", b"later")
        polled_records: list[bytes | None] = []
        deadline = time.monotonic() + SECONDS
        while b"later" not in polled_records:
            assert time.monotonic() < deadline
            message = one.poll(0.05)
            if message is not None and message.error() is None:
                polled_records.append(message.value())
        assert owned(one) == ALL
        one.close()


def test_members_join_again_after_a_restart_and_epochs_go_on(tmp_path: Path) -> None:
    def beat(cluster: EmbeddedCluster, epoch: int) -> Any:
        values = {"group_id": "g", "member_id": "one", "member_epoch": epoch, "topic_partitions": []}
        with RawClient(cluster.bootstrap_servers) as raw:
            names = {"subscribed_topic_names": ["t"], "rebalance_timeout": 1000}
            return raw.ask(messages.CONSUMER_GROUP_HEARTBEAT, 1, **values, **names)

    with EmbeddedCluster(data_dir=tmp_path) as cluster:
        assert beat(cluster, 0).member_epoch == 1
        assert beat(cluster, -1).error_code == 0
        assert beat(cluster, 0).member_epoch == 3
    with EmbeddedCluster(data_dir=tmp_path) as cluster:
        assert beat(cluster, 3).error_code == 25, "UNKNOWN_MEMBER_ID: the member joins again"
        assert beat(cluster, 0).member_epoch == 4


def test_classic_member_with_a_short_session_is_refused_unless_the_setting_is_lower() -> None:
    for settings, error_code in ((GroupSettings(), 26), (GroupSettings(group_min_session_timeout_ms=100), 0)):
        with EmbeddedCluster(groups=settings) as cluster, RawClient(cluster.bootstrap_servers) as raw:
            answer = raw.ask(messages.JOIN_GROUP, 3, **{**joining("g", version=3), "session_timeout": 5_999})
            assert answer.error_code == error_code
