"""Consumers of both protocols in one group, in any order of their requests: no partition has two owners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import combinations, count

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafkabuf.broker.groups.consumer_protocol import read_assignment
from kafkabuf.broker.groups.reconciliation import NO_PARTITIONS
from kafkabuf.errors import FencedMemberEpochError, RebalanceInProgressError, UnknownMemberIdError
from tests.broker.groups.test_migration import World, metadata
from tests.effort import effort

AGAIN = RebalanceInProgressError.code
who = st.integers(0, 2)
steps = st.one_of(
    st.tuples(st.just("act"), who),
    st.tuples(st.just("act"), who),
    st.tuples(st.just("beat"), who),
    st.tuples(st.just("beat"), who),
    st.tuples(st.just("leave"), who),
    st.tuples(st.just("go"), who),
    st.tuples(st.just("die"), who),
    st.tuples(st.just("wait"), st.sampled_from([1, 9, 31])),
    st.tuples(st.just("grow"), st.integers(13, 20)),
)


class Classic:
    """A consumer of the classic protocol. `cooperative`: it keeps its partitions while the group rebalances."""

    def __init__(self, world: World, *, cooperative: bool) -> None:
        self.world = world
        self.cooperative = cooperative
        self.forget()

    def forget(self) -> None:
        self.member_id, self.generation = "", -1
        self.joined = self.synced = False
        self.owned: set[int] = set()

    def act(self) -> None:
        """The client's next request."""
        if not self.joined:
            self._join()
        elif not self.synced:
            self._sync()
        else:
            self._follow(self.world.heartbeat(self.member_id, self.generation))

    def _join(self) -> None:
        # A client whose session is over knows that by its own clock, and has lost its partitions.
        if not self.cooperative or self.member_id not in self.world.consumer_group.members:
            self.owned = set()
        protocols = [("range", metadata(*self.owned))]
        answer = self.world.join(self.member_id, protocols=protocols)
        assert answer.get("error_code", 0) == 0, answer
        self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        self.joined, self.synced = True, False

    def _sync(self) -> None:
        answer = self.world.classic().sync(self.member_id, self.generation, {})
        if error := answer.get("error_code", 0):
            self._follow(error)
            return
        partitions, _ = read_assignment(answer["assignment"])
        assigned = {index for _, index in partitions}
        # A cooperative consumer that gave partitions up joins again at once.
        self.joined = self.synced = not (self.cooperative and self.owned - assigned)
        self.owned = assigned

    def _follow(self, error: int) -> None:
        if error == AGAIN:
            self.joined = False
        elif error:
            self.forget()

    def leave(self) -> None:
        if self.member_id:
            self.world.consumer_group.remove_by_admin(self.member_id, None)
        self.forget()


class Modern:
    """A consumer of the consumer protocol, which gives partitions up at once."""

    def __init__(self, world: World, names: count[int]) -> None:
        self.world = world
        self.names = names
        self.forget()

    def forget(self) -> None:
        self.member_id, self.epoch = f"consumer-{next(self.names)}", 0
        self.owned: set[int] = set()

    def beat(self) -> None:
        topic_id = self.world.topic.topic_id.int
        reported = frozenset((topic_id, index) for index in self.owned) if self.epoch else NO_PARTITIONS
        try:
            answer = self.world.beat(self.member_id, self.epoch, reported=reported)
        except (FencedMemberEpochError, UnknownMemberIdError):
            self.forget()
            return
        self.epoch = answer["member_epoch"]
        if "assignment" in answer:
            self.owned = {index for _, index in answer["assignment"]}

    def go(self) -> None:
        if self.epoch:
            self.world.consumer_group.remove_by_admin(self.member_id, None)
        self.forget()


class Life:
    def __init__(self, world: World) -> None:
        self.world = world
        names = count()
        # Enough that each further consumer takes some from all others.
        world.topic.partitions = range(12)
        self.classic = [Classic(world, cooperative=bool(number % 2)) for number in range(3)]
        # The first consumer stays, so that the group keeps its kind.
        self.modern = [Modern(world, names) for _ in range(3)]
        self.modern[0].beat()

    def step(self, name: str, argument: int) -> None:
        if name == "wait":
            self.world.clock.advance(argument)
            self.world.timer.advance()
            self.modern[0].beat()
        elif name == "grow":
            self.world.topic.partitions = range(max(argument, len(self.world.topic.partitions)))
            self.world.groups.topics_changed()
        elif name == "die":
            self.classic[argument].forget()
        elif name == "go":
            if argument:
                self.modern[argument].go()
        elif name == "beat":
            self.modern[argument].beat()
        else:
            getattr(self.classic[argument], name)()

    def _clients(self) -> list[Classic | Modern]:
        return [*self.classic, *self.modern]

    def check(self) -> None:
        members = self.world.consumer_group.members
        clients = [client for client in self._clients() if client.member_id in members]
        for one, other in combinations(clients, 2):
            assert one.owned.isdisjoint(other.owned), (one.member_id, other.member_id)

    def settle(self) -> None:
        """All consumers go on, one after the other, so that each takes partitions of the others. Those that died are
        removed meanwhile."""
        requests: list[Callable[[], None]] = [self.modern[0].beat]
        later = [
            self.classic[1].act,
            self.modern[1].beat,
            self.classic[0].act,
            self.classic[2].act,
            self.modern[2].beat,
        ]
        for joining in (*later, None):
            for _ in range(10):
                for request in requests:
                    request()
                    self.check()
                self.world.clock.advance(2)
                self.world.timer.advance()
            requests += [] if joining is None else [joining]
        owned = [client.owned for client in self._clients()]
        assert set().union(*owned) == set(self.world.topic.partitions)


@settings(max_examples=effort(60))
@example([("grow", 13), ("act", 1), ("act", 1), ("act", 0), ("act", 1)])  # a client returns behind its session's end
@given(st.lists(steps, max_size=40))
def test_no_partition_has_two_owners_whatever_their_protocols(actions: list[tuple[str, int]]) -> None:
    async def body() -> None:
        world = World()
        life = Life(world)
        for name, argument in actions:
            life.step(name, argument)
            life.check()
        life.settle()
        world.timer.close()

    asyncio.run(body())
