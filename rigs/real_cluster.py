"""Several nodes of real Apache Kafka as one cluster, for tests that kill nodes while clients run.

with RealCluster("4.1.2") as cluster:
    cluster.create_topic("t")
    node = cluster.leader("t")
    cluster.kill(node)
    cluster.restart(node)
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, TopicPartition

from rigs.jars import resolve_kafka
from rigs.ports import free_ports
from rigs.real_kafka import KAFKA_4, TEST_JVM, RealKafka, RealKafkaError, admin_client, create_topic

_HOST = "127.0.0.1"
_PATIENCE = 60.0
# Three replicas of everything, two of which must have a record. The short time-outs detect a dead node soon.
_OPTIONS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
}


class RealCluster:
    """`size` nodes of Apache Kafka `version`, each broker and controller in a JVM of its own. Node ids count from 1.
    `options` are further server properties of every node."""

    def __init__(
        self, version: str = KAFKA_4, size: int = 3, heap: str = "320m", options: Mapping[str, str] | None = None
    ) -> None:
        self.version = version
        ports = free_ports(2 * size)
        self._ports = {number + 1: (ports[2 * number], ports[2 * number + 1]) for number in range(size)}
        voters = ",".join(f"{number}@{_HOST}:{controller}" for number, (_, controller) in self._ports.items())
        self.nodes = {
            number: RealKafka(
                version,
                options={**_OPTIONS, "node.id": str(number), "controller.quorum.voters": voters, **(options or {})},
                heap=heap,
                jvm_options=TEST_JVM,
            )
            for number in self._ports
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{_HOST}:{port}" for port, _ in self._ports.values())

    def start(self) -> None:
        """Returns once every node knows of every other. Raises RealKafkaError, JarsUnavailableError."""
        resolve_kafka(self.version)
        try:
            _in_parallel(lambda number: self.nodes[number].prepare(*self._ports[number]), self.nodes)
            for node in self.nodes.values():
                node.launch()
            for node in self.nodes.values():
                node.await_ready(len(self.nodes))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        # Kill: a clean end needs a quorum, which the last two nodes do not have.
        for node in self.nodes.values():
            node.kill()
            node.stop()

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic with a replica on every node. Returns when the leaders of all partitions serve requests."""
        create_topic(self._admin(), name, partitions, replicas=len(self.nodes))

    def leader(self, topic: str, partition: int = 0) -> int:
        """The number of the node that leads the partition."""
        partitions = self._admin().list_topics(topic, timeout=_PATIENCE).topics[topic].partitions
        return int(partitions[partition].leader)

    def move_leader(self, topic: str, partition: int = 0) -> int:
        """Make another node the leader without stopping a node; returns the number of the new leader."""
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        try:
            old = self.leader(topic, partition)
            followers = [number for number in self.nodes if number != old]
            admin.alter_partition_reassignments({TopicPartition(topic, partition): [*followers, old]})
            deadline = time.monotonic() + _PATIENCE
            while (new := self.leader(topic, partition)) == old:
                admin.elect_leaders(0, {topic: [partition]}, raise_errors=False)  # elects the first replica of the list
                if time.monotonic() > deadline:
                    raise RealKafkaError(f"{topic}-{partition} is still led by {old} after {_PATIENCE} s.")
            return new
        finally:
            admin.close()

    def kill(self, number: int) -> None:
        """kill -9 a node."""
        self.nodes[number].kill()

    def shut_down(self, number: int) -> None:
        """End a node in order: it closes its logs."""
        self.nodes[number].shut_down()

    def restart(self, number: int) -> None:
        """Start a node that was ended, with its data. Returns when it is a broker again."""
        self.nodes[number].launch()
        self.nodes[number].await_ready(len(self.nodes))

    def pause(self, number: int) -> None:
        """Stop a node's process: the kernel still accepts connections, and the node responds to no request."""
        self.nodes[number].signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """Continue a paused node. Returns when it is a broker again."""
        self.nodes[number].signal(signal.SIGCONT)
        self.nodes[number].await_ready(len(self.nodes))

    def await_in_sync(self, topic: str) -> None:
        """Wait until all replicas of every partition are in sync."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            partitions = self._admin().list_topics(topic, timeout=_PATIENCE).topics[topic].partitions.values()
            if all(len(partition.isrs) == len(self.nodes) for partition in partitions):
                return
            if time.monotonic() > deadline:
                raise RealKafkaError(f"Not all replicas of {topic} are in sync after {_PATIENCE} s.")
            time.sleep(0.1)

    def _admin(self) -> AdminClient:
        return admin_client(self.bootstrap_servers)


def _in_parallel(work: Callable[[int], None], numbers: Iterable[int]) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(work, numbers))
