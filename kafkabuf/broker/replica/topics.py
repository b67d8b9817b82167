"""A topic: its partitions and settings. Belongs to the cluster's event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID, uuid4

from kafkabuf.broker.log.config import Limits
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.replica.replication import Partition
from kafkabuf.errors import UnknownTopicOrPartitionError


@dataclass(slots=True, eq=False)
class Topic:
    """`min_isr` is the cluster's min.insync.replicas, for topics that do not set their own."""

    name: str
    partitions: list[Partition]
    limits: Limits
    # Makes or opens the log of a copy, by its node and partition.
    new_log: Callable[[int, int], PartitionLog]
    configs: dict[str, str] = field(default_factory=dict)
    min_isr: int = 1
    topic_id: UUID = field(default_factory=uuid4)
    deleted: bool = False

    @property
    def unclean_election(self) -> bool:
        """Whether a copy that is not in sync may lead when no copy in sync is left. Such an election loses records."""
        return self.configs.get("unclean.leader.election.enable", "false").lower() == "true"

    def add(self, placed: list[tuple[int, ...]]) -> list[Partition]:
        """Adds a partition for each tuple of nodes. The new partitions have neither copies nor a leader yet."""
        count = len(self.partitions)
        new = [Partition(self, count + index, nodes) for index, nodes in enumerate(placed)]
        self.partitions += new
        return new

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
