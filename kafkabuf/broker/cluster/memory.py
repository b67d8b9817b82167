"""What a cluster remembers over a restart besides its records, in the journal `cluster.journal` of its data folder.

    ["topic", name]                                   id, configs, the replicas of each partition
    ["partition", topic, partition]                   leader, leader epoch, ISR
    ["group", group, "committed", topic, partition]   number of the commit, offset, leader epoch, metadata
    ["group", group, "pending", producer id, ...]     the same, of a transaction that has not ended
    ["transaction", transactional id]                 all of it, by the names of its fields
    ["producer id"]                                   the last one given out
    ["cluster id"]

Members of groups are not remembered: they join again, as they do when a session is over. Every partition gets a new
leader epoch at a restart, so that one which was not remembered in time does not come twice.
"""

from __future__ import annotations

from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafkabuf.broker.log.storage.journal import Journal, Key
from kafkabuf.broker.replica.replication import NO_LEADER, PartitionState
from kafkabuf.broker.replica.topics import Partition, Topic
from kafkabuf.broker.transactions import State, Transaction
from kafkabuf.errors import KafkaStorageError

if TYPE_CHECKING:
    from kafkabuf.broker.cluster.cluster import Cluster

FILE = "cluster.journal"
_PRODUCER_ID: Key = ("producer id",)
_CLUSTER_ID: Key = ("cluster id",)
_TRANSACTION_FIELDS = [one.name for one in fields(Transaction) if one.name not in ("state", "partitions", "expiry")]


class ClusterMemory:
    """`keep_...` writes at once, and does nothing without a folder. KafkaStorageError if the disk refuses."""

    def __init__(self, data_dir: Path | None) -> None:
        self._journal = Journal(None if data_dir is None else data_dir / FILE)
        self._last_producer_id = 0

    def restore(self, cluster: Cluster) -> None:
        """Into a cluster that has just been made. Its logs are opened."""
        self._journal.open()
        for _, last in self._journal.find(*_PRODUCER_ID):
            self._last_producer_id = last
        for _, cluster_id in self._journal.find(*_CLUSTER_ID):
            cluster.cluster_id = cluster_id
        self._journal.put(_CLUSTER_ID, cluster.cluster_id)
        for (name,), state in self._journal.find("topic"):
            self._restore_topic(cluster, str(name), state)
        for (group, *key), state in self._journal.find("group"):
            cluster.groups.get(str(group)).offsets.restore(tuple(key), state)
        for (name,), state in self._journal.find("transaction"):
            cluster.transactions.restore(_transaction(str(name), state))
        cluster.logs.put_strays_aside()

    def close(self) -> None:
        self._journal.flush()
        self._journal.close()

    # ---- topics

    def keep_topic(self, topic: Topic) -> None:
        """Whenever its configs, or the replicas of one of its partitions, are others."""
        replicas = [list(one.replicas) for one in topic.partitions]
        self._journal.put(
            ("topic", topic.name),
            {"id": str(topic.topic_id), "configs": dict(topic.configs), "replicas": replicas},
        )

    def keep_partition(self, partition: Partition, state: PartitionState) -> None:
        """Before it becomes true: whoever is not in sync any more must not lead after a restart."""
        self._journal.put(("partition", partition.topic.name, partition.index), astuple(state))

    def forget_topic(self, name: str) -> None:
        for (index,), _ in self._journal.find("partition", name):
            self._journal.put(("partition", name, index), None)
        self._journal.put(("topic", name), None)

    def _restore_topic(self, cluster: Cluster, name: str, kept: dict[str, Any]) -> None:
        """Nobody leads it yet."""
        missing = {node for nodes in kept["replicas"] for node in nodes} - cluster.nodes.keys()
        if missing:
            raise KafkaStorageError(
                f"topic {name} has copies on node {max(missing)}, the cluster has nodes 1 to {len(cluster.nodes)}: "
                "start it with as many as it had"
            )
        topic = cluster.new_topic(name, kept["configs"])
        topic.topic_id = UUID(kept["id"])
        topic.add([tuple(one) for one in kept["replicas"]])
        cluster.add_topic(topic)
        cluster.add_copies(topic.partitions)
        states = {index: state for (index,), state in self._journal.find("partition", name)}
        for partition in topic.partitions:
            _, epoch, isr = states.get(partition.index, (NO_LEADER, -1, partition.replicas))
            written = max(copy.log.leader_epochs.latest for copy in partition.copies.values())
            partition.state = PartitionState(NO_LEADER, max(epoch, written), tuple(isr))

    # ---- groups, transactions, producers

    def keep_offset(self, key: Key, value: Any) -> None:
        self._journal.put(("group", *key), value)

    def keep_transaction(self, found: Transaction) -> None:
        state = {name: getattr(found, name) for name in _TRANSACTION_FIELDS}
        state |= {"state": found.state.value, "partitions": [list(one) for one in sorted(found.partitions)]}
        self._journal.put(("transaction", found.transactional_id), state)

    def next_producer_id(self) -> int:
        """One that nobody had, in this life of the cluster or another."""
        self._journal.put(_PRODUCER_ID, self._last_producer_id + 1)
        self._last_producer_id += 1
        return self._last_producer_id


def _transaction(name: str, state: dict[str, Any]) -> Transaction:
    partitions = {(str(topic), int(index)) for topic, index in state["partitions"]}
    plain = {key: state[key] for key in _TRANSACTION_FIELDS if key != "transactional_id"}
    return Transaction(name, **plain, state=State(state["state"]), partitions=partitions)
