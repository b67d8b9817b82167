"""Static members of consumer groups (KIP-345), on a manual clock."""

from __future__ import annotations

from tests.broker.groups.support import World, pending, scenario, settled, synced


@scenario
async def test_returning_static_member_causes_no_rebalance(world: World) -> None:
    leader = (await settled(world.join(instance="i-1")))["member_id"]
    follower = world.join(instance="i-2")
    await settled(world.join(leader, instance="i-1"))
    follower = (await settled(follower))["member_id"]
    await synced(world, leader, follower)
    again = await settled(world.join(instance="i-2"))
    assert (again["generation_id"], again["leader"], again["members"]) == (2, leader, [])
    assert world.group.heartbeat(leader, 2, "i-1") == {"error_code": 0}
    # It gets the assignment of its former self, which is fenced.
    got = await settled(world.group.sync(again["member_id"], 2, {}, group_instance_id="i-2"))
    assert got["assignment"] == follower.encode()
    assert world.group.heartbeat(follower, 2, "i-2") == {"error_code": 82}
    assert (await settled(world.join(follower, instance="i-2")))["error_code"] == 82
    error = world.group.check_commit(follower, "i-2", 2)
    assert error is not None
    assert error.code == 82


@scenario
async def test_returning_static_leader_assigns_nothing(world: World) -> None:
    """The group tells it to skip the assignment or, if it is too old for that, that its former self leads (KIP-814)."""
    first = (await settled(world.join(instance="i-1")))["member_id"]
    await synced(world, first)
    second = await settled(world.join(instance="i-1"))
    assert (second["leader"], second["members"]) == (first, [])
    third = await settled(world.join(instance="i-1", skips_assignment=True))
    assert (third["leader"], third["skip_assignment"]) == (third["member_id"], True)
    assert [one["member_id"] for one in third["members"]] == [third["member_id"]]
    assert world.group.generation == 1


@scenario
async def test_returning_static_leader_keeps_its_lead(world: World) -> None:
    leader = (await settled(world.join(instance="i-1")))["member_id"]
    other = world.join()
    await settled(world.join(leader, instance="i-1"))
    await synced(world, leader, (await settled(other))["member_id"])
    again = await settled(world.join(instance="i-1", skips_assignment=True))
    assert again["leader"] == again["member_id"]
    assert len(again["members"]) == 2


@scenario
async def test_static_member_that_returns_with_other_protocols_causes_a_rebalance(world: World) -> None:
    first = (await settled(world.join(instance="i-1")))["member_id"]
    await synced(world, first)
    again = await settled(world.join(instance="i-1", protocols="sticky range"))
    assert (again["generation_id"], again["protocol_name"]) == (2, "sticky")


@scenario
async def test_former_self_of_a_static_member_is_fenced(world: World) -> None:
    first = (await settled(world.join(instance="i-1")))["member_id"]
    await synced(world, first)
    other = world.join()
    parked = world.join(first, instance="i-1")
    third = world.join()
    await settled(parked)
    await settled(other)
    waiting = world.join(first, instance="i-1")
    assert pending(waiting)
    anew = world.join(instance="i-1")
    assert (await settled(waiting))["error_code"] == 82
    assert pending(anew)
    assert pending(third)


@scenario
async def test_absent_static_member_keeps_its_place_in_a_rebalance(world: World) -> None:
    (leader,) = await world.stable(1)
    static = world.join(instance="i-1", session_timeout=500.0)
    await settled(world.join(leader))
    static = (await settled(static))["member_id"]
    await synced(world, leader, static)
    other = world.join()
    again = world.join(leader)
    assert pending(other)
    await world.advance(60)
    # The rebalance time-out is over: the rebalance ends without a join of the static member, which stays a member.
    members = (await settled(again))["members"]
    assert {one["group_instance_id"] for one in members} == {None, "i-1"}
    assert len(members) == 3
    assert world.group.generation == 3


@scenario
async def test_group_keeps_absent_static_members_until_their_sessions_end(world: World) -> None:
    static = (await settled(world.join(instance="i-1", session_timeout=500.0)))["member_id"]
    await synced(world, static)
    promised = (await settled(world.join(needs_member_id=True, session_timeout=1000.0)))["member_id"]
    world.group.leave(promised, None)
    world.group._prepare()
    await world.advance(60)
    assert world.group.state.value == "PreparingRebalance"
    assert world.group.members.static("i-1") is not None
    await world.advance(440)
    assert world.group.state.value == "Empty"
