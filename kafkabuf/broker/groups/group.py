"""One classic consumer group (Kafka's ClassicGroup): members join, one assigns, all sync, heartbeats keep them.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ... -> Empty

A generation begins when every known member has joined, or the rebalance time-out has passed and those who did not are
out; static members (KIP-345) stay until their session ends. The state runs in the event loop.

Deviations: no initial rebalance delay (a first member is alone for a moment, the second rebalances); session time-outs
from 1 ms on are taken, where Kafka asks for 6 s by default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from uuid import uuid4

from kafkabuf.broker.groups.members import Answer, Joining, Member, Members, failed, settle
from kafkabuf.broker.groups.offsets import GroupOffsets
from kafkabuf.broker.waiting.timer import Timeout, Timer
from kafkabuf.errors import (
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    KafkaError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

MAX_SESSION_TIMEOUT = 1800.0
# How long a new member may wait for its first answer: it does not know its id yet and so cannot send heartbeats.
NEW_MEMBER_TIMEOUT = 300.0
NO_GENERATION = -1


class State(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Group:
    def __init__(self, group_id: str, timer: Timer) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.members = Members()
        self.offsets = GroupOffsets()
        # Member ids handed out with MEMBER_ID_REQUIRED, until their owners join with them or take too long.
        self._promised: dict[str, Timeout] = {}
        self._timer = timer
        # When the wait for members to join, or to sync, is over.
        self._deadline: Timeout | None = None

    # ---- joining

    def join(self, asked: Joining) -> Answer | Awaitable[Answer]:
        if (error := self._check_join(asked)) is not None:
            return failed(error, member_id=asked.member_id)
        if asked.member_id in self._promised:
            self._promised.pop(asked.member_id).cancel()
            return self._admit(asked)
        if asked.member_id:
            return self._join_again(self.members[asked.member_id], asked)
        asked.member_id = f"{asked.group_instance_id or asked.client_id}-{uuid4()}"
        if (former := self.members.static(asked.group_instance_id)) is not None:
            return self._replace(former, asked)
        if asked.needs_member_id and asked.group_instance_id is None:
            return self._promise(asked)
        return self._admit(asked)

    def _check_join(self, asked: Joining) -> KafkaError | None:
        if not 0 < asked.session_timeout <= MAX_SESSION_TIMEOUT:
            return InvalidSessionTimeoutError(f"a session time-out of {asked.session_timeout} s")
        if not asked.protocols or not asked.protocol_type:
            return InconsistentGroupProtocolError("a member has a protocol type and one protocol at least")
        other = asked.protocol_type != self.protocol_type or not self.members.common_protocols(asked.protocols)
        if self.state is not State.EMPTY and other:
            return InconsistentGroupProtocolError("the members of the group support no protocol of yours")
        if not asked.member_id or asked.member_id in self._promised:
            return None
        return self.members.check(asked.member_id, asked.group_instance_id)

    def _promise(self, asked: Joining) -> Answer:
        member_id = asked.member_id
        self._promised[member_id] = self._timer.after(asked.session_timeout, lambda: self._forget(member_id))
        return failed(MemberIdRequiredError("join again with this id"), member_id=member_id)

    def _forget(self, member_id: str) -> None:
        if (promise := self._promised.pop(member_id, None)) is not None:
            promise.cancel()
            self._complete_join_if_all_are_there()

    def _admit(self, asked: Joining) -> Awaitable[Answer]:
        member = self.members.add(asked)
        self.protocol_type = asked.protocol_type
        return self._await_join(member)

    def _join_again(self, member: Member, asked: Joining) -> Answer | Awaitable[Answer]:
        changed = member.joining.protocols != asked.protocols
        member.joining = asked
        # A follower that lost its answer gets it again; a leader that joins again means to rebalance.
        lost = self.state is State.COMPLETING or (
            self.state is State.STABLE and member.member_id != self.members.leader
        )
        if lost and not changed:
            self._keep(member)
            return self._joined(member)
        return self._await_join(member)

    def _replace(self, former: Member, asked: Joining) -> Answer | Awaitable[Answer]:
        """A static member that starts anew does not rebalance a group that would go on as it is."""
        leader = self.members.leader
        member = self.members.replace(former, asked)
        if self.state is not State.STABLE or self.members.elect_protocol() != self.protocol:
            return self._await_join(member)
        member.is_new = False
        self._keep(member)
        if asked.skips_assignment:
            return {**self._joined(member), "skip_assignment": self.members.leader == member.member_id}
        # One that cannot be told to skip the assignment is told that its former self leads (KIP-814).
        return {**self._joined(member), "leader": leader, "members": []}

    def _await_join(self, member: Member) -> Awaitable[Answer]:
        settle(member.join, failed(RebalanceInProgressError("joined again"), member_id=member.member_id))
        member.join = asyncio.get_running_loop().create_future()
        self._keep(member)
        self._prepare()
        # As in Kafka, a member whose connection ends has joined all the same.
        return asyncio.shield(member.join)

    def _prepare(self) -> None:
        """Has all members join again, unless they are doing so already."""
        if self.state is not State.PREPARING:
            for member in self.members:
                if self.state is State.COMPLETING:
                    member.assignment = b""
                settle(member.sync, failed(RebalanceInProgressError("the group rebalances")))
                self._keep(member)
            self.state = State.PREPARING
            self._wait(self._complete_join)
        self._complete_join_if_all_are_there()

    def _complete_join_if_all_are_there(self) -> None:
        if self.state is State.PREPARING and self.members.have_all_joined() and not self._promised:
            self._complete_join()

    def _complete_join(self) -> None:
        for member in self.members:
            if not (member.awaits_join or member.is_static):
                self._drop(member)
        if self.members and not self.members.elect_joined_leader():
            # Static members that are away: until their sessions end, or they come back.
            self._wait(self._complete_join)
            return
        self.generation += 1
        if not self.members:
            self._stop_waiting()
            self.state, self.protocol = State.EMPTY, ""
            return
        self.state = State.COMPLETING
        self.protocol = self.members.elect_protocol()
        self._wait(self._drop_who_did_not_sync)
        for member in self.members:
            member.is_new, member.owes_sync = False, True
            settle(member.join, self._joined(member))
            self._keep(member)

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
                    "member_id": one.member_id,
                    "group_instance_id": one.joining.group_instance_id,
                    "metadata": one.metadata(self.protocol),
                }
                for one in (self.members if leads else ())
            ],
        }

    # ---- the generation

    def check(self, member_id: str, group_instance_id: str | None, generation: int) -> KafkaError | None:
        if (error := self.members.check(member_id, group_instance_id)) is not None:
            return error
        if generation != self.generation:
            return IllegalGenerationError(f"generation {generation}, the group is in {self.generation}")
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
        """`protocol`: the type and name that the member believes in, None where it does not say."""
        if (error := self.check(member_id, group_instance_id, generation)) is not None:
            return failed(error)
        if protocol[0] not in (None, self.protocol_type) or protocol[1] not in (None, self.protocol):
            return failed(InconsistentGroupProtocolError(f"{protocol}, not {self.protocol_type, self.protocol}"))
        if self.state is State.PREPARING:
            return failed(RebalanceInProgressError("the group rebalances"))
        member = self.members[member_id]
        member.owes_sync = False
        if self.state is State.COMPLETING and member_id == self.members.leader:
            self._assign(assignments)
        if self.state is State.STABLE:
            self._keep(member)
            if not any(one.owes_sync for one in self.members):
                self._stop_waiting()
            return self._synced(member)
        settle(member.sync, failed(RebalanceInProgressError("synced again")))
        member.sync = asyncio.get_running_loop().create_future()
        return asyncio.shield(member.sync)

    def _assign(self, assignments: dict[str, bytes]) -> None:
        self.state = State.STABLE
        for one in self.members:
            one.assignment = assignments.get(one.member_id, b"")
            settle(one.sync, self._synced(one))
            self._keep(one)

    def _synced(self, member: Member) -> Answer:
        return {
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": member.assignment,
        }

    def heartbeat(self, member_id: str, generation: int, group_instance_id: str | None = None) -> Answer:
        if (error := self.check(member_id, group_instance_id, generation)) is not None:
            return failed(error)
        self._keep(self.members[member_id])
        return {"error_code": RebalanceInProgressError.code if self.state is State.PREPARING else 0}

    def leave(self, member_id: str, group_instance_id: str | None) -> int:
        """The error code for this member. A static one may be named by its instance alone."""
        if group_instance_id is None and member_id in self._promised:
            self._forget(member_id)
            return 0
        if not member_id and (static := self.members.static(group_instance_id)) is not None:
            member_id = static.member_id
        if (error := self.members.check(member_id, group_instance_id)) is not None:
            return error.code
        self._remove(self.members[member_id])
        return 0

    # ---- members come and go

    def _keep(self, member: Member) -> None:
        """Starts the member's session anew."""
        member.end_session()
        seconds = NEW_MEMBER_TIMEOUT if member.is_new else member.joining.session_timeout
        member.session = self._timer.after(seconds, lambda: self._expire(member))

    def _expire(self, member: Member) -> None:
        if not member.is_new and (member.awaits_join or member.awaits_sync):
            self._keep(member)
        else:
            self._remove(member)

    def _remove(self, member: Member) -> None:
        self._drop(member)
        self._prepare()

    def _drop(self, member: Member) -> None:
        self.members.remove(member)
        member.fail(UnknownMemberIdError(f"{member.member_id!r} is no member any more"))

    def _drop_who_did_not_sync(self) -> None:
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
        self, member_id: str, group_instance_id: str | None, generation: int, *, transactional: bool = False
    ) -> KafkaError | None:
        """Who may commit: a member of this generation that is not waiting to sync, or, if there are none, anybody. In a
        transaction a producer that names no member is let through, and rebalances do not matter."""
        if generation < 0 and self.state is State.EMPTY:
            return None
        if generation >= 0 or member_id or group_instance_id is not None:
            if (error := self.check(member_id, group_instance_id, generation)) is not None:
                return error
            self._keep(self.members[member_id])
        elif not transactional:
            return UnknownMemberIdError("the group has members, and only they may commit")
        if self.state is State.COMPLETING and not transactional:
            return RebalanceInProgressError("the group rebalances")
        return None
