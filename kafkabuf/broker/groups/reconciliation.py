"""How one member of a consumer group gets from its current assignment to its target assignment (KIP-848).

Kafka's CurrentAssignmentBuilder:

    STABLE -> UNREVOKED_PARTITIONS -> UNRELEASED_PARTITIONS -> STABLE

UNREVOKED   the member has partitions that the target gives to others: it stays in its epoch until it reports that it
            does not own them any more
UNRELEASED  the member is in the epoch of the target, but other members still own some of its partitions

A member gets a partition when no member owns it, and releases it with its own report. So a partition never has two
owners. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

# The id of a topic as a number: sets of numbers are several times as quick as sets of UUIDs.
TopicId = int
TopicIdPartition = tuple[TopicId, int]
Partitions = frozenset[TopicIdPartition]
NO_PARTITIONS: Partitions = frozenset()


class MemberState(Enum):
    STABLE = "STABLE"
    UNREVOKED = "UNREVOKED_PARTITIONS"
    UNRELEASED = "UNRELEASED_PARTITIONS"


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """`assigned` are the partitions that the member may use, `revoking` those that it must give up. It owns both."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS

    @property
    def owned(self) -> Partitions:
        return self.assigned | self.revoking

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch


def reconcile(
    current: CurrentAssignment,
    target_epoch: int,
    target: Partitions,
    is_free: Callable[[TopicIdPartition], bool],
    reported: Partitions | None,
) -> CurrentAssignment:
    """The member's next step to its target.

    `is_free` tells whether no member owns a partition. `reported` are the partitions that the member says it owns; None
    if its heartbeat does not say.
    """
    if current.is_reconciled_to(target_epoch):
        return current
    epoch = current.epoch
    if current.state is MemberState.UNREVOKED:
        if _still_owns(current.revoking, reported):
            return current
        epoch += 1
    kept = current.assigned & target
    surplus = current.assigned - kept
    if surplus and _still_owns(surplus, reported):
        return _step(current, epoch, MemberState.UNREVOKED, kept, surplus)
    missing = target - kept
    released = frozenset(filter(is_free, missing))
    state = MemberState.STABLE if released == missing else MemberState.UNRELEASED
    return _step(current, target_epoch, state, kept | released, NO_PARTITIONS)


def _still_owns(partitions: Partitions, reported: Partitions | None) -> bool:
    """Whether the member has not confirmed that it gave up all of these partitions."""
    return reported is None or not partitions.isdisjoint(reported)


def _step(
    current: CurrentAssignment, epoch: int, state: MemberState, assigned: Partitions, revoking: Partitions
) -> CurrentAssignment:
    return replace(
        current, epoch=epoch, previous_epoch=current.epoch, state=state, assigned=assigned, revoking=revoking
    )
