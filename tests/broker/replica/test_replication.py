"""Replication without sockets on a manual clock: acknowledgements, the high watermark, the ISR, consumers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kafkabuf.broker.records.control import Marker
from kafkabuf.broker.replica import fetcher, reading
from kafkabuf.broker.replica.state import NO_LEADER
from kafkabuf.broker.waiting.slices import finish
from kafkabuf.errors import (
    FencedLeaderEpochError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from tests.broker.replica.replication_support import (
    NEVER,
    TOPIC,
    Rig,
    fetched,
    heal,
    isolate,
    kill,
    lag,
    result,
    start,
    write_transaction,
)

pytest_plugins = ["tests.broker.replica.replication_fixtures"]


@pytest.fixture
def strict() -> Iterator[Rig]:
    """With at least two replicas in sync."""
    one = Rig(configs={"min.insync.replicas": "2"})
    yield one
    one.close()


# ---- replicas


def test_followers_share_the_leaders_bytes(rig: Rig) -> None:
    for n in range(20):
        assert result(rig.produce(1, b"%d" % n)).base_offset == n
    assert rig.ends() == [20, 20, 20]
    stored = [rig.replica(node_id).log.batches() for node_id in (1, 2, 3)]
    for one, two, three in zip(*stored, strict=True):
        assert one.data is two.data is three.data
        assert one.base_offset == two.base_offset == three.base_offset


def test_followers_learn_the_high_watermark_of_an_idle_leader(rig: Rig) -> None:
    rig.produce(1)
    rig.advance(0.5)
    assert rig.high_watermarks() == [1, 1, 1]


def test_idle_cluster_fetches_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.produce(1)
    rig.advance(2)
    reads: list[Any] = []
    read = reading.read_in_steps

    def count(*values: Any) -> Any:
        reads.append(values)
        return read(*values)

    monkeypatch.setattr(reading, "read_in_steps", count)
    rig.advance(600)
    assert reads == []
    assert rig.isr == [1, 2, 3]
    rig.produce(1)
    assert len(reads) == 2


def test_partition_with_one_copy_parks_nothing(rig: Rig) -> None:
    rig.run(lambda: rig.cluster.catalogue.create_topic("alone", 1, 1, {"min.insync.replicas": "2"}))
    one = Rig(1)
    assert result(one.produce(1)).base_offset == 0
    assert one.node(1).produces.delayed == one.node(1).produces.watched == 0
    assert one.replica(1).log.high_watermark == 1
    one.close()


# ---- acks=all


def test_record_is_acknowledged_once_all_copies_in_sync_have_it(rig: Rig) -> None:
    lag(rig, 5, 3)
    parked, loose = rig.produce(1, timeout=60), rig.produce(1, acks=1)
    assert (loose.done, result(loose).base_offset) == (True, 1)
    assert rig.ends() == [2, 2, 0]
    rig.advance(4)
    assert not parked.done
    rig.advance(7)
    assert (parked.done, result(parked).error_code, rig.ends()) == (True, 0, [2, 2, 2])


def test_missing_acknowledgement_times_out_on_time(rig: Rig) -> None:
    lag(rig, NEVER, 2)
    parked = rig.produce(1, timeout=3)
    rig.advance(2.5)
    assert not parked.done
    rig.advance(0.5)
    assert (result(parked).error_code, result(parked).base_offset) == (RequestTimedOutError.code, 0)


def test_write_with_too_few_copies_in_sync_is_refused(strict: Rig) -> None:
    kill(strict, 3)
    assert result(strict.produce(1)).error_code == 0
    kill(strict, 2)
    assert strict.isr == [1]
    refused = result(strict.produce(1))
    assert (refused.error_code, refused.base_offset) == (NotEnoughReplicasError.code, -1)
    assert strict.replica(1).log.end_offset == 1
    assert result(strict.produce(1, acks=1)).base_offset == 1
    # As in Kafka since 3.7, consumers do not see records that too few replicas have.
    assert strict.replica(1).log.high_watermark == 1
    start(strict, 2)
    assert strict.isr == [1, 2]
    assert strict.replica(1).log.high_watermark == 2


def test_copies_lost_after_the_append_are_reported(strict: Rig) -> None:
    lag(strict, NEVER, 2, 3)
    parked = strict.produce(1, timeout=100)
    kill(strict, 3)
    assert not parked.done
    kill(strict, 2)
    assert result(parked).error_code == NotEnoughReplicasAfterAppendError.code


def test_topic_overrides_the_min_insync_replicas_of_the_cluster() -> None:
    strict = Rig(min_insync_replicas=3)
    kill(strict, 3)
    assert result(strict.produce(1)).error_code == NotEnoughReplicasError.code
    strict.cluster.catalogue.topic(TOPIC).configs["min.insync.replicas"] = "2"
    assert result(strict.produce(1)).error_code == 0
    strict.close()


def test_changed_settings_end_a_waiting_fetch_and_elect_a_leader(strict: Rig) -> None:
    topic, partition = strict.cluster.catalogue.topic(TOPIC), strict.cluster.catalogue.topic(TOPIC).partition(0)
    kill(strict, 2)
    kill(strict, 3)
    polling = strict.fetch(1, 0, wait=100)
    strict.produce(1, acks=1)
    assert not polling.done
    strict.run(lambda: strict.cluster.catalogue.configure_topic(topic, {"min.insync.replicas": "1"}))
    assert fetched(polling).nbytes > 0
    kill(strict, 1)
    start(strict, 2)
    assert partition.leader == NO_LEADER
    strict.run(lambda: strict.cluster.catalogue.configure_topic(topic, {"unclean.leader.election.enable": "true"}))
    assert partition.leader == 2


def test_new_leader_ends_the_parked_requests_of_the_old_leader(rig: Rig) -> None:
    lag(rig, NEVER, 2, 3)
    parked = rig.produce(1, timeout=100)
    rig.run(lambda: rig.cluster.controller.move(rig.cluster.catalogue.topic(TOPIC).partition(0), 2))
    assert rig.leader == 2
    assert result(parked).error_code == NotLeaderOrFollowerError.code


def test_deleted_topic_ends_its_parked_requests(rig: Rig) -> None:
    lag(rig, NEVER, 2)
    parked, polling = rig.produce(1, timeout=100), rig.fetch(1, 0, wait=100)
    rig.run(lambda: rig.cluster.catalogue.delete_topic(TOPIC))
    assert result(parked).error_code == UnknownTopicOrPartitionError.code
    assert fetched(polling).error_code == UnknownTopicOrPartitionError.code


def test_repeated_batch_is_acknowledged_with_the_first(rig: Rig) -> None:
    lag(rig, 5, 2)
    first, again = (rig.produce(1, producer=(7, 0, 0), timeout=60) for _ in range(2))
    assert rig.replica(1).log.end_offset == 1
    assert not first.done
    assert not again.done
    rig.advance(11)
    assert (result(first).base_offset, result(again).base_offset, result(again).error_code) == (0, 0, 0)


def test_partitions_wait_for_their_followers_separately() -> None:
    rig = Rig(partitions=2)
    isolate(rig, 3)
    assert not rig.produce(1, partition=1, timeout=60).done
    assert not rig.produce(1, partition=0, timeout=60).done
    heal(rig, 3)
    assert rig.node(1).produces.delayed == 0
    rig.close()


# ---- the ISR


def test_slow_follower_leaves_the_isr_and_returns(rig: Rig) -> None:
    lag(rig, NEVER, 3)
    parked = rig.produce(1, timeout=100)
    rig.advance(30)
    assert (rig.isr, parked.done) == ([1, 2, 3], False)
    rig.advance(15)
    assert (rig.isr, result(parked).error_code, rig.high_watermarks()[0]) == ([1, 2], 0, 1)
    lag(rig, 0, 3)
    assert (rig.isr, rig.ends()) == ([1, 2, 3], [1, 1, 1])


def test_follower_that_keeps_up_with_a_lag_stays_in_sync(rig: Rig) -> None:
    lag(rig, 10, 3)
    for _ in range(100):
        rig.produce(1, acks=1)
        rig.advance(1)
    assert rig.isr == [1, 2, 3]
    assert 80 <= rig.ends()[2] < 100


def test_follower_that_falls_behind_little_by_little_leaves_the_isr() -> None:
    rig = Rig(replica_lag_time_max_ms=2_000)
    lag(rig, 10, 3)
    for _ in range(8):
        rig.produce(1, acks=1)
        rig.advance(1)
    assert rig.isr == [1, 2]
    rig.close()


def test_isolated_leader_never_shrinks_the_isr() -> None:
    rig = Rig(replica_lag_time_max_ms=2_000)
    isolate(rig, 1)
    parked = rig.produce(1, timeout=200)
    rig.advance(8)
    assert (rig.leader, rig.isr, parked.done) == (1, [1, 2, 3], False)
    rig.advance(92)
    assert rig.replica(1).known.isr == (1, 2, 3)
    assert (rig.leader, parked.done) == (2, False)
    heal(rig, 1)
    assert result(parked).error_code == NotLeaderOrFollowerError.code
    rig.close()


def test_follower_catches_up_with_a_busy_leader(rig: Rig) -> None:
    kill(rig, 2)
    kill(rig, 3)
    rig.produce(1)
    start(rig, 2)
    assert rig.isr == [1, 2]
    lag(rig, 0.5, 2)
    kill(rig, 2)
    rig.produce(1)
    start(rig, 2)
    for _ in range(20):
        rig.produce(1, acks=1)
        rig.advance(0.1)
    assert rig.isr == [1, 2]


def test_copy_is_in_sync_only_with_the_records_before_the_epoch(rig: Rig) -> None:
    """The new leader's records may be acknowledged, even above its high watermark."""
    rig.produce(1)
    lag(rig, NEVER, 3)
    for _ in range(3):
        rig.produce(1, acks=1)
    rig.advance(45)
    kill(rig, 1)
    assert (rig.leader, rig.isr) == (2, [2])
    leader = rig.replica(2)
    assert leader.epoch_start == 4
    leader.log.high_watermark = 1
    rig.run(lambda: leader.fetched_by(3, 3))
    assert rig.isr == [2]
    rig.run(lambda: leader.fetched_by(3, 4))
    assert rig.isr == [2, 3]


def test_high_watermark_of_a_follower_never_passes_its_log(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    kill(rig, 3)
    for _ in range(5):
        rig.produce(1)
    monkeypatch.setattr(fetcher, "_PARTITION_BYTES", 1)
    seen: list[tuple[int, int]] = []
    log = rig.replica(3).log
    rig.node(3).start()
    while log.end_offset < 5:
        rig.loop.turn()
        seen.append((log.high_watermark, log.end_offset))
    assert len(seen) > 5
    assert all(high_watermark <= end for high_watermark, end in seen)


# ---- consumers


def test_consumer_sees_only_records_that_all_copies_in_sync_have(rig: Rig) -> None:
    lag(rig, 5, 2)
    rig.produce(1, acks=1)
    one = fetched(rig.fetch(1, 0))
    assert (one.error_code, one.high_watermark, one.nbytes) == (0, 0, 0)
    polling = rig.fetch(1, 0, wait=100)
    assert not polling.done
    rig.advance(11)
    assert (fetched(polling).high_watermark, len(fetched(polling).records)) == (1, 1)


def test_consumer_ahead_of_a_new_leaders_high_watermark_waits(rig: Rig) -> None:
    rig.produce(1)
    assert rig.high_watermarks() == [1, 0, 0]
    isolate(rig, 3)
    kill(rig, 1)
    assert (rig.leader, rig.high_watermarks()[1]) == (2, 0)
    polling = rig.fetch(2, 1, wait=100)
    assert not polling.done
    heal(rig, 3)
    assert rig.high_watermarks()[1] == 1
    rig.produce(2)
    assert (fetched(polling).error_code, len(fetched(polling).records)) == (0, 1)


def test_new_epoch_ends_a_parked_fetch(rig: Rig) -> None:
    there, elsewhere = rig.fetch(1, 0, wait=100, epoch=0), rig.fetch(1, 0, wait=100)
    kill(rig, 2)
    assert not there.done
    start(rig, 2)
    rig.run(lambda: rig.cluster.controller.move(rig.cluster.catalogue.topic(TOPIC).partition(0), 2))
    assert fetched(there).error_code == fetched(elsewhere).error_code == NotLeaderOrFollowerError.code
    polling = rig.fetch(2, 0, wait=100, epoch=1)
    partition = rig.cluster.catalogue.topic(TOPIC).partition(0)
    rig.run(lambda: rig.cluster.controller.lead(partition, 2, (2, 3)))
    assert fetched(polling).error_code == FencedLeaderEpochError.code


def test_parked_fetch_waits_for_min_bytes(rig: Rig) -> None:
    rig.produce(1, b"x")
    size = len(rig.log(1))
    polling = rig.fetch(1, 0, wait=100, min_bytes=2 * size)
    assert not polling.done
    rig.produce(1, b"y")
    assert fetched(polling).nbytes == 2 * size
    late = rig.fetch(1, 2, wait=3)
    rig.advance(3)
    assert (late.done, fetched(late).nbytes) == (True, 0)


def test_offset_beyond_the_log_is_out_of_range(rig: Rig) -> None:
    assert fetched(rig.fetch(1, 1, wait=100)).error_code == OffsetOutOfRangeError.code


def test_transaction_is_stable_once_all_copies_in_sync_have_its_control_record(rig: Rig) -> None:
    write_transaction(rig)
    lag(rig, 5, 2)
    polling = rig.fetch(1, 0, wait=100, committed=True)
    assert not polling.done
    rig.run(lambda: finish(rig.cluster.write_marker((TOPIC, 0), Marker(7, 0, 0, True))))
    assert not polling.done
    assert rig.replica(1).log.last_stable_offset == 0
    rig.advance(11)
    assert (fetched(polling).last_stable_offset, len(fetched(polling).records)) == (2, 2)
