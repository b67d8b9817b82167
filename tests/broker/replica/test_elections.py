"""Elections, and truncation after a change of leaders: without sockets, on a manual clock."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kafkabuf.broker.apis.records import delete_records
from kafkabuf.broker.records.control import Marker
from kafkabuf.broker.replica.state import NO_LEADER
from kafkabuf.broker.waiting.slices import finish
from kafkabuf.errors import (
    KafkaStorageError,
    NotLeaderOrFollowerError,
)
from kafkabuf.protocol import messages
from kafkabuf.protocol.messages import RequestHeader
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
def careless() -> Iterator[Rig]:
    """With unclean elections: any replica may lead."""
    one = Rig(configs={"unclean.leader.election.enable": "true"})
    yield one
    one.close()


# ---- elections


def test_dead_leader_is_followed_by_a_copy_in_sync(rig: Rig) -> None:
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


def test_unclean_election_leaves_equal_logs(careless: Rig) -> None:
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


def test_preferred_replica_leads_only_on_request(rig: Rig) -> None:
    partition = rig.cluster.catalogue.topic(TOPIC).partition(0)
    kill(rig, 1)
    assert not rig.run(lambda: rig.cluster.controller.prefer(partition))
    start(rig, 1)
    assert (rig.leader, partition.leader_epoch) == (2, 1)
    assert rig.run(lambda: rig.cluster.controller.prefer(partition))
    assert (rig.leader, partition.leader_epoch) == (1, 2)
    assert rig.run(lambda: rig.cluster.controller.prefer(partition))
    assert partition.leader_epoch == 2


def test_copy_out_of_sync_never_becomes_the_leader(rig: Rig) -> None:
    lag(rig, NEVER, 3)
    rig.produce(1, timeout=100)
    rig.advance(45)
    partition = rig.cluster.catalogue.topic(TOPIC).partition(0)
    assert not rig.run(lambda: rig.cluster.controller.move(partition, 3))
    assert rig.leader == 1


def test_orderly_stop_answers_parked_requests_and_moves_leaders(rig: Rig) -> None:
    lag(rig, NEVER, 2, 3)
    parked = rig.produce(1, timeout=100)
    rig.run(rig.node(1).stop)
    assert result(parked).error_code == NotLeaderOrFollowerError.code
    assert (rig.leader, rig.isr) == (2, [2, 3])
    assert rig.node(1).produces.delayed == rig.node(1).fetches.delayed == 0


def test_returning_node_follows_and_catches_up(rig: Rig) -> None:
    rig.produce(1)
    rig.run(rig.node(1).stop)
    for _ in range(3):
        rig.produce(2)
    start(rig, 1)
    assert (rig.leader, rig.cluster.catalogue.topic(TOPIC).partition(0).leader_epoch) == (2, 1)
    assert (sorted(rig.isr), rig.ends()) == ([1, 2, 3], [4, 4, 4])
    assert rig.log(1) == rig.log(2)


def test_another_node_becomes_the_controller(rig: Rig) -> None:
    assert rig.cluster.controller.node_id == 1
    kill(rig, 1)
    assert rig.cluster.controller.node_id == 2
    start(rig, 1)
    assert rig.cluster.controller.node_id == 2


# ---- paused, isolated


def test_paused_node_is_fenced_when_its_session_ends(rig: Rig) -> None:
    rig.run(rig.node(1).pause)
    rig.advance(8.5)
    assert (rig.leader, rig.cluster.placement.alive()) == (1, [1, 2, 3])
    rig.advance(0.5)
    assert (rig.leader, rig.isr, rig.cluster.placement.alive()) == (2, [2, 3], [2, 3])
    assert result(rig.produce(2)).error_code == 0
    rig.run(rig.node(1).resume)
    assert (rig.leader, rig.ends(), rig.cluster.placement.alive()) == (2, [1, 1, 1], [1, 2, 3])
    assert sorted(rig.isr) == [1, 2, 3]


def test_leader_keeps_its_place_after_a_short_pause(rig: Rig) -> None:
    rig.run(rig.node(1).pause)
    rig.advance(8)
    rig.run(rig.node(1).resume)
    rig.advance(100)
    assert (rig.leader, rig.isr, rig.cluster.catalogue.topic(TOPIC).partition(0).leader_epoch) == (1, [1, 2, 3], 0)
    assert result(rig.produce(1)).error_code == 0


def test_paused_follower_fetches_nothing(rig: Rig) -> None:
    rig.run(rig.node(3).pause)
    parked = rig.produce(1, timeout=100)
    assert (rig.ends(), parked.done) == ([1, 1, 0], False)
    rig.run(rig.node(3).resume)
    assert (rig.ends(), result(parked).error_code) == ([1, 1, 1], 0)


def test_isolated_leader_never_acknowledges_for_all(rig: Rig) -> None:
    rig.produce(1, b"before")
    isolate(rig, 1)
    alone, parked = rig.produce(1, b"alone", acks=1), rig.produce(1, b"for all", timeout=20)
    assert (result(alone).error_code, parked.done) == (0, False)
    assert fetched(rig.fetch(1, 0)).high_watermark == 1
    rig.advance(9)
    assert rig.leader == 2
    after = result(rig.produce(2, b"after"))
    assert (after.error_code, after.base_offset) == (0, 1)
    # The old leader still believes that it leads, and serves clients that believe so too.
    assert rig.replica(1).leads
    assert result(rig.produce(1, b"lost", acks=1)).error_code == 0
    heal(rig, 1)
    assert not rig.replica(1).leads
    assert rig.log(1) == rig.log(2) == rig.log(3)
    assert b"after" in rig.log(1)
    assert b"alone" not in rig.log(1)
    assert result(parked).error_code == NotLeaderOrFollowerError.code


def test_isolated_last_copy_in_sync_is_never_replaced(rig: Rig) -> None:
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


# ---- truncation


def test_logs_that_diverged_over_many_epochs_become_equal() -> None:
    """KIP-279: node 1 has an epoch that node 2 lacks, between two epochs that node 1 lacks."""
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


def test_follower_far_behind_restarts_at_the_leaders_log_start(rig: Rig) -> None:
    kill(rig, 3)
    for n in range(10):
        rig.produce(1, b"%d" % n)
    rig.run(lambda: rig.replica(1).log.delete_before(7))
    start(rig, 3)
    log = rig.replica(3).log
    assert (log.log_start_offset, log.end_offset) == (7, 10)
    assert sorted(rig.isr) == [1, 2, 3]


def test_followers_delete_the_deleted_records(rig: Rig) -> None:
    for n in range(10):
        rig.produce(1, b"%d" % n)
    request = SimpleNamespace(
        topics=[SimpleNamespace(name=TOPIC, partitions=[SimpleNamespace(partition_index=0, offset=7)])]
    )
    header = RequestHeader(messages.DELETE_RECORDS, 2, 1, "test", 0)
    rig.run(lambda: delete_records.handle(rig.node(1), header, request))
    assert [rig.replica(node_id).log.log_start_offset for node_id in (1, 2, 3)] == [7, 7, 7]


def test_follower_whose_disk_was_full_catches_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(data: object) -> None:
        raise KafkaStorageError("no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(rig.replica(3).log, "append_as_follower", full)
        parked = rig.produce(1, timeout=60)
        rig.advance(5)
        assert (rig.ends(), parked.done) == ([1, 1, 0], False)
    rig.advance(1)
    assert (rig.ends(), result(parked).error_code) == ([1, 1, 1], 0)


def test_control_record_survives_the_leader_that_wrote_it(rig: Rig) -> None:
    write_transaction(rig)
    lag(rig, NEVER, 2, 3)
    assert rig.run(lambda: finish(rig.cluster.write_marker((TOPIC, 0), Marker(7, 0, 0, True))))
    assert rig.ends() == [2, 1, 1]
    kill(rig, 1)
    lag(rig, 0, 2, 3)
    assert (rig.leader, rig.ends()[1:]) == (2, [2, 2])
    assert not rig.replica(2).log.producers.in_transaction(7, 0)
    assert rig.replica(2).log.last_stable_offset == 2
    start(rig, 1)
    assert rig.log(1) == rig.log(2) == rig.log(3)
