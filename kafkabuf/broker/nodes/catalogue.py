"""The catalogue: the topics that exist, with their ids, settings and partitions. Belongs to the cluster's event loop.

The catalogue creates, changes and deletes topics. It does so in steps (waiting/slices.py): a topic is entered when all
its replicas are there, and leaves the catalogue before its replicas go. The journal stores a change before the change
takes effect (memory.py). Placement chooses the nodes of new partitions. The controller elects their leaders.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from uuid import UUID

from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.configs.topics import canonical_configs
from kafkabuf.broker.groups.groups import Groups
from kafkabuf.broker.internal.topics import INTERNAL_TOPICS
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.log.names import check_name
from kafkabuf.broker.log.upkeep.manager import LogManager
from kafkabuf.broker.nodes.controller import Controller
from kafkabuf.broker.nodes.memory import ClusterMemory, KeptTopic
from kafkabuf.broker.nodes.placement import DEFAULT, Placement
from kafkabuf.broker.records.config import Limits, LogConfig
from kafkabuf.broker.replica.replication import Node, Partition, Replica
from kafkabuf.broker.replica.state import NO_LEADER, PartitionState
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.broker.waiting.slices import Work, at_once, finish
from kafkabuf.errors import (
    InvalidTopicError,
    KafkaError,
    KafkaStorageError,
    PolicyViolationError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)

# Kafka's QuorumController.MAX_RECORDS_PER_USER_OP: one request writes no more records of metadata. Each new topic is a
# record, and so is each new partition and each setting of a new topic.
MAX_CHANGES = 10_000


class Catalogue:
    """`topics` are in the order of their creation. `defaults` returns the settings of a topic that has no settings of
    its own."""

    def __init__(
        self,
        config: ClusterConfig,
        nodes: Mapping[int, Node],
        placement: Placement,
        controller: Controller,
        logs: LogManager,
        memory: ClusterMemory,
        groups: Groups,
        defaults: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._config = config
        self._nodes = nodes
        self._placement = placement
        self._controller = controller
        self._logs = logs
        self._memory = memory
        self._groups = groups
        self._defaults = defaults
        self.topics: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._waiting: set[asyncio.Future[None]] = set()

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

    def find(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def changed(self) -> asyncio.Future[None]:
        """A future that is done when a topic has been created or deleted, or has got partitions. The caller cancels the
        future if it does not wait any more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def _tell(self) -> None:
        self._groups.topics_changed()
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

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
        """The replica on a node. Raises UnknownTopicOrPartitionError or NotLeaderOrFollowerError."""
        return self.topic(topic).partition(partition).replica(node_id)

    def replicas(self, node_id: int) -> list[Replica]:
        """Every replica that a node has."""
        partitions = (partition for topic in self.topics.values() for partition in topic.partitions)
        return [partition.replicas[node_id] for partition in partitions if node_id in partition.replicas]

    # ---- changes

    def creating_topic(
        self,
        name: str,
        partitions: int = DEFAULT,
        replication_factor: int = DEFAULT,
        configs: Mapping[str, str] | None = None,
        *,
        assignment: Mapping[int, tuple[int, ...]] | None = None,
        dry_run: bool = False,
    ) -> Work[Topic]:
        """Creates a topic, in steps.

        `assignment` gives the nodes of every partition, its leader first. Without it the leaders go round the nodes,
        and each new topic starts one node further on.
        """
        check_name(name)
        if name in self.topics:
            raise TopicExistsError(f"topic {name} exists")
        if name in INTERNAL_TOPICS:
            raise InvalidTopicError(f"{name} is internal: the cluster makes it with the first lookup of a coordinator")
        check_batch(len(assignment) if assignment else self._placement.count(partitions), 1)
        canonical = canonical_configs(configs or {}, self._defaults())
        if assignment:
            placed = self._placement.place_assigned(assignment)
        else:
            shift = len(self.topics) - sum(internal in self.topics for internal in INTERNAL_TOPICS)
            placed = self._placement.place(name, partitions, replication_factor, shift)
        yield  # with 10,000 partitions each of these takes a slice
        topic = self._new_topic(name, canonical)
        new = topic.add(placed)
        yield
        if not dry_run:
            yield from self._make(topic, new)
            self._enter(topic)
            yield from self._introduce(new)
            if topic.defaults != self._defaults() and not topic.deleted:  # they changed since the first step
                self._reconfigure(topic, self._new_topic(name, topic.configs))
            self._tell()
        return topic

    create_topic = at_once(creating_topic)

    def configure_topic(self, topic: Topic, configs: Mapping[str, str], *, dry_run: bool = False) -> None:
        """Replaces the settings of a topic. Raises InvalidConfigError, and InvalidTopicError for an internal topic."""
        _check_own(topic)
        changed = self._new_topic(topic.name, canonical_configs(configs, self._defaults()))
        if not dry_run:
            before, topic.configs = topic.configs, changed.configs
            try:
                self._memory.keep_topic(topic)
            except KafkaStorageError:
                topic.configs = before
                raise
            self._reconfigure(topic, changed)

    def changing_defaults(self) -> Work[None]:
        """Call this when the nodes' settings for topics have changed, in steps."""
        for topic in tuple(self.topics.values()):
            if not topic.deleted:
                self._reconfigure(topic, self._new_topic(topic.name, topic.configs))
            yield

    def _reconfigure(self, topic: Topic, changed: Topic) -> None:
        topic.configs, topic.defaults = changed.configs, changed.defaults
        topic.limits, topic.new_log = changed.limits, changed.new_log
        self._logs.configure(topic.name, self._log_config(topic.settings))
        self._controller.reconsider(topic)

    def adding_partitions(
        self, name: str, count: int, assignment: list[tuple[int, ...]] | None = None, *, dry_run: bool = False
    ) -> Work[None]:
        """Adds partitions to a topic until it has `count`, in steps. `assignment` gives the nodes of the new
        partitions."""
        topic = self.topic(name)
        _check_own(topic)
        check_batch(count - len(topic.partitions), 0)
        placed = self._placement.place_more(topic, count, assignment)
        yield
        if not dry_run:
            new = topic.new_partitions(placed)
            yield
            yield from self._make(topic, new)
            yield from self._introduce(new)
            self._tell()

    add_partitions = at_once(adding_partitions)

    def deleting_topic(self, name: str | UUID) -> Work[Topic]:
        """Deletes a topic with its records, in steps. The leaders answer the parked requests with an error."""
        topic = self.topic(name)
        _check_own(topic)
        # The states of its partitions count no more.
        self._memory.forget_topic(topic)
        del self.topics[topic.name], self._by_id[topic.topic_id]
        topic.deleted = True
        for partition in topic.partitions:
            for replica in partition.replicas.values():
                replica.forget()
            self._memory.forget_partition(partition)
            yield
        yield from self._logs.deleting(topic.name)
        yield from self._groups.forget_topic(topic.name)
        self._tell()
        return topic

    delete_topic = at_once(deleting_topic)

    def add_internal(self, topic: Topic) -> None:
        """Enters an internal topic, whose partitions have their replicas. The journal does not keep it."""
        self._enter(topic)
        self._controller.introduce(topic.partitions)
        self._tell()

    def restore_topic(self, kept: KeptTopic) -> None:
        """Enters a topic of the journal. The topic has no leaders yet."""
        missing = {node_id for nodes in kept.replica_nodes for node_id in nodes} - self._nodes.keys()
        if missing:
            raise KafkaStorageError(
                f"topic {kept.name} has replicas on node {max(missing)}, the cluster has nodes 1 to "
                f"{len(self._nodes)}: start the cluster with as many nodes as it had"
            )
        topic = self._new_topic(kept.name, kept.configs)
        topic.topic_id = kept.topic_id
        partitions = topic.add(kept.replica_nodes)
        self._enter(topic)
        finish(self._add_copies(topic, partitions))
        for partition in partitions:
            epoch, isr = kept.states.get(partition.index, (-1, partition.replica_nodes))
            written = max(replica.log.leader_epochs.latest for replica in partition.replicas.values())
            partition.state = PartitionState(NO_LEADER, max(epoch, written), isr)

    def _new_topic(self, name: str, configs: dict[str, str]) -> Topic:
        """A topic that has no partitions yet: `Topic.add` adds them."""
        defaults = self._defaults()
        settings = {**defaults, **configs}
        log_config = self._log_config(settings)
        limits = Limits.of(settings, self._config.max_message_bytes)

        def new_log(node: int, index: int, *, new: bool) -> PartitionLog:
            return self._logs.open(node, name, index, log_config, new=new)

        return Topic(name, [], limits, new_log, configs, defaults)

    def _log_config(self, settings: Mapping[str, str]) -> LogConfig:
        return LogConfig.of(settings, self._config.retention_bytes, self._config.max_message_bytes)

    def _enter(self, topic: Topic) -> None:
        self.topics[topic.name] = self._by_id[topic.topic_id] = topic

    def _make(self, topic: Topic, partitions: list[Partition]) -> Work[None]:
        """Makes the logs of new partitions, and then stores the topic. If the disk refuses any of it, nothing is left
        of the partitions. The topic comes last in the journal: a journal without it does not count their states."""
        before = topic.partitions
        try:
            yield from self._add_copies(topic, partitions, new=True)
            for partition in partitions:
                self._memory.keep_partition(partition, self._controller.first_state(partition))
                yield
            topic.partitions = before + [partition for partition in partitions if partition.index >= len(before)]
            self._memory.keep_topic(topic)
        except BaseException as error:
            topic.partitions = before
            undoing = self._undo(partitions)
            if isinstance(error, GeneratorExit):  # the cluster stops
                finish(undoing)
            else:
                yield from undoing
            raise

    def _undo(self, partitions: list[Partition]) -> Work[None]:
        """Deletes the logs and the states of partitions that no topic has, even if the cluster stops meanwhile."""
        left = deque(partitions)
        try:
            while left:
                self._discard(left.popleft())
                yield
        finally:
            for partition in left:
                self._discard(partition)

    def _discard(self, partition: Partition) -> None:
        self._memory.forget_partition(partition)
        for node_id in partition.replicas:
            self._logs.discard(node_id, partition.topic.name, partition.index)

    def _introduce(self, partitions: list[Partition]) -> Work[None]:
        for partition in partitions:
            if not partition.topic.deleted:
                self._controller.introduce([partition])
            yield

    def _add_copies(self, topic: Topic, partitions: list[Partition], *, new: bool = False) -> Work[None]:
        """Gives each node of the partitions its replica, with its log."""
        for partition in partitions:
            for node_id in partition.replica_nodes:
                log = topic.new_log(node_id, partition.index, new=new)
                partition.replicas[node_id] = Replica(self._nodes[node_id], partition, log)
            yield


def _check_own(topic: Topic) -> None:
    """Raises InvalidTopicError for a topic that clients may not change."""
    if topic.internal:
        raise InvalidTopicError(f"{topic.name} is internal: clients cannot change it")


def check_batch(partitions: int, more: int) -> None:
    """Raises PolicyViolationError if a change of `partitions` and of `more` records of metadata is too large for one
    request."""
    if partitions > MAX_CHANGES:
        raise PolicyViolationError("Excessively large number of partitions per request.")
    if partitions + more > MAX_CHANGES:
        raise PolicyViolationError("Unable to perform excessively large batch operation.")
