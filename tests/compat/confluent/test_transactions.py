"""compat.confluent: transactions, with offsets of confluent-kafka's consumer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from kafkabuf import errors
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.compat.confluent import Producer
from kafkabuf.protocol.messages import METADATA, PRODUCE
from tests.compat import TOPIC
from tests.compat.reports import PATIENCE, Reports


def test_transactions_commit_offsets_of_confluents_consumer(
    new: Callable[..., Producer], cluster: EmbeddedCluster
) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + PATIENCE
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    producer, reports = new(transactional__id="tx"), Reports()
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce(TOPIC, b"v", partition=0, on_delivery=reports)
    positions = [confluent_kafka.TopicPartition(TOPIC, 0, 5), confluent_kafka.TopicPartition(TOPIC, 1)]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), PATIENCE)
    producer.commit_transaction(PATIENCE)
    assert reports.values == [b"v"]
    (committed,) = consumer.committed([confluent_kafka.TopicPartition(TOPIC, 0)], PATIENCE)
    assert committed.offset == 5
    consumer.close()
    producer.begin_transaction()
    producer.produce(TOPIC, b"v", partition=0)
    producer.abort_transaction(PATIENCE)


def test_a_commit_waits_for_records_whose_topic_is_not_known_yet(
    new: Callable[..., Producer], cluster: EmbeddedCluster
) -> None:
    producer, reports = new(transactional__id="waiting"), Reports()
    producer.init_transactions(PATIENCE)
    cluster.set_latency(0.2, METADATA)
    producer.begin_transaction()
    producer.produce("known-at-the-commit", b"v", partition=0, on_delivery=reports)
    producer.commit_transaction(PATIENCE)
    assert [error for error, _ in reports.calls] == [None]
    assert cluster.end_offset("known-at-the-commit", 0) == 2  # the record, and the end of the transaction


def test_a_transaction_that_has_lost_a_record_can_only_be_aborted() -> None:
    with EmbeddedCluster(auto_create_topics=False) as cluster:
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "topic.metadata.propagation.max.ms": 100}
        with Producer(settings | {"transactional.id": "losing"}) as producer:
            producer.init_transactions(PATIENCE)
            producer.begin_transaction()
            producer.produce("nowhere", b"v")
            with pytest.raises(KafkaException) as raised:
                producer.commit_transaction(PATIENCE)
            assert raised.value.args[0].txn_requires_abort()
            producer.abort_transaction(PATIENCE)
            producer.begin_transaction()
            producer.commit_transaction(PATIENCE)


@pytest.mark.parametrize("reports", [None, Reports()])
def test_a_record_outside_a_transaction_is_refused_though_its_topic_is_not_known(
    new: Callable[..., Producer], cluster: EmbeddedCluster, reports: Reports | None
) -> None:
    producer, topic = new(transactional__id="outside"), f"outside-{reports is None}"

    def refused() -> None:
        with pytest.raises(KafkaException) as raised:
            producer.produce(topic, b"v", on_delivery=reports)
        assert raised.value.args[0].code() == KafkaError._STATE
        assert (producer.held, len(producer)) == (0, 0)

    refused()
    producer.init_transactions(PATIENCE)
    refused()
    producer.begin_transaction()
    producer.commit_transaction(PATIENCE)
    if topic in cluster.topics():
        assert sum(cluster.end_offset(topic, partition) for partition in range(4)) == 0


def test_a_record_outside_a_transaction_is_refused_while_others_wait_for_its_topic(
    new: Callable[..., Producer], cluster: EmbeddedCluster
) -> None:
    producer, reports = new(transactional__id="late"), Reports()
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    cluster.set_latency(30, METADATA)
    producer.produce("late-topic", b"v", on_delivery=reports)
    producer._producer._transaction_manager().commit(PATIENCE)  # another thread commits
    with pytest.raises(KafkaException) as raised:
        producer.produce("late-topic", b"v", on_delivery=reports)
    assert raised.value.args[0].code() == KafkaError._STATE
    producer.begin_transaction()
    producer.poll(0)
    assert [error.code() for error, _ in reports.calls] == [KafkaError._PURGE_QUEUE]
    cluster.clear_faults()
    producer.commit_transaction(PATIENCE)


def test_repr_names_the_cluster_and_no_secret() -> None:
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "client.id": "named", "sasl.password": "secret"})
    assert repr(producer) == "Producer('named' to 127.0.0.1:1, open)"
    producer.close()
    assert repr(producer) == "Producer(not open)"


def test_errors_of_transactions_have_confluents_flags(
    new: Callable[..., Producer], cluster: EmbeddedCluster, alone: Callable[..., Producer]
) -> None:
    def error_of(call: Callable[[], object]) -> Any:
        with pytest.raises(KafkaException) as raised:
            call()
        return raised.value.args[0]

    waiting = alone({"transactional.id": "t"})
    late = error_of(lambda: waiting.init_transactions(0.05))
    assert (late.code(), late.retriable(), late.fatal()) == (KafkaError._TIMED_OUT, True, False)
    conflict = error_of(waiting.begin_transaction)
    assert (conflict.code(), conflict.retriable()) == (KafkaError._CONFLICT, True)
    plain = new()
    for call in (plain.begin_transaction, plain.init_transactions, plain.commit_transaction, plain.abort_transaction):
        assert error_of(call).code() == KafkaError._NOT_CONFIGURED

    first, second = new(transactional__id="fenced"), new(transactional__id="fenced")
    first.init_transactions()
    first.begin_transaction()
    first.produce(TOPIC, b"v", partition=0)
    first.flush(PATIENCE)
    second.init_transactions()
    fenced = error_of(first.commit_transaction)
    assert (fenced.code(), fenced.fatal(), fenced.txn_requires_abort()) == (KafkaError._FENCED, True, False)

    third = new(transactional__id="fenced")
    second.begin_transaction()
    third.init_transactions()
    second.produce(TOPIC, b"v", partition=0)
    fenced = error_of(second.commit_transaction)
    assert (fenced.code(), fenced.fatal(), fenced.txn_requires_abort()) == (KafkaError._FENCED, True, False)

    second = third
    second.begin_transaction()
    cluster.fail_next(PRODUCE, errors.RecordListTooLargeError.code)
    second.produce(TOPIC, b"v", partition=0)
    second.flush(PATIENCE)
    aborted = error_of(second.commit_transaction)
    assert (aborted.fatal(), aborted.txn_requires_abort()) == (False, True)
    second.abort_transaction()
