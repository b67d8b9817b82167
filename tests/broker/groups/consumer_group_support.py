"""A consumer group of KIP-848 on a manual clock, and consumers that follow it as a client does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from kafkabuf.broker.groups.consumer_group import ConsumerGroup
from kafkabuf.broker.groups.consumer_member import ConsumerHeartbeat
from kafkabuf.broker.groups.members import Answer
from kafkabuf.broker.groups.offsets import GroupOffsets
from kafkabuf.broker.groups.reconciliation import NO_PARTITIONS, Partitions, TopicIdPartition
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.waiting.slices import finish
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.clock import ManualClock
from kafkabuf.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    KafkaError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)

REBALANCE_TIMEOUT = 60.0


@dataclass
class FakeTopic:
    partitions: range
    topic_id: UUID = field(default_factory=uuid4)


class World:
    """A group, its topics, and its clock."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.clock = ManualClock()
        self.timer = Timer(asyncio.get_running_loop(), self.clock)
        self.topics: dict[str, FakeTopic] = {}
        self.epochs: list[int] = []
        self.group = ConsumerGroup(
            "g", self.timer, settings or GroupSettings(), lambda: self.topics, GroupOffsets(), self.epochs.append
        )

    @property
    def state(self) -> str:
        return self.group.state.value

    def create(self, name: str, partitions: int) -> None:
        """A topic, or further partitions of it."""
        if name in self.topics:
            self.topics[name].partitions = range(partitions)
        else:
            self.topics[name] = FakeTopic(range(partitions))
        self.group.topics_changed()

    def delete(self, name: str) -> None:
        del self.topics[name]
        self.group.topics_changed()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.timer.advance()

    def beat(self, member_id: str, epoch: int, **more: Any) -> Answer:
        if epoch == 0:
            more = {"rebalance_timeout": REBALANCE_TIMEOUT, "reported": NO_PARTITIONS, **more}
        return finish(self.group.heartbeat(ConsumerHeartbeat(member_id=member_id, member_epoch=epoch, **more)))

    def everything(self) -> set[TopicIdPartition]:
        return {(topic.topic_id.int, index) for topic in self.topics.values() for index in topic.partitions}

    def named(self, partitions: Partitions) -> set[tuple[str, int]]:
        names = {topic.topic_id.int: name for name, topic in self.topics.items()}
        return {(names[topic_id], index) for topic_id, index in partitions}


class Consumer:
    """A client of the protocol: it gives up what its assignment lacks, and tells what it owns when that changed.

    `slow`: it does not give up partitions until the test calls `revoke`."""

    def __init__(self, world: World, member_id: str, *topics: str, slow: bool = False, **more: Any) -> None:
        self.world = world
        self.member_id = member_id
        self.epoch = 0
        self.slow = slow
        self.owned: Partitions = NO_PARTITIONS
        self.assigned: Partitions = NO_PARTITIONS
        self.joining = {"topics": frozenset(topics), **more}
        self._told = True
        self._changes: dict[str, Any] = {}
        self._doubts = False

    @property
    def names(self) -> set[tuple[str, int]]:
        return self.world.named(self.owned)

    def subscribe(self, **changes: Any) -> None:
        """Changes `topics` or `pattern` with the next heartbeat."""
        self.joining.update(changes)
        self._changes.update(changes)

    def beat(self, *, lost: bool = False) -> None:
        """One heartbeat. A fenced consumer gives up all partitions, and joins again with its next heartbeat. `lost`:
        the response does not arrive, and the next heartbeat tells everything again."""
        more = {**self._changes, "reported": None if self._told else self.owned}
        if self.epoch == 0 or self._doubts:
            more = {"rebalance_timeout": REBALANCE_TIMEOUT, "reported": self.owned, **self.joining}
        instance = self.joining.get("instance_id")
        try:
            answer = self.world.beat(self.member_id, self.epoch, **{**more, "instance_id": instance})
        except (FencedMemberEpochError, UnknownMemberIdError, FencedInstanceIdError):
            self._forget()
            return
        except UnreleasedInstanceIdError:
            return
        self._doubts = lost
        if lost:
            return
        self._told, self._changes = True, {}
        self.epoch = answer["member_epoch"]
        if "assignment" in answer:
            self.assigned = answer["assignment"]
            self._told = False
        if not self.slow:
            self.revoke()

    def revoke(self) -> None:
        """Takes what is assigned, and gives up all else."""
        if self.owned != self.assigned:
            self.owned, self._told = self.assigned, False

    def leave(self, *, for_a_while: bool = False) -> None:
        self.world.group.leave(self.member_id, self.joining.get("instance_id"), for_a_while=for_a_while)
        self._forget()

    def _forget(self) -> None:
        self.epoch, self.owned, self.assigned, self._told = 0, NO_PARTITIONS, NO_PARTITIONS, True
        self._changes, self._doubts = {}, False


def settle(*consumers: Consumer) -> None:
    """Heartbeats of all consumers until two rounds change nothing: a new expression has its topics only in the second
    round."""
    quiet = 0
    for _ in range(50):
        before = [(consumer.epoch, consumer.owned) for consumer in consumers]
        for consumer in consumers:
            consumer.beat()
        quiet = quiet + 1 if before == [(consumer.epoch, consumer.owned) for consumer in consumers] else 0
        if quiet == 2:
            return
    raise AssertionError("the group does not settle")


def error(call: Callable[[], object]) -> type[KafkaError] | None:
    try:
        call()
    except KafkaError as refusal:
        return type(refusal)
    return None


Test = Callable[[World], Coroutine[Any, Any, None]]


def scenario_with(**settings: Any) -> Callable[[Test], Callable[[], None]]:
    """Runs a test with a World. `settings` are those of the group."""

    def decorate(test: Test) -> Callable[[], None]:
        def run() -> None:
            async def body() -> None:
                world = World(GroupSettings(**settings))
                await test(world)
                world.timer.close()

            asyncio.run(body())

        run.__name__ = test.__name__
        return run

    return decorate


def scenario(test: Test) -> Callable[[], None]:
    """As `scenario_with`, with Kafka's settings."""
    return scenario_with()(test)
