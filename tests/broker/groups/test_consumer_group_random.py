"""Consumers that join, leave, hesitate and die, topics that come and go, and responses that are lost, in any order."""

from __future__ import annotations

import asyncio
from itertools import combinations, count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.broker.groups.consumer_group import ConsumerState
from kafkabuf.broker.groups.groups import subscribed_topics
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.waiting.slices import finish
from tests.broker.groups.consumer_group_support import Consumer, World, settle
from tests.effort import effort

TOPICS = ("a", "b", "c")
subscriptions = st.one_of(
    st.builds(lambda topics: {"topics": frozenset(topics)}, st.sets(st.sampled_from(TOPICS))),
    st.builds(lambda pattern: {"pattern": pattern}, st.sampled_from(["a|b", ".*", "c", "none"])),
)
who = st.integers(0, 3)
steps = st.one_of(
    st.tuples(st.just("join"), who, subscriptions, st.sampled_from([None, None, "i-1", "i-2"])),
    st.tuples(st.just("beat"), who),
    st.tuples(st.just("beat"), who),
    st.tuples(st.just("beat"), who),
    st.tuples(st.just("lose"), who),
    st.tuples(st.just("hesitate"), who),
    st.tuples(st.just("revoke"), who),
    st.tuples(st.just("subscribe"), who, subscriptions),
    st.tuples(st.just("leave"), who),
    st.tuples(st.just("pause"), who),
    st.tuples(st.just("die"), who),
    st.tuples(st.just("wait"), st.sampled_from([1, 20, 61])),
    st.tuples(st.just("create"), st.sampled_from(TOPICS), st.integers(1, 5)),
    st.tuples(st.just("delete"), st.sampled_from(TOPICS)),
)


class Life:
    """The consumers of a group. `check` holds after every step."""

    def __init__(self) -> None:
        self.world = World(GroupSettings(group_consumer_assignors=("uniform", "range")))
        self.world.create("a", 3)
        self.world.create("b", 2)
        self.consumers: dict[int, Consumer] = {}
        self._names = count()
        # The highest epoch that each member ever had.
        self._reached: dict[str, int] = {}

    def step(self, name: str, *values: Any) -> None:
        getattr(self, f"_{name}")(*values)
        self.check()

    def _join(self, index: int, subscription: dict[str, Any], instance: str | None) -> None:
        """A new process: a consumer that was there before is gone without a word."""
        self.consumers[index] = Consumer(self.world, f"m-{next(self._names)}", **subscription, instance_id=instance)
        self.consumers[index].beat()

    def _beat(self, index: int, *, lost: bool = False) -> None:
        if index in self.consumers:
            self.consumers[index].beat(lost=lost)

    def _lose(self, index: int) -> None:
        self._beat(index, lost=True)

    def _hesitate(self, index: int) -> None:
        if index in self.consumers:
            self.consumers[index].slow = True

    def _revoke(self, index: int) -> None:
        if index in self.consumers:
            self.consumers[index].slow = False
            self.consumers[index].revoke()

    def _subscribe(self, index: int, subscription: dict[str, Any]) -> None:
        if index in self.consumers:
            self.consumers[index].subscribe(**{"topics": frozenset(), "pattern": "", **subscription})

    def _leave(self, index: int, *, for_a_while: bool = False) -> None:
        consumer = self.consumers.get(index)
        if consumer is not None and consumer.epoch and consumer.member_id in self.world.group.members:
            consumer.leave(for_a_while=for_a_while)
            del self.consumers[index]

    def _pause(self, index: int) -> None:
        if index in self.consumers and self.consumers[index].joining["instance_id"] is not None:
            self._leave(index, for_a_while=True)

    def _die(self, index: int) -> None:
        self.consumers.pop(index, None)

    def _wait(self, seconds: int) -> None:
        self.world.advance(seconds)

    def _create(self, name: str, partitions: int) -> None:
        topic = self.world.topics.get(name)
        self.world.create(name, max(partitions, len(topic.partitions) if topic else 0))

    def _delete(self, name: str) -> None:
        if name in self.world.topics:
            self.world.delete(name)

    def check(self) -> None:
        group = self.world.group
        for one, other in combinations(group.members, 2):
            assert not one.current.owned & other.current.owned
        for consumer in self.consumers.values():
            member = group.members.get(consumer.member_id)
            if member is not None and consumer.epoch:
                assert consumer.owned <= member.current.owned, "the group takes its partitions for free"
        for member in group.members:
            if member.current.epoch > 0:
                assert self._reached.get(member.member_id, 0) <= member.current.epoch <= group.epoch
                self._reached[member.member_id] = member.current.epoch
        assert self.world.epochs == list(range(1, group.epoch + 1))

    def end(self) -> None:
        """All that is left settles, and gets every partition that it reads."""
        for consumer in self.consumers.values():
            consumer.slow = False
            consumer.revoke()
        for _ in range(4):
            self.world.advance(30)
            settle(*self.consumers.values())
        self.check()
        alive = [consumer for consumer in self.consumers.values() if consumer.epoch]
        group = self.world.group
        assert {member.member_id for member in group.members} == {consumer.member_id for consumer in alive}
        assert group.state is (ConsumerState.STABLE if alive else ConsumerState.EMPTY)
        read = finish(subscribed_topics(group, self.world.topics))
        wanted = {
            (name, index) for name, topic in self.world.topics.items() if name in read for index in topic.partitions
        }
        owned = [name for consumer in alive for name in consumer.names]
        assert sorted(owned) == sorted(wanted)


@settings(max_examples=effort(400), deadline=None)
@given(st.lists(steps, min_size=20, max_size=80))
def test_no_partition_has_two_owners_and_all_are_assigned_in_the_end(schedule: list[tuple[Any, ...]]) -> None:
    async def live() -> None:
        life = Life()
        for step in schedule:
            life.step(*step)
        life.end()
        life.world.timer.close()

    asyncio.run(live())
