"""Consumer groups on a manual clock, and the timer beneath them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from kafkabuf.broker.groups.group import Group, State
from kafkabuf.broker.groups.groups import subscribed_topics
from kafkabuf.broker.groups.members import MOST_METADATA, MOST_PROTOCOLS, OF_A_PROTOCOL, Joining, Members
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.waiting.slices import finish
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.clock import ManualClock
from tests.broker.groups.support import World, pending, scenario, settled, synced
from tests.conformance.groups import subscription

# The protocols of each member, in the order of its preference.
ORDERS = ("range sticky", "sticky range", "sticky range")


@scenario
async def test_lone_member_joins_at_once(world: World) -> None:
    answer = await settled(world.join())
    assert (answer["generation_id"], answer["protocol_name"]) == (1, "range")
    assert answer["leader"] == answer["member_id"]
    assert [one["metadata"] for one in answer["members"]] == [b"meta-range"]


@scenario
async def test_new_member_joins_only_with_the_id_it_was_given(world: World) -> None:
    refused = await settled(world.join(needs_member_id=True))
    assert refused["error_code"] == 79
    assert not world.group.members
    answer = await settled(world.join(refused["member_id"], needs_member_id=True))
    assert answer["member_id"] == refused["member_id"]


@scenario
async def test_group_waits_for_an_unused_member_id_only_until_its_session_timeout(world: World) -> None:
    (leader,) = await world.stable(1)
    await settled(world.join(needs_member_id=True, session_timeout=5.0))
    joined = world.join(leader)
    assert pending(joined)
    await world.advance(5)
    assert (await settled(joined))["generation_id"] == 2


@scenario
async def test_second_member_makes_the_first_join_again(world: World) -> None:
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
async def test_each_follower_gets_its_assignment(world: World) -> None:
    await world.stable(3)


@scenario
async def test_rebalance_waits_for_a_silent_member_until_its_timeout(world: World) -> None:
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
async def test_dead_member_is_removed_from_the_group(world: World) -> None:
    leader, other = await world.stable(2)
    await world.advance(6)
    assert world.group.heartbeat(leader, world.group.generation)["error_code"] == 0
    await world.advance(6)
    assert world.group.heartbeat(leader, world.group.generation)["error_code"] == 27
    assert world.group.heartbeat(other, world.group.generation)["error_code"] == 25
    assert len((await settled(world.join(leader)))["members"]) == 1


@scenario
async def test_session_of_a_parked_member_does_not_expire(world: World) -> None:
    (leader,) = await world.stable(1)
    second = world.join(session_timeout=1.0)
    world.group.members[leader].joining.session_timeout = 100.0
    world.group.heartbeat(leader, 1)
    await world.advance(30)
    assert pending(second)
    assert len((await settled(world.join(leader)))["members"]) == 2


@scenario
async def test_death_of_a_leader_before_it_assigns_starts_a_rebalance(world: World) -> None:
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
async def test_group_does_not_wait_for_a_member_that_left(world: World) -> None:
    leader, other = await world.stable(2)
    assert world.group.leave(leader, None) == 0
    assert world.group.leave(leader, None) == 25
    answer = await settled(world.join(other))
    assert answer["leader"] == other
    assert world.group.leave(other, None) == 0
    assert world.group.state is State.EMPTY


@scenario
async def test_rebalance_completes_when_the_missing_member_leaves(world: World) -> None:
    leader, other = await world.stable(2)
    joined = world.join(leader)
    third = world.join()
    assert pending(joined)
    assert pending(third)
    assert world.group.leave(other, None) == 0
    assert len((await settled(joined))["members"]) == 2
    assert (await settled(third))["generation_id"] == (await settled(joined))["generation_id"]


@scenario
async def test_old_generation_and_unknown_member_are_refused(world: World) -> None:
    (leader,) = await world.stable(1)
    assert world.group.heartbeat(leader, 0) == {"error_code": 22}
    assert world.group.heartbeat("nobody", 1) == {"error_code": 25}
    assert (await settled(world.group.sync(leader, 7, {})))["error_code"] == 22
    assert (await settled(world.join("nobody")))["error_code"] == 25


@scenario
async def test_follower_that_joins_again_gets_its_response_without_a_rebalance(world: World) -> None:
    leader, other = await world.stable(2)
    generation = world.group.generation
    answer = await settled(world.join(other))
    assert (answer["generation_id"], answer["leader"]) == (generation, leader)
    assert (await settled(world.group.sync(other, generation, {})))["assignment"] == b"for " + other.encode()
    changed = world.join(other, protocols="roundrobin range")
    assert pending(changed)


@scenario
async def test_member_without_a_common_protocol_is_refused(world: World) -> None:
    await world.stable(1)
    assert (await settled(world.join(protocols="sticky")))["error_code"] == 23
    assert (await settled(world.join(protocol_type="connect")))["error_code"] == 23
    assert (await settled(World().join(protocols="")))["error_code"] == 23


@scenario
async def test_every_member_supports_the_elected_protocol(world: World) -> None:
    first = await settled(world.join(protocols="sticky range roundrobin"))
    second = world.join(protocols="roundrobin range")
    answer = await settled(world.join(first["member_id"], protocols="sticky range roundrobin"))
    assert answer["protocol_name"] in ("range", "roundrobin")
    assert (await settled(second))["protocol_name"] == answer["protocol_name"]


@scenario
async def test_returning_static_member_replaces_its_former_self(world: World) -> None:
    first = await settled(world.join(instance="i-1"))
    again = await settled(world.join(instance="i-1"))
    assert again["member_id"] != first["member_id"]
    assert [one["group_instance_id"] for one in again["members"]] == ["i-1"]
    assert world.group.leave("", "i-1") == 0
    assert not world.group.members


@scenario
async def test_vanished_new_member_is_dropped_after_five_minutes(world: World) -> None:
    """A new member has no id yet and cannot send heartbeats: the group waits five minutes, whatever the session
    time-out."""
    leader = (await settled(world.join(rebalance_timeout=1000.0, session_timeout=100.0)))["member_id"]
    await synced(world, leader)
    new = world.join(rebalance_timeout=1000.0, session_timeout=10.0)
    for _ in range(5):
        await world.advance(59)
        assert world.group.heartbeat(leader, 1) == {"error_code": 27}
    assert pending(new)
    await world.advance(5)
    assert (await settled(new))["error_code"] == 25
    assert len(world.group.members) == 1


@scenario
async def test_member_that_does_not_sync_is_dropped(world: World) -> None:
    leader = (await settled(world.join(session_timeout=100.0)))["member_id"]
    other = world.join(session_timeout=100.0)
    await settled(world.join(leader, session_timeout=100.0))
    other = (await settled(other))["member_id"]
    assert (await settled(world.group.sync(leader, 2, {})))["assignment"] == b""
    await world.advance(59)
    assert [world.group.heartbeat(one, 2)["error_code"] for one in (leader, other)] == [0, 0]
    await world.advance(1)
    assert [world.group.heartbeat(one, 2)["error_code"] for one in (leader, other)] == [27, 25]


@scenario
async def test_heartbeats_keep_a_group_stable(world: World) -> None:
    members = await world.stable(2)
    for _ in range(20):
        await world.advance(5)
        assert [world.group.heartbeat(one, 2)["error_code"] for one in members] == [0, 0]


@scenario
async def test_member_whose_connection_ends_stays_in_the_group(world: World) -> None:
    (leader,) = await world.stable(1)
    gone = world.join()
    gone.cancel()
    assert len((await settled(world.join(leader)))["members"]) == 2
    (other,) = (one.member_id for one in world.group.members if one.member_id != leader)
    parked = world.group.sync(other, 2, {})
    assert isinstance(parked, asyncio.Future)
    parked.cancel()
    assert (await settled(world.group.sync(leader, 2, {})))["assignment"] == b""
    await world.advance(9)
    assert len(world.group.members) == 2


@scenario
async def test_majority_elects_the_protocol(world: World) -> None:
    joined = [(await settled(world.join(protocols="range sticky")))["member_id"]]
    for _ in range(2):
        new = world.join(protocols="sticky range")
        again = [world.join(one, protocols=order) for one, order in zip(joined, ORDERS, strict=False)]
        joined.append((await settled(new))["member_id"])
        names = {(await settled(one))["protocol_name"] for one in again}
    assert names == {"sticky"}


@scenario
async def test_sync_for_another_protocol_is_refused(world: World) -> None:
    leader = (await settled(world.join()))["member_id"]
    for protocol in (("connect", None), (None, "sticky")):
        assert (await settled(world.group.sync(leader, 1, {}, protocol=protocol)))["error_code"] == 23
    assert "error_code" not in await settled(world.group.sync(leader, 1, {}, protocol=("consumer", "range")))


@scenario
async def test_topics_of_a_group_are_those_of_its_members_metadata(world: World) -> None:
    member = await settled(world.join())
    (one,) = world.group.members
    metadata = subscription("a", "topic")
    for said, topics in (
        (metadata, {"a", "topic"}),
        (metadata[:9], set()),
        (b"", set()),
        (b"\0\0\x7f\xff\xff\xff", set()),
    ):
        one.joining.protocols = [("range", said)]
        assert finish(subscribed_topics(world.group, ["a", "topic", "other"])) == topics
    world.group.protocol_type = "connect"
    one.joining.protocols = [("range", metadata)]
    assert finish(subscribed_topics(world.group, ["a", "topic", "other"])) == set()
    world.group.leave(member["member_id"], None)
    assert finish(subscribed_topics(world.group, ["a", "topic", "other"])) == set()


@scenario
async def test_session_timeout_out_of_range_is_refused(world: World) -> None:
    for seconds in (0.0, -1.0, 1800.1):
        assert (await settled(world.join(session_timeout=seconds)))["error_code"] == 26


@scenario
async def test_only_members_commit_for_a_group_with_members(world: World) -> None:
    assert world.group.check_commit("", None, -1) is None
    first = await settled(world.join())
    late = world.group.check_commit(first["member_id"], None, 1)
    assert late is not None
    assert late.code == 27
    await settled(world.group.sync(first["member_id"], 1, {}))
    assert world.group.check_commit(first["member_id"], None, 1) is None
    refused = [
        world.group.check_commit(name, None, number) for name, number in (("", -1), ("x", 1), (first["member_id"], 0))
    ]
    assert [error and error.code for error in refused] == [25, 25, 22]


# ---- the timer


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_timer_runs_tasks_in_order_and_never_early(order: tuple[int, ...]) -> None:
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


def test_timer_wakes_up_for_an_earlier_deadline() -> None:
    """The timer arms the loop for the first deadline, even if that task was added last."""

    async def body() -> None:
        from kafkabuf.clock import SystemClock

        timer = Timer(asyncio.get_running_loop(), SystemClock())
        done = asyncio.Event()
        timer.after(30, lambda: None)
        timer.after(0.01, done.set)
        await asyncio.wait_for(done.wait(), 5)
        timer.close()

    asyncio.run(body())


@scenario
async def test_session_timeout_is_bounded_by_the_settings(world: World) -> None:
    world.group = Group("g", world.timer, GroupSettings(group_max_session_timeout_ms=20_000))
    for seconds, code in ((5.999, 26), (20.001, 26), (6.0, 0), (20.0, 0)):
        assert (await settled(world.join(session_timeout=seconds))).get("error_code", 0) == code
        if code == 0:
            world.group.leave(world.group.members.leader, None)


@scenario
async def test_surplus_member_of_a_stable_group_is_refused(world: World) -> None:
    (leader,) = await world.stable(1)
    world.group._settings = GroupSettings(group_min_session_timeout_ms=1, group_max_size=1)
    assert await settled(world.join()) == {"error_code": 81, "member_id": ""}
    assert (await settled(world.join(leader)))["generation_id"] == 2, "a member may join again"


@scenario
async def test_rebalance_admits_the_members_that_join_first(world: World) -> None:
    leader, other = await world.stable(2)
    world.group._settings = GroupSettings(group_min_session_timeout_ms=1, group_max_size=1)
    first = world.join(leader)
    assert pending(first)
    assert await settled(world.join(other)) == {"error_code": 81, "member_id": ""}
    assert [member["member_id"] for member in (await settled(first))["members"]] == [leader]


@scenario
async def test_member_with_more_than_a_hundred_protocols_is_refused(world: World) -> None:
    """Each member looks at the protocols of all others: two members with 20,000 took half a minute."""
    most = " ".join(f"p{number}" for number in range(MOST_PROTOCOLS))
    assert await settled(world.join(protocols=f"{most} more")) == {"error_code": 42, "member_id": ""}
    assert (await settled(world.join(protocols=most)))["protocol_name"] == "p0"


@scenario
async def test_members_of_a_group_have_eight_megabytes_of_metadata_at_most(world: World) -> None:
    """The group's leader gets them all in one response."""
    values: dict[str, Any] = {"client_id": "c", "group_instance_id": None, "session_timeout": 10.0}

    def join(member_id: str, size: int) -> Any:
        protocols = [("range", bytes(size - len("range") - OF_A_PROTOCOL))]
        more = {**values, "rebalance_timeout": 60.0, "protocol_type": "consumer", "protocols": protocols}
        return world.group.join(Joining(member_id, **more, needs_member_id=False))

    leader = (await settled(join("", MOST_METADATA - 1000)))["member_id"]
    assert await settled(join("", 1001)) == {"error_code": 81, "member_id": ""}
    assert pending(join("", 1000))
    assert await settled(join(leader, MOST_METADATA)) == {"error_code": 81, "member_id": leader}
    assert len((await settled(join(leader, MOST_METADATA - 1000)))["members"]) == 2, "its own place is not taken twice"


@scenario
async def test_protocols_without_metadata_count_too(world: World) -> None:
    """The group looks at each protocol of each member: 3,000 members with a hundred took half a second."""
    with mock.patch("kafkabuf.broker.groups.members.MOST_METADATA", 250 * OF_A_PROTOCOL):
        most = " ".join(f"{number}" for number in range(MOST_PROTOCOLS))
        assert pending(world.join(protocols=most)) is False
        assert pending(world.join(protocols=most))
        assert await settled(world.join(protocols=most)) == {"error_code": 81, "member_id": ""}


class Counted(list[tuple[str, bytes]]):
    """A list that counts how often it is read."""

    reads = 0

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        Counted.reads += 1
        return super().__iter__()


def test_election_reads_the_protocols_of_each_member_a_few_times() -> None:
    """A thousand members that each look at a thousand others would keep other clients waiting for half a second."""
    members = Members()
    for number in range(200):
        names = ("sticky", "range") if number % 3 else ("range", "sticky")
        protocols = Counted((name, b"") for name in names)
        members.add(Joining(str(number), "c", None, 10.0, 60.0, "consumer", protocols, needs_member_id=False))
    Counted.reads = 0
    assert members.elect_protocol() == "sticky"
    assert Counted.reads <= 3 * len(members)
