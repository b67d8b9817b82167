"""What the controller decides about a partition, and tells the nodes that have a copy of it."""

from __future__ import annotations

from dataclasses import dataclass

from kafkabuf.errors import KafkaError, LeaderNotAvailableError

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Every change of the leader raises the epoch. `isr` are the nodes whose copies are in sync, the leader among them.
    While the partition has no leader, `isr` are the nodes that may lead it without loss."""

    leader: int
    epoch: int
    isr: tuple[int, ...]


# What a copy knows before the controller has told it anything.
UNTOLD = PartitionState(NO_LEADER, -1, ())


def leader_error(state: PartitionState, index: int) -> KafkaError | None:
    """The error that Metadata gives for a partition, None while it has a leader."""
    if state.leader == NO_LEADER:
        return LeaderNotAvailableError(f"no node that could lead partition {index} is alive")
    return None
