"""A consumer group on a manual clock, and clients that join it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from kafkabuf.broker.groups.group import Group, State
from kafkabuf.broker.groups.members import Answer, Joining
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.clock import ManualClock


class World:
    """A group, its clock, and clients that join it."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.clock = ManualClock()
        self.timer = Timer(asyncio.get_running_loop(), self.clock)
        self.group = Group("g", self.timer, settings or GroupSettings(group_min_session_timeout_ms=1))

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
        """Makes a stable group with this many members. Returns their ids, the leader's first."""
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


async def synced(world: World, *members: str) -> list[Answer]:
    """All members sync, the leader first. The leader assigns each member its own name."""
    generation, assigned = world.group.generation, {one: one.encode() for one in members}
    return [await settled(world.group.sync(one, generation, assigned)) for one in members]
