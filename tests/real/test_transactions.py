"""Transactions of version 2 on real Kafka 4.1.2, and of version 1 on 3.9.2; other clients read the records back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import confluent_kafka
import kafka as kafka_python
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.errors import (
    AbortableTransactionError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortedError,
)
from kafkabuf.transactions.groups import GroupMetadata, OffsetAndMetadata
from rigs.real_kafka import KAFKA_4, RealKafka
from tests.memory.pool_support import assert_all_free
from tests.real.consumers import read_with_confluent, read_with_kafka_python

PATIENCE = 30.0
PARTITIONS = 3
MakeProducer = Callable[..., KafkaProducer]


@pytest.fixture(params=["kafka_4", "kafka_3_9"], ids=["4.1.2", "3.9.2"])
def kafka(request: pytest.FixtureRequest) -> RealKafka:
    server = request.getfixturevalue(request.param)
    assert isinstance(server, RealKafka)
    return server


@pytest.fixture
def make_producer(kafka: RealKafka) -> Iterator[MakeProducer]:
    with ExitStack() as stack:

        def make(transactional_id: str, **settings: Any) -> KafkaProducer:
            producer = KafkaProducer(
                bootstrap_servers=kafka.bootstrap_servers, transactional_id=transactional_id, **settings
            )
            stack.callback(assert_all_free, producer.pool)
            stack.callback(producer.close, PATIENCE)
            return producer

        yield make


def committed(kafka: RealKafka, topic: str) -> list[list[bytes | None]]:
    """The committed values by partition, in order. Asserts that both readers see the same values."""
    by_confluent = read_with_confluent(kafka, topic, PARTITIONS)
    by_kafka_python = read_with_kafka_python(kafka, topic, PARTITIONS, isolation_level="read_committed")
    values = [[partition[offset].value for offset in sorted(partition)] for partition in by_confluent]
    assert values == [[partition[offset].value for offset in sorted(partition)] for partition in by_kafka_python]
    return values


def test_many_transactions_are_each_committed_or_aborted_whole(kafka: RealKafka, make_producer: MakeProducer) -> None:
    topic = "many-transactions"
    kafka.create_topic(topic, partitions=PARTITIONS)
    producer = make_producer("many", linger_ms=0)
    producer.init_transactions()
    wanted: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
    for number in range(
        1000 if kafka.version == KAFKA_4 else 200
    ):  # a transaction of version 1 takes milliseconds longer
        producer.begin_transaction()
        values = [(b"%d-%d" % (number, index), (number + index) % PARTITIONS) for index in range(4)]
        futures = [producer.send(topic, value, partition=partition) for value, partition in values]
        if number % 2:
            producer.commit_transaction()
            assert all(future.exception(0) is None for future in futures)
            for value, partition in values:
                wanted[partition].append(value)
        else:
            if number % 4:
                producer.flush(PATIENCE)  # so that aborted records reach the log, too
            producer.abort_transaction()
            assert all(future.done() for future in futures)
    assert committed(kafka, topic) == wanted


def test_second_producer_of_an_id_fences_the_first(kafka: RealKafka, make_producer: MakeProducer) -> None:
    topic = "fenced"
    kafka.create_topic(topic, partitions=PARTITIONS)
    first, second = make_producer("fencing"), make_producer("fencing")
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, b"of the first", partition=0)
    first.flush(PATIENCE)
    second.init_transactions()  # aborts the first producer's transaction
    second.begin_transaction()
    second.send(topic, b"of the second", partition=0)
    with pytest.raises(ProducerFencedError):
        first.commit_transaction()
    for refused in (first.begin_transaction, first.abort_transaction, lambda: first.send(topic, b"late", partition=0)):
        with pytest.raises(ProducerFencedError):
            refused()
    second.commit_transaction()
    third = make_producer("fencing")
    third.init_transactions()
    second.begin_transaction()
    future = second.send(topic, b"too late", partition=0)
    with pytest.raises(KafkaError):
        second.commit_transaction()
    assert future.exception(PATIENCE) is not None
    with pytest.raises(ProducerFencedError):
        second.abort_transaction()
    assert committed(kafka, topic)[0] == [b"of the second"]


def kafka_python_metadata(server: RealKafka, group: str) -> Any:
    """The group metadata of a kafka-python consumer that has not joined."""
    with closing(kafka_python.KafkaConsumer(bootstrap_servers=server.bootstrap_servers, group_id=group)) as consumer:
        return consumer.group_metadata()


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_offsets_share_the_fate_of_their_transaction(
    kafka: RealKafka, make_producer: MakeProducer, commit: bool
) -> None:
    topic, group = f"offsets-{commit}", f"readers-{commit}"
    kafka.create_topic(topic, partitions=PARTITIONS)
    producer = make_producer(f"offsets-{commit}")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"result", partition=0)
    offsets = {(topic, 0): 7, confluent_kafka.TopicPartition(topic, 1): OffsetAndMetadata(8, "note")}
    producer.send_offsets_to_transaction(offsets, kafka_python_metadata(kafka, group))
    (producer.commit_transaction if commit else producer.abort_transaction)()
    places = [confluent_kafka.TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    with closing(confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})) as reader:
        committed = [place.offset for place in reader.committed(places, PATIENCE)]
    assert committed == (
        [7, 8, confluent_kafka.OFFSET_INVALID] if commit else [confluent_kafka.OFFSET_INVALID] * PARTITIONS
    )


def test_offsets_of_an_unknown_member_are_refused(kafka: RealKafka, make_producer: MakeProducer) -> None:
    topic = "unknown-member"
    kafka.create_topic(topic, partitions=PARTITIONS)
    producer = make_producer("unknown-member")
    producer.init_transactions()
    producer.begin_transaction()
    with pytest.raises(AbortableTransactionError, match="no longer a member"):
        producer.send_offsets_to_transaction({(topic, 0): 7}, GroupMetadata("nobody-reads", 3, "somebody"))
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, b"after", partition=1)
    producer.commit_transaction()
    assert committed(kafka, topic)[1] == [b"after"]


def test_close_aborts_the_open_transaction(kafka: RealKafka, make_producer: MakeProducer) -> None:
    topic = "closed"
    kafka.create_topic(topic, partitions=PARTITIONS)
    producer = make_producer("closing")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"never meant", partition=0)
    producer.flush(PATIENCE)
    producer.close(PATIENCE)
    follower = make_producer("following")
    follower.init_transactions()
    follower.begin_transaction()
    follower.send(topic, b"meant", partition=0)
    follower.commit_transaction()
    assert committed(kafka, topic)[0] == [b"meant"]  # no open transaction holds the record back


def test_transaction_after_a_refused_batch_commits(kafka: RealKafka, make_producer: MakeProducer) -> None:
    topic = "refused-batch"
    kafka.create_topic(topic, partitions=PARTITIONS, config={"max.message.bytes": "1000"})
    producer = make_producer("refused-batch", linger_ms=0)
    producer.init_transactions()
    for number in range(3):
        producer.begin_transaction()
        kept = producer.send(topic, b"kept for a moment", partition=1)
        refused = producer.send(topic, b"x" * 5000, partition=0)
        with pytest.raises(AbortableTransactionError):
            producer.commit_transaction()
        assert refused.exception(0) is not None
        producer.abort_transaction()
        # The broker wrote the record before the refusal, or the producer dropped it after the refusal or in the abort.
        assert isinstance(kept.exception(0), AbortableTransactionError | TransactionAbortedError | None)
        producer.begin_transaction()
        producer.send(topic, b"%d" % number, partition=0)
        producer.commit_transaction()
    assert committed(kafka, topic) == [[b"0", b"1", b"2"], [], []]


def test_record_outside_a_transaction_is_refused(kafka: RealKafka, make_producer: MakeProducer) -> None:
    kafka.create_topic("outside", partitions=PARTITIONS)
    producer = make_producer("outside")
    with pytest.raises(IllegalStateError, match="init"):
        producer.begin_transaction()
    producer.init_transactions()
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        producer.send("outside", b"lost", partition=0)
    assert committed(kafka, "outside") == [[], [], []]
