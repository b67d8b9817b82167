"""The catalogue: the topics that exist, with their ids, settings and partitions. Belongs to the cluster's event loop.

The catalogue creates, changes and deletes topics. The journal stores a change before the change takes effect
(memory.py). Placement chooses the nodes of new partitions. The controller elects their leaders.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from kafkabuf.broker.cluster.cluster_config import ClusterConfig
from kafkabuf.broker.cluster.configs import check_configs
from kafkabuf.broker.cluster.controller import Controller
from kafkabuf.broker.cluster.memory import ClusterMemory, KeptTopic
from kafkabuf.broker.cluster.placement import DEFAULT, Placement
from kafkabuf.broker.groups.groups import Groups
from kafkabuf.broker.log.config import Limits, LogConfig, int_config
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.log.manager import LogManager
from kafkabuf.broker.log.names import check_name
from kafkabuf.broker.replica.replication import Node, Partition, Replica
from kafkabuf.broker.replica.state import NO_LEADER, PartitionState
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.errors import (
    KafkaError,
    KafkaStorageError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)


class Catalogue:
    """`topics` are in the order of their creation."""

    def __init__(
        self,
        config: ClusterConfig,
        nodes: Mapping[int, Node],
        placement: Placement,
        controller: Controller,
        logs: LogManager,
        memory: ClusterMemory,
        groups: Groups,
    ) -> None:
        self._config = config
        self._nodes = nodes
        self._placement = placement
        self._controller = controller
        self._logs = logs
        self._memory = memory
        self._groups = groups
        self.topics: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}

    # ---- lookups

    def topic(self, name: str | UUID) -> Topic:
        """The topic with a name or id. Raises UnknownTopicOrPartitionError or UnknownTopicIdError."""
        if isinstance(name, UUID):
            if (topic := self._by_id.get(name)) is None:
                raise UnknownTopicIdError(f"no topic has the id {name}")
            return topic
        if name not in self.topics:
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        return self.topics[name]

    def topic_name(self, name: str | UUID) -> str:
        """The name of a topic that a request names by name or id; the id as text if no topic has the id."""
        try:
            return self.topic(name).name
        except KafkaError:
            return str(name)

    def partition_code(self, name: str, index: int) -> int:
        """0 for a partition that exists, otherwise the error code for the response."""
        try:
            self.topic(name).partition(index)
        except KafkaError as error:
            return error.code
        return 0

    def replica(self, topic: str, partition: int, node_id: int) -> Replica:
        """The copy on a node. Raises UnknownTopicOrPartitionError or NotLeaderOrFollowerError."""
        return self.topic(topic).partition(partition).copy(node_id)

    def copies(self, node_id: int) -> list[Replica]:
        """Every copy that a node has."""
        partitions = (partition for topic in self.topics.values() for partition in topic.partitions)
        return [partition.copies[node_id] for partition in partitions if node_id in partition.copies]

    # ---- changes

    def create_topic(
        self,
        name: str,
        partitions: int = DEFAULT,
        replication_factor: int = DEFAULT,
        configs: Mapping[str, str] | None = None,
        *,
        assignment: Mapping[int, tuple[int, ...]] | None = None,
        dry_run: bool = False,
    ) -> Topic:
        """Creates a topic.

        `assignment` gives the nodes of every partition, its leader first. Without it the leaders go round the nodes,
        and each new topic starts one node further on.
        """
        check_name(name)
        if name in self.topics:
            raise TopicExistsError(f"topic {name} exists")
        check_configs(configs or {})
        if assignment:
            placed = self._placement.place_assigned(assignment)
        else:
            placed = self._placement.place(name, partitions, replication_factor, len(self.topics))
        topic = self._new_topic(name, dict(configs or {}))
        new = topic.add(placed)
        if not dry_run:
            self._memory.keep_topic(topic)
            self._enter(topic)
            self._add_copies(topic, new)
            self._controller.introduce(new)
        return topic

    def configure_topic(self, topic: Topic, configs: dict[str, str], *, dry_run: bool = False) -> None:
        """Replaces the settings of a topic. Raises InvalidConfigError."""
        check_configs(configs)
        changed = self._new_topic(topic.name, configs)
        if not dry_run:
            topic.configs, topic.limits, topic.new_log = changed.configs, changed.limits, changed.new_log
            self._logs.configure(topic.name, LogConfig.of(configs, self._config.retention_bytes))
            self._memory.keep_topic(topic)
            self._controller.reconsider(topic)

    def add_partitions(
        self, name: str, count: int, assignment: list[tuple[int, ...]] | None = None, *, dry_run: bool = False
    ) -> None:
        """Adds partitions to a topic until it has `count`. `assignment` gives the nodes of the new partitions."""
        topic = self.topic(name)
        placed = self._placement.place_more(topic, count, assignment)
        if not dry_run:
            new = topic.add(placed)
            self._memory.keep_topic(topic)
            self._add_copies(topic, new)
            self._controller.introduce(new)

    def delete_topic(self, name: str | UUID) -> Topic:
        """Deletes a topic with its records. The leaders answer the parked requests with an error."""
        topic = self.topic(name)
        self._memory.forget_topic(topic.name)
        del self.topics[topic.name], self._by_id[topic.topic_id]
        topic.deleted = True
        for partition in topic.partitions:
            for copy in partition.copies.values():
                copy.forget()
        self._logs.delete(topic.name)
        self._groups.forget_topic(topic.name)
        return topic

    def restore_topic(self, kept: KeptTopic) -> None:
        """Enters a topic of the journal. The topic has no leaders yet."""
        missing = {node_id for nodes in kept.replicas for node_id in nodes} - self._nodes.keys()
        if missing:
            raise KafkaStorageError(
                f"topic {kept.name} has copies on node {max(missing)}, the cluster has nodes 1 to {len(self._nodes)}: "
                "start the cluster with as many nodes as it had"
            )
        topic = self._new_topic(kept.name, kept.configs)
        topic.topic_id = kept.topic_id
        partitions = topic.add(kept.replicas)
        self._enter(topic)
        self._add_copies(topic, partitions)
        for partition in partitions:
            epoch, isr = kept.states.get(partition.index, (-1, partition.replicas))
            written = max(copy.log.leader_epochs.latest for copy in partition.copies.values())
            partition.state = PartitionState(NO_LEADER, max(epoch, written), isr)

    def _new_topic(self, name: str, configs: dict[str, str]) -> Topic:
        """A topic that has no partitions yet: `Topic.add` adds them."""
        log_config = LogConfig.of(configs, self._config.retention_bytes)
        limits = Limits.of(configs, self._config.max_message_bytes)
        int_config(configs, "min.insync.replicas", self._config.min_insync_replicas, 1)

        def new_log(node: int, index: int) -> PartitionLog:
            return self._logs.open(node, name, index, log_config)

        return Topic(name, [], limits, new_log, configs, self._config.min_insync_replicas)

    def _enter(self, topic: Topic) -> None:
        self.topics[topic.name] = self._by_id[topic.topic_id] = topic

    def _add_copies(self, topic: Topic, partitions: list[Partition]) -> None:
        """Gives each node of the partitions its copy, with its log."""
        for partition in partitions:
            for node_id in partition.replicas:
                log = topic.new_log(node_id, partition.index)
                partition.copies[node_id] = Replica(self._nodes[node_id], partition, log)
