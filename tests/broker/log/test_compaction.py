"""Compaction and retention as a test of a user sees them: by the cluster's clock, and on demand."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.clock import ManualClock
from kafkabuf.errors import ConfigError, PolicyViolationError
from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient, batch
from tests.real.consumers import read_with_kafka_python
from tests.waiting import wait_until

COMPACT = {"cleanup.policy": "compact"}


class World:
    """A cluster on a manual clock, and a topic "t" with the given configs."""

    def __init__(self, nodes: int = 1, data_dir: Path | None = None, **configs: str) -> None:
        self.clock = ManualClock(wall_ms=time.time_ns() // 1_000_000)
        self.cluster = EmbeddedCluster(nodes, clock=self.clock, data_dir=data_dir).start()
        if "t" not in self.cluster.topics():
            self.cluster.create_topic("t", configs={**COMPACT, **{k.replace("_", "."): v for k, v in configs.items()}})

    def put(self, *items: tuple[str, str | None]) -> None:
        with KafkaProducer(bootstrap_servers=self.cluster.bootstrap_servers, acks="all") as producer:
            for key, value in items:
                producer.send("t", None if value is None else value.encode(), key.encode(), timestamp_ms=self.now)
                producer.flush()

    @property
    def now(self) -> int:
        return self.clock.time_ms()

    def pass_time(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1000)
        self.cluster.tick()

    def offsets(self) -> list[int]:
        return sorted(read_with_kafka_python(self.cluster, "t")[0])

    def table(self) -> dict[str, str | None]:
        records = read_with_kafka_python(self.cluster, "t")[0]
        return {
            (records[offset].key or b"").decode(): (records[offset].value or b"").decode() for offset in sorted(records)
        }


@pytest.fixture
def made() -> Iterator[Any]:
    worlds: list[World] = []

    def make(nodes: int = 1, data_dir: Path | None = None, **configs: str) -> World:
        worlds.append(World(nodes, data_dir, **configs))
        return worlds[-1]

    yield make
    for world in worlds:
        world.cluster.stop()


# ---- on demand


def test_compact_leaves_the_last_record_of_each_key(made: Any) -> None:
    world = made()
    world.put(("a", "1"), ("b", "1"), ("a", "2"), ("b", None), ("a", "3"))
    assert world.cluster.compact("t") == 3
    assert world.offsets() == [3, 4]
    assert world.table() == {"a": "3", "b": ""}
    assert (world.cluster.log_start_offset("t", 0), world.cluster.end_offset("t", 0)) == (0, 5)
    world.put(("a", "4"))
    assert world.cluster.compact("t") == 1
    assert world.offsets() == [3, 5]


def test_compact_drops_a_tombstone_once_delete_retention_ms_has_passed(made: Any) -> None:
    world = made(delete_retention_ms="60000")
    world.put(("a", "1"), ("a", None), ("b", "1"))
    assert world.cluster.compact("t") == 1
    world.pass_time(59_999)
    assert world.cluster.compact("t") == 0
    world.pass_time(1)
    assert world.cluster.compact("t") == 1
    assert world.offsets() == [2]


def test_compact_of_another_topic_is_refused(made: Any) -> None:
    world = made()
    world.cluster.create_topic("plain")
    with pytest.raises(ConfigError, match=r"cleanup\.policy=delete"):
        world.cluster.compact("plain")


def test_compact_takes_one_partition(made: Any) -> None:
    world = made()
    world.cluster.create_topic("p", 2, configs=COMPACT)
    with RawClient(world.cluster.bootstrap_servers) as client:
        for partition, _ in itertools.product(range(2), range(3)):
            client.produce("p", batch([b"x"], keys=[b"k"], timestamps=[world.now]), partition=partition)
    assert world.cluster.compact("p", 1) == 2
    assert [len(world.cluster.records("p", partition)) for partition in range(2)] == [3, 1]


def test_consumer_goes_on_over_a_gap() -> None:
    now = time.time_ns() // 1_000_000
    with EmbeddedCluster() as cluster:
        cluster.create_topic("t", configs=COMPACT)
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "fetch.wait.max.ms": 20})
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            for _ in range(10):
                producer.send("t", b"x", b"a", timestamp_ms=now).result(10)
            consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
            assert [message.offset() for message in consumer.consume(3, 10)] == [0, 1, 2]
            cluster.compact("t")
            producer.send("t", b"x", b"b", timestamp_ms=now + 1).result(10)
        consumer.seek(TopicPartition("t", 0, 3))
        assert [message.offset() for message in consumer.consume(2, 10)] == [9, 10]
        (found,) = consumer.offsets_for_times([TopicPartition("t", 0, now)], 10)
        assert found.offset == 9
        consumer.close()


# ---- by the clock


def test_nothing_is_compacted_before_its_time(made: Any) -> None:
    world = made()
    world.put(("a", "1"), ("a", "2"))
    world.pass_time(3_600_000)
    assert world.offsets() == [0, 1]


def test_dirty_segments_are_compacted_by_the_clock(made: Any) -> None:
    world = made(segment_ms="1000")
    world.put(("a", "1"), ("a", "2"))
    world.pass_time(999)
    world.pass_time(13_999)
    assert world.offsets() == [0, 1], "log.cleaner.backoff.ms is 15 s"
    world.pass_time(2)
    assert world.offsets() == [1]


def test_small_dirty_part_waits_for_min_cleanable_dirty_ratio(made: Any) -> None:
    world = made(segment_ms="1", min_cleanable_dirty_ratio="0.5")
    world.put(*[(str(number), "x" * 20) for number in range(8)])
    world.pass_time(15_000)
    world.put(("0", "new"), ("0", "newer"))
    world.pass_time(15_000)
    assert len(world.offsets()) == 10
    world.put(*[("0", "x" * 20) for _ in range(8)])
    world.pass_time(15_000)
    assert world.offsets() == [*range(1, 8), 17]


def test_old_dirty_part_does_not_wait_beyond_max_compaction_lag(made: Any) -> None:
    world = made(max_compaction_lag_ms="60000", min_cleanable_dirty_ratio="1")
    world.put(("a", "1"), ("a", "2"))
    world.pass_time(45_000)
    assert world.offsets() == [0, 1]
    world.pass_time(30_000)
    assert world.offsets() == [1]


def test_young_records_wait_for_min_compaction_lag(made: Any) -> None:
    world = made(min_compaction_lag_ms="60000", segment_ms="1")
    world.put(("a", "1"), ("a", "2"))
    world.pass_time(45_000)
    assert world.cluster.compact("t") == 0
    world.pass_time(30_000)
    assert world.offsets() == [1]


def test_topic_is_compacted_from_the_time_when_its_policy_says_so(made: Any) -> None:
    world = made(cleanup_policy="delete", segment_ms="1000")
    world.put(("a", "1"), ("a", "2"))
    world.pass_time(30_000)
    cluster = world.cluster
    cluster._call(lambda c: c.catalogue.configure_topic(c.catalogue.topic("t"), {**COMPACT, "segment.ms": "1000"}))
    world.pass_time(15_000)
    world.pass_time(15_000)
    assert world.offsets() == [1]


# ---- replicas, restarts


def test_every_copy_is_compacted(made: Any) -> None:
    world = made(3)
    world.put(*[("a", str(number)) for number in range(5)])
    assert world.cluster.compact("t") == 4
    replicas = world.cluster._call(
        lambda c: [
            [bytes(kept.data) for kept in replica.log.batches()]
            for replica in c.catalogue.topic("t").partition(0).replicas.values()
        ]
    )
    assert replicas[0] == replicas[1] == replicas[2]
    leader, _ = world.cluster.leader("t", 0)
    world.cluster.kill_node(leader)
    assert world.cluster.leader("t", 0)[0] != leader
    assert world.cluster.records("t", 0) == replicas[0]


def test_node_that_was_away_takes_over_a_compacted_log(made: Any) -> None:
    world = made(3)
    world.put(("a", "1"))
    away = next(node for node in (1, 2, 3) if node != world.cluster.leader("t", 0)[0])
    world.cluster.kill_node(away)
    world.put(*[("a", str(number)) for number in range(5)], ("b", "1"))
    world.cluster.compact("t")
    world.cluster.start_node(away)
    wait_until(lambda: away in world.cluster.in_sync("t", 0))
    world.cluster.move_leader("t", 0, away)
    wait_until(lambda: world.cluster.high_watermark("t", 0) == 7)
    assert world.offsets()[-2:] == [5, 6]
    assert world.table() == {"a": "4", "b": "1"}


def test_restart_goes_on_with_a_compacted_log(made: Any, tmp_path: Path) -> None:
    world = made(data_dir=tmp_path, segment_ms="1000")
    world.put(("a", "1"), ("b", "1"), ("a", "2"))
    world.cluster.compact("t")
    world.cluster.stop()
    text = (tmp_path / "node-1" / "cleaner-offset-checkpoint").read_text()
    assert text == "0\n1\nt 0 3\n"
    again = made(data_dir=tmp_path)
    assert again.offsets() == [1, 2]
    again.put(("b", "2"))
    assert again.cluster.compact("t") == 1
    assert again.offsets() == [2, 3]


def test_retention_drops_old_records_of_a_topic_that_is_compacted_too(made: Any) -> None:
    world = made(cleanup_policy="compact,delete", retention_ms="60000")
    world.put(("a", "1"), ("b", "1"), ("a", "2"))
    world.cluster.compact("t")
    assert world.offsets() == [1, 2]
    world.pass_time(60_001)
    assert world.offsets() == []
    assert world.cluster.log_start_offset("t", 0) == 3


# ---- retention


@pytest.mark.parametrize("on_disk", [False, True])
def test_expired_records_are_gone_when_tick_returns(made: Any, tmp_path: Path, on_disk: bool) -> None:
    world = made(data_dir=tmp_path if on_disk else None, cleanup_policy="delete", retention_ms="100")
    world.put(("a", "1"))
    world.pass_time(100)
    assert world.offsets() == [0]
    world.pass_time(1)
    assert world.offsets() == []
    assert world.cluster.log_start_offset("t", 0) == 1


def test_retention_bytes_holds_when_produce_returns(made: Any) -> None:
    world = made(cleanup_policy="delete", retention_bytes="200")
    world.put(*[("a", "x" * 50) for _ in range(5)])
    assert world.offsets() == [3, 4]


def test_records_of_a_compacted_topic_cannot_be_deleted(made: Any) -> None:
    world = made()
    world.put(("a", "1"))
    asked = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}]
    with RawClient(world.cluster.bootstrap_servers) as client:
        answer = client.ask(messages.DELETE_RECORDS, 2, topics=asked, timeout_ms=1000)
    assert answer.topics[0].partitions[0].error_code == PolicyViolationError.code
    assert world.offsets() == [0]


def test_messages_of_a_compacted_topic_are_those_that_are_left(made: Any) -> None:
    world = made()
    world.put(("a", "1"), ("b", "1"), ("a", "2"), ("b", None))
    world.cluster.compact("t")
    assert [(message.offset, message.key, message.value) for message in world.cluster.messages("t")] == [
        (2, b"a", b"2"),
        (3, b"b", None),
    ]
