"""A replica that shares its log with the partition's others: nothing is replicated, and any replica may lead."""

from __future__ import annotations

from kafkabuf.broker.replica.replication import Replica
from kafkabuf.broker.replica.state import UNKNOWN_STATE, PartitionState


class SharedReplica(Replica):
    """The high watermark is the log's end. The replica is in sync as soon as its node is alive."""

    def _begin(self) -> None:
        """The high watermark is not set, and so stays the log's end."""

    def learn(self, state: PartitionState) -> None:
        self.known = state
        if self.leads:
            self.log.leader_epochs.assign(state.epoch, self.log.end_offset)
        self.wake()

    def advance(self) -> bool:
        """The high watermark needs no followers."""
        return False

    def forget(self) -> None:
        self.known = UNKNOWN_STATE
        self.wake()
