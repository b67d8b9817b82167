"""The broker whose costs the model of large clusters has: one Apache Kafka, and the CPU time of its process."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from bench.harness import TOPIC_LIMITS
from bench.scale import costs
from bench.scale.load import Load
from bench.scale.real import Counts, cpu_of, producing
from rigs.real_kafka import RealKafka, create_topic

# The runs whose portions differ most. They run twice: the first time warms the JVM's compiler up.
RUNS = [costs.RUNS[number] for number in (0, 1, 2, 5, 7, 8)]
COMPILERS = ("C1 Compiler", "C2 Compiler")
WARM_UP_TRANSACTIONS = 300
TRANSACTIONS = 100
PARTITIONS = (1, 20, 60)  # of a transaction


class Kafka:
    """A running Kafka, with the methods of `bench.scale.real.Cluster`."""

    def __init__(self, running: RealKafka) -> None:
        self.servers = running.bootstrap_servers
        self._process_id = running.process_id
        self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def topic(self, partitions: int) -> str:
        """The name of a new topic."""
        name = f"scale-{uuid.uuid4().hex[:8]}"
        create_topic(self._admin, name, partitions, TOPIC_LIMITS)
        return name

    def cpu_s(self) -> float:
        """The CPU time that the JVM has used, without that of its compiler, which ends some minutes after the start."""
        return cpu_of(self._process_id, without=COMPILERS)


@dataclass(frozen=True)
class KafkaCosts:
    """Seconds of CPU time of one Apache Kafka 4.1, which leads every partition and has no followers."""

    batch_s: float
    request_s: float
    byte_s: float
    transaction_s: float
    """A transaction without partitions: its begin, its marker of the Spark sink, its end."""
    transaction_partition_s: float
    """A partition of a transaction: it is added, gets one batch, and gets the control record."""


def measure() -> KafkaCosts:
    """Start a Kafka and measure it. This takes some minutes."""
    with RealKafka() as running:
        kafka = Kafka(running)
        topics = [kafka.topic(load.partitions) for load in RUNS]
        for load, topic in zip(RUNS, topics, strict=True):
            _run(load, kafka, topic)
        runs = [_run(load, kafka, topic) for load, topic in zip(RUNS, topics, strict=True)]
        found = costs.fit([counts for counts, _ in runs], [used for _, used in runs], costs.BROKER_PARTS)
        transaction, partition = _transactions(kafka)
    return KafkaCosts(found["batches"], found["requests"], found["request_bytes"], transaction, partition)


def _run(load: Load, kafka: Kafka, topic: str) -> tuple[Counts, float]:
    with producing(kafka.servers, topic, load) as publish:
        before = kafka.cpu_s()
        return publish(), kafka.cpu_s() - before


def _transactions(kafka: Kafka) -> tuple[float, float]:
    """The CPU time of a transaction without partitions, and of each partition."""
    topic = kafka.topic(max(PARTITIONS))
    _run_transactions(kafka, topic, WARM_UP_TRANSACTIONS, 1)
    _run_transactions(kafka, topic, TRANSACTIONS, PARTITIONS[-1])
    return line([(number, _run_transactions(kafka, topic, TRANSACTIONS, number)) for number in PARTITIONS])


def _run_transactions(kafka: Kafka, topic: str, times: int, partitions: int) -> float:
    """The CPU time of a transaction."""
    from kafkabuf import KafkaProducer

    identity = {"transactional_id": f"scale-{uuid.uuid4().hex[:8]}", "linger_ms": 0}
    with KafkaProducer(identity, bootstrap_servers=kafka.servers) as producer:
        producer.init_transactions()
        before = kafka.cpu_s()
        for number in range(times):
            producer.begin_transaction()
            for partition in range(partitions):
                producer.send(topic, bytes(100), partition=partition)
            producer.send_offsets_to_transaction({(topic, 0): number}, topic)
            producer.commit_transaction()
        time.sleep(0.2)  # the coordinator writes the last control records
        return (kafka.cpu_s() - before) / times


def line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Height at 0 and slope of the line through points; neither is below 0."""
    middle_x, middle_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    slope = max(sum((x - middle_x) * (y - middle_y) for x, y in points) / spread, 0.0)
    return max(middle_y - slope * middle_x, 0.0), slope
