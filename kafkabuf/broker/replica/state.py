"""The state of a partition: the controller decides it, and tells it to the nodes that have a replica."""

from __future__ import annotations

from dataclasses import dataclass

from kafkabuf.errors import KafkaError, LeaderNotAvailableError

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The leader, the leader epoch and the ISR. Every change of the leader raises the epoch.

    `isr` lists the nodes whose replicas are in sync, the leader among them. While the partition has no leader, `isr`
    lists the nodes that may lead it without loss.
    """

    leader: int
    epoch: int
    isr: tuple[int, ...]


# The state that a replica knows before the controller has told it a state.
UNKNOWN_STATE = PartitionState(NO_LEADER, -1, ())


def leader_error(state: PartitionState, index: int) -> KafkaError | None:
    """The error that Metadata gives for a partition, None while it has a leader."""
    if state.leader == NO_LEADER:
        return LeaderNotAvailableError(f"no node that could lead partition {index} is alive")
    return None
