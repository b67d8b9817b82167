"""The records of a topic that metadata forgets, or that a user deletes and makes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import (
    InvalidPartitionsError,
    OutOfOrderSequenceNumberError,
    TimeoutError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.partitioner import partition_for_key
from kafkabuf.producer import KafkaProducer
from kafkabuf.protocol import messages
from kafkabuf.transactions.states import State
from rigs.producer import PATIENCE, TOPIC, Rig, assert_whole, only_request, quick_rig
from tests.network.support import topic_of
from tests.transactions.idempotence_support import (
    NOT_LEADER,
    OUT_OF_ORDER,
    UNKNOWN_PRODUCER,
    IdempotentRig,
    SequencedBrokers,
    accept,
    idempotent,
    numbers,
    refuse,
    send_each,
)
from tests.transactions.rig import TransactionalRig

OLD, NEW, NEWER = UUID(int=1), UUID(int=2), UUID(int=3)
NOT_ENOUGH_REPLICAS, UNKNOWN_TOPIC = 19, 3


def answer_metadata(
    rig: Rig, *leaders: int, topic_id: UUID | None = OLD, epoch: int = 0, error: int = 0
) -> tuple[str, ...]:
    """Give the client a Metadata response. Returns the topics that the client asked for."""
    asked = rig.metadata.begin_update(rig.clock.monotonic())
    topics = [topic_of(TOPIC, list(leaders), epoch=epoch, topic_id=topic_id, error=error)] if TOPIC in asked else []
    brokers = [{"node_id": node, "host": "localhost", "port": 9000 + node} for node in (1, 2)]
    answer = messages.build_response(messages.METADATA, 12, brokers=brokers, controller_id=1, topics=topics)
    rig.metadata.on_response(answer)
    return asked


def known(*leaders: int, make: Callable[..., Any] = quick_rig, **settings: Any) -> Any:
    """A rig whose metadata names these leaders, in epoch 7, under the id OLD."""
    rig = make(leaders=leaders, delivery_timeout_ms=600_000, **settings)
    rig.metadata.add_topic(TOPIC)
    answer_metadata(rig, *leaders, epoch=7)
    return rig


def error_of(future: RecordFuture) -> str:
    """The error of a record whose partition is gone."""
    error = future.exception(0)
    assert isinstance(error, UnknownTopicOrPartitionError)
    return str(error)


# ---- what metadata forgets -------------------------------------------------------------------------------------------


def test_topic_whose_records_wait_for_a_dead_leader_is_kept_and_its_next_leader_followed() -> None:
    rig = known(1, metadata_max_idle_ms=5_000)
    rig.client.unready = {1}
    futures = []
    for _ in range(20):
        futures.append(rig.send())
        rig.turn()
        rig.clock.advance(1)
    assert answer_metadata(rig, 1, epoch=7) == (TOPIC,)
    rig.clock.advance(100)
    answer_metadata(rig, 2, epoch=8)
    rig.ack_all()
    assert all(future.result(0) for future in futures)
    assert {sent.node_id for sent in rig.client.sent} == {2}
    assert_whole(rig.pool)


def test_topic_whose_records_are_in_flight_is_kept() -> None:
    rig = known(1, metadata_max_idle_ms=5_000)
    rig.send()
    only_request(rig)
    rig.clock.advance(100)
    assert answer_metadata(rig, 1, epoch=7) == (TOPIC,)
    rig.ack_all()
    rig.clock.advance(100)
    assert answer_metadata(rig) == ()


def test_metadata_is_requested_before_a_record_to_a_forgotten_topic_goes() -> None:
    rig = known(1, linger_ms=50, metadata_max_idle_ms=5_000)
    rig.send()
    rig.ack_all()
    rig.clock.advance(100)
    answer_metadata(rig)
    assert TOPIC not in rig.metadata.snapshot.topics
    rig.client.unready = {1}  # the old leader cannot be connected to
    future = rig.send()
    assert rig.sent_after_turn() == []
    assert rig.metadata.time_to_update(rig.clock.monotonic()) <= 0, "while it lingers"
    assert answer_metadata(rig, 2, epoch=8) == (TOPIC,)
    rig.ack_all()
    assert future.result(0)
    assert rig.client.sent[-1].node_id == 2
    assert_whole(rig.pool)


# ---- fewer partitions ------------------------------------------------------------------------------------------------


def test_records_for_partitions_that_are_gone_fail_at_once_and_the_others_go() -> None:
    rig = known(1, 1, 1, 1)
    rig.client.unready = {1}
    futures = [rig.send(partition=partition) for partition in range(4) for _ in range(2)]
    rig.turn()
    answer_metadata(rig, 2, 2, topic_id=NEW)
    rig.turn()
    assert [future.done() for future in futures] == [False] * 4 + [True] * 4
    gone = "partition 2 of topic 'orders' is gone: the topic was deleted and made again with 2 partition(s)"
    assert error_of(futures[4]) == gone
    rig.ack_all()
    assert all(future.result(0) for future in futures[:4])
    assert {sent.node_id for sent in rig.client.sent} == {2}
    assert rig.sender.record_errors == 4
    assert_whole(rig.pool)


def test_new_records_go_to_existing_partitions() -> None:
    rig = known(1, 1, 1, 1, 1, 1, 1, 1)
    queues = list(rig.topic.queues)
    answer_metadata(rig, 1, 1, 1, topic_id=NEW)
    assert rig.topic.partitions == 3
    assert rig.topic.queues == queues, "an older number of partitions is still valid for an index"
    keys = [b"key-%d" % number for number in range(50)]
    keyed = [rig.send(key=key, partition=None).batch.partition for key in keys]
    assert keyed == [partition_for_key(key, 3) for key in keys]
    assert {rig.fill(partition=None)[0].batch.partition for _ in range(20)} <= {0, 1, 2}
    with pytest.raises(InvalidPartitionsError, match="has 3"):
        rig.send(partition=3)
    rig.ack_all()
    # The topic is made again with more partitions and uses its old queues.
    answer_metadata(rig, *[1] * 6, topic_id=NEWER)
    future = rig.send(partition=5)
    rig.ack_all()
    assert future.result(0)
    assert rig.topic.queues == queues
    assert_whole(rig.pool)


@pytest.mark.parametrize("leader", [-1, 1])
def test_sticky_partition_exists(leader: int) -> None:
    for _ in range(20):
        rig = known(*[1] * 8)
        answer_metadata(rig, leader, leader, topic_id=NEW)
        assert rig.topic.sticky_partition < 2


def test_record_in_flight_to_a_partition_that_is_gone_gets_the_brokers_response() -> None:
    rig = known(1, 1)
    futures = [rig.send(partition=1), rig.send(partition=1)]
    first = only_request(rig)
    futures += rig.fill(partition=1)
    second = only_request(rig)
    answer_metadata(rig, 1, topic_id=NEW)
    rig.client.answer(first)
    rig.client.answer(second, UNKNOWN_TOPIC)
    rig.turn()
    rig.turn()
    assert futures[0].result(0)
    assert "is gone" in error_of(futures[2])
    assert_whole(rig.pool)


def test_numbered_batches_of_a_partition_that_is_gone_hold_up_no_other_batch() -> None:
    rig = known(1, 1, make=idempotent)
    lost = [rig.send(partition=1), *rig.fill(partition=1, batches=2)]
    refuse(rig, rig.sent_after_turn()[0], UNKNOWN_TOPIC)
    answer_metadata(rig, 1, topic_id=NEW)
    for sent in list(rig.client.under_way):
        refuse(rig, sent, UNKNOWN_TOPIC)
    rig.turn()
    assert all("is gone" in error_of(future) for future in lost)
    answer_metadata(rig, 1, 1, topic_id=NEWER)
    futures = [rig.send(partition=1), rig.send(partition=0)]
    rig.ack_all()
    assert all(future.result(0) for future in futures)
    assert_whole(rig.pool)


def test_records_of_a_partition_that_is_gone_fail_even_outside_the_transaction() -> None:
    rig = known(1, 1, make=idempotent)
    rig.state.send_allowed = lambda topic, partition: partition == 0
    futures = [rig.send(partition=0), rig.send(partition=1)]
    answer_metadata(rig, 1, topic_id=NEW)
    rig.ack_all()
    assert futures[0].result(0)
    assert "is gone" in error_of(futures[1])


def test_bulk_append_outlives_the_partitions_that_it_writes_to() -> None:
    def serialize(value: bytes) -> bytes:
        if value == b"7":
            answer_metadata(rig, 2, topic_id=NEW)
            rig.turn()
        return value

    rig = known(1, 1, 1, 1, value_serializer=serialize)
    report = rig.producer.send_many(TOPIC, [b"%d" % row for row in range(8)], partitions=[0, 1, 2, 3] * 2)
    rig.ack_all()
    assert [code == 0 for code in report.result(0, errors="return").error_code] == [True, False, False, False] * 2
    assert_whole(rig.pool)


# ---- as many, or more ------------------------------------------------------------------------------------------------


def test_topic_made_again_forgets_its_former_leaders() -> None:
    rig = known(1, 1)
    rig.send()
    refuse(rig, only_request(rig), NOT_LEADER)
    answer_metadata(rig, 2, 2, topic_id=NEW)
    assert [(queue.leader, queue.leader_epoch, queue.proven) for queue in rig.topic.queues] == [(2, 0, False)] * 2
    assert only_request(rig).node_id == 2, "the new leader has refused no batch, so there is no back-off"
    rig.ack_all()


def test_leader_of_a_new_epoch_or_a_new_topic_gets_one_batch_first() -> None:
    rig = known(1, make=idempotent)
    changes: list[dict[str, Any]] = [{"epoch": 8}, {"topic_id": NEW}]
    for change in changes:
        send_each(rig, 2)
        for sent in list(rig.client.under_way):
            accept(rig, sent)
        rig.clock.advance(0.1)
        answer_metadata(rig, 1, **change)
        send_each(rig, 2)
        (first,) = rig.client.under_way
        accept(rig, first)
        accept(rig, only_request(rig))


def test_leader_stays_proven_when_metadata_repeats_its_epoch() -> None:
    rig = known(1)
    answer_metadata(rig, 1, epoch=8)
    rig.fill()
    rig.ack_all()
    answer_metadata(rig, 1, epoch=8)
    rig.fill(batches=2)
    assert len(rig.sent_after_turn()) == 2


# ---- a leader that begins in the middle ------------------------------------------------------------------------------


def test_partition_after_a_pause_gets_one_batch_first() -> None:
    rig = idempotent()
    for rested, at_once in ((0.5, 3), (1.5, 1)):
        rig.ack_all()
        rig.send()
        rig.turn()
        for sent in list(rig.client.under_way):
            accept(rig, sent)
        rig.clock.advance(rested)
        rig.fill(batches=3)
        rig.turn()
        assert len(rig.client.under_way) == at_once
    rig.ack_all()
    assert_whole(rig.pool)


def overtaken(rig: Any, *, seen: bool) -> tuple[SequencedBrokers, list[RecordFuture]]:
    """Five batches are in flight when the topic is made again. The first is refused, the others are taken.

    `seen`: the Sender gets the responses of the others.
    """
    brokers = SequencedBrokers(rig)
    futures = send_each(rig, 5)
    brokers.make_again(0)
    brokers.answer(brokers.oldest(1), before=NOT_ENOUGH_REPLICAS)  # type: ignore[arg-type]
    if seen:
        for sent in list(rig.client.under_way):
            brokers.answer(sent)
    else:
        brokers.disconnect(1, 4)
    rig.turn()
    return brokers, futures


@pytest.mark.parametrize("seen", [True, False])
def test_record_that_was_overtaken_fails_and_the_next_goes_at_once(seen: bool) -> None:
    rig = idempotent(delivery_timeout_ms=600_000)
    brokers, futures = overtaken(rig, seen=seen)
    futures.append(rig.send(b"5"))
    began = rig.clock.monotonic()
    brokers.finish()
    error = futures[0].exception(0)
    assert isinstance(error, OutOfOrderSequenceNumberError)
    assert "took records that were sent after this record" in str(error)
    assert [future.exception(0) for future in futures[1:]] == [None] * 5
    assert brokers.log() == [b"1", b"2", b"3", b"4", b"5"]
    assert rig.clock.monotonic() - began < 2
    assert rig.state.producer_epoch == 0
    assert_whole(rig.pool)


def test_batches_that_the_broker_does_not_have_get_new_numbers() -> None:
    """As after an unclean election: the broker has lost earlier batches, and takes neither the first nor later ones."""
    rig = idempotent(delivery_timeout_ms=600_000)
    brokers = SequencedBrokers(rig)
    futures = send_each(rig, 5)
    brokers.disconnect(1, 0)
    rig.turn()
    forged = brokers.partitions.setdefault(0, brokers.partition_with(rig.state.producer_id, 0, 41))
    brokers.finish()
    assert [future.exception(0) for future in futures] == [None] * 5
    assert forged.log == [b"0", b"1", b"2", b"3", b"4"]
    assert rig.state.producer_epoch == 1
    assert_whole(rig.pool)


def test_overtaken_record_fails_if_the_broker_does_not_know_the_producer() -> None:
    # Brokers before 2.5 take only the number 0 from a producer that they do not know.
    rig: IdempotentRig = idempotent(delivery_timeout_ms=600_000)
    futures = send_each(rig, 3)
    accept(rig, rig.client.under_way[0])
    refuse(rig, rig.client.under_way[0], NOT_ENOUGH_REPLICAS)
    accept(rig, rig.client.under_way[0])
    rig.clock.advance(1)
    rig.turn()
    refuse(rig, rig.client.under_way[0], UNKNOWN_PRODUCER, log_start_offset=-1)
    assert not futures[1].done(), "the partition may be moving"
    rig.clock.advance(1)
    refuse(rig, only_request(rig), UNKNOWN_PRODUCER, log_start_offset=5)
    assert futures[1].exception(0) is not None
    futures.append(rig.send())
    assert numbers(only_request(rig))[1:] == (0, 3)
    rig.ack_all()
    assert futures[3].result(0)


def test_transaction_with_a_record_that_was_overtaken_can_be_aborted() -> None:
    rig = TransactionalRig().begun()
    first = rig.send(b"0")
    rig.until(first.done)
    rig.hold(messages.PRODUCE)
    futures = send_each(rig, 3)
    for sent, code in zip(list(rig.client.under_way), (NOT_ENOUGH_REPLICAS, 0, 0), strict=True):
        rig.client.answer(sent, code)
    rig.turns(1)
    rig.clock.advance(0.5)
    rig.turns(1)
    rig.client.answer(rig.client.under_way[0], OUT_OF_ORDER)
    rig.until_state(State.ABORTABLE_ERROR)
    assert isinstance(futures[0].exception(0), OutOfOrderSequenceNumberError)
    rig.let_go(messages.PRODUCE)
    rig.manager.abort()
    rig.assert_usable()


# ---- with a cluster --------------------------------------------------------------------------------------------------


def make_again(cluster: EmbeddedCluster, name: str, partitions: int) -> None:
    cluster._call(lambda c: c.catalogue.delete_topic(name))
    cluster.create_topic(name, partitions)


@pytest.mark.parametrize("idempotence", [True, False])
def test_producer_follows_a_topic_that_is_made_smaller_and_larger(idempotence: bool) -> None:
    with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=8)
        settings: dict[str, Any] = {"linger_ms": 0, "enable_idempotence": idempotence}
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings) as producer:
            for partition in range(8):
                producer.send("t", b"v", partition=partition).result(PATIENCE)
            for partitions in (2, 5, 1, 8):
                before = producer.accumulator.topics["t"].partitions
                make_again(cluster, "t", partitions)
                # A record that is sent before the producer knows of the change fails or goes, but does not wait.
                for future in [producer.send("t", b"v", partition=partition) for partition in range(before)]:
                    if (error := future.exception(10)) is not None:
                        assert "is gone" in str(error)
                producer._metadata.await_update(PATIENCE)
                keys = [b"%d" % number for number in range(30)]
                results = [producer.send("t", b"v", key=key).result(PATIENCE) for key in keys]
                assert [result.partition for result in results] == [partition_for_key(key, partitions) for key in keys]


def test_records_of_a_deleted_topic_wait_until_it_exists_again_or_expire() -> None:
    with EmbeddedCluster(brokers=1, auto_create_topics=False) as cluster:
        cluster.create_topic("t", partitions=2)
        settings: dict[str, Any] = {"linger_ms": 0, "delivery_timeout_ms": 1_000, "request_timeout_ms": 500}
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings) as producer:
            producer.send("t", b"v", partition=1).result(PATIENCE)
            cluster._call(lambda c: c.catalogue.delete_topic("t"))
            assert isinstance(producer.send("t", b"v", partition=1).exception(PATIENCE), TimeoutError)
            future = producer.send("t", b"v", partition=1)
            cluster.wait_for_request(messages.METADATA, topic="t", count=3)
            cluster.create_topic("t", partitions=2)
            assert future.result(PATIENCE).offset == 0
