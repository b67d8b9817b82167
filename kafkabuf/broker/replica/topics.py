"""A topic: its partitions and settings. Belongs to the cluster's event loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID, uuid4

from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.records.config import Limits
from kafkabuf.broker.replica.replication import Partition
from kafkabuf.errors import UnknownTopicOrPartitionError


class NewLog(Protocol):
    """Makes the `new` log of a replica, by its node and partition, or opens it."""

    def __call__(self, node: int, index: int, *, new: bool) -> PartitionLog: ...


@dataclass(slots=True, eq=False)
class Topic:
    """`defaults` are the nodes' settings for topics that do not set their own."""

    name: str
    partitions: list[Partition]
    limits: Limits
    new_log: NewLog
    configs: dict[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    topic_id: UUID = field(default_factory=uuid4)
    deleted: bool = False
    # Whether the topic is one of Kafka's internal topics (internal/topics.py).
    internal: bool = False

    @property
    def settings(self) -> dict[str, str]:
        return {**self.defaults, **self.configs}

    @property
    def min_isr(self) -> int:
        """The min.insync.replicas of a topic that does not set its own."""
        return int(self.defaults.get("min.insync.replicas", 1))

    @property
    def unclean_election(self) -> bool:
        """Whether a replica that is not in sync may lead when no replica in sync is left. Such an election loses
        records, but none of an internal topic, whose replicas share their log."""
        name = "unclean.leader.election.enable"
        return self.internal or self.configs.get(name, self.defaults.get(name, "false")).lower() == "true"

    def add(self, placed: list[tuple[int, ...]]) -> list[Partition]:
        """Adds a partition for each tuple of nodes. The new partitions have neither replicas nor a leader yet."""
        new = self.new_partitions(placed)
        self.partitions += new
        return new

    def new_partitions(self, placed: list[tuple[int, ...]]) -> list[Partition]:
        """As `add`, but the topic does not have the partitions yet."""
        count = len(self.partitions)
        return [Partition(self, count + index, nodes) for index, nodes in enumerate(placed)]

    def partition(self, index: int) -> Partition:
        if not 0 <= index < len(self.partitions):
            raise UnknownTopicOrPartitionError(
                f"topic {self.name} has no partition {index}: its partitions are 0 to {len(self.partitions) - 1}"
            )
        return self.partitions[index]


class Catalogue(Protocol):
    """What an append or a read needs of the catalogue.

    `topic` raises UnknownTopicOrPartitionError or UnknownTopicIdError.
    """

    def topic(self, name: str | UUID) -> Topic: ...
