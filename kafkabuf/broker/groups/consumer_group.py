"""One consumer group of KIP-848 (Kafka's ConsumerGroup): the coordinator assigns, and members follow by heartbeats.

    group epoch        rises when members, their subscriptions or their topics change
    assignment epoch   the group epoch that the target assignment was made for
    member epoch       the assignment epoch that a member has reached (reconciliation.py)

    Empty       no members                        Assigning   the group epoch is ahead of the assignment epoch
    Stable      every member has its target       Reconciling a member does not have its target yet

A heartbeat makes a new target when the group epoch is ahead, and takes its member a step towards its target. A member
that is silent for the session time-out, or that keeps partitions beyond its rebalance time-out, is removed. A static
member that leaves for a while keeps its place until its session ends. Thread: the event loop.

Members of the classic protocol may be among the members (classic_side.py).

Deviation: an expression is matched with the topics at once and after each change of topics, where Kafka waits up to
10 s between two matches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from kafkabuf.broker.groups.assignors import ASSIGNORS, Subscriber
from kafkabuf.broker.groups.consumer_member import (
    LEAVING_FOR_A_WHILE,
    ConsumerHeartbeat,
    ConsumerMember,
    ConsumerMembers,
    Subscription,
    size_of_names,
)
from kafkabuf.broker.groups.members import MOST_METADATA
from kafkabuf.broker.groups.offsets import GroupOffsets
from kafkabuf.broker.groups.reconciliation import (
    NO_PARTITIONS,
    CurrentAssignment,
    MemberState,
    Partitions,
    reconcile,
)
from kafkabuf.broker.groups.senders import sender, static_member
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.groups.subscriptions import Subscriptions, Topic, TopicSizes
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.broker.waiting.timer import Timeout, Timer
from kafkabuf.errors import (
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    KafkaError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnsupportedVersionError,
)

Answer = dict[str, Any]


class ConsumerState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    """`remember` gets each new group epoch: the epochs of a group rise over a restart of the cluster, too. `configs`
    returns the settings that this group alone has; a change of them takes effect with a member's next heartbeat."""

    kind = "consumer"
    protocol_type = "consumer"

    def __init__(
        self,
        group_id: str,
        timer: Timer,
        settings: GroupSettings,
        topics: Callable[[], Mapping[str, Topic]],
        offsets: GroupOffsets,
        remember: Callable[[int], None] = lambda epoch: None,
        configs: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.group_id = group_id
        self.offsets = offsets
        self.members = ConsumerMembers()
        self.subscriptions = Subscriptions(topics)
        self.epoch = 0
        self.assignment_epoch = 0
        self._targets: dict[str, Partitions] = {}
        # None: unknown until the next target is made.
        self._sizes: TopicSizes | None = {}
        self._topics_changed = False
        self._timer = timer
        self._settings = settings
        self._remember = remember
        self._configs = configs
        # The group calls this when a member has gone. It returns whether a classic group has replaced this group.
        self.downgraded: Callable[[], bool] = lambda: False

    # ---- what the group is

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        reconciled = all(member.current.is_reconciled_to(self.assignment_epoch) for member in self.members)
        return ConsumerState.STABLE if reconciled else ConsumerState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def assignor(self) -> str:
        """The assignor that most members name; the first of group.consumer.assignors if no member names any."""
        votes = Counter(member.assignor for member in self.members if member.assignor is not None)
        return votes.most_common(1)[0][0] if votes else self._settings.group_consumer_assignors[0]

    @property
    def session_timeout_ms(self) -> int:
        own = self._configs().get("consumer.session.timeout.ms")
        return self._settings.group_consumer_session_timeout_ms if own is None else int(own)

    @property
    def heartbeat_interval_ms(self) -> int:
        own = self._configs().get("consumer.heartbeat.interval.ms")
        return self._settings.group_consumer_heartbeat_interval_ms if own is None else int(own)

    def target(self, member: ConsumerMember) -> Partitions:
        return self._targets.get(member.member_id, NO_PARTITIONS)

    # ---- heartbeats

    def unmatched(self, beat: ConsumerHeartbeat) -> set[str]:
        """The expressions that the heartbeat must match with all topics."""
        new = set() if beat.pattern is None or self.subscriptions.is_resolved(beat.pattern) else {beat.pattern}
        changed = self.members if self._topics_changed else ()
        return new.union(member.subscription.pattern for member in changed) - {""}

    def heartbeat(self, beat: ConsumerHeartbeat) -> Work[Answer]:
        """Handles a heartbeat that joins or stays. Raises the error for a member that may not; then the group is as it
        was before. A member that may is in the group at once, and gets its answer in steps: no other heartbeat to the
        group may be handled meanwhile."""
        self.check_size(beat.member_id)
        former = sender(self.members, beat)
        if beat.topics is not None:
            self._check_names(beat.topics, former)
            beat = replace(beat, topics=self.subscriptions.shared(beat.topics))
        before = Subscription() if former is None else former.subscription
        after = (former or ConsumerMember(beat.member_id)).subscription_after(beat)
        resolved, matches = (
            self.subscriptions.is_resolved(after.pattern),
            self.subscriptions.match(after.pattern, beat.sees, beat.matches),
        )
        replaced = self._drop_namesake(beat, former)
        member = self._admit(beat, former)
        had = NO_PARTITIONS if member is not former else member.current.assigned
        member.take(beat)
        self.members.add(member)
        self.renew_session(member)
        return self._proceed(member, beat, before, after, had, replaced, None if resolved else matches)

    def _proceed(
        self,
        member: ConsumerMember,
        beat: ConsumerHeartbeat,
        before: Subscription,
        after: Subscription,
        had: Partitions,
        replaced: bool,
        matches: frozenset[str] | None,
    ) -> Work[Answer]:
        """`matches`: the names that match a new expression."""
        yield from self._follow_subscription(before, after, beat)
        if replaced:
            self._raise_epoch()
        if self.epoch > self.assignment_epoch:
            yield from self._assign()
        if self.members.get(member.member_id) is not member:
            raise UnknownMemberIdError(f"{member.member_id!r} was removed from group {self.group_id!r} meanwhile")
        self._reconcile(member, beat.reported)
        self.renew_session(member)
        changed = member.current.assigned != had
        answer = self._answer(member, with_assignment=beat.wants_assignment or changed)
        if matches is not None:
            self._resolve_pattern(after, matches)
        if replaced or before.pattern != after.pattern:
            self.subscriptions.forget_unused(self.members)
        return answer

    def check_size(self, member_id: str) -> None:
        """Raises GroupMaxSizeReachedError if the group takes no further member."""
        most = self._settings.group_consumer_max_size
        if len(self.members) >= most and member_id not in self.members:
            raise GroupMaxSizeReachedError(f"group.consumer.max.size is {most}, and the group has as many")

    def _check_names(self, topics: frozenset[str], former: ConsumerMember | None) -> None:
        """Raises GroupMaxSizeReachedError if the members would name more topics than a group takes."""
        size = size_of_names(topics) + sum(member.names_size for member in self.members if member is not former)
        if size > MOST_METADATA:
            raise GroupMaxSizeReachedError(
                f"{size} bytes of names of topics: the members of a group may have {MOST_METADATA}"
            )

    def _drop_namesake(self, beat: ConsumerHeartbeat, former: ConsumerMember | None) -> bool:
        """Removes another member with the id that a static member comes back with. Returns whether there was one."""
        namesake = self.members.get(beat.member_id)
        if former is None or namesake is None or namesake is former:
            return False
        self.members.remove(namesake)
        return True

    def _admit(self, beat: ConsumerHeartbeat, former: ConsumerMember | None) -> ConsumerMember:
        """The member itself. A static member that is back takes over the partitions and the target of its former
        self."""
        if former is None:
            return ConsumerMember(beat.member_id)
        returns = former.current.epoch == LEAVING_FOR_A_WHILE or former.member_id != beat.member_id
        if not (beat.joins and returns):
            return former
        target = self._targets.pop(former.member_id, NO_PARTITIONS)
        self.members.remove(former)
        current = CurrentAssignment(0, 0, former.current.state, former.current.assigned)
        member = ConsumerMember(
            beat.member_id,
            former.instance_id,
            former.rack_id,
            rebalance_timeout=former.rebalance_timeout,
            assignor=former.assignor,
            subscription=former.subscription,
            names_size=former.names_size,
            current=current,
        )
        self._targets[member.member_id] = target
        return member

    def _answer(self, member: ConsumerMember, *, with_assignment: bool) -> Answer:
        answer: Answer = {
            "member_id": member.member_id,
            "member_epoch": member.current.epoch,
            "heartbeat_interval": self.heartbeat_interval_ms,
        }
        if with_assignment:
            answer["assignment"] = member.current.assigned
        return answer

    # ---- epochs

    def topics_changed(self) -> None:
        """Call this when a topic was created, deleted or got partitions. The next heartbeat looks at it."""
        self._topics_changed = True

    def _follow_subscription(self, before: Subscription, after: Subscription, beat: ConsumerHeartbeat) -> Work[None]:
        """Raises the group epoch if the group, the member's subscription or the subscribed topics are new. A member
        with a new expression reads the topics of its former expression until its response is sent."""
        resolved = self.subscriptions.is_resolved(after.pattern)
        former_matches = self.subscriptions.match(before.pattern, beat.sees, beat.matches)
        topics_changed, self._topics_changed = self._topics_changed, False
        if topics_changed:
            self.subscriptions.refresh(self.members, beat.sees, beat.matches)
        if not resolved:
            self.subscriptions.resolve(after.pattern, former_matches)
        new_subscription = before.topics != after.topics or (before.pattern != after.pattern and resolved)
        new = self.epoch == 0 or new_subscription
        if new or (topics_changed and (yield from self.subscriptions.sizes(self.members)) != self._sizes):
            self._raise_epoch()

    def _resolve_pattern(self, after: Subscription, matches: frozenset[str]) -> None:
        """Gives a new expression its topics after the response. As in Kafka, the member gets their partitions with its
        next heartbeat."""
        names = self.subscriptions.names(after)
        self.subscriptions.resolve(after.pattern, matches)
        if self.subscriptions.names(after) != names:
            self._raise_epoch()

    def _raise_epoch(self) -> None:
        self._remember(self.epoch + 1)
        self.epoch += 1
        # Only the next target needs the sizes: many members may leave before.
        self._sizes = None

    def _assign(self) -> Work[None]:
        """Makes a new target assignment for the group epoch, in steps. Members may be removed meanwhile: that raises
        the group epoch, and the next heartbeat assigns again."""
        epoch, members = self.epoch, tuple(self.members)
        sizes = yield from self.subscriptions.sizes(members)
        topics = self.subscriptions.topics(members, sizes)
        subscribers = [
            Subscriber(member.member_id, member.instance_id, topics[member.subscription], self.target(member))
            for member in members
        ]
        targets = yield from ASSIGNORS[self.assignor](subscribers, dict(sizes.values()))
        self._targets = {name: target for name, target in targets.items() if name in self.members}
        self._sizes = sizes if self.epoch == epoch else None
        self.assignment_epoch = epoch

    # ---- members

    def _reconcile(self, member: ConsumerMember, reported: Partitions | None) -> None:
        current = reconcile(member.current, self.assignment_epoch, self.target(member), self.members.is_free, reported)
        if current == member.current:
            return
        self.members.set_current(member, current)
        member.end_revocation()
        if current.state is MemberState.UNREVOKED and member.classic is None:
            member.revocation = self.expiry(member, member.rebalance_timeout)

    def renew_session(self, member: ConsumerMember) -> None:
        member.end_session()
        classic = member.classic
        seconds = self.session_timeout_ms / 1000 if classic is None else classic.joining.session_timeout
        member.session = self.expiry(member, seconds)

    def expiry(self, member: ConsumerMember, seconds: float) -> Timeout:
        """Removes the member after this time, unless the time-out is cancelled."""
        return self._timer.after(seconds, lambda: self._remove(member))

    def leave(self, member_id: str, instance_id: str | None, *, for_a_while: bool = False) -> None:
        """Removes a member. `for_a_while`: the static member keeps its place until its session ends."""
        if instance_id is not None:
            member = static_member(self.members, instance_id, member_id)
        elif (dynamic := self.members.get(member_id)) is not None:
            member = dynamic
        else:
            raise UnknownMemberIdError(f"{member_id!r} is not a member of group {self.group_id!r}")
        if for_a_while:
            current = member.current
            away = CurrentAssignment(LEAVING_FOR_A_WHILE, current.epoch, current.state, current.assigned)
            self.members.set_current(member, away)
            member.end_revocation()
        else:
            self._remove(member)

    def remove_by_admin(self, member_id: str, instance_id: str | None) -> int:
        """Removes a member for an administrator's LeaveGroup request; returns its error code. The instance id alone may
        name a static member."""
        if not member_id and (static := self.members.static(instance_id)) is not None:
            member_id = static.member_id
        try:
            self.leave(member_id, instance_id)
        except KafkaError as error:
            return error.code
        return 0

    def _remove(self, member: ConsumerMember) -> None:
        self.members.remove(member)
        self._targets.pop(member.member_id, None)
        if self.downgraded():
            return
        if member.subscription.pattern:
            self.subscriptions.forget_unused(self.members)
        self._raise_epoch()

    def adopt(self, generation: int, members: Iterable[ConsumerMember], sizes: TopicSizes) -> None:
        """Takes over the members of a classic group, which has this generation. `sizes` are those of the topics that
        the members read."""
        for member in members:
            self.members.add(member)
            self._targets[member.member_id] = member.current.assigned
        self.epoch = self.assignment_epoch = generation
        self._sizes = sizes

    # ---- offsets

    def check_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        epoch: int,
        *,
        transactional: bool = False,
        knows_epochs: bool = True,
    ) -> KafkaError | None:
        """The error for a commit, or None. A member may commit with its present epoch, any client to an empty group. In
        a transaction a producer need not name a member. `knows_epochs`: the request's version has member epochs."""
        if epoch < 0 and self.is_empty:
            return None
        if transactional and epoch < 0 and not member_id and group_instance_id is None:
            return None
        error = self._check_member(member_id, epoch)
        member = self.members.get(member_id)
        if member is not None and member.classic is None and not transactional and not knows_epochs:
            return UnsupportedVersionError("a member of this group commits with version 9 of OffsetCommit or a later")
        if transactional and isinstance(error, StaleMemberEpochError):
            return IllegalGenerationError(str(error))
        return error

    def check_fetch(self, member_id: str | None, epoch: int) -> KafkaError | None:
        """The error for a request for offsets, or None. A client that names no member may see the offsets."""
        if member_id is None and epoch < 0:
            return None
        return self._check_member(member_id or "", epoch)

    def _check_member(self, member_id: str, epoch: int) -> KafkaError | None:
        if (member := self.members.get(member_id)) is None:
            return UnknownMemberIdError(f"{member_id!r} is not a member of group {self.group_id!r}")
        if epoch != member.current.epoch and member.classic is not None:
            return IllegalGenerationError(
                f"the request has generation {epoch}, the member is in {member.current.epoch}"
            )
        if epoch != member.current.epoch:
            return StaleMemberEpochError(f"the request has epoch {epoch}, the member is in {member.current.epoch}")
        return None
