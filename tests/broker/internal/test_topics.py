"""__consumer_offsets and __transaction_state, as clients see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.groups.groups import offsets_partition
from kafkabuf.broker.internal.formats import group_key, uvarint
from kafkabuf.errors import InvalidTopicError
from kafkabuf.protocol import messages
from tests.broker.apis.test_console_tools import CONSUMER, tool
from tests.broker.raw_client import RawClient, batch
from tests.real.consumers import Partition, read_with_kafka_python
from tests.waiting import wait_until

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3) as running:
        running.create_topic("t", 2)
        yield running


def commit(cluster: EmbeddedCluster, group: str, *offsets: int) -> None:
    """Commits each offset of t-1, one after the other."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for offset in offsets:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition("t", 1, offset)])
        (done,) = admin.alter_consumer_group_offsets([asked]).values()
        done.result(10)


def transact(cluster: EmbeddedCluster, name: str, group: str | None = None) -> None:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"v", partition=0)
        if group is not None:
            producer.send_offsets_to_transaction({("t", 1): 77}, group)
        producer.commit_transaction()


def records(cluster: EmbeddedCluster, topic: str, key: str) -> list[tuple[bytes, bytes | None]]:
    """(key, value) of the records in the partition of a group or transactional id, as kafka-python reads them."""
    partitions: list[Partition] = read_with_kafka_python(cluster, topic, 50)
    found = partitions[offsets_partition(key)]
    assert not any(records for index, records in enumerate(partitions) if index != offsets_partition(key))
    return [(found[offset].key or b"", found[offset].value) for offset in sorted(found)]


# ---- described


def test_topics_appear_with_the_first_lookup_of_a_coordinator(cluster: EmbeddedCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    assert set(admin.list_topics(timeout=10).topics) == {"t"}
    commit(cluster, "g", 5)
    assert set(admin.list_topics(timeout=10).topics) == {"t", OFFSETS}
    transact(cluster, "tx")
    described = admin.list_topics(timeout=10).topics
    assert {name: len(topic.partitions) for name, topic in described.items()} == {"t": 2, OFFSETS: 50, TRANSACTIONS: 50}
    assert all(len(partition.isrs) == 3 for partition in described[OFFSETS].partitions.values())
    assert cluster.topics() == {"t": 2}


def test_metadata_says_that_the_topics_are_internal(cluster: EmbeddedCluster) -> None:
    with RawClient(cluster.bootstrap_servers.split(",")[0]) as client:
        asked = [{"name": name} for name in (OFFSETS, TRANSACTIONS, "t")]
        answer = client.ask(messages.METADATA, 8, topics=asked, allow_auto_topic_creation=True)
        assert [(topic.name, topic.is_internal) for topic in answer.topics] == [
            (OFFSETS, True),
            (TRANSACTIONS, True),
            ("t", False),
        ]
        described = client.ask(
            messages.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": OFFSETS}], response_partition_limit=1, cursor=None
        )
        assert described.topics[0].is_internal


def test_configs_are_those_of_kafka(cluster: EmbeddedCluster) -> None:
    commit(cluster, "g", 5)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, OFFSETS)]).values()
    configs = {name: entry.value for name, entry in future.result(10).items()}
    assert (configs["cleanup.policy"], configs["segment.bytes"]) == ("compact", "104857600")


@pytest.mark.parametrize("key", ["g", "another", "ümläut", ""])
def test_leader_of_the_partition_coordinates(cluster: EmbeddedCluster, key: str) -> None:
    for kind, topic in enumerate((OFFSETS, TRANSACTIONS)):
        with RawClient(cluster.bootstrap_servers.split(",")[0]) as client:
            found = client.ask(messages.FIND_COORDINATOR, 3, key=key, key_type=kind)
        assert (found.error_code, found.node_id) == (0, cluster.leader(topic, offsets_partition(key))[0])


def test_another_node_coordinates_when_the_leader_dies(cluster: EmbeddedCluster) -> None:
    commit(cluster, "g", 5)
    partition = offsets_partition("g")
    for _ in range(2):
        before = cluster.leader(OFFSETS, partition)[0]
        cluster.kill_node(before)
        assert cluster.leader(OFFSETS, partition)[0] not in (before, -1)
    survivor = cluster.leader(OFFSETS, partition)[0]
    for node in {1, 2, 3} - {survivor}:
        cluster.start_node(node)
    assert sorted(cluster.in_sync(OFFSETS, partition)) == [1, 2, 3]
    cluster.kill_node(survivor)
    commit(cluster, "g", 6)
    assert len(cluster.records(OFFSETS, partition)) == 2


# ---- records


def test_each_commit_is_a_record(cluster: EmbeddedCluster) -> None:
    commit(cluster, "g", 5, 6)
    (key, first), (again, second) = records(cluster, OFFSETS, "g")
    assert key == again == b"\0\1\0\1g\0\1t\0\0\0\1"
    assert first is not None
    assert second is not None
    assert (first[:14], second[:14]) == (
        b"\0\3" + (5).to_bytes(8) + b"\xff" * 4,
        b"\0\3" + (6).to_bytes(8) + b"\xff" * 4,
    )


def test_cluster_waits_for_the_first_commit(cluster: EmbeddedCluster) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(cluster.wait_for_messages, OFFSETS, 1, 10)
        wait_until(lambda: bool(cluster._call(lambda running: running.catalogue._waiting)))
        commit(cluster, "g", 5)
        (record,) = waiting.result(20)
    assert (record.partition, record.topic) == (offsets_partition("g"), OFFSETS)


def test_deleted_group_leaves_tombstones(cluster: EmbeddedCluster) -> None:
    commit(cluster, "g", 5)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_consumer_groups(["g"])["g"].result(10)
    values = [value for _, value in records(cluster, OFFSETS, "g")]
    assert [value is None for value in values] == [False, True, True]


def test_classic_group_that_becomes_a_consumer_group_leaves_a_tombstone_and_its_offsets(
    cluster: EmbeddedCluster,
) -> None:
    commit(cluster, "g", 5)
    node_id, _ = cluster.leader(OFFSETS, offsets_partition("g"))
    with RawClient(cluster.bootstrap_servers.split(",")[node_id - 1]) as client:
        beat = {"subscribed_topic_names": ["t"], "topic_partitions": [], "rebalance_timeout": 60_000}
        answer = client.ask(messages.CONSUMER_GROUP_HEARTBEAT, 1, group_id="g", member_id="one", member_epoch=0, **beat)
        assert answer.error_code == 0
    (_, offset), (key, tombstone) = records(cluster, OFFSETS, "g")
    assert offset is not None
    assert (key, tombstone) == (group_key("g"), None)


def test_offsets_of_a_transaction_are_records_once_it_is_committed(cluster: EmbeddedCluster) -> None:
    transact(cluster, "tx", "g")
    ((_, value),) = records(cluster, OFFSETS, "g")
    assert value is not None
    assert int.from_bytes(value[2:10]) == 77


def test_restarted_cluster_writes_its_state_anew(tmp_path: Path) -> None:
    with EmbeddedCluster(data_dir=tmp_path) as cluster:
        cluster.create_topic("t", 2)
        commit(cluster, "g", 5, 6)
        transact(cluster, "tx")
        ends = [state for _, state in records(cluster, TRANSACTIONS, "tx")]
    with EmbeddedCluster(data_dir=tmp_path) as cluster:
        assert cluster.topics() == {"t": 2}
        cluster._call(lambda c: [c.internal_topics.topic(name) for name in (OFFSETS, TRANSACTIONS)])
        ((_, value),) = records(cluster, OFFSETS, "g")
        assert value is not None
        assert int.from_bytes(value[2:10]) == 6
        ((_, state),) = records(cluster, TRANSACTIONS, "tx")
        assert state is not None
        assert ends[-1] is not None
        # Up to the status; timestamps follow.
        assert state[:17] == ends[-1][:17]


def test_many_commits_do_not_fill_the_memory(cluster: EmbeddedCluster) -> None:
    commit(cluster, "g", 1)

    def write(inside: Cluster) -> None:
        for number in range(2000):
            inside.internal_topics.offset_changed(("g", "committed", "t", 1), [number, number, -1, "x" * 2000])

    cluster._call(write)
    cluster.compact(OFFSETS, offsets_partition("g"))
    assert sum(map(len, cluster.records(OFFSETS, offsets_partition("g")))) < 10_000


def test_unsigned_varint_has_seven_bits_in_a_byte() -> None:
    assert [uvarint(number) for number in (0, 127, 128, 300)] == [b"\0", b"\x7f", b"\x80\1", b"\xac\2"]


def test_kafkas_formatters_read_the_records(cluster: EmbeddedCluster) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "client.id": "me"})
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send("t", b"v", partition=1).result(10)
    consumer.subscribe(["t"], on_assign=lambda c, assigned: c.assign([TopicPartition("t", 1, 0)]))
    assert consumer.poll(30) is not None
    consumer.commit(asynchronous=False)
    transact(cluster, "tx")

    def read(topic: str, formatter: str, key: str, count: int) -> list[dict[str, dict[str, object]]]:
        name = f"org.apache.kafka.tools.consumer.{formatter}"
        where = f"--topic {topic} --partition {offsets_partition(key)} --offset earliest --max-messages {count}"
        return objects(tool(cluster, CONSUMER, f"{where} --timeout-ms 30000 --formatter {name}"))

    count = len(records(cluster, OFFSETS, "g"))
    states = len(records(cluster, TRANSACTIONS, "tx"))
    with ThreadPoolExecutor() as together:
        offsets = together.submit(read, OFFSETS, "OffsetsMessageFormatter", "g", count)
        groups = together.submit(read, OFFSETS, "GroupMetadataMessageFormatter", "g", count)
        transactions = together.submit(read, TRANSACTIONS, "TransactionLogMessageFormatter", "tx", states)
    last = offsets.result()[-1]
    assert last["key"] == {"type": 1, "data": {"group": "g", "topic": "t", "partition": 1}}
    value = last["value"]["data"]
    assert isinstance(value, dict)
    assert (last["value"]["version"], value["offset"], value["metadata"]) == (3, 1, "")
    group = groups.result()[-1]["value"]["data"]
    assert isinstance(group, dict)
    assert (group["protocolType"], group["generation"], group["protocol"]) == ("consumer", 1, "range")
    (member,) = group["members"]
    assert (member["memberId"], member["clientId"]) == (group["leader"], "me")
    seen = [entry["value"]["data"] for entry in transactions.result()]
    assert [state["transactionStatus"] for state in seen if isinstance(state, dict)][-2:] == [2, 4]
    ongoing = next(state for state in seen if isinstance(state, dict) and state["transactionStatus"] == 1)
    assert ongoing["transactionPartitions"] == [{"topic": "t", "partitionIds": [0]}]
    assert ongoing["transactionTimeoutMs"] == 60_000
    consumer.close()


def objects(text: str) -> list[dict[str, dict[str, object]]]:
    """The JSON objects in a formatter's output, which has no line ends between them."""
    found, at = [], text.find("{")
    while at >= 0:
        read, end = json.JSONDecoder().raw_decode(text, at)
        found.append(read)
        at = text.find("{", end)
    return found


# ---- refused


def test_clients_cannot_write_to_them_nor_change_them(cluster: EmbeddedCluster) -> None:
    commit(cluster, "g", 5)
    partition = offsets_partition("g")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    leader = cluster.leader(OFFSETS, partition)[0]
    host, port, _ = cluster.nodes()[leader]
    with RawClient(f"{host}:{port}") as client:
        data = batch([b"v"], keys=[b"k"])
        assert client.produce(OFFSETS, data, partition=partition).error_code == InvalidTopicError.code
        asked = [{"name": OFFSETS, "partitions": [{"partition_index": partition, "offset": 1}]}]
        deleted = client.ask(messages.DELETE_RECORDS, 2, topics=asked, timeout_ms=1000)
        assert deleted.topics[0].partitions[0].error_code == InvalidTopicError.code
    with pytest.raises(KafkaException, match="Invalid topic"):
        admin.delete_topics([OFFSETS])[OFFSETS].result(10)
    with pytest.raises(InvalidTopicError, match="internal"):
        cluster.create_topic(TRANSACTIONS)
    assert len(records(cluster, OFFSETS, "g")) == 1


def test_internal_topics_do_not_move_the_leaders_of_other_topics() -> None:
    leaders = []
    for used in (False, True):
        with EmbeddedCluster(3) as cluster:
            cluster.create_topic("first")
            if used:
                cluster._call(lambda c: [c.internal_topics.topic(name) for name in (OFFSETS, TRANSACTIONS)])
            cluster.create_topic("second")
            leaders.append(cluster.leader("second", 0))
    assert leaders[0] == leaders[1]
