"""Three clients produce with acks=all and one consumes, while nodes are killed, stopped, paused and isolated."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

import confluent_kafka
import kafka
import pytest
from kafka.record import MemoryRecords

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.record_metadata import RecordMetadata
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

TOPIC = "t"
PARTITIONS = 3
PATIENCE = 15.0
# Partition and offset; the value that was acknowledged at each place.
Place = tuple[int, int]
Stored = dict[Place, bytes]
# `Send` sends one record and notes its place in `acknowledged`. `Flush` waits for all records.
Send = Callable[[int, bytes], None]
Flush = Callable[[], None]


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(
        brokers=3, min_insync_replicas=2, broker_session_timeout_ms=200, replica_lag_time_max_ms=1_000
    ) as one:
        one.create_topic(TOPIC, PARTITIONS)
        yield one


@pytest.fixture(autouse=True)
def forgotten_sockets_are_not_found_later() -> Iterator[None]:
    """kafka-python keeps unconnected sockets in coroutines that never continue."""
    yield
    for one in gc.get_objects():
        if isinstance(one, socket.socket) and one.fileno() >= 0 and one.getsockname()[0] == "0.0.0.0":
            one.close()


def kafkabuf_client(servers: str, acknowledged: Stored) -> tuple[Send, Flush]:
    producer = KafkaProducer(bootstrap_servers=servers, retry_backoff_ms=10, reconnect_backoff_ms=10)

    def send(partition: int, value: bytes) -> None:
        def note(where: RecordMetadata | None, error: BaseException | None) -> None:
            assert where is not None, error
            acknowledged[partition, where.offset] = value

        producer.send(TOPIC, value, partition=partition, callback=note)

    return send, lambda: producer.close(PATIENCE)


def confluent_client(servers: str, acknowledged: Stored) -> tuple[Send, Flush]:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "retry.backoff.ms": 10,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "topic.metadata.refresh.fast.interval.ms": 20,
        }
    )

    def send(partition: int, value: bytes) -> None:
        def note(error: object, message: confluent_kafka.Message) -> None:
            assert error is None, error
            offset = message.offset()
            assert offset is not None
            acknowledged[partition, offset] = value

        producer.produce(TOPIC, value, partition=partition, on_delivery=note)
        producer.poll(0)

    def flush() -> None:
        assert producer.flush(PATIENCE) == 0

    return send, flush


def kafka_python_client(servers: str, acknowledged: Stored) -> tuple[Send, Flush]:
    producer = kafka.KafkaProducer(
        bootstrap_servers=servers, acks="all", retry_backoff_ms=10, reconnect_backoff_ms=10, metadata_max_age_ms=500
    )
    sent = []

    def send(partition: int, value: bytes) -> None:
        sent.append((value, producer.send(TOPIC, value, partition=partition)))

    def flush() -> None:
        for value, future in sent:
            where = future.get(PATIENCE)
            acknowledged[where.partition, where.offset] = value
        producer.close()

    return send, flush


CLIENTS = {"kafkabuf": kafkabuf_client, "confluent": confluent_client, "kafka-python": kafka_python_client}


class Reader(threading.Thread):
    """A context manager. Reads all partitions from the start while there is trouble."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self.seen: Stored = {}
        self.stopped = False
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "topic.metadata.refresh.fast.interval.ms": 20,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped = True
        self.join(PATIENCE)  # the reading ends at once, but librdkafka's close() has been seen to wait for ever

    def run(self) -> None:
        while not self.stopped:
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                place = message.partition(), message.offset()
                assert None not in place
                self.seen[place] = message.value() or b""  # type: ignore[index]
        self._consumer.close()


def trouble(cluster: EmbeddedCluster) -> None:
    """Applies each kind of trouble to the leader of a partition, and waits until every replica is in sync again."""
    steps: list[tuple[Callable[[int], None], Callable[[int], None]]] = [
        (cluster.kill_node, cluster.start_node),
        (cluster.pause_node, cluster.resume_node),
        (cluster.isolate_node, cluster.heal_node),
        (cluster.stop_node, cluster.start_node),
        (lambda node: cluster.isolate_node(node, from_clients=True), cluster.heal_node),
    ]
    for number, (harm, mend) in enumerate(steps):
        node = cluster.leader(TOPIC, number % PARTITIONS)[0]
        harm(node)
        time.sleep(0.35)  # longer than the node's session
        mend(node)
        wait_until(lambda: all(len(cluster.in_sync(TOPIC, index)) == 3 for index in range(PARTITIONS)))


def stored(cluster: EmbeddedCluster) -> list[Stored]:
    """The records of each node."""

    def read(state: Cluster) -> list[Stored]:
        return [
            {
                (one.index, record.offset): record.value or b""
                for one in state.catalogue.topic(TOPIC).partitions
                for kept in one.replicas[node_id].log.batches()
                for record in MemoryRecords(bytes(kept.data)).next_batch()
            }
            for node_id in state.nodes
        ]

    return cluster._call(read)


@pytest.mark.parametrize("client", CLIENTS)
def test_acknowledged_records_survive_every_trouble(cluster: EmbeddedCluster, client: str) -> None:
    acknowledged: Stored = {}
    send, flush = CLIENTS[client](cluster.bootstrap_servers, acknowledged)
    with Reader(cluster.bootstrap_servers) as reader:
        makes_trouble = threading.Thread(target=trouble, args=(cluster,), daemon=True)
        makes_trouble.start()
        sent = 0
        while makes_trouble.is_alive():
            send(sent % PARTITIONS, b"%d" % sent)
            sent += 1
            time.sleep(0.002)
        flush()
        logs = stored(cluster)
        wait_until(lambda: len(reader.seen) == len(logs[0]))
    assert sorted(map(int, acknowledged.values())) == list(range(sent))
    assert logs[0] == logs[1] == logs[2] == reader.seen
    assert acknowledged.items() <= logs[0].items()
    if client != "kafka-python":  # kafka-python's producer is not idempotent
        assert len(logs[0]) == sent
