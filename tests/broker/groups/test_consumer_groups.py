"""Consumer groups of KIP-848 on a manual clock: epochs, rebalances, static members, time-outs, expressions."""

from __future__ import annotations

from typing import Any

import pytest

from kafkabuf.broker.groups.groups import subscribed_topics
from kafkabuf.broker.groups.reconciliation import MemberState
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.waiting.slices import finish
from kafkabuf.errors import (
    ConfigError,
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InvalidRegularExpressionError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedVersionError,
)
from tests.broker.groups.consumer_group_support import (
    REBALANCE_TIMEOUT,
    Consumer,
    World,
    error,
    scenario,
    scenario_with,
    settle,
)

SESSION = 45.0


@scenario
async def test_first_member_gets_every_partition_with_its_first_heartbeat(world: World) -> None:
    world.create("t", 3)
    one = Consumer(world, "one", "t")
    one.beat()
    assert (one.epoch, one.names) == (1, {("t", 0), ("t", 1), ("t", 2)})
    assert world.state == "Stable"


@scenario
async def test_heartbeat_has_an_assignment_only_if_it_changed(world: World) -> None:
    world.create("t", 3)
    assert "assignment" in world.beat("one", 0, topics=frozenset({"t"}))
    answer = world.beat("one", 1)
    assert answer == {"member_id": "one", "member_epoch": 1, "heartbeat_interval": 5000}
    everything = frozenset(world.everything())
    full = world.beat("one", 1, topics=frozenset({"t"}), rebalance_timeout=60.0, reported=everything)
    assert full["assignment"] == everything


@scenario
async def test_second_member_gets_partitions_only_after_the_first_gave_them_up(world: World) -> None:
    world.create("t", 4)
    one, two = Consumer(world, "one", "t", slow=True), Consumer(world, "two", "t")
    one.beat()
    one.revoke()
    two.beat()
    assert (two.epoch, two.names) == (2, set())
    one.beat()
    assert (one.epoch, len(one.assigned), len(one.owned)) == (1, 2, 4)
    assert world.state == "Reconciling"
    one.beat()
    two.beat()
    assert two.names == set(), "the first member still owns all partitions"
    one.revoke()
    one.beat()
    two.beat()
    assert (one.epoch, two.epoch) == (2, 2)
    assert one.names | two.names == {("t", index) for index in range(4)}
    assert len(two.names) == 2
    assert world.state == "Stable"


@scenario
async def test_partitions_of_a_member_that_leaves_go_to_the_others(world: World) -> None:
    world.create("t", 4)
    one, two = Consumer(world, "one", "t"), Consumer(world, "two", "t")
    settle(one, two)
    two.leave()
    assert world.state == "Assigning"
    one.beat()
    assert (one.epoch, len(one.names)) == (3, 4)
    one.leave()
    assert (world.state, world.group.epoch) == ("Empty", 4)


@scenario
async def test_silent_member_is_removed_after_the_session_timeout(world: World) -> None:
    world.create("t", 4)
    one, two = Consumer(world, "one", "t"), Consumer(world, "two", "t")
    settle(one, two)
    world.advance(SESSION - 1)
    one.beat()
    world.advance(1)
    assert "two" not in world.group.members
    one.beat()
    assert len(one.names) == 4
    assert error(lambda: world.beat("two", 2)) is UnknownMemberIdError


@scenario
async def test_member_that_keeps_partitions_is_removed_after_its_rebalance_timeout(world: World) -> None:
    world.create("t", 2)
    one, two = Consumer(world, "one", "t"), Consumer(world, "two", "t")
    one.beat()
    one.slow = True
    two.beat()
    for _ in range(6):
        one.beat()
        world.advance(REBALANCE_TIMEOUT / 6)
        two.beat()
    assert "one" not in world.group.members
    two.beat()
    assert len(two.names) == 2
    one.beat()
    assert one.epoch == 0, "it is fenced, and joins again"


@scenario
async def test_member_that_gave_its_partitions_up_stays_after_the_rebalance_timeout(world: World) -> None:
    world.create("t", 2)
    one, two = Consumer(world, "one", "t"), Consumer(world, "two", "t")
    settle(one)
    settle(one, two)
    for _ in range(3):
        world.advance(REBALANCE_TIMEOUT / 2)
        settle(one, two)
    assert len(world.group.members) == 2


@scenario
async def test_wrong_epoch_is_fenced_unless_the_last_response_may_be_lost(world: World) -> None:
    world.create("t", 2)
    everything = frozenset(world.everything())
    world.beat("one", 0, topics=frozenset({"t"}))
    assert world.beat("one", 0, topics=frozenset({"t"}))["member_epoch"] == 1, "the first response was lost"
    assert error(lambda: world.beat("one", 2)) is FencedMemberEpochError
    world.create("u", 1)
    answer = world.beat("one", 1, topics=frozenset({"t", "u"}))
    assert answer["member_epoch"] == 2
    assert error(lambda: world.beat("one", 1)) is FencedMemberEpochError, "it does not say what it owns"
    assert world.beat("one", 1, reported=everything)["member_epoch"] == 2
    assert error(lambda: world.beat("one", 0, topics=frozenset({"t"}))) is FencedMemberEpochError


@scenario
async def test_new_partitions_and_topics_are_assigned(world: World) -> None:
    world.create("t", 1)
    one = Consumer(world, "one", "t", "later")
    settle(one)
    world.create("t", 2)
    settle(one)
    assert (one.epoch, one.names) == (2, {("t", 0), ("t", 1)})
    world.create("other", 1)
    settle(one)
    assert one.epoch == 2, "no member reads the topic"
    world.create("later", 1)
    settle(one)
    assert (one.epoch, len(one.names)) == (3, 3)


@scenario
async def test_partitions_of_a_deleted_topic_are_given_up(world: World) -> None:
    world.create("t", 1)
    world.create("gone", 1)
    one = Consumer(world, "one", "t", "gone")
    settle(one)
    world.delete("gone")
    settle(one)
    assert (one.epoch, one.names) == (2, {("t", 0)})
    world.create("gone", 1)
    settle(one)
    assert one.owned == world.everything(), "the new topic has another id"


@scenario
async def test_member_without_topics_stays_without_partitions(world: World) -> None:
    world.create("t", 1)
    one = Consumer(world, "one")
    settle(one)
    assert (one.epoch, one.names, world.state) == (1, set(), "Stable")


@scenario
async def test_assignor_is_that_of_most_members(world: World) -> None:
    world.create("t", 4)
    world.create("u", 4)
    both = [Consumer(world, name, "t", "u", assignor="range") for name in ("one", "two")]
    settle(*both, Consumer(world, "three", "t", "u", assignor="uniform"))
    assert world.group.assignor == "range"
    assert both[0].names == {(name, index) for name in "tu" for index in (0, 1)} - {("t", 9)}


@scenario_with(group_consumer_assignors=("range", "uniform"))
async def test_default_assignor_is_the_first_of_the_setting(world: World) -> None:
    settle(Consumer(world, "one"))
    assert world.group.assignor == "range"


@scenario_with(group_consumer_max_size=1)
async def test_surplus_member_is_refused(world: World) -> None:
    one = Consumer(world, "one", "t")
    settle(one)
    assert error(lambda: world.beat("two", 0, topics=frozenset({"t"}))) is GroupMaxSizeReachedError
    settle(one)
    one.leave()
    world.beat("two", 0, topics=frozenset({"t"}))


# ---- static members


@scenario
async def test_static_member_takes_its_partitions_over_without_a_new_assignment(world: World) -> None:
    world.create("t", 4)
    one = Consumer(world, "one", "t", instance_id="i-1")
    two = Consumer(world, "two", "t", instance_id="i-2")
    settle(one, two)
    before, epoch = one.owned, world.group.epoch
    one.leave(for_a_while=True)
    again = Consumer(world, "new", "t", instance_id="i-1")
    again.beat()
    two.beat()
    assert (again.owned, again.epoch, world.group.epoch) == (before, epoch, epoch)
    assert world.state == "Stable"
    assert error(lambda: world.beat("one", epoch, instance_id="i-1")) is FencedInstanceIdError
    assert error(lambda: world.beat("one", epoch)) is UnknownMemberIdError


@scenario
async def test_instance_id_is_free_only_after_its_member_left(world: World) -> None:
    Consumer(world, "one", "t", instance_id="i-1").beat()
    join = lambda: world.beat("two", 0, topics=frozenset({"t"}), instance_id="i-1")  # noqa: E731
    assert error(join) is UnreleasedInstanceIdError
    assert error(lambda: world.group.leave("two", "i-1", for_a_while=True)) is FencedInstanceIdError
    assert error(lambda: world.group.leave("one", "i-9", for_a_while=True)) is UnknownMemberIdError
    world.group.leave("one", "i-1")
    assert error(join) is None


@scenario
async def test_static_member_that_does_not_come_back_loses_its_place_with_its_session(world: World) -> None:
    world.create("t", 4)
    one, two = Consumer(world, "one", "t", instance_id="i-1"), Consumer(world, "two", "t")
    settle(one, two)
    one.leave(for_a_while=True)
    world.advance(SESSION - 1)
    settle(two)
    assert len(two.names) == 2
    world.advance(1)
    settle(two)
    assert len(two.names) == 4


@scenario
async def test_member_that_joins_under_two_instance_ids_leaves_both(world: World) -> None:
    world.beat("one", 0, topics=frozenset(), instance_id="i-1")
    world.beat("one", 0, topics=frozenset(), instance_id="i-2")
    world.group.leave("one", "i-2")
    assert error(lambda: world.beat("two", 0, topics=frozenset(), instance_id="i-1")) is None


@scenario
async def test_administrator_removes_members(world: World) -> None:
    world.beat("one", 0, topics=frozenset(), instance_id="i-1")
    world.beat("two", 0, topics=frozenset())
    assert world.group.remove_by_admin("", "i-1") == 0
    assert world.group.remove_by_admin("", "i-1") == UnknownMemberIdError.code
    assert world.group.remove_by_admin("two", None) == 0
    assert world.group.is_empty


# ---- expressions


@scenario
async def test_expression_gets_its_topics_with_the_second_heartbeat(world: World) -> None:
    world.create("orders-eu", 2)
    world.create("payments", 1)
    one = Consumer(world, "one", pattern="orders.*")
    one.beat()
    assert (one.epoch, one.names) == (1, set())
    one.beat()
    assert (one.epoch, one.names) == (2, {("orders-eu", 0), ("orders-eu", 1)})
    assert finish(subscribed_topics(world.group, world.topics)) == {"orders-eu"}


@scenario
async def test_new_topic_that_matches_is_assigned(world: World) -> None:
    one = Consumer(world, "one", pattern="orders.*")
    settle(one)
    world.create("orders", 1)
    world.create("payments", 1)
    settle(one)
    assert one.names == {("orders", 0)}


@scenario
async def test_member_with_a_known_expression_gets_its_topics_at_once(world: World) -> None:
    world.create("orders", 2)
    one, two = (Consumer(world, name, pattern="orders.*") for name in ("one", "two"))
    settle(one)
    epoch = world.group.epoch
    two.beat()
    assert two.epoch == epoch + 1
    settle(one, two)
    assert (len(one.names), len(two.names)) == (1, 1)


@scenario
async def test_changed_expression_changes_the_topics(world: World) -> None:
    world.create("orders", 1)
    world.create("payments", 1)
    one = Consumer(world, "one", pattern="orders")
    settle(one)
    for pattern, wanted in (("payments", {("payments", 0)}), ("none", set()), ("", set()), ("orders", {("orders", 0)})):
        one.subscribe(pattern=pattern)
        settle(one)
        assert one.names == wanted


@scenario
async def test_names_and_expression_add_up(world: World) -> None:
    world.create("orders", 1)
    world.create("payments", 1)
    one = Consumer(world, "one", "payments", pattern="orders")
    settle(one)
    assert one.owned == world.everything()


@scenario
async def test_invalid_expression_leaves_the_group_as_it_was(world: World) -> None:
    assert error(lambda: world.beat("one", 0, pattern="(")) is InvalidRegularExpressionError
    assert (len(world.group.members), world.group.epoch) == (0, 0)
    world.beat("one", 0, pattern="a")
    assert error(lambda: world.beat("one", 1, pattern="(")) is InvalidRegularExpressionError
    assert [member.subscription.pattern for member in world.group.members] == ["a"]


# ---- offsets


@scenario
async def test_member_commits_with_its_present_epoch_only(world: World) -> None:
    check = world.group.check_commit
    assert check("", None, -1) is None, "the group is empty"
    world.beat("one", 0, topics=frozenset({"t"}))
    assert check("one", None, 1) is None
    assert isinstance(check("one", None, 0), StaleMemberEpochError)
    assert isinstance(check("one", None, 2), StaleMemberEpochError)
    assert isinstance(check("two", None, 1), UnknownMemberIdError)
    assert isinstance(check("", None, -1), UnknownMemberIdError)
    assert isinstance(check("one", None, 1, knows_epochs=False), UnsupportedVersionError)


@scenario
async def test_transaction_commits_without_a_member_or_with_its_present_epoch(world: World) -> None:
    world.beat("one", 0, topics=frozenset({"t"}))
    check = world.group.check_commit
    assert check("", None, -1, transactional=True) is None
    assert check("one", None, 1, transactional=True, knows_epochs=False) is None
    assert isinstance(check("one", None, 0, transactional=True), IllegalGenerationError)
    assert isinstance(check("two", None, 1, transactional=True), UnknownMemberIdError)


@scenario
async def test_member_fetches_offsets_with_its_present_epoch_and_others_without_any(world: World) -> None:
    world.beat("one", 0, topics=frozenset({"t"}))
    check = world.group.check_fetch
    assert check(None, -1) is None
    assert check("one", 1) is None
    assert isinstance(check("one", 2), StaleMemberEpochError)
    assert isinstance(check("", -1), UnknownMemberIdError)


# ---- the whole


@scenario
async def test_partition_that_comes_back_to_a_member_is_given_up_first(world: World) -> None:
    """The target takes a partition away and gives it back before the member has given it up."""
    world.create("t", 2)
    one, two = Consumer(world, "one", "t"), Consumer(world, "two", "t")
    one.beat()
    one.slow = True
    two.beat()
    one.beat()
    two.leave()
    one.beat()
    (member,) = world.group.members
    assert member.current.state is MemberState.UNREVOKED
    one.slow = False
    one.revoke()
    settle(one)
    assert len(one.names) == 2


@pytest.mark.parametrize(
    "setting",
    [
        {"group_min_session_timeout_ms": 0},
        {"group_min_session_timeout_ms": 10, "group_max_session_timeout_ms": 9},
        {"group_consumer_heartbeat_interval_ms": 45_000},
        {"group_consumer_assignors": ()},
        {"group_consumer_assignors": ("sticky",)},
        {"group_max_size": 0},
    ],
)
def test_impossible_setting_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        GroupSettings(**setting)


@scenario
async def test_static_member_comes_back_under_the_id_of_another_member_and_takes_its_place(world: World) -> None:
    world.create("t", 4)
    other, static = Consumer(world, "one", "t"), Consumer(world, "two", "t", instance_id="i")
    settle(other, static)
    static.leave(for_a_while=True)
    again = Consumer(world, "one", "t", instance_id="i")
    settle(again)
    assert len(again.owned) == 4, "nobody else owns a partition"
    for _ in range(2):
        world.advance(SESSION - 1)
        again.beat()
    assert [member.member_id for member in world.group.members] == ["one"]
    world.advance(SESSION + 1)
    assert world.state == "Empty"
