"""Groups whose members change between the classic protocol and the consumer protocol, on a manual clock. Kafka's
responses: tests/conformance/migration.py."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.broker.groups.classic_side import ClassicMembers
from kafkabuf.broker.groups.consumer_group import ConsumerGroup
from kafkabuf.broker.groups.consumer_member import ConsumerHeartbeat
from kafkabuf.broker.groups.consumer_protocol import (
    ClassicSubscription,
    read_assignment,
    read_subscription,
    version_of,
    write_assignment,
)
from kafkabuf.broker.groups.group import Group, State
from kafkabuf.broker.groups.groups import Groups
from kafkabuf.broker.groups.members import Answer, Joining
from kafkabuf.broker.groups.offsets import Committed
from kafkabuf.broker.groups.reconciliation import NO_PARTITIONS
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.waiting.slices import Work, finish
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.broker.wire._cursor import MALFORMED
from kafkabuf.clock import ManualClock
from kafkabuf.errors import (
    ConfigError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from tests.broker.groups.consumer_group_support import FakeTopic
from tests.broker.groups.support import pending, settled
from tests.conformance.groups import subscription

SESSION, REBALANCE = 10.0, 60.0
AGAIN = RebalanceInProgressError.code


def metadata(*owned: int, version: int = 1) -> bytes:
    """The subscription of a consumer that reads "t" and owns partitions of it."""
    v0 = subscription("t")[2:]
    partitions = struct.pack(f">ih1si{len(owned)}i", 1, 1, b"t", len(owned), *owned)
    return struct.pack(">h", version) + v0 + partitions


class World:
    """A group "g" that reads the four partitions of "t"."""

    def __init__(self, **more: Any) -> None:
        self.clock = ManualClock()
        self.timer = Timer(asyncio.get_running_loop(), self.clock)
        self.topic = FakeTopic(range(4))
        self.stored: dict[Any, Any] = {}
        values = {"group_min_session_timeout_ms": 1, **more}
        self.groups = Groups(
            self.timer, GroupSettings(**values), lambda: {"t": self.topic}, lambda key, value: self.store(key, value)
        )

    def store(self, key: Any, value: Any) -> None:
        self.stored[key] = value

    @property
    def kind(self) -> str:
        return self.groups.existing("g").kind

    @property
    def consumer_group(self) -> ConsumerGroup:
        return self.groups.consumer("g")

    def join(self, member_id: str = "", *owned: int, instance: str | None = None, **more: Any) -> Any:
        values: dict[str, Any] = {
            "client_id": "c",
            "group_instance_id": instance,
            "session_timeout": SESSION,
            "rebalance_timeout": REBALANCE,
            "protocol_type": "consumer",
            "protocols": [("range", metadata(*owned))],
            "needs_member_id": False,
            **more,
        }
        answer = self.joining(Joining(member_id, **values))
        return finish(answer) if isinstance(answer, Generator) else answer

    def joining(self, request: Joining) -> Any:
        return self.groups.joining("g").join(request)

    def classic(self) -> Any:
        group = self.groups.classic("g")
        assert group is not None
        return group

    async def stable(self, *assigned: bytes, **more: Any) -> list[str]:
        """A stable classic group whose members have these assignments. Their ids, the leader's first."""
        ids: list[str] = []
        for number in range(len(assigned)):
            waiting = [
                self.join(**{key: value[number] for key, value in more.items()}),
                *(
                    self.join(member, **{key: value[at] for key, value in more.items()})
                    for at, member in enumerate(ids)
                ),
            ]
            answers = [await settled(answer) for answer in waiting]
            ids.append(answers[0]["member_id"])
        generation = self.classic().generation
        parked = [self.classic().sync(member, generation, {}) for member in ids[1:]]
        await settled(self.classic().sync(ids[0], generation, dict(zip(ids, assigned, strict=True))))
        for answer in parked:
            await settled(answer)
        return ids

    def beat(self, member_id: str = "one", epoch: int = 0, **more: Any) -> Answer:
        if epoch == 0:
            names = frozenset({"t"})
            more = {"rebalance_timeout": REBALANCE, "reported": NO_PARTITIONS, "topics": names, **more}
        return finish(self.groups.heartbeat("g", ConsumerHeartbeat(member_id=member_id, member_epoch=epoch, **more)))

    def upgrading(self) -> Work[Answer]:
        """The first steps of a consumer that joins a classic group."""
        fields: dict[str, Any] = {"rebalance_timeout": REBALANCE, "reported": NO_PARTITIONS}
        beat = ConsumerHeartbeat(member_id="one", member_epoch=0, topics=frozenset({"t"}), **fields)
        steps = self.groups.heartbeat("g", beat)
        for _ in range(2):
            next(steps)
            assert self.kind == "classic"
        return steps

    def heartbeat(self, member_id: str, generation: int) -> int:
        return int(self.classic().heartbeat(member_id, generation)["error_code"])

    def owned(self, member_id: str) -> set[int]:
        member = self.consumer_group.members.get(member_id)
        assert member is not None
        return {index for _, index in member.current.assigned}

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.timer.advance()
        await asyncio.sleep(0)


Body = Callable[[World], Coroutine[Any, Any, None]]


def in_world(body: Body, **more: Any) -> None:
    async def run() -> None:
        world = World(**more)
        await body(world)
        world.timer.close()

    asyncio.run(run())


def scenario(body: Body) -> Callable[[], None]:
    def run() -> None:
        in_world(body)

    run.__name__ = body.__name__
    return run


def assigned(*partitions: int) -> bytes:
    return write_assignment(1, [("t", index) for index in partitions])


# ---- upgrade


@scenario
async def test_members_keep_their_partitions_until_they_join_again(world: World) -> None:
    first, second = await world.stable(assigned(0, 1), assigned(2, 3))
    generation = world.classic().generation
    assert world.beat()["assignment"] == NO_PARTITIONS
    assert (world.kind, world.consumer_group.epoch) == ("consumer", generation + 1)
    assert (world.owned(first), world.owned(second)) == ({0, 1}, {2, 3})
    assert world.heartbeat(first, generation) == world.heartbeat(second, generation) == AGAIN
    joined = {member: world.join(member) for member in (first, second)}
    for member, answer in joined.items():
        assert answer["generation_id"] == generation + 1
        synced = world.classic().sync(member, generation + 1, {}, protocol=("consumer", "range"))
        partitions, _ = read_assignment(synced["assignment"])
        assert {index for _, index in partitions} == world.owned(member)
    world.beat(epoch=generation + 1, reported=NO_PARTITIONS)
    owners = [world.owned(member) for member in (first, second, "one")]
    assert set().union(*owners) == {0, 1, 2, 3}
    assert sum(map(len, owners)) == 4, "no partition has two owners"
    assert world.heartbeat(first, generation + 1) == 0


@scenario
async def test_member_that_keeps_its_partitions_stays_in_its_epoch(world: World) -> None:
    """A cooperative consumer first learns what it must give up."""
    (member,) = await world.stable(assigned(0, 1, 2, 3))
    world.beat()
    first = world.join(member, 0, 1, 2, 3)
    kept = world.owned(member)
    assert len(kept) == 2
    assert world.heartbeat(member, first["generation_id"]) == AGAIN
    assert world.classic().sync(member, first["generation_id"], {})["assignment"] != b""
    second = world.join(member, *kept)
    assert second["generation_id"] == first["generation_id"] + 1
    assert world.heartbeat(member, second["generation_id"]) == 0


@scenario
async def test_parked_requests_of_classic_members_end_with_the_upgrade(world: World) -> None:
    (leader,) = await world.stable(assigned(0))
    newcomer = world.join()
    assert pending(newcomer)
    world.beat()
    assert (await settled(newcomer))["error_code"] == AGAIN
    assert leader in world.consumer_group.members


@scenario
async def test_group_that_was_upgraded_moves_no_more(world: World) -> None:
    members = await world.stable(assigned(0), assigned(1))
    old = world.groups.existing("g")
    assert isinstance(old, Group)
    generation = old.generation
    world.beat()
    await world.advance(3 * SESSION)
    await world.advance(2 * REBALANCE)
    assert (old.generation, old.state, len(old.members)) == (generation, State.STABLE, len(members))


@scenario
async def test_upgrade_before_the_first_assignment_needs_no_assignment(world: World) -> None:
    joined = await settled(world.join())
    world.beat()
    assert world.owned(joined["member_id"]) == set()
    assert world.kind == "consumer"


@scenario
async def test_static_member_changes_its_protocol_and_keeps_its_place(world: World) -> None:
    await world.stable(assigned(0, 1), assigned(2, 3), instance=["i", "j"])
    answer = world.beat("new", instance_id="i")
    assert {index for _, index in answer["assignment"]} == {0, 1}
    assert len(world.consumer_group.members) == 2
    back = world.join(instance="i")
    assert world.kind == "classic", "the last member with the consumer protocol is gone"
    assert world.heartbeat(back["member_id"], back["generation_id"]) == AGAIN


@scenario
async def test_consumer_may_go_on_with_the_classic_protocol(world: World) -> None:
    """As in Kafka, a dynamic member that does so makes no classic group of its group: the next that leaves does."""
    world.beat()
    joined = world.join("one")
    assert world.kind == "consumer"
    assert world.owned("one") == {0, 1, 2, 3}
    assert world.heartbeat("one", joined["generation_id"]) == 0
    other = world.join()
    world.consumer_group.leave(other["member_id"], None)
    assert world.kind == "classic"


@scenario
async def test_partition_with_two_owners_stays_with_the_first(world: World) -> None:
    first, second = await world.stable(assigned(0, 1, 2), assigned(2, 3))
    world.beat()
    assert (world.owned(first), world.owned(second)) == ({0, 1, 2}, {3})


@scenario
async def test_topic_that_is_gone_does_not_hinder_the_upgrade(world: World) -> None:
    (member,) = await world.stable(write_assignment(0, [("gone", 0), ("t", 1)]))
    world.beat()
    assert world.owned(member) == {1}


@pytest.mark.parametrize(
    ("data", "more"),
    [
        (b"mine", {}),
        (assigned(0)[:-4] + struct.pack(">i1s", 1, b"x"), {}),
        (assigned(0), {"protocol_type": ["connect"]}),
    ],
)
def test_group_that_cannot_be_upgraded_goes_on(data: bytes, more: dict[str, Any]) -> None:
    async def body(world: World) -> None:
        (member,) = await world.stable(data, **more)
        with pytest.raises(GroupIdNotFoundError, match="Cannot upgrade classic group g"):
            world.beat()
        assert world.heartbeat(member, world.classic().generation) == 0

    in_world(body)


@scenario
async def test_upgrade_takes_a_step_for_each_member(world: World) -> None:
    await world.stable(assigned(0), assigned(1), assigned(2))
    steps = world.upgrading()
    taken = 2
    while world.kind == "classic":
        next(steps)
        taken += 1
    assert taken >= 3
    assert finish(steps)["member_epoch"] == world.consumer_group.epoch
    assert len(world.consumer_group.members) == 4


@scenario
async def test_member_that_leaves_during_the_upgrade_is_gone(world: World) -> None:
    first, second = await world.stable(assigned(0, 1), assigned(2, 3))
    steps = world.upgrading()
    group = world.classic()
    assert group.leave(second, None) == 0
    finish(steps)
    assert {member.member_id for member in world.consumer_group.members} == {first, "one"}


@scenario
async def test_consumer_that_upgrades_a_group_from_which_all_leave_is_alone(world: World) -> None:
    (only,) = await world.stable(assigned(0, 1))
    steps = world.upgrading()
    assert world.classic().leave(only, None) == 0
    assert finish(steps)["member_id"] == "one"
    assert [member.member_id for member in world.consumer_group.members] == ["one"]


@scenario
async def test_consumer_joins_the_group_that_replaces_a_group_deleted_during_the_upgrade(world: World) -> None:
    (only,) = await world.stable(assigned(0, 1))
    world.classic().offsets.commit(("t", 0), Committed(7, -1, ""))
    steps = world.upgrading()
    assert world.classic().leave(only, None) == 0
    finish(world.groups.delete("g"))
    finish(steps)
    assert world.consumer_group.offsets.partitions() == []


def test_failed_join_leaves_the_classic_group_alone() -> None:
    async def body(world: World) -> None:
        members = await world.stable(assigned(0), assigned(1))
        with pytest.raises(GroupMaxSizeReachedError):
            world.beat()
        assert world.kind == "classic"
        for _ in range(3):
            await world.advance(SESSION * 0.6)
            assert [world.heartbeat(member, world.classic().generation) for member in members] == [0, 0]

    in_world(body, group_consumer_max_size=2)


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [
        ("bidirectional", True, True),
        ("UPGRADE", True, False),
        ("downgrade", False, True),
        ("disabled", False, False),
    ],
)
def test_policy_says_which_groups_change(policy: str, up: bool, down: bool) -> None:
    async def body(world: World) -> None:
        await world.stable(assigned(0))
        if up:
            world.beat()
        else:
            with pytest.raises(GroupIdNotFoundError, match="online upgrade is disabled"):
                world.beat()
        assert world.kind == ("consumer" if up else "classic")

    async def downwards(world: World) -> None:
        world.beat()
        world.join()
        world.consumer_group.leave("one", None)
        assert world.kind == ("classic" if down else "consumer")

    in_world(body, group_consumer_migration_policy=policy)
    in_world(downwards, group_consumer_migration_policy=policy)


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose one of bidirectional"):
        GroupSettings(group_consumer_migration_policy="sometimes")


# ---- classic members of a consumer group


@scenario
async def test_group_that_becomes_classic_while_a_member_joins_in_steps_lets_it_join_again(world: World) -> None:
    world.beat("one")
    request = Joining("", "c", None, SESSION, REBALANCE, "consumer", [("range", metadata())], needs_member_id=False)
    steps = world.joining(request)
    next(steps)
    world.consumer_group.leave("one", None)
    assert world.kind == "classic"
    assert finish(steps)["error_code"] == UnknownMemberIdError.code
    joined = world.join()
    await world.advance(REBALANCE)  # its first self does not join again
    assert (await settled(joined))["generation_id"] > 0


@scenario
async def test_classic_member_is_served_while_another_joins_in_steps(world: World) -> None:
    (member,) = await world.stable(assigned(0, 1, 2, 3))
    world.beat("one")
    request = Joining("", "c", None, SESSION, REBALANCE, "consumer", [("range", metadata())], needs_member_id=False)
    steps = world.joining(request)
    next(steps)
    present = world.consumer_group.members.get(member)
    assert present is not None
    assert world.heartbeat(member, present.current.epoch) == AGAIN
    assert finish(steps)["generation_id"] == world.consumer_group.epoch
    world.join(member, 0, 1, 2, 3)
    assert len(world.owned(member)) < 4


@scenario
async def test_classic_member_that_is_silent_is_removed(world: World) -> None:
    (member,) = await world.stable(assigned(0))
    world.beat()
    await world.advance(SESSION - 1)
    assert member in world.consumer_group.members
    await world.advance(2)
    assert member not in world.consumer_group.members
    assert "one" in world.consumer_group.members, "it has another session time-out"


@scenario
async def test_classic_member_that_does_not_join_again_is_removed(world: World) -> None:
    (member,) = await world.stable(assigned(0))
    generation = world.classic().generation
    world.beat()
    for second in range(0, int(REBALANCE), 5):
        assert world.heartbeat(member, generation) == AGAIN, second
        world.beat(epoch=generation + 1, reported=NO_PARTITIONS)
        await world.advance(5)
    assert world.heartbeat(member, generation) == UnknownMemberIdError.code


@scenario
async def test_classic_member_that_does_not_sync_is_removed(world: World) -> None:
    (member,) = await world.stable(assigned(0))
    world.beat()
    generation = world.join(member)["generation_id"]
    for _ in range(0, int(REBALANCE), 5):
        assert world.heartbeat(member, generation) == 0
        world.beat(epoch=generation, reported=NO_PARTITIONS)
        await world.advance(5)
    assert world.heartbeat(member, generation) == UnknownMemberIdError.code


@scenario
async def test_classic_member_that_syncs_stays(world: World) -> None:
    (member,) = await world.stable(assigned(0))
    world.beat()
    generation = world.join(member)["generation_id"]
    world.classic().sync(member, generation, {})
    for _ in range(0, 2 * int(REBALANCE), 5):
        await world.advance(5)
        assert world.heartbeat(member, generation) == 0
        world.beat(epoch=generation)


@scenario
async def test_classic_member_may_take_its_time_to_give_partitions_up_while_it_joins(world: World) -> None:
    """Only members of the consumer protocol have a time-out for that, as in Kafka."""
    (member,) = await world.stable(assigned(0, 1, 2, 3))
    world.beat()
    for _ in range(0, 3 * int(REBALANCE), 5):
        generation = world.join(member, 0, 1, 2, 3)["generation_id"]
        assert world.heartbeat(member, generation) == AGAIN
        await world.advance(5)
        world.beat(epoch=world.consumer_group.epoch)
    assert member in world.consumer_group.members


@scenario
async def test_commits_of_classic_members_have_a_generation(world: World) -> None:
    (member,) = await world.stable(assigned(0))
    world.beat()
    generation = world.join(member)["generation_id"]
    group = world.consumer_group
    assert group.check_commit(member, None, generation, knows_epochs=False) is None
    assert isinstance(group.check_commit(member, None, generation - 1), IllegalGenerationError)
    assert isinstance(group.check_commit("one", None, generation - 1), StaleMemberEpochError)
    assert isinstance(group.check_fetch(member, generation - 1), IllegalGenerationError)


# ---- downgrade


@scenario
async def test_last_consumer_that_leaves_makes_the_group_classic(world: World) -> None:
    first, second = await world.stable(assigned(0, 1), assigned(2, 3), instance=["i", None])
    world.beat()
    epoch = world.consumer_group.epoch
    assert world.stored["g", "epoch"] == epoch
    world.beat("two")
    world.consumer_group.leave("one", None)
    assert world.kind == "consumer", "there is another one"
    world.consumer_group.leave("two", None)
    group = world.groups.existing("g")
    assert isinstance(group, Group)
    assert group.state is State.PREPARING
    assert world.stored["g", "epoch"] is None
    answers = [world.join(first, instance="i"), world.join(second)]
    for answer in answers:
        assert (await settled(answer))["generation_id"] == group.generation > epoch


@scenario
async def test_end_of_the_last_consumers_session_makes_the_group_classic(world: World) -> None:
    (member,) = await world.stable(assigned(0))
    world.beat()
    generation = world.join(member)["generation_id"]
    world.classic().sync(member, generation, {})
    for _ in range(10):
        await world.advance(5)
        if world.kind == "classic":
            break
        world.heartbeat(member, generation)
    assert world.kind == "classic"
    assert world.heartbeat(member, generation) == AGAIN
    assert (await settled(world.join(member)))["leader"] == member


@scenario
async def test_offsets_outlive_both_changes(world: World) -> None:
    await world.stable(assigned(0))
    offsets = world.groups.get("g").offsets
    world.beat()
    assert world.groups.get("g").offsets is offsets
    world.consumer_group.leave("one", None)
    assert world.kind == "classic"
    assert world.groups.get("g").offsets is offsets


@scenario
async def test_group_without_members_is_not_downgraded(world: World) -> None:
    world.beat()
    world.consumer_group.leave("one", None)
    assert world.kind == "consumer"
    assert not isinstance(world.groups.joining("g"), ClassicMembers)


# ---- the bytes of consumers


names = st.text(st.characters(codec="utf-8"), max_size=20)
partitions = st.frozensets(st.tuples(names, st.integers(0, 2**31 - 1)), max_size=20)


@settings(max_examples=100)
@given(st.integers(0, 3), partitions)
def test_assignment_is_read_as_it_was_written(version: int, assigned: frozenset[tuple[str, int]]) -> None:
    data = write_assignment(version, assigned)
    assert read_assignment(data) == (assigned, False)
    assert version_of(data) == version


def test_subscription_of_each_version_is_read() -> None:
    owned = frozenset({("t", 3)})
    rest = struct.pack(">ih", 7, 4) + b"rack"
    assert read_subscription(subscription("t")) == ClassicSubscription(0, frozenset({"t"}))
    assert read_subscription(metadata(3)) == ClassicSubscription(1, frozenset({"t"}), owned)
    for version, kept in ((3, 3), (9, 3)):
        found = read_subscription(metadata(3, version=version) + rest)
        assert found == ClassicSubscription(kept, frozenset({"t"}), owned, "rack")


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_malformed_bytes_raise_an_error_of_the_codec(data: bytes) -> None:
    assert 0 <= version_of(data) <= 3
    for read in (read_subscription, read_assignment):
        try:
            read(data)
        except MALFORMED:
            continue
