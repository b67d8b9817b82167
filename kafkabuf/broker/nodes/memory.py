"""The journal `cluster.journal` of the data folder: it keeps everything but the records over a restart of the cluster.

    ["topic", name]                                   id, configs, the replicas of each partition
    ["partition", topic, partition]                   leader, leader epoch, ISR
    ["group", group, "committed", topic, partition]   number of the commit, offset, leader epoch, metadata
    ["group", group, "pending", producer id, ...]     the same, of a transaction that has not ended
    ["group", group, "epoch"]                         the group epoch, of a consumer group (KIP-848)
    ["transaction", transactional id]                 the transaction, by the names of its fields
    ["configs", kind, name]                           the dynamic settings of nodes, a group or a subscription
    ["acl", resource type, pattern type, name,        an ACL
     principal, host, operation, permission]
    ["producer id"]                                   the last producer id that the cluster gave out
    ["cluster id"]

Kafka's way, two internal topics, would need a reader for each of their record formats, to store the same. The cluster
only writes such topics, for clients that read them (internal/).

The journal does not have the members of groups: they join again, as after the end of a session. Every partition gets a
new leader epoch at a restart, so that no epoch comes twice, even if the journal missed the last epoch.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from uuid import UUID

from kafkabuf.broker.guards.acls import Acl, Operation, PatternType, Permission, ResourceType
from kafkabuf.broker.replica.replication import Partition
from kafkabuf.broker.replica.state import PartitionState
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.broker.storage.journal import Journal, Key
from kafkabuf.broker.transactions.coordinator import State, Transaction
from kafkabuf.errors import KafkaError, KafkaStorageError

log = logging.getLogger("kafkabuf.broker")

FILE = "cluster.journal"
_PRODUCER_ID: Key = ("producer id",)
_CLUSTER_ID: Key = ("cluster id",)
_TRANSACTION_FIELDS = [
    field.name for field in fields(Transaction) if field.name not in ("state", "partitions", "expiry")
]


@dataclass(frozen=True, slots=True)
class KeptTopic:
    """A topic in the journal.

    `replica_nodes` has the nodes of each partition; `states` has the leader epoch and the ISR of each partition that
    ever had a leader, by its index.
    """

    name: str
    topic_id: UUID
    configs: dict[str, str]
    replica_nodes: list[tuple[int, ...]]
    states: dict[int, tuple[int, tuple[int, ...]]]


class ClusterMemory:
    """The `keep_...` methods write at once, and do nothing without a data folder. They raise KafkaStorageError if the
    disk refuses."""

    def __init__(self, data_dir: Path | None) -> None:
        self._journal = Journal(None if data_dir is None else data_dir / FILE)
        self._last_producer_id = 0
        # How often the state has changed in this run.
        self.changes = 0

    def open(self) -> None:
        """Reads the journal."""
        self._journal.open()
        for _, last in self._journal.find(*_PRODUCER_ID):
            self._last_producer_id = last

    @contextmanager
    def taking_over(self) -> Iterator[None]:
        """While the cluster takes over what the journal has. What the cluster did not write may raise any error: it
        becomes a KafkaStorageError that names the file."""
        try:
            yield
        except KafkaStorageError:
            raise
        except (ArithmeticError, AttributeError, KafkaError, LookupError, TypeError, ValueError) as error:
            raise KafkaStorageError(
                f"{self._journal.path} has an entry that the cluster did not write ({type(error).__name__}: {error}): "
                "undo the change, put back a copy of the file, or start with another data_dir"
            ) from error

    def cluster_id(self, new: str) -> str:
        """The id of the cluster that wrote the journal. A new journal gets the id `new`."""
        for _, kept in self._journal.find(*_CLUSTER_ID):
            new = kept
        self._put(_CLUSTER_ID, new)
        return new

    def topics(self) -> Iterator[KeptTopic]:
        states: defaultdict[str, dict[int, tuple[int, tuple[int, ...]]]] = defaultdict(dict)
        for (name, index), (_, epoch, isr) in self._journal.find("partition"):
            states[str(name)][int(index)] = epoch, tuple(isr)
        for (name,), kept in self._journal.find("topic"):
            replica_nodes = [tuple(nodes) for nodes in kept["replicas"]]
            yield KeptTopic(str(name), UUID(kept["id"]), kept["configs"], replica_nodes, states[str(name)])

    def groups(self) -> Iterator[tuple[str, Key, Any]]:
        """(group, key, value) as `keep_group` kept them."""
        for (group, *key), value in self._journal.find("group"):
            yield str(group), tuple(key), value

    def transactions(self) -> Iterator[Transaction]:
        for (name,), state in self._journal.find("transaction"):
            yield _transaction(str(name), state)

    def configs(self) -> Iterator[tuple[str, str, dict[str, str]]]:
        """(kind, name, settings) as `keep_configs` kept them."""
        for (kind, name), configs in self._journal.find("configs"):
            yield str(kind), str(name), configs

    def acls(self) -> Iterator[Acl]:
        for (resource_type, pattern_type, name, principal, host, operation, permission), _ in self._journal.find("acl"):
            yield Acl(
                str(principal),
                Operation(int(operation)),
                ResourceType(int(resource_type)),
                str(name),
                PatternType(int(pattern_type)),
                str(host),
                Permission(int(permission)),
            )

    def close(self) -> None:
        self._journal.flush()
        self._journal.close()

    def _put(self, key: Key, value: Any) -> None:
        self._journal.put(key, value)
        self.changes += 1

    # ---- topics

    def keep_topic(self, topic: Topic) -> None:
        """Call this after each change of the topic's configs or partitions."""
        replica_nodes = [list(partition.replica_nodes) for partition in topic.partitions]
        self._put(
            ("topic", topic.name),
            {"id": str(topic.topic_id), "configs": dict(topic.configs), "replicas": replica_nodes},
        )

    def keep_partition(self, partition: Partition, state: PartitionState) -> None:
        """Call this before the state takes effect: a replica that has left the ISR must not lead after a restart."""
        self._put(("partition", partition.topic.name, partition.index), (state.leader, state.epoch, state.isr))

    def forget_topic(self, topic: Topic) -> None:
        """The topic is gone as soon as the journal has forgotten it."""
        self._put(("topic", topic.name), None)

    def forget_partition(self, partition: Partition) -> None:
        """Forgets the state of a partition that no topic of the journal has."""
        try:
            self._put(("partition", partition.topic.name, partition.index), None)
        except KafkaStorageError as error:
            log.error(
                "the journal keeps the state of %s-%d, which does not exist: %s",
                partition.topic.name,
                partition.index,
                error,
            )

    # ---- settings, groups, transactions, producers, ACLs

    def keep_configs(self, kind: str, name: str, configs: Mapping[str, str]) -> None:
        """Keeps the settings of something that is not a topic. It forgets a thing without settings."""
        self._put(("configs", kind, name), dict(configs) or None)

    def keep_group(self, key: Key, value: Any) -> None:
        self._put(("group", *key), value)

    def keep_transaction(self, transaction: Transaction) -> None:
        if self._journal.path is None:
            self.changes += 1
            return
        state = {name: getattr(transaction, name) for name in _TRANSACTION_FIELDS}
        partitions = [[topic, index] for topic, indexes in transaction.by_topic().items() for index in indexes]
        state |= {"state": transaction.state.value, "partitions": partitions}
        self._put(("transaction", transaction.transactional_id), state)

    def keep_acl(self, acl: Acl, exists: bool) -> None:
        """Call this before an ACL takes effect, or before its removal does (`exists` is False then)."""
        pattern = int(acl.resource_type), int(acl.pattern_type), acl.resource_name
        key: Key = ("acl", *pattern, acl.principal, acl.host, int(acl.operation), int(acl.permission))
        self._put(key, True if exists else None)

    def next_producer_id(self) -> int:
        """A producer id that no producer ever had, in this run of the cluster or an earlier run."""
        self._put(_PRODUCER_ID, self._last_producer_id + 1)
        self._last_producer_id += 1
        return self._last_producer_id


def _transaction(name: str, state: dict[str, Any]) -> Transaction:
    partitions = {(str(topic), int(index)) for topic, index in state["partitions"]}
    other_fields = {key: state[key] for key in _TRANSACTION_FIELDS if key != "transactional_id"}
    return Transaction(name, **other_fields, state=State(state["state"]), partitions=partitions)
