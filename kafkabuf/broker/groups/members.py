"""The members of a classic group: who they are, which of them leads, which protocol all of them support."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kafkabuf.broker.waiting.timer import Timeout
from kafkabuf.errors import FencedInstanceIdError, KafkaError, UnknownMemberIdError

Answer = dict[str, Any]
Protocols = list[tuple[str, bytes]]


@dataclass(slots=True)
class Joining:
    """What a JoinGroup request says; time-outs in seconds."""

    member_id: str
    client_id: str
    group_instance_id: str | None
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: Protocols
    needs_member_id: bool
    skips_assignment: bool = False
    client_host: str = ""


@dataclass(slots=True)
class Member:
    """`join` and `sync` are what its parked requests wait for; while one is parked the session does not expire, unless
    the member `is_new`. `owes_sync`: it has been told of the generation and has not asked for its assignment yet."""

    member_id: str
    joining: Joining
    assignment: bytes = b""
    join: asyncio.Future[Answer] | None = None
    sync: asyncio.Future[Answer] | None = None
    session: Timeout | None = None
    is_new: bool = True
    owes_sync: bool = False

    @property
    def is_static(self) -> bool:
        return self.joining.group_instance_id is not None

    def metadata(self, protocol: str) -> bytes:
        return dict(self.joining.protocols)[protocol]

    def supports(self, protocol: str) -> bool:
        return any(name == protocol for name, _ in self.joining.protocols)

    @property
    def awaits_join(self) -> bool:
        return self.join is not None and not self.join.done()

    @property
    def awaits_sync(self) -> bool:
        return self.sync is not None and not self.sync.done()

    def end_session(self) -> None:
        if self.session is not None:
            self.session.cancel()

    def fail(self, error: KafkaError) -> None:
        """Answers its parked requests with an error."""
        settle(self.join, failed(error, member_id=self.member_id))
        settle(self.sync, failed(error))


def failed(error: KafkaError, **values: Any) -> Answer:
    return {"error_code": error.code, **values}


def settle(future: asyncio.Future[Answer] | None, answer: Answer) -> None:
    if future is not None and not future.done():
        future.set_result(answer)


class Members:
    """By member id, in the order of joining. The first leads; when it goes, the next does."""

    def __init__(self) -> None:
        self.leader = ""
        self._by_id: dict[str, Member] = {}
        # Member ids by group.instance.id.
        self._static: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._by_id.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def static(self, group_instance_id: str | None) -> Member | None:
        member_id = None if group_instance_id is None else self._static.get(group_instance_id)
        return None if member_id is None else self._by_id[member_id]

    def check(self, member_id: str, group_instance_id: str | None) -> KafkaError | None:
        """The error for who is no member, or for a static one whose place another instance has taken."""
        static = self.static(group_instance_id)
        if static is not None and static.member_id != member_id:
            return FencedInstanceIdError(f"{group_instance_id!r} is another member now, not {member_id!r}")
        if member_id not in self._by_id or (group_instance_id is not None and static is None):
            return UnknownMemberIdError(f"{member_id!r} is no member of the group")
        return None

    def add(self, asked: Joining) -> Member:
        member = self._by_id[asked.member_id] = Member(asked.member_id, asked)
        if asked.group_instance_id is not None:
            self._static[asked.group_instance_id] = asked.member_id
        if self.leader not in self._by_id:
            self.leader = asked.member_id
        return member

    def remove(self, member: Member) -> None:
        member.end_session()
        del self._by_id[member.member_id]
        if self._static.get(member.joining.group_instance_id or "") == member.member_id:
            del self._static[member.joining.group_instance_id or ""]
        if self.leader == member.member_id:
            self.leader = next(iter(self._by_id), "")

    def replace(self, former: Member, asked: Joining) -> Member:
        """A static member that starts anew takes its former self's place, lead and assignment."""
        led = self.leader == former.member_id
        former.fail(FencedInstanceIdError(f"{asked.group_instance_id!r} was started again"))
        self.remove(former)
        member = self.add(asked)
        member.assignment, member.owes_sync = former.assignment, former.owes_sync
        if led:
            self.leader = member.member_id
        return member

    def elect_joined_leader(self) -> bool:
        """Sees to it that the leader is one who has joined. False if nobody has."""
        if self.leader in self._by_id and self._by_id[self.leader].awaits_join:
            return True
        joined = next((one.member_id for one in self if one.awaits_join), None)
        self.leader = joined or self.leader
        return joined is not None

    def have_all_joined(self) -> bool:
        return all(one.awaits_join for one in self)

    def rebalance_timeout(self) -> float:
        """Seconds: the longest that any of them asks for."""
        return max((one.joining.rebalance_timeout for one in self), default=0.0)

    def common_protocols(self, protocols: Protocols) -> list[str]:
        """Those of `protocols` that every member supports."""
        return [name for name, _ in protocols if all(one.supports(name) for one in self)]

    def elect_protocol(self) -> str:
        """Each member votes for the first of its protocols that all support; the most votes win."""
        votes = [self.common_protocols(one.joining.protocols)[0] for one in self]
        return max(votes, key=votes.count)
