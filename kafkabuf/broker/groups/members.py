"""The members of a classic group: their state, their leader, and the protocol that all of them support."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kafkabuf.broker.waiting.timer import Timeout
from kafkabuf.errors import (
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    KafkaError,
    UnknownMemberIdError,
)

Answer = dict[str, Any]
Protocols = list[tuple[str, bytes]]

# Consumers have two protocols. Every member looks at the protocols of every other.
MOST_PROTOCOLS = 100
# The metadata of all members of a group together, in bytes: its leader gets them in one response. Kafka cannot store a
# group with more than a megabyte of them (message.max.bytes).
MOST_METADATA = 8 << 20
# A protocol counts for its name, its metadata, and this: a group looks at every protocol of every member at a time.
OF_A_PROTOCOL = 100


@dataclass(slots=True)
class Joining:
    """The fields of a JoinGroup request; time-outs in seconds."""

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

    @property
    def size(self) -> int:
        """The bytes that the protocols count for."""
        return sum(len(name) + len(metadata) + OF_A_PROTOCOL for name, metadata in self.protocols)


@dataclass(slots=True)
class Member:
    """`join` and `sync` are the responses to the member's parked requests.

    While a request is parked the session does not expire, unless the member `is_new`. `owes_sync`: the member knows the
    generation, and has not requested its assignment yet.
    """

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
        """Answers the member's parked requests with an error."""
        respond(self.join, failed(error, member_id=self.member_id))
        respond(self.sync, failed(error))


def failed(error: KafkaError, **values: Any) -> Answer:
    return {"error_code": error.code, **values}


def respond(future: asyncio.Future[Answer] | None, answer: Answer) -> None:
    if future is not None and not future.done():
        future.set_result(answer)


def check_protocols(request: Joining, members: Iterable[Joining]) -> None:
    """Raises InvalidRequestError for a member with too many protocols, and GroupMaxSizeReachedError if the members
    already have as much metadata as a group takes."""
    if len(request.protocols) > MOST_PROTOCOLS:
        raise InvalidRequestError(f"{len(request.protocols)} protocols: a member may have {MOST_PROTOCOLS}")
    size = request.size + sum(other.size for other in members if other.member_id != request.member_id)
    if size > MOST_METADATA:
        raise GroupMaxSizeReachedError(f"{size} bytes of metadata: the members of a group may have {MOST_METADATA}")


def have_common_protocol(request: Joining, members: Iterable[Joining]) -> bool:
    """Whether all members support one of the protocols of a request."""
    common = {name for name, _ in request.protocols}
    for other in members:
        common.intersection_update(name for name, _ in other.protocols)
        if not common:
            break
    return bool(common)


class Members:
    """Members by id, in the order of joining. The first member leads; when it leaves, the next member leads."""

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
        """The error for an unknown member, or for a static member that a newer instance has replaced; else None."""
        static = self.static(group_instance_id)
        if static is not None and static.member_id != member_id:
            return FencedInstanceIdError(f"{group_instance_id!r} has another member id than {member_id!r} now")
        if member_id not in self._by_id or (group_instance_id is not None and static is None):
            return UnknownMemberIdError(f"{member_id!r} is not a member of the group")
        return None

    def add(self, request: Joining) -> Member:
        member = self._by_id[request.member_id] = Member(request.member_id, request)
        if request.group_instance_id is not None:
            self._static[request.group_instance_id] = request.member_id
        if self.leader not in self._by_id:
            self.leader = request.member_id
        return member

    def remove(self, member: Member) -> None:
        member.end_session()
        del self._by_id[member.member_id]
        if self._static.get(member.joining.group_instance_id or "") == member.member_id:
            del self._static[member.joining.group_instance_id or ""]
        if self.leader == member.member_id:
            self.leader = next(iter(self._by_id), "")

    def replace(self, former: Member, request: Joining) -> Member:
        """A static member has restarted: the new member takes over the former member's lead and assignment."""
        led = self.leader == former.member_id
        former.fail(FencedInstanceIdError(f"{request.group_instance_id!r} was started again"))
        self.remove(former)
        member = self.add(request)
        member.assignment, member.owes_sync = former.assignment, former.owes_sync
        if led:
            self.leader = member.member_id
        return member

    def elect_joined_leader(self) -> bool:
        """Elects a leader among the members that have joined. Returns False if no member has joined."""
        if self.leader in self._by_id and self._by_id[self.leader].awaits_join:
            return True
        joined = next((member.member_id for member in self if member.awaits_join), None)
        self.leader = joined or self.leader
        return joined is not None

    def have_all_joined(self) -> bool:
        return all(member.awaits_join for member in self)

    def rebalance_timeout(self) -> float:
        """The longest rebalance time-out of the members, in seconds."""
        return max((member.joining.rebalance_timeout for member in self), default=0.0)

    def joinings(self) -> Iterator[Joining]:
        """How the members joined."""
        return (member.joining for member in self)

    def elect_protocol(self) -> str:
        """Each member votes for its first protocol that all members support. The protocol with the most votes wins."""
        common = set.intersection(*({name for name, _ in member.joining.protocols} for member in self))
        votes = Counter(next(name for name, _ in member.joining.protocols if name in common) for member in self)
        # If protocols have equally many votes, the first that got a vote wins.
        return votes.most_common(1)[0][0]
