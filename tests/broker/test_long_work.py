"""Requests about groups and ACLs that cost much: the node serves other clients meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from kafkabuf.broker.groups.subscriptions import Subscriptions
from kafkabuf.protocol import messages as m
from tests.broker.consumer_group_support import World as GroupWorld
from tests.broker.consumer_group_support import scenario
from tests.broker.test_bounds import World, short_slices

__all__ = ["short_slices"]
NEW_MEMBER = {"rebalance_timeout": 60_000, "topic_partitions": [], "member_epoch": 0, "group_id": "g"}


@pytest.fixture
def world() -> Iterator[World]:
    opened = World()
    yield opened
    opened.close()


def create_topics(world: World, number: int) -> None:
    assert set(world.create(*((f"{index:04d}{'x' * 200}", 1) for index in range(number)))) == {0}


def join(world: World, member: str, **subscription: Any) -> Any:
    values = {"subscribed_topic_names": [], **NEW_MEMBER, **subscription, "member_id": member}
    return world.client.ask(m.CONSUMER_GROUP_HEARTBEAT, 1, **values)


def test_others_are_served_while_an_expression_is_matched(world: World, short_slices: None) -> None:
    create_topics(world, 1000)
    values = {"subscribed_topic_names": [], **NEW_MEMBER, "member_id": "one", "subscribed_topic_regex": ".*"}
    assert world.served_before(m.CONSUMER_GROUP_HEARTBEAT, 1, **values) > 2
    assert world.client.receive(m.CONSUMER_GROUP_HEARTBEAT, 1).error_code == 0


def test_others_are_served_while_the_expressions_of_a_group_are_matched_with_new_topics(
    world: World, short_slices: None
) -> None:
    create_topics(world, 100)
    for number in range(20):
        answer = join(world, f"m{number}", subscribed_topic_regex=f"[0-9x]{{{number},}}")
    assert world.create(("0x", 1)) == [0]
    values = {"group_id": "g", "member_id": "m19", "member_epoch": answer.member_epoch, "rebalance_timeout": -1}
    more = {"subscribed_topic_names": None, "topic_partitions": None}
    assert world.served_before(m.CONSUMER_GROUP_HEARTBEAT, 1, **values, **more) > 2
    assert world.client.receive(m.CONSUMER_GROUP_HEARTBEAT, 1).error_code == 0
    described = world.client.ask(m.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"], include_authorized_operations=False)
    topics = {
        topic.topic_name
        for member in described.groups[0].members
        for topic in member.target_assignment.topic_partitions
    }
    assert len(topics) == 101, "the new topic is there"


def test_others_are_served_while_a_group_is_described(world: World, short_slices: None) -> None:
    create_topics(world, 200)
    for number in range(50):
        join(world, f"m{number}", subscribed_topic_regex=".*")
    values = {"group_ids": ["g", "g"], "include_authorized_operations": False}
    assert world.served_before(m.CONSUMER_GROUP_DESCRIBE, 1, **values) > 2
    (group,) = world.client.receive(m.CONSUMER_GROUP_DESCRIBE, 1).groups
    assert len(group.members) == 50


@scenario
async def test_members_that_leave_cost_no_look_at_the_topics(world: GroupWorld) -> None:
    world.create("t", 3)
    for number in range(10):
        world.beat(f"m{number}", 0, topics=frozenset({"t"}))
    plain = Subscriptions.sizes
    with mock.patch.object(Subscriptions, "sizes", autospec=True, side_effect=plain) as sizes:
        for number in range(9):
            assert world.group.remove_by_admin(f"m{number}", None) == 0
        assert sizes.call_count == 0
        world.beat("m9", 10)
        assert sizes.call_count == 1
