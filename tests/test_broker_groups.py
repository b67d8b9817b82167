"""Consumer groups on a manual clock, and the timer beneath them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from kafkabuf.broker.group import Group, State
from kafkabuf.broker.group_members import Answer, Joining
from kafkabuf.broker.timer import Timer
from kafkabuf.clock import ManualClock


class World:
    """A group, its clock, and clients that join it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timer = Timer(asyncio.get_running_loop(), self.clock)
        self.group = Group("g", self.timer)

    def join(self, member_id: str = "", *, protocols: str = "range", instance: str | None = None, **more: Any) -> Any:
        values: dict[str, Any] = {
            "client_id": "c",
            "group_instance_id": instance,
            "session_timeout": 10.0,
            "rebalance_timeout": 60.0,
            "protocol_type": "consumer",
            "needs_member_id": False,
            **more,
        }
        names = [(name, b"meta-" + name.encode()) for name in protocols.split()]
        return self.group.join(Joining(member_id=member_id, protocols=names, **values))

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.timer.advance()
        await asyncio.sleep(0)

    async def stable(self, members: int) -> list[str]:
        """Brings up a stable group of this many members; the leader's id comes first."""
        ids: list[str] = []
        for _ in range(members):
            pending = [self.join(), *(self.join(member) for member in ids)]
            answers = [await answer for answer in pending]
            ids = sorted((one["member_id"] for one in answers), key=lambda name: name != answers[0]["leader"])
        waiting = [self.group.sync(member, self.group.generation, {}) for member in ids[1:]]
        assigned = {member: b"for " + member.encode() for member in ids}
        first = await settled(self.group.sync(ids[0], self.group.generation, assigned))
        assert first["assignment"] == assigned[ids[0]]
        for member, answer in zip(ids[1:], waiting, strict=True):
            assert (await settled(answer))["assignment"] == assigned[member]
        assert self.group.state is State.STABLE
        return ids


async def settled(answer: Answer | Awaitable[Answer]) -> Answer:
    return answer if isinstance(answer, dict) else await asyncio.wait_for(answer, 1)


def pending(answer: Answer | Awaitable[Answer]) -> bool:
    return isinstance(answer, asyncio.Future) and not answer.done()


def scenario(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        async def body() -> None:
            world = World()
            await test(world)
            world.timer.close()

        asyncio.run(body())

    run.__name__ = test.__name__
    return run


@scenario
async def test_lone_member_waits_for_others(world: World) -> None:
    answer = await settled(world.join())
    assert (answer["generation_id"], answer["protocol_name"]) == (1, "range")
    assert answer["leader"] == answer["member_id"]
    assert [one["metadata"] for one in answer["members"]] == [b"meta-range"]


@scenario
async def test_new_member_is_let_in_without_its_id(world: World) -> None:
    refused = await settled(world.join(needs_member_id=True))
    assert refused["error_code"] == 79
    assert not world.group.members
    answer = await settled(world.join(refused["member_id"], needs_member_id=True))
    assert answer["member_id"] == refused["member_id"]


@scenario
async def test_member_that_never_uses_its_id_holds_up_the_group(world: World) -> None:
    (leader,) = await world.stable(1)
    await settled(world.join(needs_member_id=True, session_timeout=5.0))
    joined = world.join(leader)
    assert pending(joined)
    await world.advance(5)
    assert (await settled(joined))["generation_id"] == 2


@scenario
async def test_second_member_joins_without_the_first(world: World) -> None:
    (leader,) = await world.stable(1)
    second = world.join()
    assert pending(second)
    assert world.group.heartbeat(leader, 1) == {"error_code": 27}
    assert (await settled(world.group.sync(leader, 1, {})))["error_code"] == 27
    first = await settled(world.join(leader))
    assert first["generation_id"] == (await settled(second))["generation_id"] == 2
    assert len(first["members"]) == 2
    assert (await settled(second))["members"] == []
    assert (await settled(second))["leader"] == leader


@scenario
async def test_followers_get_no_assignment_or_the_wrong_one(world: World) -> None:
    await world.stable(3)


@scenario
async def test_silent_member_is_waited_for_beyond_the_rebalance_timeout(world: World) -> None:
    await world.stable(2)
    for one in world.group.members:
        one.joining.session_timeout = 100.0
    third = world.join(session_timeout=100.0)
    assert pending(third)
    await world.advance(59.9)
    assert pending(third)
    await world.advance(0.1)
    assert len((await settled(third))["members"]) == 1


@scenario
async def test_dead_member_keeps_its_partitions(world: World) -> None:
    leader, other = await world.stable(2)
    await world.advance(6)
    assert world.group.heartbeat(leader, world.group.generation)["error_code"] == 0
    await world.advance(6)
    assert world.group.heartbeat(leader, world.group.generation)["error_code"] == 27
    assert world.group.heartbeat(other, world.group.generation)["error_code"] == 25
    assert len((await settled(world.join(leader)))["members"]) == 1


@scenario
async def test_parked_member_loses_its_session(world: World) -> None:
    (leader,) = await world.stable(1)
    second = world.join(session_timeout=1.0)
    world.group.members[leader].joining.session_timeout = 100.0
    world.group.heartbeat(leader, 1)
    await world.advance(30)
    assert pending(second)
    assert len((await settled(world.join(leader)))["members"]) == 2


@scenario
async def test_leader_that_dies_before_it_assigns_hangs_the_rest(world: World) -> None:
    first = await settled(world.join(session_timeout=3.0))
    second = world.join()
    await settled(world.join(first["member_id"], session_timeout=3.0))
    follower = (await settled(second))["member_id"]
    synced = world.group.sync(follower, 2, {})
    assert pending(synced)
    await world.advance(3)
    assert (await settled(synced))["error_code"] == 27
    assert (await settled(world.join(follower)))["leader"] == follower


@scenario
async def test_leaving_member_is_waited_for(world: World) -> None:
    leader, other = await world.stable(2)
    assert world.group.leave(leader, None) == 0
    assert world.group.leave(leader, None) == 25
    answer = await settled(world.join(other))
    assert answer["leader"] == other
    assert world.group.leave(other, None) == 0
    assert world.group.state is State.EMPTY


@scenario
async def test_member_leaving_in_a_rebalance_blocks_it(world: World) -> None:
    leader, other = await world.stable(2)
    joined = world.join(leader)
    third = world.join()
    assert pending(joined)
    assert pending(third)
    assert world.group.leave(other, None) == 0
    assert len((await settled(joined))["members"]) == 2
    assert (await settled(third))["generation_id"] == (await settled(joined))["generation_id"]


@scenario
async def test_old_generation_is_served(world: World) -> None:
    (leader,) = await world.stable(1)
    assert world.group.heartbeat(leader, 0) == {"error_code": 22}
    assert world.group.heartbeat("nobody", 1) == {"error_code": 25}
    assert (await settled(world.group.sync(leader, 7, {})))["error_code"] == 22
    assert (await settled(world.join("nobody")))["error_code"] == 25


@scenario
async def test_follower_that_lost_its_answer_starts_a_rebalance(world: World) -> None:
    leader, other = await world.stable(2)
    generation = world.group.generation
    answer = await settled(world.join(other))
    assert (answer["generation_id"], answer["leader"]) == (generation, leader)
    assert (await settled(world.group.sync(other, generation, {})))["assignment"] == b"for " + other.encode()
    changed = world.join(other, protocols="roundrobin range")
    assert pending(changed)


@scenario
async def test_members_without_a_common_protocol_form_a_group(world: World) -> None:
    await world.stable(1)
    assert (await settled(world.join(protocols="sticky")))["error_code"] == 23
    assert (await settled(world.join(protocol_type="connect")))["error_code"] == 23
    assert (await settled(World().join(protocols="")))["error_code"] == 23


@scenario
async def test_protocol_is_one_that_somebody_lacks(world: World) -> None:
    first = await settled(world.join(protocols="sticky range roundrobin"))
    second = world.join(protocols="roundrobin range")
    answer = await settled(world.join(first["member_id"], protocols="sticky range roundrobin"))
    assert answer["protocol_name"] in ("range", "roundrobin")
    assert (await settled(second))["protocol_name"] == answer["protocol_name"]


@scenario
async def test_static_member_that_returns_is_counted_twice(world: World) -> None:
    first = await settled(world.join(instance="i-1"))
    again = await settled(world.join(instance="i-1"))
    assert again["member_id"] != first["member_id"]
    assert [one["group_instance_id"] for one in again["members"]] == ["i-1"]
    assert world.group.leave("", "i-1") == 0
    assert not world.group.members


@scenario
async def test_session_timeout_of_nothing_is_taken(world: World) -> None:
    for seconds in (0.0, -1.0, 1800.1):
        assert (await settled(world.join(session_timeout=seconds)))["error_code"] == 26


@scenario
async def test_stranger_commits_for_a_living_group(world: World) -> None:
    assert world.group.check_commit("", None, -1) is None
    first = await settled(world.join())
    late = world.group.check_commit(first["member_id"], None, 1)
    assert late is not None
    assert late.code == 27
    await settled(world.group.sync(first["member_id"], 1, {}))
    assert world.group.check_commit(first["member_id"], None, 1) is None
    refused = [
        world.group.check_commit(who, None, number) for who, number in (("", -1), ("x", 1), (first["member_id"], 0))
    ]
    assert [error and error.code for error in refused] == [25, 25, 22]


# ---- the timer


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_timer_runs_too_early_or_in_the_wrong_order(order: tuple[int, ...]) -> None:
    async def body() -> None:
        clock = ManualClock()
        timer = Timer(asyncio.get_running_loop(), clock)
        ran: list[int] = []
        for seconds in order:
            timer.after(seconds, lambda seconds=seconds: ran.append(seconds))  # type: ignore[misc]
        cancelled = timer.after(2, lambda: ran.append(-1))
        cancelled.cancel()
        clock.advance(0.999)
        timer.advance()
        assert ran == []
        clock.advance(1.001)
        timer.advance()
        assert ran == [1, 2]
        clock.advance(50)
        timer.advance()
        assert ran == [1, 2, 3]
        timer.close()

    asyncio.run(body())


def test_timer_sleeps_past_an_earlier_deadline() -> None:
    """The loop is armed for the first deadline, also when it was added last."""

    async def body() -> None:
        from kafkabuf.clock import SystemClock

        timer = Timer(asyncio.get_running_loop(), SystemClock())
        done = asyncio.Event()
        timer.after(30, lambda: None)
        timer.after(0.01, done.set)
        await asyncio.wait_for(done.wait(), 5)
        timer.close()

    asyncio.run(body())
