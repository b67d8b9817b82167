"""Transactions of other clients on the embedded broker.

confluent-kafka, kafka-python, aiokafka and Java's client produce; confluent-kafka and kafka-python read the committed
records. Only Java's client supports transactions of version 2.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import time
from collections.abc import Callable, Iterator

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaProducer

from kafkabuf.broker import EmbeddedCluster
from rigs.jars import java, resolve_kafka_tools
from rigs.real_kafka import KAFKA_4, logging
from tests.broker.transactions.script import heads

# kafka-python leaves sockets open when it gives a connection up.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
PARTITIONS = 2
# The client aborts every third transaction, and leaves one more open.
TRANSACTIONS = 9
EACH = 10
COMMITTED = [b"%d-%d" % (number, one) for number in range(TRANSACTIONS) if number % 3 for one in range(EACH)]


@pytest.fixture(scope="module", params=[2, 0], ids=["V2", "V1"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, transaction_version=request.param, verify_records=True) as one:
        yield one
    gc.collect()


def with_confluent(cluster: EmbeddedCluster, topic: str) -> int:
    """Like the clients below: returns the number of records that it leaves in an open transaction."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic, "linger.ms": 1}
    )
    producer.init_transactions(20)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for one in range(EACH):
            producer.produce(topic, b"%d-%d" % (number, one), partition=one % PARTITIONS)
        if number % 3:
            producer.commit_transaction(20)
        else:
            producer.flush(20)  # records not sent yet would never be in the log
            producer.abort_transaction(20)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(20) == 0
    return 1


def with_kafka_python(cluster: EmbeddedCluster, topic: str) -> int:
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=topic)
    producer.init_transactions()
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for one in range(EACH):
            producer.send(topic, b"%d-%d" % (number, one), partition=one % PARTITIONS)
        producer.flush()
        producer.commit_transaction() if number % 3 else producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, b"open", partition=0)
    producer.flush()
    return 1


def with_aiokafka(cluster: EmbeddedCluster, topic: str) -> int:
    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=topic)
        await producer.start()
        for number in range(TRANSACTIONS):
            await producer.begin_transaction()
            for one in range(EACH):
                await producer.send_and_wait(topic, b"%d-%d" % (number, one), partition=one % PARTITIONS)
            await (producer.commit_transaction() if number % 3 else producer.abort_transaction())
        await producer.stop()

    asyncio.run(run())
    return 0


def read_with_confluent(cluster: EmbeddedCluster, topic: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[bytes] = []
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(20)
        assert message is not None
        if message.error() is not None:
            ended.add(message.partition())
        else:
            found.append(message.value() or b"")
    consumer.close()
    return found


def read_with_kafka_python(cluster: EmbeddedCluster, topic: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, isolation_level="read_committed", enable_auto_commit=False
    )
    partitions = [kafka.TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    found: list[bytes] = []
    deadline = time.monotonic() + 20
    while len(found) < len(COMMITTED) and time.monotonic() < deadline:
        for records in consumer.poll(100).values():
            found += [record.value for record in records]
    for records in consumer.poll(100).values():
        found += [record.value for record in records]
    consumer.close()
    return found


@pytest.mark.parametrize("produce", [with_confluent, with_kafka_python, with_aiokafka])
def test_exactly_the_committed_records_are_read(
    cluster: EmbeddedCluster, produce: Callable[[EmbeddedCluster, str], int]
) -> None:
    topic = produce.__name__
    cluster.create_topic(topic, PARTITIONS)
    left_open = produce(cluster, topic)
    for read in (read_with_confluent, read_with_kafka_python):
        assert sorted(read(cluster, topic)) == sorted(COMMITTED), read.__name__
    # The log has the aborted records too, and a marker for each transaction and partition.
    assert sum(cluster.end_offsets(topic).values()) == TRANSACTIONS * (EACH + PARTITIONS) + left_open


def test_second_producer_fences_the_first(cluster: EmbeddedCluster) -> None:
    config = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "fencing"}
    first, second = confluent_kafka.Producer(config), confluent_kafka.Producer(config)
    first.init_transactions(20)
    first.begin_transaction()
    first.produce("fencing", b"of the first")
    assert first.flush(20) == 0
    second.init_transactions(20)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        first.commit_transaction(20)
    assert caught.value.args[0].fatal()
    second.begin_transaction()
    second.produce("fencing", b"of the second")
    second.commit_transaction(20)
    assert cluster.end_offset("fencing", 0) == 4


def test_offsets_are_committed_with_their_transaction(cluster: EmbeddedCluster) -> None:
    """A copy of a topic in transactions, with send_offsets_to_transaction: the first is aborted, the second
    committed."""
    cluster.create_topic("input")
    source = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(10):
        source.produce("input", b"%d" % number)
    assert source.flush(20) == 0
    config = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "copier", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**config, "enable.auto.commit": False, "isolation.level": "read_committed"})
    consumer.subscribe(["input"])
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "copier"})
    producer.init_transactions(20)
    partition = confluent_kafka.TopicPartition("input", 0)
    for commit in (False, True):
        seen: list[bytes | None] = []
        producer.begin_transaction()
        while len(seen) < 10:
            for message in consumer.consume(10, 1):
                assert message.error() is None
                seen.append(message.value())
                producer.produce("output", message.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 20
        )
        if commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
            consumer.seek(confluent_kafka.TopicPartition("input", 0, 0))
        (found,) = consumer.committed([partition], 20)
        assert found.offset == (10 if commit else confluent_kafka.OFFSET_INVALID)
    consumer.close()


def test_java_does_transactions_of_the_clusters_version(cluster: EmbeddedCluster) -> None:
    """Kafka's ProducerPerformance ends a transaction every few milliseconds: in version 2 each end raises the epoch."""
    cluster.create_topic("java")
    tool = (
        "org.apache.kafka.tools.ProducerPerformance --topic java --num-records 200 --record-size 20 --throughput 1000"
    )
    transactions = "--transactional-id java --transaction-duration-ms 20 --producer-props bootstrap.servers="
    jvm = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *logging("warn")]
    command = [java(), *jvm, "-cp", f"{resolve_kafka_tools(KAFKA_4)}/*", *tool.split(), *transactions.split()]
    command[-1] += cluster.bootstrap_servers
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    batches = [one for data in cluster.records("java", 0) for one in heads(data)]
    epochs = [epoch for _, attributes, epoch, _, _ in batches if attributes == 0x30]
    version_2 = bool(cluster._call(lambda c: c.config.transaction_version))
    assert len(epochs) >= 2
    assert epochs == (list(range(1, len(epochs) + 1)) if version_2 else [0] * len(epochs))
    assert sum(delta + 1 for _, attributes, _, _, delta in batches if attributes == 0x10) == 200
