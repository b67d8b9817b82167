"""Which member of a consumer group sends a heartbeat, and whether it may (KIP-848). Everything here is pure."""

from __future__ import annotations

from kafkabuf.broker.groups.consumer_member import (
    LEAVING_FOR_A_WHILE,
    ConsumerHeartbeat,
    ConsumerMember,
    ConsumerMembers,
)
from kafkabuf.broker.groups.reconciliation import CurrentAssignment
from kafkabuf.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)


def sender(members: ConsumerMembers, beat: ConsumerHeartbeat) -> ConsumerMember | None:
    """The member that sends the heartbeat, or whose place it takes. None for a new member.

    Raises the error for a member that may not. A static member takes the place of its former self while that uses the
    classic protocol, or when it uses the classic protocol itself, in any epoch.
    """
    static = members.static(beat.instance_id)
    if beat.classic is not None:
        return static or members.get(beat.member_id)
    if beat.instance_id is None or (static is None and beat.joins):
        member = members.get(beat.member_id)
        if member is None and not beat.joins:
            raise UnknownMemberIdError(f"{beat.member_id!r} is not a member of the group")
        if member is not None and beat.instance_id is None:
            _check_epoch(member.current, beat)
        return member
    if static is not None and beat.joins:
        if static.current.epoch != LEAVING_FOR_A_WHILE and static.classic is None:
            raise UnreleasedInstanceIdError(f"member {static.member_id!r} has the instance id {beat.instance_id!r}")
        return static
    static = static_member(members, beat.instance_id, beat.member_id)
    _check_epoch(static.current, beat)
    return static


def static_member(members: ConsumerMembers, instance_id: str, member_id: str) -> ConsumerMember:
    """Raises UnknownMemberIdError, or FencedInstanceIdError if the instance has another member id."""
    static = members.static(instance_id)
    if static is None:
        raise UnknownMemberIdError(f"no member has the instance id {instance_id!r}")
    if static.member_id != member_id:
        raise FencedInstanceIdError(f"{instance_id!r} has another member id than {member_id!r} now")
    return static


def _check_epoch(current: CurrentAssignment, beat: ConsumerHeartbeat) -> None:
    """Raises FencedMemberEpochError unless the member is in the epoch of the heartbeat. The epoch before is right, too,
    if the member may have missed the response that told it the new epoch: then it owns nothing that it may not."""
    if beat.member_epoch == current.epoch:
        return
    missed = beat.member_epoch == current.previous_epoch and beat.member_epoch < current.epoch
    if not (missed and beat.reported is not None and beat.reported <= current.assigned):
        raise FencedMemberEpochError(
            f"the heartbeat has epoch {beat.member_epoch}, the member is in {current.epoch}: give up all partitions "
            f"and join again"
        )
