"""Partitioners: a user's own, round robin, random; the sticky partition, and adaptive partitioning (KIP-794)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from kafkabuf._partition import select_partition
from kafkabuf.errors import ConfigError, InvalidPartitionsError
from kafkabuf.metadata.snapshot import Cluster, Node
from kafkabuf.partitioner import RoundRobinPartitioner, partition_for_key
from rigs.producer import SLAB, TOPIC, Rig, assert_whole

# ---- partitioner.class -----------------------------------------------------------------------------------------------


def send(rig: Rig) -> Any:
    """The rig's send(), typed for any value that a serializer takes."""
    return rig.send


def test_partitioner_is_called_for_records_without_partition_only() -> None:
    asked: list[Any] = []

    def mine(topic: str, key: Any, value: Any, partitions: int) -> int | None:
        asked.append((topic, key, value, partitions))
        return {b"a": 2, b"b": 0}.get(value)

    rig = Rig(leaders=[1] * 3, partitioner_class=mine, value_serializer="string")
    assert [send(rig)(value, None).batch.partition for value in "ab"] == [2, 0]
    assert asked == [(TOPIC, None, b"a", 3), (TOPIC, None, b"b", 3)]
    assert send(rig)("a", partition=1).batch.partition == 1
    assert len(asked) == 2
    assert send(rig)("c", None, key=b"key").batch.partition == partition_for_key(b"key", 3)  # None: we choose
    rig.producer.send_many(TOPIC, ["a", "b", "a"], partitions=[None, None, 1])
    assert len(asked) == 5
    rig.ack_all()
    assert {p: [r.value for r in rig.log[TOPIC, p]] for p in (0, 1)} == {0: [b"b", b"b"], 1: [b"a", b"c", b"a"]}
    assert_whole(rig.pool)


@pytest.mark.parametrize("answer", [3, -1, 2**70, True, 1.0, "1", b"\0"])
def test_wrong_result_of_a_partitioner_is_refused(answer: Any) -> None:
    rig = Rig(leaders=[1] * 3, partitioner_class=lambda *args: answer)
    with pytest.raises(InvalidPartitionsError, match="the partitioner returned"):
        rig.send(b"v", None)
    with pytest.raises(InvalidPartitionsError, match="record 0: the partitioner returned"):
        rig.producer.send_many(TOPIC, [b"v"])
    assert not rig.incomplete()


def test_error_of_a_partitioner_names_it() -> None:
    def mine(*args: Any) -> int:
        raise ZeroDivisionError("in mine")

    rig = Rig(partitioner_class=mine)
    with pytest.raises(InvalidPartitionsError, match="the partitioner raised ZeroDivisionError: in mine"):
        rig.send(b"v", None)
    assert not rig.incomplete()


@pytest.mark.parametrize("name", ["round_robin", "org.apache.kafka.clients.producer.RoundRobinPartitioner"])
def test_round_robin_uses_each_partition_in_turn(name: str) -> None:
    rig = Rig(leaders=[1] * 3, partitioner_class=name)
    assert [rig.send(b"v", None, key=b"same").batch.partition for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_round_robin_counts_each_topic_by_itself() -> None:
    partitioner = RoundRobinPartitioner()
    assert [partitioner(topic, None, None, 3) for topic in "aabba"] == [0, 1, 0, 1, 2]


def test_random_prefers_no_partition() -> None:
    rig = Rig(leaders=[1] * 4, slabs=512, partitioner_class="random", linger_ms=10_000)
    counts = Counter(rig.send(b"v", None, key=b"same").batch.partition for _ in range(2_000))
    assert min(counts[p] for p in range(4)) > 350


@pytest.mark.parametrize("setting", ["murmur", "os.getpid", 7, dict])
def test_setting_that_partitions_nothing_is_refused(setting: Any) -> None:
    with pytest.raises(ConfigError, match=r"partitioner\.class"):
        Rig(partitioner_class=setting)


def test_object_with_a_method_partition_is_called() -> None:
    class Last:
        def partition(self, topic: str, key: Any, value: Any, partitions: int) -> int:
            return partitions - 1

    assert Rig(leaders=[1] * 5, partitioner_class=Last()).send(b"v", None).batch.partition == 4


def test_send_arrow_refuses_a_producer_with_a_partitioner() -> None:
    rig = Rig(partitioner_class="random")
    with pytest.raises(ConfigError, match=r"cannot apply partitioner\.class"):
        rig.producer.send_arrow(object(), TOPIC)


def test_empty_key_is_hashed_like_any_other() -> None:
    rig = Rig(leaders=[1] * 7, slabs=64)
    values, keys = [b"x" * (SLAB - 200)] * 8, [b""] * 8
    java = 2  # of Java's producer; see test_wire.py
    assert [rig.send(value, None, key=b"").batch.partition for value in values] == [java] * 8
    reports = [
        rig.producer.send_many(TOPIC, values, keys),
        rig.producer.send_arrow(pa.record_batch({"value": values, "key": keys}), TOPIC),
    ]
    rig.ack_all()
    assert [report.result(0).partition.tolist() for report in reports] == [[java] * 8] * 2


def test_ignored_keys_choose_no_partition() -> None:
    rig = Rig(leaders=[1] * 7, slabs=64, partitioner_ignore_keys=True)
    values, keys = [b"x" * (SLAB - 200)] * 24, [b"same"] * 24
    assert len({rig.send(value, None, key=b"same").batch.partition for value in values}) > 1
    report = rig.producer.send_many(TOPIC, values, keys)
    rig.ack_all()
    assert len(set(report.result(0).partition.tolist())) > 1


# ---- sticky ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bulk", [False, True])
def test_sticky_partition_moves_on_after_a_batchs_worth_of_bytes(bulk: bool) -> None:
    rig = Rig(leaders=[1] * 4, linger_ms=10)
    used = []
    for _ in range(200):  # a fifth of a batch goes at a time
        if bulk:
            rig.producer.send_many(TOPIC, [b"v" * (SLAB // 5)])
        else:
            rig.send(b"v" * (SLAB // 5), None)
        (batch,) = rig.incomplete()
        used.append(batch.partition)
        rig.linger_over()
        rig.ack_all()
    assert set(used) == {0, 1, 2, 3}
    changes = [n for n in range(1, 200) if used[n] != used[n - 1]]
    assert all(later - earlier >= 3 for earlier, later in pairwise(changes))


@pytest.mark.parametrize("bulk", [False, True])
def test_sender_learns_at_once_of_a_full_batch_that_the_sticky_partition_leaves(bulk: bool) -> None:
    """Even if the record goes on to a batch that was open already."""
    woken = [0]

    def wakeup() -> None:
        woken[0] += 1

    rig = Rig(leaders=[1] * 8, linger_ms=60_000, wakeup=wakeup)
    for partition in range(8):
        rig.send(partition=partition)
    for _ in range(40):
        full, before = _closed(rig), woken[0]
        if bulk:
            rig.producer.send_many(TOPIC, [b"x" * (SLAB // 5)])
        else:
            rig.send(b"x" * (SLAB // 5), None)
        assert _closed(rig) == full or woken[0] > before
    assert _closed(rig) > 4
    rig.accumulator.abort()
    assert_whole(rig.pool)


def _closed(rig: Rig) -> int:
    return sum(batch.closed for batch in rig.incomplete())


@pytest.mark.parametrize("bulk", [False, True])
def test_large_record_stays_in_a_sticky_partition_without_bytes(bulk: bool) -> None:
    for _ in range(5):
        rig = Rig(leaders=[1] * 8)
        before = rig.topic.sticky_partition
        if bulk:
            rig.producer.send_many(TOPIC, [b"x" * 3 * SLAB])
        else:
            rig.send(b"x" * 3 * SLAB, None)
        assert [batch.partition for batch in rig.incomplete()] == [before]


@pytest.mark.parametrize("_", range(8))  # partitions are drawn at random
def test_bulk_append_follows_a_sticky_partition_that_others_moved(_: int) -> None:
    chosen: list[int] = []

    def others(data: bytes) -> bytes:
        if data == b"second":
            rig.send(b"other", None)
            rig.send(b"other", None)  # finds the batch full, and goes to a new partition
            chosen.append(rig.topic.sticky_partition)
        return b"x" * (SLAB - 200)

    rig = Rig(leaders=[1] * 8, value_serializer=others)
    before = rig.topic.sticky_partition
    report = rig.producer.send_many(TOPIC, [b"first", b"second"])
    rig.ack_all()
    if chosen != [before]:  # otherwise the bulk append itself may move on
        assert report.result(0).partition.tolist() == [before, *chosen]


# Kafka: testAdaptiveBuiltInPartitioner, BuiltInPartitionerTest.adaptivePartitionsTest
@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_shorter_queues_get_more_records_only_if_partitioning_is_adaptive(adaptive: str) -> None:
    rig = Rig(
        leaders=[1] * 4, slabs=64, linger_ms=10_000, batch_size=0, partitioner_adaptive_partitioning_enable=adaptive
    )
    queued = [0, 3, 1, 7]
    for partition, batches in enumerate(queued):
        for _ in range(batches):
            rig.send(b"v", partition)
    drawn: Counter[int] = Counter()
    for _ in range(4_000):
        future = rig.send(b"v", None)
        partition = future.batch.partition
        drawn[partition] += 1
        rig.accumulator.give_up(future.batch, InvalidPartitionsError("the queues are to stay as they are"))
    weights = [8 - batches for batches in queued] if adaptive == "true" else [1] * 4
    for partition, weight in enumerate(weights):
        expected = 4_000 * weight / sum(weights)
        assert abs(drawn[partition] - expected) < 5 * expected**0.5, (drawn, weights)


def drawn(rig: Rig) -> set[int]:
    """The partitions of 200 records without keys."""
    used = []
    for _ in range(200):
        batch = rig.send(b"v", None).batch
        rig.accumulator.give_up(batch, InvalidPartitionsError("the queues are to stay empty"))
        used.append(batch.partition)
    return set(used[1:])  # the first was drawn before


# Kafka: BuiltInPartitionerTest.unavailablePartitionsTest
def test_partition_with_an_available_leader_is_preferred() -> None:
    rig = Rig(leaders=(1, -1, 2, 1), slabs=64, batch_size=0)
    rig.accumulator.slow_nodes.add(2)
    assert drawn(rig) == {0, 3}
    rig.accumulator.slow_nodes.add(1)
    assert drawn(rig) == {0, 2, 3}  # all nodes are slow: any partition with a leader
    rig.accumulator.slow_nodes.clear()
    assert drawn(rig) == {0, 2, 3}
    for queue in rig.topic.queues:
        queue.follow(-1)
    assert drawn(rig) == {0, 1, 2, 3}


@pytest.mark.parametrize("adaptive", [True, False])
def test_partition_whose_leader_is_in_the_clients_rack_is_preferred(adaptive: bool) -> None:
    rig = Rig(
        leaders=(1, -1, 2, 3, 3), slabs=64, batch_size=0, partitioner_adaptive_partitioning_enable=adaptive,
        client_rack="b", partitioner_rack_aware=True,
    )  # fmt: skip
    assert drawn(rig) == {0, 2, 3, 4}  # no broker has a rack
    racks(rig, {1: "a", 2: "a", 3: "b"})
    assert drawn(rig) == {3, 4}
    racks(rig, {1: "b", 2: None, 3: "a"})
    assert drawn(rig) == {0}
    racks(rig, {1: "a", 2: "a", 3: "a"})
    assert drawn(rig) == {0, 2, 3, 4}


def racks(rig: Rig, by_node: dict[int, str | None]) -> None:
    """The Sender hears of the brokers' racks."""
    brokers = {node_id: Node(node_id, "localhost", 1, rack) for node_id, rack in by_node.items()}
    rig.sender.upkeep._note_racks(Cluster(brokers=brokers))


def test_slow_brokers_in_the_clients_rack_are_avoided() -> None:
    rig = Rig(leaders=(1, 2, 3), slabs=64, batch_size=0, client_rack="b", partitioner_rack_aware=True)
    racks(rig, {1: "a", 2: "b", 3: "b"})
    rig.accumulator.slow_nodes.add(2)
    assert drawn(rig) == {2}
    rig.accumulator.slow_nodes.add(3)
    assert drawn(rig) == {0}
    rig.accumulator.slow_nodes.add(1)
    assert drawn(rig) == {1, 2}


def test_first_record_without_key_goes_to_the_clients_rack_too() -> None:
    rig = Rig(leaders=(-1, -1, -1, -1), slabs=64, client_rack="b", partitioner_rack_aware=True)
    racks(rig, {1: "a", 2: "b"})
    rig.accumulator.topic_queues(TOPIC, [1, 1, 1, 2])
    assert rig.send(b"v", None).batch.partition == 3


def test_rack_of_the_client_has_no_effect_unless_the_partitioner_is_aware_of_it() -> None:
    rig = Rig(leaders=(1, 2), slabs=64, batch_size=0, client_rack="b")
    racks(rig, {1: "a", 2: "b"})
    assert drawn(rig) == {0, 1}


def test_slow_node_is_not_avoided_without_adaptive_partitioning() -> None:
    rig = Rig(leaders=(1, 2), slabs=64, partitioner_adaptive_partitioning_enable=False)
    rig.accumulator.slow_nodes.add(2)
    values = [b"x" * (SLAB - 200)] * 40
    assert {rig.send(value, None).batch.partition for value in values[1:]} == {0, 1}


# Kafka: SenderTest.testNodeLatencyStats, testDrainWithANodeThatDoesntHostAnyPartitions
def test_node_that_takes_nothing_is_avoided_until_it_takes_batches_again() -> None:
    rig = Rig(leaders=(1, 2), slabs=64, linger_ms=0, partitioner_availability_timeout_ms=500)
    rig.client.unready.add(2)
    rig.send(b"v", 1)
    rig.turn()
    assert not rig.accumulator.slow_nodes
    rig.clock.advance(0.4)
    rig.turn()
    assert not rig.accumulator.slow_nodes
    rig.clock.advance(0.2)
    rig.turn()
    assert rig.accumulator.slow_nodes == {2}
    used = [rig.send(b"x" * (SLAB - 200), None).batch.partition for _ in range(12)]
    assert set(used[1:]) == {0}
    rig.client.unready.clear()
    rig.ack_all()
    assert not rig.accumulator.slow_nodes
    used = [rig.send(b"x" * (SLAB - 200), None).batch.partition for _ in range(24)]
    assert set(used) == {0, 1}


def test_node_without_batches_to_take_does_not_count_as_slow() -> None:
    rig = Rig(leaders=(1, 2), linger_ms=0, partitioner_availability_timeout_ms=500, retry_backoff_ms=0)
    rig.client.unready.add(2)
    future = rig.send(b"v", 1)
    rig.turn()
    rig.clock.advance(1)
    rig.turn()
    assert rig.accumulator.slow_nodes == {2}
    rig.accumulator.give_up(future.batch, InvalidPartitionsError("gone"))
    rig.turn()
    assert not rig.accumulator.slow_nodes
    rig.clock.advance(10)
    rig.send(b"v", 1)
    rig.turn()
    assert not rig.accumulator.slow_nodes


def test_node_is_not_avoided_without_an_availability_timeout() -> None:
    rig = Rig(leaders=(1, 2), linger_ms=0)
    rig.client.unready.add(2)
    rig.send(b"v", 1)
    for _ in range(5):
        rig.turn()
        rig.clock.advance(5)
    assert not rig.accumulator.slow_nodes
    assert not rig.accumulator.waits_since


# ---- the rules of librdkafka for keys --------------------------------------------------------------------------------

KEYS = [b"", b"k", b"key", b"\xff" * 3, bytes(range(40)), *(f"user-{n}".encode() for n in range(300))]


@pytest.mark.parametrize("rule", ["consistent", "murmur2", "fnv1a"])
@pytest.mark.parametrize("partitions", [1, 3, 12, 1000])
def test_rules_for_keys_choose_the_partitions_that_librdkafka_chooses(rule: str, partitions: int) -> None:
    peers = getattr(confluent_kafka, rule)
    assert [partition_for_key(key, partitions, rule) for key in KEYS] == [peers(key, partitions) for key in KEYS]
    random_rule = [partition_for_key(key, partitions, f"{rule}_random") for key in KEYS]
    empty_is_free = rule == "consistent"
    assert random_rule == [-1 if not key and empty_is_free else peers(key, partitions) for key in KEYS]


@pytest.mark.parametrize(
    ("rule", "null", "empty"),
    [
        ("murmur2_random", -1, 2),
        ("murmur2", 2, 2),
        ("consistent", 0, 0),
        ("consistent_random", -1, -1),
        ("fnv1a", 2, 2),
        ("fnv1a_random", -1, 2),
    ],
)
def test_a_record_without_key_goes_where_the_rule_says(rule: str, null: int, empty: int) -> None:
    assert [select_partition(rule, key, 7) for key in (None, b"")] == [null, empty]
    rig = Rig(leaders=[1] * 7, slabs=128, partitioner_class=rule)
    values: list[Any] = [b"x" * (SLAB - 200)] * 24
    for key, expected in ((None, null), (b"", empty)):
        sent = [rig.send(value, None, key=key).batch.partition for value in values]
        reports = [
            rig.producer.send_many(TOPIC, values, None if key is None else [key] * 24),
            rig.producer.send_arrow(
                pa.record_batch({"value": values, "key": pa.array([key] * 24, pa.binary())}), TOPIC
            ),
            rig.producer.send_arrow(
                pa.record_batch({"value": values} | ({} if key is None else {"key": [key] * 24})), TOPIC
            ),
        ]
        rig.ack_all()
        for partitions in (sent, *(report.result(0).partition.tolist() for report in reports)):
            assert set(partitions) == {expected} if expected >= 0 else len(set(partitions)) > 1
    assert_whole(rig.pool)


@pytest.mark.parametrize("rule", ["consistent_random", "fnv1a", "murmur2"])
def test_send_and_bulk_appends_follow_the_rule_for_keys(rule: str) -> None:
    rig = Rig(leaders=[1] * 5, slabs=64, partitioner_class=rule)
    keys = KEYS[1:20]
    expected = [partition_for_key(key, 5, rule) for key in keys]
    assert [rig.send(b"v", None, key=key).batch.partition for key in keys] == expected
    reports = [
        rig.producer.send_many(TOPIC, keys, keys),
        rig.producer.send_arrow(pa.record_batch({"value": keys, "key": keys}), TOPIC),
    ]
    rig.ack_all()
    assert [report.result(0).partition.tolist() for report in reports] == [expected] * 2
    ignoring = Rig(leaders=[1] * 5, partitioner_class=rule, partitioner_ignore_keys=True)
    assert len({ignoring.send(b"v", None, key=key).batch.partition for key in keys}) == 1  # the sticky partition
