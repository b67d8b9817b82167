"""Replication without sockets on a manual clock: what is acknowledged, what is seen, who is in sync, who leads, and
what is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from kafkabuf.broker import fetcher
from kafkabuf.broker.apis import delete_records
from kafkabuf.broker.apis import fetch as fetch_api
from kafkabuf.broker.control import Marker
from kafkabuf.broker.replication import NO_LEADER
from kafkabuf.errors import (
    FencedLeaderEpochError,
    KafkaStorageError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.protocol import messages
from kafkabuf.protocol.messages import RequestHeader
from tests.replication_support import TOPIC, Rig, fetched, result

NEVER = 10_000.0


@pytest.fixture
def rig() -> Iterator[Rig]:
    one = Rig()
    yield one
    one.close()


@pytest.fixture
def strict() -> Iterator[Rig]:
    """Two copies in sync at least."""
    one = Rig(configs={"min.insync.replicas": "2"})
    yield one
    one.close()


@pytest.fixture
def careless() -> Iterator[Rig]:
    """Anybody may lead."""
    one = Rig(configs={"unclean.leader.election.enable": "true"})
    yield one
    one.close()


def lag(rig: Rig, seconds: float, *nodes: int) -> None:
    for node_id in nodes:
        rig.run(partial(rig.node(node_id).lag_by, seconds))


def kill(rig: Rig, node_id: int) -> None:
    rig.run(rig.node(node_id).kill)


def start(rig: Rig, node_id: int) -> None:
    rig.run(rig.node(node_id).start)


def isolate(rig: Rig, node_id: int) -> None:
    rig.run(lambda: rig.node(node_id).isolate(False))


def heal(rig: Rig, node_id: int) -> None:
    rig.run(rig.node(node_id).heal)


# ---- copies


def test_follower_has_other_bytes_or_a_copy_of_them(rig: Rig) -> None:
    for n in range(20):
        assert result(rig.produce(1, b"%d" % n)).base_offset == n
    assert rig.ends() == [20, 20, 20]
    stored = [rig.replica(node_id).log.batches() for node_id in (1, 2, 3)]
    for one, two, three in zip(*stored, strict=True):
        assert one.data is two.data is three.data
        assert one.base_offset == two.base_offset == three.base_offset


def test_followers_never_learn_the_high_watermark_of_an_idle_leader(rig: Rig) -> None:
    rig.produce(1)
    rig.advance(0.5)
    assert rig.high_watermarks() == [1, 1, 1]


def test_idle_cluster_fetches(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.produce(1)
    rig.advance(2)
    asked: list[Any] = []
    read = fetch_api.read

    def count(*values: Any) -> Any:
        asked.append(values)
        return read(*values)

    monkeypatch.setattr(fetch_api, "read", count)
    rig.advance(600)
    assert asked == []
    assert rig.isr == [1, 2, 3]
    rig.produce(1)
    assert len(asked) == 2


def test_one_copy_is_waited_for(rig: Rig) -> None:
    rig.run(lambda: rig.cluster.create_topic("alone", 1, 1, {"min.insync.replicas": "2"}))
    one = Rig(1)
    assert result(one.produce(1)).base_offset == 0
    assert one.node(1).produces.delayed == one.node(1).produces.watched == 0
    assert one.replica(1).log.high_watermark == 1
    one.close()


# ---- acks=all


def test_record_is_acknowledged_before_all_in_sync_have_it(rig: Rig) -> None:
    lag(rig, 5, 3)
    parked, loose = rig.produce(1, timeout=60), rig.produce(1, acks=1)
    assert (loose.done, result(loose).base_offset) == (True, 1)
    assert rig.ends() == [2, 2, 0]
    rig.advance(4)
    assert not parked.done
    rig.advance(7)
    assert (parked.done, result(parked).error_code, rig.ends()) == (True, 0, [2, 2, 2])


def test_acknowledgement_never_comes_or_too_late(rig: Rig) -> None:
    lag(rig, NEVER, 2)
    parked = rig.produce(1, timeout=3)
    rig.advance(2.5)
    assert not parked.done
    rig.advance(0.5)
    assert (result(parked).error_code, result(parked).base_offset) == (RequestTimedOutError.code, 0)


def test_too_few_in_sync_are_written_to(strict: Rig) -> None:
    kill(strict, 3)
    assert result(strict.produce(1)).error_code == 0
    kill(strict, 2)
    assert strict.isr == [1]
    refused = result(strict.produce(1))
    assert (refused.error_code, refused.base_offset) == (NotEnoughReplicasError.code, -1)
    assert strict.replica(1).log.end_offset == 1
    assert result(strict.produce(1, acks=1)).base_offset == 1
    # As Kafka since 3.7: what too few have, consumers do not see.
    assert strict.replica(1).log.high_watermark == 1
    start(strict, 2)
    assert strict.isr == [1, 2]
    assert strict.replica(1).log.high_watermark == 2


def test_copies_lost_after_the_append_are_not_missed(strict: Rig) -> None:
    lag(strict, NEVER, 2, 3)
    parked = strict.produce(1, timeout=100)
    kill(strict, 3)
    assert not parked.done
    kill(strict, 2)
    assert result(parked).error_code == NotEnoughReplicasAfterAppendError.code


def test_cluster_wide_minimum_is_not_kept_or_not_overridden() -> None:
    strict = Rig(min_insync_replicas=3)
    kill(strict, 3)
    assert result(strict.produce(1)).error_code == NotEnoughReplicasError.code
    strict.cluster.topic(TOPIC).configs["min.insync.replicas"] = "2"
    assert result(strict.produce(1)).error_code == 0
    strict.close()


def test_settings_that_change_leave_what_waits_for_them(strict: Rig) -> None:
    topic, partition = strict.cluster.topic(TOPIC), strict.cluster.topic(TOPIC).partition(0)
    kill(strict, 2)
    kill(strict, 3)
    polling = strict.fetch(1, 0, wait=100)
    strict.produce(1, acks=1)
    assert not polling.done
    strict.run(lambda: strict.cluster.configure_topic(topic, {"min.insync.replicas": "1"}))
    assert fetched(polling).nbytes > 0
    kill(strict, 1)
    start(strict, 2)
    assert partition.leader == NO_LEADER
    strict.run(lambda: strict.cluster.configure_topic(topic, {"unclean.leader.election.enable": "true"}))
    assert partition.leader == 2


def test_new_leader_is_waited_for_by_the_old_ones_client(rig: Rig) -> None:
    lag(rig, NEVER, 2, 3)
    parked = rig.produce(1, timeout=100)
    rig.run(lambda: rig.cluster.controller.move(rig.cluster.topic(TOPIC).partition(0), 2))
    assert rig.leader == 2
    assert result(parked).error_code == NotLeaderOrFollowerError.code


def test_deleted_topic_is_waited_for(rig: Rig) -> None:
    lag(rig, NEVER, 2)
    parked, polling = rig.produce(1, timeout=100), rig.fetch(1, 0, wait=100)
    rig.run(lambda: rig.cluster.delete_topic(TOPIC))
    assert result(parked).error_code == UnknownTopicOrPartitionError.code
    assert fetched(polling).error_code == UnknownTopicOrPartitionError.code


def test_record_sent_again_is_acknowledged_before_the_first_is(rig: Rig) -> None:
    lag(rig, 5, 2)
    first, again = (rig.produce(1, producer=(7, 0, 0), timeout=60) for _ in range(2))
    assert rig.replica(1).log.end_offset == 1
    assert not first.done
    assert not again.done
    rig.advance(11)
    assert (result(first).base_offset, result(again).base_offset, result(again).error_code) == (0, 0, 0)


def test_one_slow_partition_answers_for_the_other() -> None:
    rig = Rig(partitions=2)
    isolate(rig, 3)
    assert not rig.produce(1, partition=1, timeout=60).done
    assert not rig.produce(1, partition=0, timeout=60).done
    heal(rig, 3)
    assert rig.node(1).produces.delayed == 0
    rig.close()


# ---- the ISR


def test_slow_follower_stays_in_sync_or_never_is_again(rig: Rig) -> None:
    lag(rig, NEVER, 3)
    parked = rig.produce(1, timeout=100)
    rig.advance(30)
    assert (rig.isr, parked.done) == ([1, 2, 3], False)
    rig.advance(15)
    assert (rig.isr, result(parked).error_code, rig.high_watermarks()[0]) == ([1, 2], 0, 1)
    lag(rig, 0, 3)
    assert (rig.isr, rig.ends()) == ([1, 2, 3], [1, 1, 1])


def test_follower_that_keeps_up_with_a_lag_falls_out(rig: Rig) -> None:
    lag(rig, 10, 3)
    for _ in range(100):
        rig.produce(1, acks=1)
        rig.advance(1)
    assert rig.isr == [1, 2, 3]
    assert 80 <= rig.ends()[2] < 100


def test_follower_that_falls_behind_little_by_little_stays() -> None:
    rig = Rig(replica_lag_time_max_ms=2_000)
    lag(rig, 10, 3)
    for _ in range(8):
        rig.produce(1, acks=1)
        rig.advance(1)
    assert rig.isr == [1, 2]
    rig.close()


def test_leader_that_is_cut_off_shrinks_the_isr() -> None:
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


def test_follower_never_catches_up_with_a_busy_leader(rig: Rig) -> None:
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


def test_copy_without_the_last_epochs_records_is_in_sync(rig: Rig) -> None:
    """What the new leader has may be acknowledged, even where its high watermark does not say so yet."""
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


def test_high_watermark_is_beyond_what_a_follower_has(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
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


# ---- what consumers see


def test_consumer_sees_what_not_all_in_sync_have(rig: Rig) -> None:
    lag(rig, 5, 2)
    rig.produce(1, acks=1)
    one = fetched(rig.fetch(1, 0))
    assert (one.error_code, one.high_watermark, one.nbytes) == (0, 0, 0)
    polling = rig.fetch(1, 0, wait=100)
    assert not polling.done
    rig.advance(11)
    assert (fetched(polling).high_watermark, len(fetched(polling).records)) == (1, 1)


def test_consumer_ahead_of_a_new_leaders_high_watermark_is_sent_elsewhere(rig: Rig) -> None:
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


def test_parked_fetch_misses_that_its_epoch_is_over(rig: Rig) -> None:
    there, elsewhere = rig.fetch(1, 0, wait=100, epoch=0), rig.fetch(1, 0, wait=100)
    kill(rig, 2)
    assert not there.done
    start(rig, 2)
    rig.run(lambda: rig.cluster.controller.move(rig.cluster.topic(TOPIC).partition(0), 2))
    assert fetched(there).error_code == fetched(elsewhere).error_code == NotLeaderOrFollowerError.code
    polling = rig.fetch(2, 0, wait=100, epoch=1)
    partition = rig.cluster.topic(TOPIC).partition(0)
    rig.run(lambda: rig.cluster.controller.lead(partition, 2, (2, 3)))
    assert fetched(polling).error_code == FencedLeaderEpochError.code


def test_parked_fetch_takes_less_than_it_asked_for(rig: Rig) -> None:
    rig.produce(1, b"x")
    size = len(rig.log(1))
    polling = rig.fetch(1, 0, wait=100, min_bytes=2 * size)
    assert not polling.done
    rig.produce(1, b"y")
    assert fetched(polling).nbytes == 2 * size
    late = rig.fetch(1, 2, wait=3)
    rig.advance(3)
    assert (late.done, fetched(late).nbytes) == (True, 0)


def test_offset_beyond_the_log_is_waited_for(rig: Rig) -> None:
    assert fetched(rig.fetch(1, 1, wait=100)).error_code == OffsetOutOfRangeError.code


def test_transaction_is_stable_before_its_marker_is_everywhere(rig: Rig) -> None:
    write_transaction(rig)
    lag(rig, 5, 2)
    polling = rig.fetch(1, 0, wait=100, committed=True)
    assert not polling.done
    rig.run(lambda: rig.cluster.write_marker((TOPIC, 0), Marker(7, 0, 0, True)))
    assert not polling.done
    assert rig.replica(1).log.last_stable_offset == 0
    rig.advance(11)
    assert (fetched(polling).last_stable_offset, len(fetched(polling).records)) == (2, 2)


def write_transaction(rig: Rig) -> None:
    rig.run(lambda: rig.cluster.transactions.init("tx", 60_000, None))
    rig.produce(1, producer=(7, 0, 0))
    producers = [rig.replica(node_id).log.producers for node_id in rig.cluster.nodes]
    for one in producers:
        entry = dict(one)[7]
        entry.transaction_start = one._open[7] = 0


# ---- elections


def test_dead_leader_is_followed_by_one_out_of_sync_or_loses_records(rig: Rig) -> None:
    lag(rig, NEVER, 2)
    rig.produce(1, timeout=100)
    rig.advance(45)
    assert rig.isr == [1, 3]
    acknowledged = result(rig.produce(1)).base_offset
    kill(rig, 1)
    assert (rig.leader, rig.isr) == (3, [3])
    assert rig.ends()[2] == acknowledged + 1
    kill(rig, 3)
    assert (rig.leader, rig.isr) == (NO_LEADER, [3])
    start(rig, 1)
    assert rig.leader == NO_LEADER
    start(rig, 3)
    lag(rig, 0, 2)
    assert (rig.leader, rig.isr, rig.ends()) == (3, [1, 2, 3], [2, 2, 2])


def test_unclean_election_is_refused_or_leaves_logs_that_differ(careless: Rig) -> None:
    lag(careless, NEVER, 2, 3)
    for n in range(5):
        careless.produce(1, b"lost %d" % n, acks=1)
    careless.advance(45)
    assert careless.isr == [1]
    kill(careless, 1)
    assert (careless.leader, sorted(careless.isr)) == (2, [2, 3])
    lag(careless, 0, 2, 3)
    assert result(careless.produce(2, b"kept")).base_offset == 0
    start(careless, 1)
    assert careless.ends() == [1, 1, 1]
    assert careless.log(1) == careless.log(2) == careless.log(3)
    assert b"kept" in careless.log(1)


def test_preferred_replica_leads_by_itself_or_not_when_asked(rig: Rig) -> None:
    partition = rig.cluster.topic(TOPIC).partition(0)
    kill(rig, 1)
    assert not rig.run(lambda: rig.cluster.controller.prefer(partition))
    start(rig, 1)
    assert (rig.leader, partition.leader_epoch) == (2, 1)
    assert rig.run(lambda: rig.cluster.controller.prefer(partition))
    assert (rig.leader, partition.leader_epoch) == (1, 2)
    assert rig.run(lambda: rig.cluster.controller.prefer(partition))
    assert partition.leader_epoch == 2


def test_copy_out_of_sync_is_made_the_leader(rig: Rig) -> None:
    lag(rig, NEVER, 3)
    rig.produce(1, timeout=100)
    rig.advance(45)
    partition = rig.cluster.topic(TOPIC).partition(0)
    assert not rig.run(lambda: rig.cluster.controller.move(partition, 3))
    assert rig.leader == 1


def test_orderly_stop_leaves_parked_requests_or_partitions_behind(rig: Rig) -> None:
    lag(rig, NEVER, 2, 3)
    parked = rig.produce(1, timeout=100)
    rig.run(rig.node(1).stop)
    assert result(parked).error_code == NotLeaderOrFollowerError.code
    assert (rig.leader, rig.isr) == (2, [2, 3])
    assert rig.node(1).produces.delayed == rig.node(1).fetches.delayed == 0


def test_node_that_returns_leads_or_stays_out_of_sync(rig: Rig) -> None:
    rig.produce(1)
    rig.run(rig.node(1).stop)
    for _ in range(3):
        rig.produce(2)
    start(rig, 1)
    assert (rig.leader, rig.cluster.topic(TOPIC).partition(0).leader_epoch) == (2, 1)
    assert (sorted(rig.isr), rig.ends()) == ([1, 2, 3], [4, 4, 4])
    assert rig.log(1) == rig.log(2)


def test_controller_dies_with_its_node(rig: Rig) -> None:
    assert rig.cluster.controller.node_id == 1
    kill(rig, 1)
    assert rig.cluster.controller.node_id == 2
    start(rig, 1)
    assert rig.cluster.controller.node_id == 2


# ---- paused, isolated


def test_paused_node_is_missed_at_once_or_never(rig: Rig) -> None:
    rig.run(rig.node(1).pause)
    rig.advance(8.5)
    assert (rig.leader, rig.cluster.alive()) == (1, [1, 2, 3])
    rig.advance(0.5)
    assert (rig.leader, rig.isr, rig.cluster.alive()) == (2, [2, 3], [2, 3])
    assert result(rig.produce(2)).error_code == 0
    rig.run(rig.node(1).resume)
    assert (rig.leader, rig.ends(), rig.cluster.alive()) == (2, [1, 1, 1], [1, 2, 3])
    assert sorted(rig.isr) == [1, 2, 3]


def test_short_pause_costs_a_leader_its_place(rig: Rig) -> None:
    rig.run(rig.node(1).pause)
    rig.advance(8)
    rig.run(rig.node(1).resume)
    rig.advance(100)
    assert (rig.leader, rig.isr, rig.cluster.topic(TOPIC).partition(0).leader_epoch) == (1, [1, 2, 3], 0)
    assert result(rig.produce(1)).error_code == 0


def test_follower_that_is_paused_goes_on_fetching(rig: Rig) -> None:
    rig.run(rig.node(3).pause)
    parked = rig.produce(1, timeout=100)
    assert (rig.ends(), parked.done) == ([1, 1, 0], False)
    rig.run(rig.node(3).resume)
    assert (rig.ends(), result(parked).error_code) == ([1, 1, 1], 0)


def test_leader_cut_off_from_the_others_acknowledges_to_all(rig: Rig) -> None:
    rig.produce(1, b"before")
    isolate(rig, 1)
    alone, parked = rig.produce(1, b"alone", acks=1), rig.produce(1, b"for all", timeout=20)
    assert (result(alone).error_code, parked.done) == (0, False)
    assert fetched(rig.fetch(1, 0)).high_watermark == 1
    rig.advance(9)
    assert rig.leader == 2
    after = result(rig.produce(2, b"after"))
    assert (after.error_code, after.base_offset) == (0, 1)
    # The old leader still believes what it was told last, and serves whoever believes it too.
    assert rig.replica(1).leads
    assert result(rig.produce(1, b"lost", acks=1)).error_code == 0
    heal(rig, 1)
    assert not rig.replica(1).leads
    assert rig.log(1) == rig.log(2) == rig.log(3)
    assert b"after" in rig.log(1)
    assert b"alone" not in rig.log(1)
    assert result(parked).error_code == NotLeaderOrFollowerError.code


def test_last_in_sync_is_replaced_while_it_is_cut_off(rig: Rig) -> None:
    kill(rig, 2)
    kill(rig, 3)
    assert rig.isr == [1]
    isolate(rig, 1)
    start(rig, 2)
    rig.advance(9)
    assert rig.leader == NO_LEADER
    assert result(rig.produce(1, b"kept")).error_code == 0
    heal(rig, 1)
    assert rig.leader == 1
    assert rig.ends()[:2] == [1, 1]


# ---- what is cut off


def test_logs_that_parted_over_many_epochs_differ_for_good() -> None:
    """KIP-279: node 1 has an epoch that node 2 has not, between two that node 1 has not."""
    rig = Rig(2, configs={"unclean.leader.election.enable": "true"})
    rig.produce(1, b"common")
    kill(rig, 2)
    kill(rig, 1)

    def reign(node_id: int, records: int) -> None:
        start(rig, node_id)
        for n in range(records):
            assert result(rig.produce(node_id, b"%d of %d" % (n, node_id))).error_code == 0
        kill(rig, node_id)

    reign(2, 2)
    reign(1, 7)
    reign(2, 2)
    assert [[epoch for epoch, _ in rig.replica(node_id).log.leader_epochs.entries] for node_id in (1, 2)] == [
        [0, 4],
        [0, 2, 6],
    ]
    start(rig, 2)
    start(rig, 1)
    assert rig.leader == 2
    assert rig.ends() == [5, 5]
    assert rig.log(1) == rig.log(2)
    assert sorted(rig.isr) == [1, 2]
    rig.close()


def test_follower_far_behind_waits_for_what_retention_has_dropped(rig: Rig) -> None:
    kill(rig, 3)
    for n in range(10):
        rig.produce(1, b"%d" % n)
    rig.run(lambda: rig.replica(1).log.delete_before(7))
    start(rig, 3)
    log = rig.replica(3).log
    assert (log.log_start_offset, log.end_offset) == (7, 10)
    assert sorted(rig.isr) == [1, 2, 3]


def test_follower_keeps_what_was_deleted(rig: Rig) -> None:
    for n in range(10):
        rig.produce(1, b"%d" % n)
    request = SimpleNamespace(
        topics=[SimpleNamespace(name=TOPIC, partitions=[SimpleNamespace(partition_index=0, offset=7)])]
    )
    header = RequestHeader(messages.DELETE_RECORDS, 2, 1, "test", 0)
    rig.run(lambda: delete_records.handle(rig.node(1), header, request))
    assert [rig.replica(node_id).log.log_start_offset for node_id in (1, 2, 3)] == [7, 7, 7]


def test_follower_whose_disk_is_full_for_a_while_stays_behind(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(data: object) -> None:
        raise KafkaStorageError("no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(rig.replica(3).log, "append_as_follower", full)
        parked = rig.produce(1, timeout=60)
        rig.advance(5)
        assert (rig.ends(), parked.done) == ([1, 1, 0], False)
    rig.advance(1)
    assert (rig.ends(), result(parked).error_code) == ([1, 1, 1], 0)


def test_marker_is_lost_with_the_leader_that_wrote_it(rig: Rig) -> None:
    write_transaction(rig)
    lag(rig, NEVER, 2, 3)
    assert rig.run(lambda: rig.cluster.write_marker((TOPIC, 0), Marker(7, 0, 0, True)))
    assert rig.ends() == [2, 1, 1]
    kill(rig, 1)
    lag(rig, 0, 2, 3)
    assert (rig.leader, rig.ends()[1:]) == (2, [2, 2])
    assert not rig.replica(2).log.producers.in_transaction(7, 0)
    assert rig.replica(2).log.last_stable_offset == 2
    start(rig, 1)
    assert rig.log(1) == rig.log(2) == rig.log(3)
