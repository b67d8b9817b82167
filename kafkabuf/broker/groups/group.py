"""One classic consumer group (Kafka's ClassicGroup): members join, the leader assigns, all sync, heartbeats keep them.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ... -> Empty

A generation begins when every known member has joined, or when the rebalance time-out has passed and the group has
dropped the members that did not join. Static members (KIP-345) stay until their session ends. Thread: the event loop.

Deviation: the group has no initial rebalance delay, so the first member is alone for a moment and the second member
makes it rebalance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from uuid import uuid4

from kafkabuf.broker.groups.members import (
    Answer,
    Joining,
    Member,
    Members,
    check_protocols,
    failed,
    have_common_protocol,
    respond,
)
from kafkabuf.broker.groups.offsets import GroupOffsets
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.waiting.timer import Timeout, Timer
from kafkabuf.errors import (
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    KafkaError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

# How long a new member may wait for its first response: it does not know its id yet, so it cannot send heartbeats.
NEW_MEMBER_TIMEOUT = 300.0
NO_GENERATION = -1


class State(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Group:
    kind = "classic"

    def __init__(
        self,
        group_id: str,
        timer: Timer,
        settings: GroupSettings | None = None,
        offsets: GroupOffsets | None = None,
    ) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.members = Members()
        self.offsets = GroupOffsets() if offsets is None else offsets
        # The group calls this with each generation that has its assignments, or no members.
        self.changed: Callable[[], None] = lambda: None
        self._settings = settings or GroupSettings()
        # Member ids that the group handed out with MEMBER_ID_REQUIRED, until a client joins with the id or the session
        # time-out passes.
        self._promised: dict[str, Timeout] = {}
        self._timer = timer
        # Ends the wait for members to join or to sync.
        self._deadline: Timeout | None = None

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    def close(self) -> None:
        """Ends the timers of a group that a group of the other kind replaces. Its members must join again."""
        self._stop_waiting()
        for promise in self._promised.values():
            promise.cancel()
        for member in self.members:
            member.end_session()
            member.fail(RebalanceInProgressError("the group has another protocol now"))

    def adopt(self, generation: int, members: Iterable[tuple[Joining, bytes]]) -> None:
        """Takes over the members of a consumer group with their assignments, and makes them join again."""
        for joining, assignment in members:
            member = self.members.add(joining)
            member.assignment, member.is_new = assignment, False
            self.protocol_type = joining.protocol_type
        self.generation, self.state, self.protocol = generation, State.STABLE, self.members.elect_protocol()
        self._prepare()

    # ---- joining

    def join(self, request: Joining) -> Answer | Awaitable[Answer]:
        try:
            self._settings.check_session(request.session_timeout)
            check_protocols(request, self.members.joinings())
        except KafkaError as refusal:
            return failed(refusal, member_id=request.member_id)
        if self._is_full_for(request.member_id):
            return self._refuse_surplus(request.member_id)
        if (error := self._check_join(request)) is not None:
            return failed(error, member_id=request.member_id)
        if request.member_id in self._promised:
            self._promised.pop(request.member_id).cancel()
            return self._admit(request)
        if request.member_id:
            return self._join_again(self.members[request.member_id], request)
        request.member_id = f"{request.group_instance_id or request.client_id}-{uuid4()}"
        if (former := self.members.static(request.group_instance_id)) is not None:
            return self._replace(former, request)
        if request.needs_member_id and request.group_instance_id is None:
            return self._promise(request)
        return self._admit(request)

    def _is_full_for(self, member_id: str) -> bool:
        """Whether the group has group.max.size members without this one. During a rebalance the members count that have
        joined."""
        if self.state is State.EMPTY:
            return False
        counted = [member for member in self.members if self.state is not State.PREPARING or member.awaits_join]
        already = any(member.member_id == member_id for member in counted)
        return not already and len(counted) >= self._settings.group_max_size

    def _refuse_surplus(self, member_id: str) -> Answer:
        if member_id in self.members:
            self._drop(self.members[member_id])
            self._complete_join_if_all_joined()
        return failed(GroupMaxSizeReachedError(f"group.max.size is {self._settings.group_max_size}"), member_id="")

    def _check_join(self, request: Joining) -> KafkaError | None:
        if not request.protocols or not request.protocol_type:
            return InconsistentGroupProtocolError("a member needs a protocol type and at least one protocol")
        fits = request.protocol_type == self.protocol_type and have_common_protocol(request, self.members.joinings())
        if self.state is not State.EMPTY and not fits:
            return InconsistentGroupProtocolError("the members of the group support none of your protocols")
        if not request.member_id or request.member_id in self._promised:
            return None
        return self.members.check(request.member_id, request.group_instance_id)

    def _promise(self, request: Joining) -> Answer:
        member_id = request.member_id
        self._promised[member_id] = self._timer.after(request.session_timeout, lambda: self._forget_promise(member_id))
        return failed(MemberIdRequiredError("join again with this id"), member_id=member_id)

    def _forget_promise(self, member_id: str) -> None:
        if (promise := self._promised.pop(member_id, None)) is not None:
            promise.cancel()
            self._complete_join_if_all_joined()

    def _admit(self, request: Joining) -> Awaitable[Answer]:
        member = self.members.add(request)
        self.protocol_type = request.protocol_type
        return self._await_join(member)

    def _join_again(self, member: Member, request: Joining) -> Answer | Awaitable[Answer]:
        changed = member.joining.protocols != request.protocols
        member.joining = request
        # A follower joins again because its response was lost: it gets the response again. A leader that joins again
        # wants a rebalance.
        lost_response = self.state is State.COMPLETING or (
            self.state is State.STABLE and member.member_id != self.members.leader
        )
        if lost_response and not changed:
            self._renew_session(member)
            return self._joined(member)
        return self._await_join(member)

    def _replace(self, former: Member, request: Joining) -> Answer | Awaitable[Answer]:
        """A static member has restarted. A stable group whose protocol stays does not rebalance."""
        leader = self.members.leader
        member = self.members.replace(former, request)
        if self.state is not State.STABLE or self.members.elect_protocol() != self.protocol:
            return self._await_join(member)
        member.is_new = False
        self._renew_session(member)
        if request.skips_assignment:
            return {**self._joined(member), "skip_assignment": self.members.leader == member.member_id}
        # A member too old for `skip_assignment` learns that its former member id leads, so it assigns nothing
        # (KIP-814).
        return {**self._joined(member), "leader": leader, "members": []}

    def _await_join(self, member: Member) -> Awaitable[Answer]:
        respond(member.join, failed(RebalanceInProgressError("the member joined again"), member_id=member.member_id))
        member.join = asyncio.get_running_loop().create_future()
        self._renew_session(member)
        self._prepare()
        # As in Kafka, a member stays joined when its connection ends. So a cancelled request must not cancel the join.
        return asyncio.shield(member.join)

    def _prepare(self) -> None:
        """Makes all members join again, unless they already do."""
        if self.state is not State.PREPARING:
            for member in self.members:
                if self.state is State.COMPLETING:
                    member.assignment = b""
                respond(member.sync, failed(RebalanceInProgressError("the group rebalances")))
                self._renew_session(member)
            self.state = State.PREPARING
            self._wait(self._complete_join)
        self._complete_join_if_all_joined()

    def _complete_join_if_all_joined(self) -> None:
        if self.state is State.PREPARING and self.members.have_all_joined() and not self._promised:
            self._complete_join()

    def _complete_join(self) -> None:
        for member in self.members:
            if not (member.awaits_join or member.is_static):
                self._drop(member)
        if self.members and not self.members.elect_joined_leader():
            # Only absent static members are left: wait until their sessions end, or they come back.
            self._wait(self._complete_join)
            return
        self.generation += 1
        if not self.members:
            self._stop_waiting()
            self.state, self.protocol = State.EMPTY, ""
            self.changed()
            return
        self.state = State.COMPLETING
        self.protocol = self.members.elect_protocol()
        self._wait(self._drop_members_without_sync)
        for member in self.members:
            member.is_new, member.owes_sync = False, True
            respond(member.join, self._joined(member))
            self._renew_session(member)

    def _joined(self, member: Member) -> Answer:
        leads = member.member_id == self.members.leader
        return {
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.members.leader,
            "member_id": member.member_id,
            "members": [
                {
                    "member_id": peer.member_id,
                    "group_instance_id": peer.joining.group_instance_id,
                    "metadata": peer.metadata(self.protocol),
                }
                for peer in (self.members if leads else ())
            ],
        }

    # ---- the generation

    def check(self, member_id: str, group_instance_id: str | None, generation: int) -> KafkaError | None:
        if (error := self.members.check(member_id, group_instance_id)) is not None:
            return error
        if generation != self.generation:
            return IllegalGenerationError(f"the request has generation {generation}, the group is in {self.generation}")
        return None

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes],
        *,
        group_instance_id: str | None = None,
        protocol: tuple[str | None, str | None] = (None, None),
    ) -> Answer | Awaitable[Answer]:
        """`protocol`: the protocol type and the protocol in the request; each is None if the request lacks it."""
        if (error := self.check(member_id, group_instance_id, generation)) is not None:
            return failed(error)
        if protocol[0] not in (None, self.protocol_type) or protocol[1] not in (None, self.protocol):
            return failed(
                InconsistentGroupProtocolError(
                    f"the member has the protocol {protocol}, the group has {self.protocol_type, self.protocol}"
                )
            )
        if self.state is State.PREPARING:
            return failed(RebalanceInProgressError("the group rebalances"))
        member = self.members[member_id]
        member.owes_sync = False
        if self.state is State.COMPLETING and member_id == self.members.leader:
            self._assign(assignments)
        if self.state is State.STABLE:
            self._renew_session(member)
            if not any(peer.owes_sync for peer in self.members):
                self._stop_waiting()
            return self._synced(member)
        respond(member.sync, failed(RebalanceInProgressError("the member synced again")))
        member.sync = asyncio.get_running_loop().create_future()
        return asyncio.shield(member.sync)

    def _assign(self, assignments: dict[str, bytes]) -> None:
        self.state = State.STABLE
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            respond(member.sync, self._synced(member))
            self._renew_session(member)
        self.changed()

    def _synced(self, member: Member) -> Answer:
        return {
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": member.assignment,
        }

    def heartbeat(self, member_id: str, generation: int, group_instance_id: str | None = None) -> Answer:
        if (error := self.check(member_id, group_instance_id, generation)) is not None:
            return failed(error)
        self._renew_session(self.members[member_id])
        return {"error_code": RebalanceInProgressError.code if self.state is State.PREPARING else 0}

    def leave(self, member_id: str, group_instance_id: str | None) -> int:
        """Removes a member; returns its error code. The instance id alone may name a static member."""
        if group_instance_id is None and member_id in self._promised:
            self._forget_promise(member_id)
            return 0
        if not member_id and (static := self.members.static(group_instance_id)) is not None:
            member_id = static.member_id
        if (error := self.members.check(member_id, group_instance_id)) is not None:
            return error.code
        self._remove(self.members[member_id])
        return 0

    # ---- members come and go

    def _renew_session(self, member: Member) -> None:
        """Restarts the member's session."""
        member.end_session()
        seconds = NEW_MEMBER_TIMEOUT if member.is_new else member.joining.session_timeout
        member.session = self._timer.after(seconds, lambda: self._expire(member))

    def _expire(self, member: Member) -> None:
        if not member.is_new and (member.awaits_join or member.awaits_sync):
            self._renew_session(member)
        else:
            self._remove(member)

    def _remove(self, member: Member) -> None:
        self._drop(member)
        self._prepare()

    def _drop(self, member: Member) -> None:
        self.members.remove(member)
        member.fail(UnknownMemberIdError(f"{member.member_id!r} is not a member any more"))

    def _drop_members_without_sync(self) -> None:
        for member in self.members:
            if member.owes_sync:
                self._drop(member)
        self._prepare()

    # ---- time

    def _wait(self, then: Callable[[], None]) -> None:
        self._stop_waiting()
        self._deadline = self._timer.after(self.members.rebalance_timeout(), then)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # ---- offsets

    def check_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation: int,
        *,
        transactional: bool = False,
        knows_epochs: bool = True,
    ) -> KafkaError | None:
        """The error for a commit, or None. A member of this generation may commit unless the group waits for members to
        sync. A client without a generation may commit to an empty group. In a transaction a producer need not name a
        member, and a rebalance does not matter."""
        if generation < 0 and self.state is State.EMPTY:
            return None
        if generation >= 0 or member_id or group_instance_id is not None:
            if (error := self.check(member_id, group_instance_id, generation)) is not None:
                return error
            self._renew_session(self.members[member_id])
        elif not transactional:
            return UnknownMemberIdError("the group has members, and only they may commit")
        if self.state is State.COMPLETING and not transactional:
            return RebalanceInProgressError("the group rebalances")
        return None
