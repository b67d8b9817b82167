"""Members of the classic protocol in a consumer group of KIP-848 (Kafka's classicGroupJoinToConsumerGroup and others).

The coordinator assigns for them, too. A member joins, which takes it a step towards its target, and syncs to learn its
assignment. Its generation is its member epoch. A heartbeat tells it to join again when it has a further step to take.
A member that does not join or sync within its rebalance time-out is removed. Thread: the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from uuid import uuid4

from kafkabuf.broker.groups.consumer_group import ConsumerGroup
from kafkabuf.broker.groups.consumer_member import JOINING, ClassicSide, ConsumerHeartbeat, ConsumerMember
from kafkabuf.broker.groups.consumer_protocol import read_subscription, version_of, write_assignment
from kafkabuf.broker.groups.members import Answer, Joining, check_protocols, failed, have_common_protocol
from kafkabuf.broker.groups.reconciliation import MemberState, Partitions, TopicId
from kafkabuf.broker.groups.senders import static_member
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.broker.wire._cursor import MALFORMED
from kafkabuf.errors import (
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    KafkaError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    UnknownServerError,
)

CONSUMER = "consumer"


class ClassicMembers:
    """The members of `group` that use the classic protocol: the same requests as of a `Group`."""

    def __init__(self, group: ConsumerGroup, settings: GroupSettings) -> None:
        self._group = group
        self._settings = settings

    # ---- joining

    def join(self, request: Joining, beat: ConsumerHeartbeat | None = None) -> Work[Answer]:
        """The member's generation, in steps: no other heartbeat to the group may be handled meanwhile. `beat` has what
        the client may see, and the matches of expressions."""
        named = request.member_id
        classic = [member.classic.joining for member in self._group.members if member.classic is not None]
        try:
            self._settings.check_session(request.session_timeout)
            check_protocols(request, classic)
        except KafkaError as error:
            return failed(error, member_id=named)
        try:
            request = replace(request, member_id=named or str(uuid4()))
            self._group.check_size(request.member_id)
            if request.protocol_type != CONSUMER or not have_common_protocol(request, classic):
                raise InconsistentGroupProtocolError("the members of the group support none of your protocols")
            if not named and request.needs_member_id and request.group_instance_id is None:
                return failed(MemberIdRequiredError("join again with this id"), member_id=request.member_id)
            if named and request.group_instance_id is not None:
                static_member(self._group.members, request.group_instance_id, named)
            return (
                yield from self._join(
                    request, beat or ConsumerHeartbeat(member_id=request.member_id, member_epoch=JOINING)
                )
            )
        except KafkaError as error:
            return failed(error, member_id="")

    def _join(self, request: Joining, beat: ConsumerHeartbeat) -> Work[Answer]:
        try:
            subscription = read_subscription(request.protocols[0][1])
        except MALFORMED:
            raise UnknownServerError("the metadata of the first protocol is malformed") from None
        side = ClassicSide(request)
        replaced = self._group.members.static(request.group_instance_id)
        yield from self._group.heartbeat(
            replace(
                beat,
                member_id=request.member_id,
                client_id=request.client_id,
                client_host=request.client_host,
                instance_id=request.group_instance_id,
                rack_id=subscription.rack_id,
                rebalance_timeout=request.rebalance_timeout,
                topics=subscription.topics,
                pattern="",
                reported=self._group.subscriptions.partitions(subscription.owned),
                classic=side,
            )
        )
        member = self._group.members.get(request.member_id)
        assert member is not None, "the last step of the heartbeat has found it"
        side.sync_by = self._group.expiry(member, member.rebalance_timeout)
        answer: Answer = {
            "generation_id": member.current.epoch,
            "protocol_type": CONSUMER,
            "protocol_name": side.protocol,
            "leader": "",
            "member_id": member.member_id,
            "members": [],
        }
        if replaced is not None:
            # It may have been the last member with the other protocol.
            self._group.downgraded()
        return answer

    # ---- the generation

    def _member(self, member_id: str, instance_id: str | None, generation: int) -> tuple[ConsumerMember, ClassicSide]:
        if instance_id is not None:
            static_member(self._group.members, instance_id, member_id)
        member = self._group.members.get(member_id)
        if member is None or member.classic is None:
            raise UnknownMemberIdError(f"{member_id!r} is not a member with the classic protocol")
        if generation != member.current.epoch:
            raise IllegalGenerationError(
                f"the request has generation {generation}, the member is in {member.current.epoch}"
            )
        return member, member.classic

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: object,
        *,
        group_instance_id: str | None = None,
        protocol: tuple[str | None, str | None] = (None, None),
    ) -> Answer:
        """The assignment of the member. Members bring none: the coordinator assigns."""
        try:
            member, side = self._member(member_id, group_instance_id, generation)
            if protocol[0] not in (None, CONSUMER) or protocol[1] not in (None, side.protocol):
                raise InconsistentGroupProtocolError(f"the member joined with {CONSUMER, side.protocol}")
            if self._group.epoch > member.current.epoch and member.current.state is not MemberState.UNREVOKED:
                self._await_join(member, side)
                raise RebalanceInProgressError("the group rebalances")
        except KafkaError as error:
            return failed(error)
        side.end_sync()
        self._group.renew_session(member)
        assignment = _assignment(side, self._group.subscriptions.names_by_id(), member.current.assigned)
        return {"protocol_type": protocol[0], "protocol_name": protocol[1], "assignment": assignment}

    def heartbeat(self, member_id: str, generation: int, group_instance_id: str | None = None) -> Answer:
        try:
            member, side = self._member(member_id, group_instance_id, generation)
        except KafkaError as error:
            return failed(error)
        self._group.renew_session(member)
        if not self._has_a_step_for(member):
            return {"error_code": 0}
        self._await_join(member, side)
        return failed(RebalanceInProgressError("join again"))

    def _await_join(self, member: ConsumerMember, side: ClassicSide) -> None:
        """Removes the member unless it joins again within its rebalance time-out."""
        if side.join_by is None:
            side.join_by = self._group.expiry(member, member.rebalance_timeout)

    def _has_a_step_for(self, member: ConsumerMember) -> bool:
        """Whether the member gets further on its way to its target by joining again."""
        current = member.current
        if current.epoch < self._group.epoch or current.state is MemberState.UNREVOKED:
            return True
        missing = self._group.target(member) - current.assigned
        return current.state is MemberState.UNRELEASED and all(map(self._group.members.is_free, missing))


def _assignment(side: ClassicSide, names: Mapping[TopicId, str], partitions: Partitions) -> bytes:
    named = [(names[topic_id], index) for topic_id, index in partitions if topic_id in names]
    return write_assignment(version_of(side.joining.protocols[0][1]), named)


def classic_members(group: ConsumerGroup) -> Iterator[tuple[Joining, bytes]]:
    """The members of a consumer group that all use the classic protocol, with their target assignments."""
    names = group.subscriptions.names_by_id()
    for member in group.members:
        assert member.classic is not None, f"{member.member_id!r} uses the consumer protocol"
        joining = replace(member.classic.joining, member_id=member.member_id)
        yield joining, _assignment(member.classic, names, group.target(member))
