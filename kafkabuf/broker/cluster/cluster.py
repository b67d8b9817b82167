"""The cluster's state and its nodes: N listening sockets of one process, served by one event loop.

Everything here belongs to that loop; `EmbeddedCluster` is the face for other threads.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from kafkabuf.broker.cluster.configs import check_configs
from kafkabuf.broker.cluster.controller import NO_NODE, Controller
from kafkabuf.broker.cluster.memory import ClusterMemory
from kafkabuf.broker.cluster.node import Listening, Node
from kafkabuf.broker.front.listener import Listener
from kafkabuf.broker.groups.groups import OFFSETS_TOPIC, Groups
from kafkabuf.broker.guards.faults import Faults
from kafkabuf.broker.guards.limits import ConnectionLimits
from kafkabuf.broker.guards.quotas import Quotas
from kafkabuf.broker.guards.request_log import RequestLog
from kafkabuf.broker.guards.security import Mechanisms, Security
from kafkabuf.broker.log.batch import Limits
from kafkabuf.broker.log.config import LogConfig, int_config
from kafkabuf.broker.log.control import Marker
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.log.manager import LogManager
from kafkabuf.broker.replica.replication import NO_LEADER, Replica
from kafkabuf.broker.replica.topics import Partition, Topic, check_name
from kafkabuf.broker.transactions import Transactions
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    KafkaError,
    KafkaStorageError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)

log = logging.getLogger("kafkabuf.broker")

# For markers that the disk has refused.
_MARKER_RETRY_SECONDS = 1.0

__all__ = ["Cluster", "ClusterConfig", "Node"]


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """`replication_factor` is that of topics for which nobody says another. Topics override `retention_bytes`, which is
    per partition, None for everything, and `min_insync_replicas` by configs of these names. `replica_lag_time_max_ms`
    and `broker_session_timeout_ms` are Kafka's replica.lag.time.max.ms and broker.session.timeout.ms.
    `transaction_version` is the level of Kafka's feature transaction.version that clients are told: 2 for KIP-890.
    `request_log`: how many requests are remembered."""

    brokers: int
    auto_create_topics: bool
    default_partitions: int
    retention_bytes: int | None
    max_message_bytes: int
    host: str
    ports: tuple[int, ...] | None
    verify_records: bool
    transaction_version: int = 2
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    security: Security = field(default_factory=Security)
    request_log: int = 10_000
    # Where logs and all else that outlives the cluster is kept; None: in memory.
    data_dir: Path | None = None
    replication_factor: int = 1
    min_insync_replicas: int = 1
    replica_lag_time_max_ms: int = 30_000
    broker_session_timeout_ms: int = 9_000


class Cluster:
    """`listen` has a node listen; a cluster that is asked in its own process needs no sockets."""

    def __init__(
        self,
        config: ClusterConfig,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        listen: Callable[[Node], Listening] = Listener,
    ) -> None:
        self.config = config
        self.clock = clock
        self.loop = loop
        self.listen = listen
        # What clients may take their time for is of the real world, whatever the cluster takes the time to be.
        self.network_clock: Clock = SystemClock()
        self.timer = Timer(loop, clock)
        self.faults = Faults()
        self.logs = LogManager(self.timer, config.data_dir)
        self.quotas = Quotas(clock)
        self.request_log = RequestLog(config.request_log)
        self.tls = config.security.ssl_context()
        self.mechanisms = Mechanisms(config.security, clock) if config.security.sasl_mechanisms else None
        self.memory = ClusterMemory(config.data_dir)
        self.groups = Groups(self.timer, self.memory.keep_offset)
        self.transactions = Transactions(
            self.timer,
            self.next_producer_id,
            self.write_marker,
            config.transaction_version,
            self.memory.keep_transaction,
        )
        self.controller = Controller(self)
        self.topics: dict[str, Topic] = {}
        self.cluster_id = "kafkabuf-embedded"
        ports = config.ports or (0,) * config.brokers
        self.nodes = {
            index + 1: Node(self, index + 1, config.host, port) for index, port in enumerate(ports[: config.brokers])
        }
        self._by_id: dict[UUID, Topic] = {}

    # ---- nodes

    async def start(self) -> None:
        self.logs.start()
        self.memory.restore(self)
        for node in self.nodes.values():
            node.listen()
        self.controller.admit(*self.nodes.values())

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.close()
        self.memory.close()
        self.logs.close()
        self.timer.close()

    def cut_connections(self, node_id: int | None) -> int:
        nodes = self.nodes.values() if node_id is None else (self.nodes[node_id],)
        cut = [connection for node in nodes for connection in node.connections]
        for connection in cut:
            connection.abort()
        return len(cut)

    def alive(self) -> list[int]:
        """The nodes that the controller reckons with."""
        return [node.node_id for node in self.nodes.values() if node.alive]

    def coordinator(self, key: str) -> int:
        """The node that coordinates a group or a transactional id: the same for all who ask, as long as the nodes
        stay."""
        alive = self.alive()
        return alive[zlib.crc32(key.encode()) % len(alive)] if alive else NO_NODE

    def refresh_fetchers(self) -> None:
        """Which nodes reach which has changed."""
        for node in self.nodes.values():
            node.fetchers.refresh()

    @property
    def session_timeout(self) -> float:
        """Seconds after which a node that is not heard of is out."""
        return self.config.broker_session_timeout_ms / 1000

    @property
    def max_lag(self) -> float:
        """Seconds by which a follower may be behind and in sync."""
        return self.config.replica_lag_time_max_ms / 1000

    # ---- topics

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        assignment: Mapping[int, tuple[int, ...]] | None = None,
        dry_run: bool = False,
    ) -> Topic:
        """-1 stands for the cluster's defaults. Leaders go round the nodes, starting further on for each topic, unless
        `assignment` gives the replicas of every partition, its leader first."""
        check_name(name)
        if name in self.topics:
            raise TopicExistsError(f"topic {name} exists")
        check_configs(configs or {})
        if assignment:
            placed = self._placed([tuple(assignment.get(index, ())) for index in range(len(assignment))])
        else:
            placed = self._place(name, partitions, replication_factor, len(self.topics))
        topic = self.new_topic(name, dict(configs or {}))
        new = topic.add(placed)
        if not dry_run:
            self.memory.keep_topic(topic)
            self.add_topic(topic)
            self.add_copies(new)
            self.controller.introduce(new)
        return topic

    def add_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = self._by_id[topic.topic_id] = topic

    def add_copies(self, partitions: list[Partition]) -> None:
        """Each on its nodes, with its log."""
        for partition in partitions:
            for node_id in partition.replicas:
                log = partition.topic.new_log(node_id, partition.index)
                partition.copies[node_id] = Replica(self.nodes[node_id], partition, log)

    def replica(self, topic: str, partition: int, node_id: int) -> Replica:
        """UnknownTopicOrPartitionError, NotLeaderOrFollowerError."""
        return self.topic(topic).partition(partition).copy(node_id)

    def copies(self, node_id: int) -> list[Replica]:
        """All that a node has."""
        every = (partition for topic in self.topics.values() for partition in topic.partitions)
        return [partition.copies[node_id] for partition in every if node_id in partition.copies]

    def _place(self, name: str, partitions: int, replication_factor: int, shift: int) -> list[tuple[int, ...]]:
        """Replicas for each partition, the first of them `shift` nodes on from the first alive."""
        alive = self.alive()
        count = self.config.default_partitions if partitions == -1 else partitions
        default = min(self.config.replication_factor, max(len(alive), 1))
        factor = default if replication_factor == -1 else replication_factor
        if count < 1:
            raise InvalidPartitionsError(f"topic {name} with {count} partitions: at least 1 is needed")
        if not 1 <= factor <= len(alive):
            raise InvalidReplicationFactorError(f"replication factor {factor}: {len(alive)} nodes are alive")
        return [tuple(alive[(index + shift + step) % len(alive)] for step in range(factor)) for index in range(count)]

    def _placed(self, placed: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        alive = set(self.alive())
        if not all(nodes and len(set(nodes)) == len(nodes) and alive.issuperset(nodes) for nodes in placed):
            raise InvalidReplicaAssignmentError(
                f"{placed}: partitions are 0, 1, 2..., each on some of the nodes {sorted(alive)}, on none twice"
            )
        return placed

    def new_topic(self, name: str, configs: dict[str, str]) -> Topic:
        """Without partitions: `Topic.add` makes them."""
        kept = LogConfig.of(configs, self.config.retention_bytes)
        limits = Limits(max_message_bytes=int_config(configs, "max.message.bytes", self.config.max_message_bytes))
        int_config(configs, "min.insync.replicas", self.config.min_insync_replicas, 1)

        def new_log(node: int, index: int) -> PartitionLog:
            return self.logs.open(node, name, index, kept)

        return Topic(name, [], limits, new_log, configs, self.config.min_insync_replicas)

    def configure_topic(self, topic: Topic, configs: dict[str, str], *, dry_run: bool = False) -> None:
        """Gives a topic these settings instead of those it has. InvalidConfigError."""
        check_configs(configs)
        made = self.new_topic(topic.name, configs)
        if not dry_run:
            topic.configs, topic.limits, topic.new_log = made.configs, made.limits, made.new_log
            self.logs.configure(topic.name, LogConfig.of(configs, self.config.retention_bytes))
            self.memory.keep_topic(topic)
            self.controller.reconsider(topic)

    def add_partitions(
        self, name: str, count: int, assignment: list[tuple[int, ...]] | None = None, *, dry_run: bool = False
    ) -> None:
        """Lets a topic have `count` partitions, more than it has. `assignment`: the replicas of the new ones."""
        topic = self.topic(name)
        have = len(topic.partitions)
        if count <= have:
            raise InvalidPartitionsError(f"topic {name} has {have} partitions, {count} is no increase")
        if assignment is None:
            alive, first = self.alive(), topic.partitions[0].replicas
            shift = alive.index(first[0]) if first[0] in alive else 0
            placed = self._place(name, count, min(len(first), len(alive)), shift)[have:]
        elif len(assignment) == count - have:
            placed = self._placed(assignment)
        else:
            raise InvalidReplicaAssignmentError(f"{len(assignment)} assignments for {count - have} new partitions")
        if not dry_run:
            new = topic.add(placed)
            self.memory.keep_topic(topic)
            self.add_copies(new)
            self.controller.introduce(new)

    def delete_topic(self, name: str | UUID) -> Topic:
        """Records and all. Parked requests learn of it."""
        topic = self.topic(name)
        self.memory.forget_topic(topic.name)
        del self.topics[topic.name], self._by_id[topic.topic_id]
        topic.deleted = True
        for partition in topic.partitions:
            for copy in partition.copies.values():
                copy.forget()
        self.logs.delete(topic.name)
        self.groups.forget_topic(topic.name)
        return topic

    def topic(self, name: str | UUID) -> Topic:
        """By name or id. UnknownTopicOrPartitionError or UnknownTopicIdError if there is none."""
        if isinstance(name, UUID):
            if (found := self._by_id.get(name)) is None:
                raise UnknownTopicIdError(f"no topic has the id {name}")
            return found
        if name not in self.topics:
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        return self.topics[name]

    def partition_code(self, name: str, index: int) -> int:
        """0 for a partition that exists, else the error code to answer with."""
        try:
            self.topic(name).partition(index)
        except KafkaError as error:
            return error.code
        return 0

    def write_marker(self, where: tuple[str, int], marker: Marker) -> bool:
        """Ends a transaction in one partition; False if no leader can be reached to do so, or its disk refuses. What
        does not exist any more, and what a later epoch has written to, needs no marker."""
        name, index = where
        if name == OFFSETS_TOPIC:
            self.groups.end_transaction(marker.producer_id, marker.committed)
            return True
        try:
            partition = self.topic(name).partition(index)
            if partition.leader == NO_LEADER or not self.nodes[partition.leader].connected:
                return False
            partition.copies[partition.leader].write_marker(marker, self.clock.time_ms())
        except KafkaStorageError as error:
            log.error("the marker for %s-%d has to wait: %s", name, index, error)
            self.timer.after(_MARKER_RETRY_SECONDS, self.transactions.write_held_markers)
            return False
        except KafkaError as error:
            log.info("no marker for %s-%d: %s", name, index, error)
        return True

    def next_producer_id(self) -> int:
        return self.memory.next_producer_id()
