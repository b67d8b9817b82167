"""Classic consumer groups (Kafka's GroupCoordinator): members join, one assigns, all sync, heartbeats keep them.

A generation begins when every known member has joined, or the rebalance time-out has passed and those who did not are
out. The state belongs to the cluster, not to a node, and outlives the coordinating node; it runs in the event loop.

Deviations: no initial rebalance delay (a first member is alone for a moment, the second rebalances); a static member
that comes back rebalances the group; session time-outs from 1 ms to 30 minutes are taken; offsets are kept for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Any

from kafkabuf.broker.group_offsets import GroupOffsets
from kafkabuf.broker.timer import Timeout, Timer
from kafkabuf.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    KafkaError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

MAX_SESSION_TIMEOUT = 1800.0
NO_GENERATION = -1
OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 50
Answer = dict[str, Any]


class State(Enum):
    EMPTY = "no members"
    PREPARING = "waiting for members to join"
    COMPLETING = "waiting for the leader's assignment"
    STABLE = "all members have their assignment"


@dataclass(slots=True)
class Joining:
    """What a JoinGroup request says; time-outs in seconds."""

    member_id: str
    client_id: str
    group_instance_id: str | None
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: list[tuple[str, bytes]]
    needs_member_id: bool


@dataclass(slots=True)
class Member:
    """`join` and `sync` are what its parked requests wait for; while one is parked the session does not expire."""

    member_id: str
    joining: Joining
    assignment: bytes = b""
    join: asyncio.Future[Answer] | None = None
    sync: asyncio.Future[Answer] | None = None
    session: Timeout | None = None

    def metadata(self, protocol: str) -> bytes:
        return dict(self.joining.protocols)[protocol]

    def parked(self) -> bool:
        return any(one is not None and not one.done() for one in (self.join, self.sync))


def _failed(error: KafkaError, **values: Any) -> Answer:
    return {"error_code": error.code, **values}


def _settle(future: asyncio.Future[Answer] | None, answer: Answer) -> None:
    if future is not None and not future.done():
        future.set_result(answer)


class Group:
    def __init__(self, group_id: str, timer: Timer) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, Member] = {}
        self.offsets = GroupOffsets()
        # Member ids handed out with MEMBER_ID_REQUIRED, until their owners join with them or take too long.
        self._promised: dict[str, Timeout] = {}
        self._timer = timer
        self._rebalance: Timeout | None = None
        self._numbers = count(1)

    # ---- joining

    def join(self, asked: Joining) -> Answer | Awaitable[Answer]:
        error = self._check_join(asked)
        if error is not None:
            return _failed(error, member_id=asked.member_id)
        if not asked.member_id:
            self._replace_static(asked)
            member_id = f"{asked.group_instance_id or asked.client_id}-{self.group_id}-{next(self._numbers)}"
            if asked.needs_member_id and asked.group_instance_id is None:
                return self._promise(member_id, asked)
            asked.member_id = member_id
        return self._admit(asked)

    def _check_join(self, asked: Joining) -> KafkaError | None:
        if not 0 < asked.session_timeout <= MAX_SESSION_TIMEOUT:
            return InvalidSessionTimeoutError(f"a session time-out of {asked.session_timeout} s")
        if asked.member_id and asked.member_id not in self.members and asked.member_id not in self._promised:
            return UnknownMemberIdError(f"{asked.member_id!r} is no member of {self.group_id}")
        others = [one for one in self.members.values() if one.member_id != asked.member_id]
        if others and (asked.protocol_type != self.protocol_type or not self._common(others, asked)):
            return InconsistentGroupProtocolError("the members of the group support no protocol of yours")
        if not asked.protocols or not asked.protocol_type:
            return InconsistentGroupProtocolError("a member has a protocol type and one protocol at least")
        return None

    @staticmethod
    def _common(members: list[Member], asked: Joining) -> set[str]:
        names = {name for name, _ in asked.protocols}
        return names.intersection(*({name for name, _ in one.joining.protocols} for one in members))

    def _promise(self, member_id: str, asked: Joining) -> Answer:
        self._promised[member_id] = self._timer.after(asked.session_timeout, lambda: self._forget(member_id))
        return _failed(MemberIdRequiredError("join again with this id"), member_id=member_id)

    def _forget(self, member_id: str) -> None:
        if (promise := self._promised.pop(member_id, None)) is not None:
            promise.cancel()
            self._complete_join_if_all_are_there()

    def _replace_static(self, asked: Joining) -> None:
        """A static member that starts anew takes the place of its former self."""
        for member in list(self.members.values()):
            if asked.group_instance_id is not None and member.joining.group_instance_id == asked.group_instance_id:
                self._remove(member)

    def _admit(self, asked: Joining) -> Answer | Awaitable[Answer]:
        member = self.members.get(asked.member_id)
        if (promise := self._promised.pop(asked.member_id, None)) is not None:
            promise.cancel()
        if member is None:
            member = self.members[asked.member_id] = Member(asked.member_id, asked)
            self.protocol_type = asked.protocol_type
        else:
            changed = member.joining.protocols != asked.protocols
            member.joining = asked
            if not changed and self._knows_its_generation(member):
                self._keep(member)
                return self._joined(member)
        _settle(member.join, _failed(RebalanceInProgressError("joined again"), member_id=member.member_id))
        member.join = asyncio.get_running_loop().create_future()
        self._prepare()
        self._complete_join_if_all_are_there()
        return member.join

    def _knows_its_generation(self, member: Member) -> bool:
        """A follower that lost its answer gets it again; a leader that joins again means to rebalance."""
        if self.state is State.COMPLETING:
            return True
        return self.state is State.STABLE and member.member_id != self.leader

    def _prepare(self) -> None:
        if self.state is State.PREPARING:
            return
        for member in self.members.values():
            _settle(member.sync, _failed(RebalanceInProgressError("the group rebalances")))
            self._keep(member)
        self.state = State.PREPARING
        longest = max(one.joining.rebalance_timeout for one in self.members.values())
        self._rebalance = self._timer.after(longest, self._complete_join)

    def _complete_join_if_all_are_there(self) -> None:
        joined = all(one.join is not None and not one.join.done() for one in self.members.values())
        if self.state is State.PREPARING and joined and not self._promised:
            self._complete_join()

    def _complete_join(self) -> None:
        if self._rebalance is not None:
            self._rebalance.cancel()
        for member in list(self.members.values()):
            if member.join is None or member.join.done():
                self._drop(member)
        self.generation += 1
        if not self.members:
            self.state = State.EMPTY
            return
        self.state = State.COMPLETING
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        self.protocol = self._elect_protocol()
        for member in self.members.values():
            member.assignment = b""
            _settle(member.join, self._joined(member))
            self._keep(member)

    def _elect_protocol(self) -> str:
        """Each member votes for the first of its protocols that all support; the most votes win."""
        members = list(self.members.values())
        common = self._common(members, members[0].joining)
        votes = [next(name for name, _ in one.joining.protocols if name in common) for one in members]
        return max(votes, key=votes.count)

    def _joined(self, member: Member) -> Answer:
        leads = member.member_id == self.leader
        return {
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.leader,
            "member_id": member.member_id,
            "members": [
                {
                    "member_id": one.member_id,
                    "group_instance_id": one.joining.group_instance_id,
                    "metadata": one.metadata(self.protocol),
                }
                for one in (self.members.values() if leads else ())
            ],
        }

    # ---- the generation

    def check(self, member_id: str, generation: int) -> KafkaError | None:
        if member_id not in self.members:
            return UnknownMemberIdError(f"{member_id!r} is no member of {self.group_id}")
        if generation != self.generation:
            return IllegalGenerationError(f"generation {generation}, the group is in {self.generation}")
        return None

    def sync(self, member_id: str, generation: int, assignments: dict[str, bytes]) -> Answer | Awaitable[Answer]:
        if (error := self.check(member_id, generation)) is not None:
            return _failed(error)
        member = self.members[member_id]
        if self.state is State.PREPARING:
            return _failed(RebalanceInProgressError("the group rebalances"))
        if self.state is State.COMPLETING and member_id == self.leader:
            self.state = State.STABLE
            for one in self.members.values():
                one.assignment = assignments.get(one.member_id, b"")
                _settle(one.sync, self._synced(one))
                self._keep(one)
        if self.state is State.STABLE:
            self._keep(member)
            return self._synced(member)
        member.sync = asyncio.get_running_loop().create_future()
        return member.sync

    def _synced(self, member: Member) -> Answer:
        return {
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": member.assignment,
        }

    def heartbeat(self, member_id: str, generation: int) -> Answer:
        if (error := self.check(member_id, generation)) is not None:
            return _failed(error)
        self._keep(self.members[member_id])
        return {"error_code": RebalanceInProgressError.code if self.state is State.PREPARING else 0}

    def leave(self, member_id: str, group_instance_id: str | None) -> int:
        """The error code for this member."""
        if member_id in self._promised:
            self._forget(member_id)
            return 0
        for member in list(self.members.values()):
            named = member.member_id == member_id if member_id else False
            if named or (group_instance_id is not None and member.joining.group_instance_id == group_instance_id):
                self._remove(member)
                return 0
        return UnknownMemberIdError.code

    # ---- members come and go

    def _keep(self, member: Member) -> None:
        """Starts the member's session anew."""
        if member.session is not None:
            member.session.cancel()
        member.session = self._timer.after(member.joining.session_timeout, lambda: self._expire(member))

    def _expire(self, member: Member) -> None:
        if member.parked():
            self._keep(member)
        elif self.members.get(member.member_id) is member:
            self._remove(member)

    def _remove(self, member: Member) -> None:
        self._drop(member)
        if self.members and self.state in (State.STABLE, State.COMPLETING):
            self._prepare()
        elif not self.members and self.state is not State.PREPARING:
            self.state = State.EMPTY
            self.generation += 1
        self._complete_join_if_all_are_there()

    def _drop(self, member: Member) -> None:
        del self.members[member.member_id]
        if member.session is not None:
            member.session.cancel()
        error = UnknownMemberIdError(f"{member.member_id!r} is no member any more")
        _settle(member.join, _failed(error, member_id=member.member_id))
        _settle(member.sync, _failed(error))

    # ---- offsets

    def check_commit(self, member_id: str, generation: int) -> KafkaError | None:
        """Who may commit: a member of this generation that is not waiting to sync, or, if there are none, anybody."""
        if generation == NO_GENERATION and not self.members:
            return None
        if (error := self.check(member_id, generation)) is not None:
            return error
        self._keep(self.members[member_id])
        return RebalanceInProgressError("the group rebalances") if self.state is State.COMPLETING else None

    def check_transactional_commit(
        self, member_id: str, group_instance_id: str | None, generation: int
    ) -> KafkaError | None:
        """As `check_commit`, but a producer that names no member is let through, and rebalances do not matter."""
        if generation < 0 and not self.members:
            return None
        if not (self.generation or self.offsets):
            return IllegalGenerationError(f"there is no group {self.group_id}, generation {generation} came")
        if generation < 0 and not member_id and group_instance_id is None:
            return None
        member = self.members.get(member_id)
        if member is not None and group_instance_id not in (None, member.joining.group_instance_id):
            return FencedInstanceIdError(f"{member_id!r} is not {group_instance_id!r}")
        return self.check(member_id, generation)


def offsets_partition(group_id: str) -> int:
    """The partition of Kafka's __consumer_offsets that a group belongs to, by Java's hash of its name."""
    code = 0
    for unit in memoryview(group_id.encode("utf-16-le")).cast("H"):
        code = (31 * code + unit) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % OFFSETS_PARTITIONS


@dataclass(slots=True)
class Groups:
    """`remember` is told of every change of a group's offsets, under the group's name."""

    timer: Timer
    remember: Callable[[tuple[str | int, ...], Any], None] = lambda key, value: None
    _by_id: dict[str, Group] = field(default_factory=dict)

    def get(self, group_id: str) -> Group:
        """The group of this name, made when first asked for."""
        if group_id not in self._by_id:
            group = self._by_id[group_id] = Group(group_id, self.timer)
            group.offsets.remember = lambda key, value: self.remember((group_id, *key), value)
        return self._by_id[group_id]

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """A marker for the offsets topic: every group whose offsets took part sees the end."""
        for group in self._by_id.values():
            group.offsets.end_transaction(producer_id, committed)
