"""The members of a consumer group (KIP-848): what they asked for, and which partitions they own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kafkabuf.broker.groups.members import Joining
from kafkabuf.broker.groups.reconciliation import CurrentAssignment, Partitions, TopicIdPartition
from kafkabuf.broker.waiting.timer import Timeout
from kafkabuf.errors import InvalidRegularExpressionError

# By expression: the names that match it, or the error of an expression that is not valid.
Matches = Mapping[str, frozenset[str] | InvalidRegularExpressionError]

JOINING = 0
LEAVING = -1
# A static member leaves for a while: its partitions wait for it until its session ends.
LEAVING_FOR_A_WHILE = -2


@dataclass(slots=True)
class ClassicSide:
    """What the group knows of a member that uses the classic protocol. `join_by` ends its membership unless it joins
    again, `sync_by` unless it syncs."""

    joining: Joining
    join_by: Timeout | None = None
    sync_by: Timeout | None = None

    @property
    def protocol(self) -> str:
        return self.joining.protocols[0][0]

    def end_join(self) -> None:
        if self.join_by is not None:
            self.join_by.cancel()
            self.join_by = None

    def end_sync(self) -> None:
        if self.sync_by is not None:
            self.sync_by.cancel()
            self.sync_by = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """The fields of a ConsumerGroupHeartbeat request; the time-out in seconds. None stands for "as before".

    `sees` tells whether the client may describe a topic; None for a client that may describe all topics. `found` are
    the present matches of expressions, as far as they are known already. `classic`: the heartbeat stands for a request
    to join by the classic protocol, whatever the member's epoch is."""

    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout: float | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    reported: Partitions | None = None
    sees: Callable[[str], bool] | None = None
    matches: Matches = field(default_factory=dict)
    classic: ClassicSide | None = None

    @property
    def joins(self) -> bool:
        return self.member_epoch == JOINING

    @property
    def leaves(self) -> bool:
        return self.member_epoch in (LEAVING, LEAVING_FOR_A_WHILE)

    @property
    def wants_assignment(self) -> bool:
        """A member that joins, or that sends every field after an error, gets its assignment even if it is the same."""
        subscribes = self.topics is not None or self.pattern is not None
        return self.joins or (self.rebalance_timeout is not None and subscribes and self.reported is not None)


# A name counts for its characters, and this.
_OF_A_NAME = 8


def size_of_names(topics: frozenset[str]) -> int:
    """The bytes that the names of topics in a subscription count for."""
    return sum(map(len, topics)) + _OF_A_NAME * len(topics)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Names of topics, and a regular expression for further names ("": no names)."""

    topics: frozenset[str] = frozenset()
    pattern: str = ""


@dataclass(slots=True)
class ConsumerMember:
    """`session` ends the membership unless the member sends heartbeats, `revocation` unless it gives partitions up.
    `names_size`: what the topics that it names count for."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: float = 0.0
    assignor: str | None = None
    subscription: Subscription = field(default_factory=Subscription)
    names_size: int = 0
    current: CurrentAssignment = field(default_factory=CurrentAssignment)
    session: Timeout | None = None
    revocation: Timeout | None = None
    classic: ClassicSide | None = None

    def take(self, beat: ConsumerHeartbeat) -> None:
        """Takes over the fields that the heartbeat has. The member uses the protocol of the heartbeat from now on."""
        self.use_protocol(beat.classic)
        self.client_id, self.client_host = beat.client_id, beat.client_host
        self.instance_id = self.instance_id if beat.instance_id is None else beat.instance_id
        self.rack_id = self.rack_id if beat.rack_id is None else beat.rack_id
        self.assignor = self.assignor if beat.assignor is None else beat.assignor
        self.subscription = self.subscription_after(beat)
        if beat.topics is not None:
            self.names_size = size_of_names(beat.topics)
        if beat.rebalance_timeout is not None:
            self.rebalance_timeout = beat.rebalance_timeout

    def use_protocol(self, classic: ClassicSide | None) -> None:
        if self.classic is not None and self.classic is not classic:
            self.classic.end_join()
            self.classic.end_sync()
        self.classic = classic

    def subscription_after(self, beat: ConsumerHeartbeat) -> Subscription:
        topics = self.subscription.topics if beat.topics is None else beat.topics
        return Subscription(topics, self.subscription.pattern if beat.pattern is None else beat.pattern)

    def end_session(self) -> None:
        if self.session is not None:
            self.session.cancel()
            self.session = None

    def end_revocation(self) -> None:
        if self.revocation is not None:
            self.revocation.cancel()
            self.revocation = None


class ConsumerMembers:
    """Members by id, in the order of joining, and the owner of each partition."""

    def __init__(self) -> None:
        self._by_id: dict[str, ConsumerMember] = {}
        # Member ids by group.instance.id.
        self._static: dict[str, str] = {}
        self._owners: dict[TopicIdPartition, str] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ConsumerMember]:
        return iter(tuple(self._by_id.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> ConsumerMember | None:
        return self._by_id.get(member_id)

    def static(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = None if instance_id is None else self._static.get(instance_id)
        return None if member_id is None else self._by_id.get(member_id)

    def is_free(self, partition: TopicIdPartition) -> bool:
        return partition not in self._owners

    def add(self, member: ConsumerMember) -> None:
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._own(member)

    def remove(self, member: ConsumerMember) -> None:
        member.end_session()
        member.end_revocation()
        member.use_protocol(None)
        self._disown(member)
        del self._by_id[member.member_id]
        # A member may have joined under several instance ids.
        self._static = {name: owner for name, owner in self._static.items() if owner != member.member_id}

    def set_current(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        self._disown(member)
        member.current = current
        self._own(member)

    def _own(self, member: ConsumerMember) -> None:
        for partition in member.current.owned:
            owner = self._owners.setdefault(partition, member.member_id)
            assert owner == member.member_id, f"{partition} belongs to {owner}"

    def _disown(self, member: ConsumerMember) -> None:
        for partition in member.current.owned:
            del self._owners[partition]
