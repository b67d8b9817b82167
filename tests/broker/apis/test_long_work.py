"""Requests about groups and ACLs that cost much: the node serves other clients meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import count as numbers
from typing import Any
from unittest import mock

import pytest

from kafkabuf.broker import Security, apis
from kafkabuf.broker.apis.dispatch import APIS, PendingResponse, dispatch
from kafkabuf.broker.apis.groups import consumer_group_describe
from kafkabuf.broker.apis.security.create_acls import MAX_CHANGES
from kafkabuf.broker.apis.transactions import txn_offset_commit
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.groups.consumer_member import ConsumerHeartbeat
from kafkabuf.broker.groups.groups import Groups
from kafkabuf.broker.groups.members import MOST_METADATA, Answer
from kafkabuf.broker.groups.reconciliation import NO_PARTITIONS
from kafkabuf.broker.groups.subscriptions import Subscriptions
from kafkabuf.broker.guards.acls import AclFilter
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting import slices
from kafkabuf.broker.waiting.slices import SLICE_STEPS, Slices, Work, finish
from kafkabuf.clock import ManualClock
from kafkabuf.errors import GroupMaxSizeReachedError, PolicyViolationError, UnknownMemberIdError
from kafkabuf.protocol import messages as m
from tests.broker.apis.test_bounds import World, short_slices
from tests.broker.groups.consumer_group_support import World as GroupWorld
from tests.broker.groups.consumer_group_support import scenario
from tests.conformance.groups import subscription

__all__ = ["short_slices"]
GROUP_SUBSCRIBED_TO_TOPIC = 86
# An expression with which every name takes some time.
SLOW = "([0-9x]{0,25}){0,4}"
NEW_MEMBER = {"rebalance_timeout": 60_000, "topic_partitions": [], "member_epoch": 0, "group_id": "g"}


def turns_before_the_handler(key: int, version: int, **values: Any) -> int:
    """The turns of the loop in which a request is decoded."""
    apis.load()
    handled: list[Any] = []

    def handle(node: Node, header: Any, request: Any) -> dict[str, Any]:
        handled.append(request)
        return {}

    async def body() -> int:
        cluster = Cluster(ClusterConfig(), ManualClock(), asyncio.get_running_loop())
        frame = m.encode_request(key, version, 1, "c", m.build_request(key, version, **values))
        spy = replace(APIS[key], handler=handle)
        with mock.patch.dict(APIS, {key: spy}):
            _, pending = dispatch(cluster.nodes[1], frame)
            turns = 0
            while not handled:
                await asyncio.sleep(0)
                turns += 1
        assert isinstance(pending, PendingResponse)
        pending.give_up()
        return turns

    return asyncio.run(body())


def test_others_are_served_while_a_large_request_is_decoded() -> None:
    """A slice ends after a number of steps, if the clock stands still."""
    count = 19_990
    listed = [{"partition_index": index, "current_leader_epoch": -1, "timestamp": -1} for index in range(count)]
    asked = [{"name": "t", "partitions": listed}]
    assert turns_before_the_handler(m.LIST_OFFSETS, 7, topics=asked) >= count // SLICE_STEPS
    resources = [
        {"resource_type": 2, "resource_name": f"{index}", "configs": [{"name": "n", "value": "v"}]}
        for index in range(9_000)
    ]
    turns = turns_before_the_handler(m.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=True)
    assert turns >= 18_000 // SLICE_STEPS
    fetched = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 1} for index in range(count)]
    limits = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1}
    with mock.patch.object(slices, "SLICE_STEPS", 10):
        turns = turns_before_the_handler(m.FETCH, 12, topics=[{"topic": "t", "partitions": fetched}], **limits)
    assert turns >= 30


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
    values = {
        "subscribed_topic_names": [],
        **NEW_MEMBER,
        "member_id": "one",
        "subscribed_topic_regex": "(.{0,25}){0,4}.*",
    }
    assert world.served_before(m.CONSUMER_GROUP_HEARTBEAT, 1, **values) > 2
    assert world.client.receive(m.CONSUMER_GROUP_HEARTBEAT, 1).error_code == 0


def test_others_are_served_while_the_expressions_of_a_group_are_matched_with_new_topics(
    world: World, short_slices: None
) -> None:
    create_topics(world, 100)
    for number in range(20):
        answer = join(world, f"m{number}", subscribed_topic_regex=f"{SLOW}[0-9x]{{{number},}}")
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


def join_classic(world: World, *topics: str) -> dict[str, Any]:
    """The fields of a consumer of the classic protocol that joins."""
    protocols = [{"name": "range", "metadata": subscription(*topics)}]
    times = {"session_timeout": 10_000, "rebalance_timeout": 60_000}
    return {"group_id": "g", "member_id": "", "protocol_type": "consumer", "protocols": protocols, **times}


def test_others_are_served_while_a_classic_member_meets_new_topics(world: World, short_slices: None) -> None:
    """The expressions of the group's members are matched with the topics."""
    create_topics(world, 100)
    for number in range(20):
        join(world, f"m{number}", subscribed_topic_regex=f"{SLOW}[0-9x]{{{number},}}")
    assert world.create(("0x", 1)) == [0]
    assert world.served_before(m.JOIN_GROUP, 3, **join_classic(world, "0x")) > 5
    assert world.client.receive(m.JOIN_GROUP, 3).error_code == 0


def test_classic_member_brings_others_no_topic_that_it_may_not_describe() -> None:
    """A member with an expression reads the topics that the client of the last match may describe."""
    world = World(security=Security(authorizer=True))
    try:
        world.cluster.add_acl("User:ANONYMOUS", "READ", group="g")
        world.cluster.add_acl("User:ANONYMOUS", "READ", topic="open")
        joined = join(world, "one", subscribed_topic_regex=".*")
        for topic in ("open", "secret"):
            world.cluster.create_topic(topic)
        assert world.client.ask(m.JOIN_GROUP, 3, **join_classic(world, "nothing")).error_code == 0
        values = {"group_id": "g", "member_id": "one", "member_epoch": joined.member_epoch, "rebalance_timeout": -1}
        beat = world.client.ask(
            m.CONSUMER_GROUP_HEARTBEAT, 1, **values, subscribed_topic_names=None, topic_partitions=None
        )
        assert len(beat.assignment.topic_partitions) == 1
    finally:
        world.close()


def test_others_are_served_while_a_group_is_described(world: World, short_slices: None) -> None:
    create_topics(world, 500)
    names = sorted(world.cluster.topics())
    for number in range(20):
        join(world, f"m{number}", subscribed_topic_names=names)
    values = {"group_ids": ["g", "g"], "include_authorized_operations": False}
    assert world.served_before(m.CONSUMER_GROUP_DESCRIBE, 1, **values) > 2
    (group,) = world.client.receive(m.CONSUMER_GROUP_DESCRIBE, 1).groups
    assert len(group.members) == 20


def test_others_are_served_while_members_with_different_topics_get_partitions(world: World, short_slices: None) -> None:
    create_topics(world, 1000)
    names = sorted(world.cluster.topics())
    for number in range(30):
        join(world, f"m{number}", subscribed_topic_names=names[number * 10 :])
    values = {**NEW_MEMBER, "member_id": "last", "subscribed_topic_names": names[1::2]}
    assert world.served_before(m.CONSUMER_GROUP_HEARTBEAT, 1, **values) > 8
    assert world.client.receive(m.CONSUMER_GROUP_HEARTBEAT, 1).error_code == 0
    topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in names]
    assert world.served_before(m.OFFSET_DELETE, 0, group_id="g", topics=topics) > 2
    answer = world.client.receive(m.OFFSET_DELETE, 0)
    assert {int(topic.partitions[0].error_code) for topic in answer.topics} == {GROUP_SUBSCRIBED_TO_TOPIC}


def joining_in_steps(world: GroupWorld) -> Work[Answer]:
    """A member joins a group of one other member: only the first step is done."""
    world.create("t", 4)
    world.beat("one", 0, topics=frozenset({"t"}))
    fields: dict[str, Any] = {"topics": frozenset({"t"}), "rebalance_timeout": 60, "reported": NO_PARTITIONS}
    steps = world.group.heartbeat(ConsumerHeartbeat(member_id="two", member_epoch=0, **fields))
    next(steps)
    return steps


@scenario
async def test_member_that_is_removed_while_it_waits_for_partitions_gets_none(world: GroupWorld) -> None:
    steps = joining_in_steps(world)
    assert world.group.remove_by_admin("two", None) == 0
    with pytest.raises(UnknownMemberIdError):
        finish(steps)
    assert world.state == "Assigning"


@scenario
async def test_member_that_leaves_while_another_gets_partitions_leaves_it_all(world: GroupWorld) -> None:
    steps = joining_in_steps(world)
    assert world.group.remove_by_admin("one", None) == 0
    epoch = finish(steps)["member_epoch"]
    assert world.state == "Assigning"
    answer = world.beat("two", epoch)
    assert world.named(answer["assignment"]) == {("t", index) for index in range(4)}
    assert world.state == "Stable"


@scenario
async def test_member_whose_heartbeat_waits_for_others_is_not_silent(world: GroupWorld) -> None:
    world.create("t", 1)
    groups = Groups(world.timer, topics=lambda: world.topics)
    fields: dict[str, Any] = {"topics": frozenset({"t"}), "rebalance_timeout": 60, "reported": NO_PARTITIONS}
    finish(groups.heartbeat("g", ConsumerHeartbeat(member_id="one", member_epoch=0, **fields)))
    world.advance(40)
    groups.heard("g", "one")
    world.advance(40)
    assert "one" in groups.consumer("g").members
    world.advance(6)
    assert "one" not in groups.consumer("g").members


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


@scenario
async def test_members_of_a_group_name_eight_megabytes_of_topics_at_most(world: GroupWorld) -> None:
    """The description of the group has the names of each member."""
    names = frozenset(f"{number:0992d}" for number in range(MOST_METADATA // 3000))
    for member in ("one", "two", "three"):
        world.beat(member, 0, topics=names)
    world.beat("four", 0, topics=frozenset(["t"]))
    with pytest.raises(GroupMaxSizeReachedError):
        world.beat("five", 0, topics=names)
    assert "five" not in world.group.members
    epoch = world.beat("three", 0, topics=names)["member_epoch"]
    world.beat("three", epoch, topics=frozenset(["t"]))
    world.beat("five", 0, topics=names)


def test_response_has_sixteen_megabytes_of_names_unless_it_has_one_group(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_group_describe, "MOST_BYTES", 999)
    for group in "abc":
        join(world, "one", group_id=group, subscribed_topic_names=["x" * 500, "y" * 100])
    asked = {"group_ids": ["a", "b", "c"], "include_authorized_operations": False}
    groups = world.client.ask(m.CONSUMER_GROUP_DESCRIBE, 1, **asked).groups
    assert [(group.error_code, len(group.members)) for group in groups] == [(0, 1), (0, 1), (14, 0)]
    (alone,) = world.client.ask(m.CONSUMER_GROUP_DESCRIBE, 1, **{**asked, "group_ids": ["c"]}).groups
    assert (alone.error_code, len(alone.members)) == (0, 1)


@scenario
async def test_members_that_read_the_same_topics_share_one_set_of_names(world: GroupWorld) -> None:
    names = [f"t{number}" for number in range(100)]
    for name in names:
        world.create(name, 1)
    for number in range(3):
        world.beat(f"m{number}", 0, topics=frozenset(names))
    world.beat("other", 0, topics=frozenset(names[:2]))
    first, second, third, other = (member.subscription.topics for member in world.group.members)
    assert first is second is third
    assert other == {"t0", "t1"}


def test_log_of_requests_has_the_error_of_a_large_response(world: World) -> None:
    assert world.create(("t", 200)) == [0]
    for last, code in ((199, 0), (200, 3)):
        asked = [
            {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1} for index in (*range(199), last)
        ]
        world.client.ask(m.LIST_OFFSETS, 5, topics=[{"name": "t", "partitions": asked}])
        assert world.cluster.requests(m.LIST_OFFSETS)[-1].error_code == code


# ---- ACLs


@pytest.fixture
def guarded() -> Iterator[World]:
    opened = World(security=Security(authorizer=True, super_users=["User:ANONYMOUS"]))
    yield opened
    opened.close()


EVERYTHING: dict[str, Any] = {
    "resource_type_filter": 1,
    "pattern_type_filter": 1,
    "operation": 1,
    "permission_type": 1,
    **dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter")),
}


def creations(number: int) -> list[dict[str, Any]]:
    codes = {"resource_type": 2, "resource_pattern_type": 3, "operation": 3, "permission_type": 3}
    return [{**codes, "resource_name": f"t{index}", "principal": "User:u", "host": "*"} for index in range(number)]


def acls(world: World) -> int:
    return world.cluster._call(lambda cluster: len(cluster.authorizer.find(AclFilter())) if cluster.authorizer else 0)


def test_others_are_served_while_acls_come_and_go(guarded: World, short_slices: None) -> None:
    assert guarded.served_before(m.CREATE_ACLS, 3, creations=creations(1000)) > 2
    assert {int(result.error_code) for result in guarded.client.receive(m.CREATE_ACLS, 3).results} == {0}
    assert guarded.served_before(m.DESCRIBE_ACLS, 3, **EVERYTHING) > 2
    assert len(guarded.client.receive(m.DESCRIBE_ACLS, 3).resources) == 1000
    nobody = {**EVERYTHING, "principal_filter": "User:nobody"}
    assert guarded.served_before(m.DELETE_ACLS, 3, filters=[nobody] * 100) > 2
    guarded.client.receive(m.DELETE_ACLS, 3)
    assert guarded.served_before(m.DELETE_ACLS, 3, filters=[EVERYTHING]) > 2
    assert len(guarded.client.receive(m.DELETE_ACLS, 3).filter_results[0].matching_acls) == 1000
    assert acls(guarded) == 0


def test_node_describes_acls_in_steps(guarded: World) -> None:
    guarded.client.ask(m.CREATE_ACLS, 3, creations=creations(1000))
    with mock.patch.object(Slices, "run", autospec=True, side_effect=Slices.run) as run:
        guarded.client.ask(m.DESCRIBE_ACLS, 3, **EVERYTHING)
    assert "_describe" in {call.args[1].__name__ for call in run.call_args_list}


def test_request_that_selects_too_many_acls_deletes_none(guarded: World) -> None:
    guarded.client.ask(m.CREATE_ACLS, 3, creations=creations(100))
    times = MAX_CHANGES // 100 + 1
    answer = guarded.client.ask(m.DELETE_ACLS, 3, filters=[EVERYTHING] * times)
    assert {result.error_code for result in answer.filter_results} == {PolicyViolationError.code}
    assert acls(guarded) == 100
    answer = guarded.client.ask(m.DELETE_ACLS, 3, filters=[EVERYTHING] * (times - 1))
    assert [len(result.matching_acls) for result in answer.filter_results] == [100] * (times - 1)
    assert acls(guarded) == 0


# ---- offsets


def commit_offsets(world: World, number: int) -> None:
    partitions = [
        {"partition_index": index, "committed_offset": 1, "committed_metadata": ""} for index in range(number)
    ]
    topics = [{"name": "t", "partitions": partitions}]
    answer = world.client.ask(m.OFFSET_COMMIT, 8, group_id="g", topics=topics)
    assert {int(partition.error_code) for partition in answer.topics[0].partitions} == {0}


def offsets(world: World) -> int:
    return world.cluster._call(lambda cluster: len(cluster.groups.existing("g").offsets.partitions()))


def test_others_are_served_while_offsets_are_deleted(world: World, short_slices: None) -> None:
    number = 3000
    assert world.create(("t", number)) == [0]
    commit_offsets(world, number)
    topics = [{"name": "t", "partitions": [{"partition_index": index} for index in range(number)]}]
    served = world.served_before(m.OFFSET_DELETE, 0, group_id="g", topics=topics)
    assert world.client.receive(m.OFFSET_DELETE, 0).error_code == 0
    # The response alone is encoded in a few slices.
    assert served > 20
    assert offsets(world) == 0


def test_deletion_of_a_topic_drops_its_offsets_in_steps(world: World) -> None:
    assert world.create(("t", 10)) == [0]
    commit_offsets(world, 10)
    steps = world.cluster._call(lambda cluster: len(list(cluster.groups.forget_topic("t"))))
    assert (steps, offsets(world)) == (10, 0)


OFFSETS = 3000


def transaction(world: World) -> dict[str, Any]:
    """Begins a transaction. Returns its producer, as requests name it."""
    if "t" not in world.cluster.topics():
        assert world.create(("t", OFFSETS)) == [0]
    begun = world.client.ask(m.INIT_PRODUCER_ID, 5, transactional_id="tx", transaction_timeout=60_000)
    return {"transactional_id": "tx", "producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}


def transactional_commit(producer: dict[str, Any]) -> dict[str, Any]:
    partitions = [{"partition_index": index, "committed_offset": 7} for index in range(OFFSETS)]
    return {**producer, "group_id": "g", "topics": [{"name": "t", "partitions": partitions}]}


def test_others_are_served_while_a_transaction_takes_offsets_and_commits_them(world: World, short_slices: None) -> None:
    producer = transaction(world)
    assert world.served_before(m.TXN_OFFSET_COMMIT, 5, **transactional_commit(producer)) > 20
    answer = world.client.receive(m.TXN_OFFSET_COMMIT, 5)
    assert {int(partition.error_code) for partition in answer.topics[0].partitions} == {0}
    assert offsets(world) == 0
    assert world.served_before(m.END_TXN, 5, **producer, committed=True) > 20
    assert world.client.receive(m.END_TXN, 5).error_code == 0
    assert offsets(world) == OFFSETS


def test_others_are_served_while_a_group_with_offsets_is_deleted(world: World, short_slices: None) -> None:
    assert world.create(("t", OFFSETS)) == [0]
    commit_offsets(world, OFFSETS)
    assert world.served_before(m.DELETE_GROUPS, 2, groups_names=["g"]) > 20
    (result,) = world.client.receive(m.DELETE_GROUPS, 2).results
    assert int(result.error_code) == 0
    assert "g" not in world.cluster._call(lambda cluster: {group.group_id for group in cluster.groups})


def test_transaction_that_ends_while_it_takes_offsets_takes_no_more(world: World) -> None:
    producer = transaction(world)
    commit_one, calls = txn_offset_commit._commit_one, numbers()

    def commit_or_end(node: Node, *arguments: Any) -> int:
        """The transaction ends before the second half of its offsets."""
        if next(calls) == OFFSETS // 2:
            owner = producer["producer_id"], producer["producer_epoch"]
            finish(node.cluster.transactions.end("tx", owner, False, True))
        return commit_one(node, *arguments)

    with mock.patch.object(txn_offset_commit, "_commit_one", commit_or_end):
        answer = world.client.ask(m.TXN_OFFSET_COMMIT, 5, **transactional_commit(producer))
    codes = [int(partition.error_code) for partition in answer.topics[0].partitions]
    assert not any(codes[: OFFSETS // 2])
    assert all(codes[OFFSETS // 2 :])
    group = world.cluster._call(lambda cluster: cluster.groups.find("g"))
    assert group is None or not group.offsets
