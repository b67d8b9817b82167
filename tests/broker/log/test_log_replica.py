"""The log of a replica: following, truncation, leader epochs, the high watermark; and retention by time."""

from __future__ import annotations

import pytest

from kafkabuf.broker.embedded import EmbeddedCluster
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.records._batch import check_batch
from kafkabuf.broker.records.config import Limits, LogConfig
from kafkabuf.clock import ManualClock
from kafkabuf.errors import (
    CorruptMessageError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceNumberError,
)
from tests.broker.log.support import append, end, put, put_in_transaction, stored
from tests.broker.raw_client import NOW, RawClient, batch

ALL = 2**63 - 1


def follow(log: PartitionLog, leader: PartitionLog) -> None:
    for data in leader.read(log.end_offset, ALL, True):
        log.append_as_follower(data)


def test_follower_shares_the_batches_it_fetched() -> None:
    leader, follower = PartitionLog(), PartitionLog()
    put(leader, b"a", b"b", epoch=2)
    put(leader, b"c", epoch=5)
    follow(follower, leader)
    assert [one.base_offset for one in follower.batches()] == [0, 2]
    assert all(one.data is two.data for one, two in zip(leader.batches(), follower.batches(), strict=True))
    assert (follower.end_offset, follower.leader_epochs.entries) == (3, [(2, 0), (5, 2)])


def test_follower_splits_a_buffer_into_its_batches() -> None:
    leader, follower = PartitionLog(), PartitionLog()
    for value in (b"a", b"b", b"c"):
        put(leader, value, producer=(7, 0, ord(value) - ord("a")))
    follower.append_as_follower(b"".join(bytes(one) for one in leader.read(0, ALL, True)))
    assert [one.base_offset for one in follower.batches()] == [0, 1, 2]
    assert stored(follower) == stored(leader)
    with pytest.raises(OutOfOrderSequenceNumberError, match="3 is next"):
        put(follower, b"x", producer=(7, 0, 4))


@pytest.mark.parametrize(
    ("first", "data"),
    [(1, batch([b"x"])), (0, batch([b"x"])[:-1]), (0, b"\0" * 40)],
)
def test_follower_refuses_a_batch_that_does_not_follow_its_log(first: int, data: bytes) -> None:
    log = PartitionLog()
    for _ in range(first):
        put(log, b"x")
    with pytest.raises((OffsetOutOfRangeError, CorruptMessageError)):
        log.append_as_follower(data)
    assert (log.end_offset, len(log.batches())) == (first, first)


def test_truncation_drops_every_batch_that_reaches_the_offset() -> None:
    log = PartitionLog()
    for values in ([b"a"], [b"b", b"c"], [b"d"]):
        put(log, *values)
    size = [len(one.data) for one in log.batches()]
    log.truncate_to(4)
    assert log.end_offset == 4
    log.truncate_to(3)
    assert (log.end_offset, log.size) == (3, size[0] + size[1])
    # The offset lies within a batch: the whole batch goes, and leaves no gap.
    log.truncate_to(2)
    assert (log.end_offset, log.size) == (1, size[0])
    assert put(log, b"e") == 1
    log.truncate_to(0)
    assert (log.end_offset, log.size, log.read(0, ALL, True)) == (0, 0, [])


def test_truncation_forgets_exactly_the_dropped_batches_of_a_producer() -> None:
    log = PartitionLog()
    for sequence in range(4):
        put(log, b"x", producer=(7, 0, sequence))
    log.truncate_to(2)
    info = [check_batch(memoryview(batch([b"x"], producer=(7, 0, one))), 9, Limits()) for one in range(4)]
    found = [log.producers.duplicate(one) for one in info]
    assert [one and one.base_offset for one in found] == [0, 1, None, None]
    with pytest.raises(OutOfOrderSequenceNumberError, match="2 is next"):
        put(log, b"x", producer=(7, 0, 3))
    put(log, b"x", producer=(7, 0, 2))


def test_truncating_a_control_record_reopens_its_transaction() -> None:
    log = PartitionLog()
    put(log, b"plain")
    put_in_transaction(log, (7, 0, 0), b"a")
    end(log, (7, 0, 0), False)
    assert (log.last_stable_offset, len(log.aborted(0, ALL))) == (3, 1)
    log.truncate_to(2)
    assert (log.last_stable_offset, log.aborted(0, ALL)) == (1, [])
    log.truncate_to(1)
    assert (log.last_stable_offset, log.end_offset) == (1, 1)


def test_truncation_before_the_log_start_empties_the_log() -> None:
    log = PartitionLog(LogConfig(retention_bytes=1))
    for _ in range(5):
        put(log, b"x", epoch=1)
    assert log.log_start_offset == 4
    log.truncate_to(2)
    assert (log.log_start_offset, log.end_offset, log.size) == (2, 2, 0)
    assert log.leader_epochs.entries == []
    assert put(log, b"y", epoch=3) == 2


def test_last_stable_offset_stays_at_the_high_watermark() -> None:
    log = PartitionLog()
    put(log, b"a")
    assert log.high_watermark == 1
    log.high_watermark = 1
    put(log, b"b")
    assert (log.high_watermark, log.last_stable_offset) == (1, 1)
    log.high_watermark = 2
    assert log.last_stable_offset == 2
    log.truncate_to(1)
    assert log.high_watermark == 1


def test_transaction_is_stable_once_its_control_record_is_replicated() -> None:
    log = PartitionLog()
    log.high_watermark = 0
    put(log, b"plain")
    put_in_transaction(log, (7, 0, 0), b"a", b"b")
    put_in_transaction(log, (8, 0, 0), b"c")
    end(log, (7, 0, 0), True)
    stable = []
    for offset in range(6):
        log.high_watermark = offset
        stable.append(log.last_stable_offset)
    assert stable == [0, 1, 1, 1, 1, 3]
    end(log, (8, 0, 0), False)
    stable = []
    for offset in (5, 6):
        log.high_watermark = offset
        stable.append(log.last_stable_offset)
    assert stable == [3, 6]


def test_epoch_ends_where_the_next_begins() -> None:
    log = PartitionLog()
    for epoch in (1, 1, 4, 4, 6):
        put(log, b"x", epoch=epoch)
    ends = {epoch: log.leader_epochs.end_offset_for(epoch) for epoch in range(-1, 8)}
    assert ends == {
        -1: (-1, -1),
        0: (0, 0),
        1: (1, 2),
        2: (1, 2),
        3: (1, 2),
        4: (4, 4),
        5: (4, 4),
        6: (6, 5),
        7: (-1, -1),
    }
    log.truncate_to(3)
    assert log.leader_epochs.entries == [(1, 0), (4, 2)]
    log.delete_before(1)
    assert log.leader_epochs.entries == [(1, 1), (4, 2)]
    assert [log.leader_epochs.at(offset) for offset in (0, 1, 2)] == [-1, 1, 4]
    # An epoch without records is dropped once the next epoch begins.
    log.leader_epochs.assign(7, 3)
    log.leader_epochs.assign(8, 3)
    log.leader_epochs.assign(8, 4)
    assert log.leader_epochs.entries == [(1, 1), (4, 2), (8, 3)]


def test_retention_by_time_keeps_young_and_unreplicated_batches() -> None:
    clock = ManualClock(wall_ms=NOW)
    log = PartitionLog(LogConfig(retention_ms=1000), clock=clock)
    for age in (900, 500, 800, 0):
        put(log, b"x", time=NOW - age)
    clock.advance(0.1)
    log.retain()
    assert log.log_start_offset == 0
    clock.advance(0.001)
    log.retain()
    assert (log.log_start_offset, len(log.batches())) == (1, 3)
    # An old batch behind a younger batch stays.
    clock.advance(0.3)
    log.retain()
    assert log.log_start_offset == 1
    log.high_watermark = 3
    clock.advance(10)
    log.retain()
    assert log.log_start_offset == 3
    log.high_watermark = 4
    log.retain()
    assert (log.log_start_offset, log.end_offset, log.size) == (4, 4, 0)
    assert put(log, b"y") == 4


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete"])
def test_only_a_cleanup_policy_with_delete_drops_records(policy: str) -> None:
    configs = {"cleanup.policy": policy, "retention.ms": "5", "retention.bytes": "7", "segment.bytes": "14"}
    assert LogConfig.of(configs) == LogConfig(7, 5, 14, delete="delete" in policy, compact="compact" in policy)
    log = PartitionLog(LogConfig.of(configs), clock=ManualClock(wall_ms=NOW + 60_000))
    for _ in range(3):
        append(log, batch([b"x"]))
    log.retain()
    assert log.log_start_offset == (3 if "delete" in policy else 0)


@pytest.mark.parametrize(
    "config", ["retention.ms=-2", "retention.bytes=x", "segment.bytes=13", "flush.messages=0", "cleanup.policy=keep"]
)
def test_senseless_config_is_refused(config: str) -> None:
    name, _, value = config.partition("=")
    with pytest.raises(InvalidConfigError, match=name):
        LogConfig.of({name: value})


def test_cluster_applies_retention_by_its_clock() -> None:
    clock = ManualClock(wall_ms=NOW)
    with EmbeddedCluster(clock=clock) as cluster:
        cluster.create_topic("timed", configs={"retention.ms": "5000"})
        cluster.create_topic("kept")
        with RawClient(cluster.bootstrap_servers) as client:
            for topic in ("timed", "kept"):
                assert client.produce(topic, batch([b"x"])).error_code == 0
        for seconds, start in ((4.5, 0), (2, 1)):
            clock.advance(seconds)
            cluster.tick()
            assert cluster.log_start_offset("timed", 0) == start
        assert cluster.log_start_offset("kept", 0) == 0
