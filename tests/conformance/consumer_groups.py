"""Steps of script.py: consumer groups of KIP-848, and what other requests make of them."""

from __future__ import annotations

from typing import Any

from kafkabuf.protocol import messages as m
from tests.conformance.groups import joining, member
from tests.conformance.script import Conversation, step
from tests.conformance.topics import make_topic

_JOINING: dict[str, Any] = {"rebalance_timeout": 60_000, "topic_partitions": []}


def consumer(talk: Conversation, group: str, name: str = "one", epoch: int = 0, **more: Any) -> Any:
    """A heartbeat that must not fail; with epoch 0 it joins, and reads the topic of the conversation."""
    values: dict[str, Any] = {"subscribed_topic_names": [talk.topic], **_JOINING, **more} if epoch == 0 else more
    # A member id that no other conversation of this server has.
    named = f"{talk.name}-{name}"
    answer = talk.do(m.CONSUMER_GROUP_HEARTBEAT, 1, group_id=group, member_id=named, member_epoch=epoch, **values)
    assert answer.error_code == 0, answer
    return answer


def leave(talk: Conversation, group: str, name: str = "one", **more: Any) -> None:
    consumer(talk, group, name, -1, **more)


def delete(talk: Conversation, name: str) -> None:
    talk.do(m.DELETE_TOPICS, 5, topic_names=[name], timeout=10_000)


@step(m.CONSUMER_GROUP_HEARTBEAT)
def refuses_heartbeats(talk: Conversation, version: int) -> None:
    group = talk.own("ci")

    def beat(label: str, epoch: int = 0, name: str = group, **more: Any) -> None:
        values = {"member_id": "one", "subscribed_topic_names": ["t"], **_JOINING, **more}
        talk.ask(label, group_id=name, member_epoch=epoch, **values)

    beat("no group's name", name="")
    beat("a blank group's name", name=" ")
    beat("no instance's name", instance_id="")
    beat("no rack's name", rack_id="")
    beat("no rebalance time-out", rebalance_timeout=-1)
    beat("partitions of one that joins", topic_partitions=None)
    beat("no topics", subscribed_topic_names=None)
    beat("an unknown assignor", server_assignor="magic")
    beat("an invalid epoch", -3)
    beat("a static member without instance", -2)
    beat("no such group", 1)
    beat("no such group, leaving", -1)
    beat("no such group, leaving for a while", -2, instance_id="i")
    beat("no member id, staying", 1, member_id="")
    beat("no member id, leaving", -1, member_id="")
    if version >= 1:
        beat("no member id", member_id="")
        beat("an invalid expression", subscribed_topic_regex="(")
        beat("a look-ahead", subscribed_topic_regex="(?=a)")
        beat("a back-reference", subscribed_topic_regex=r"(a)\1")
    described = talk.do(m.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group])
    talk.record("no group was made", described)


@step(m.CONSUMER_GROUP_HEARTBEAT)
def follows_an_assignment(talk: Conversation, version: int) -> None:
    group, other = talk.own("ca"), talk.own("ca-t")
    make_topic(talk, other, 2)

    def beat(label: str, epoch: int, name: str = "one", **more: Any) -> Any:
        values = {**_JOINING, **more} if epoch == 0 else more
        return talk.ask(label, group_id=group, member_id=f"{group}-{name}", member_epoch=epoch, **values)

    topic: dict[str, Any] = {"subscribed_topic_names": [talk.topic]}
    first = beat("a new member", 0, **topic)
    beat("joins again", 0, **topic)
    beat("stays", 1)
    owned = [{"topic_id": part.topic_id, "partitions": part.partitions} for part in first.assignment.topic_partitions]
    beat("says everything", 1, topic_partitions=owned, rebalance_timeout=60_000, **topic)
    beat("says what it owns", 1, topic_partitions=owned)
    beat("a stranger", 1, "two")
    beat("a stranger leaves", -1, "two")
    beat("a future epoch", 2)
    beat("other topics", 1, subscribed_topic_names=[other])
    beat("did not give up its partitions", 1, topic_partitions=owned)
    beat("gave up its partitions", 1, topic_partitions=[])
    beat("missed the response", 1, topic_partitions=[])
    beat("missed the response, without partitions", 1)
    beat("missed the response, with others' partitions", 1, topic_partitions=owned)
    beat("joins again, much later", 0, **topic)
    beat("a topic that does not exist", 2, subscribed_topic_names=[other, f"{other}-none"])
    beat("chooses an assignor", 3, server_assignor="range")
    beat("leaves", -1)
    beat("leaves again", -1)
    beat("stays, although it left", 3)
    beat("joins a group without members", 0, **topic)
    beat("leaves at last", -1)
    delete(talk, other)


@step(m.CONSUMER_GROUP_HEARTBEAT)
def moves_partitions_to_a_second_member(talk: Conversation, version: int) -> None:
    group = talk.own("cm")
    values: dict[str, Any] = {"subscribed_topic_names": [talk.topic], "server_assignor": "range", **_JOINING}

    def beat(label: str, epoch: int, name: str = "one", **more: Any) -> Any:
        return talk.ask(label, group_id=group, member_id=f"{group}-{name}", member_epoch=epoch, **more)

    beat("the first of two", 0, **values)
    beat("the second of two", 0, "two", **values)
    told = beat("the first is told to give up", 1)
    talk.record("between", talk.do(m.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group]))
    kept = [{"topic_id": part.topic_id, "partitions": part.partitions} for part in told.assignment.topic_partitions]
    beat("the second waits", 2, "two", topic_partitions=[])
    beat("the first has given up", 1, topic_partitions=kept)
    beat("the second gets partitions", 2, "two")
    beat("the second stays", 2, "two")
    beat("the second leaves", -1, "two")
    beat("the first gets all", 2)
    beat("the first leaves", -1)


@step(m.CONSUMER_GROUP_HEARTBEAT)
def keeps_static_members(talk: Conversation, version: int) -> None:
    group = talk.own("cs")
    values: dict[str, Any] = {"subscribed_topic_names": [talk.topic], **_JOINING}

    def beat(label: str, epoch: int, name: str = "one", instance: str | None = "i", **more: Any) -> Any:
        named = f"{group}-{name}"
        return talk.ask(label, group_id=group, member_id=named, member_epoch=epoch, instance_id=instance, **more)

    beat("static", 0, **values)
    beat("static, again", 0, **values)
    beat("static, another member", 0, "two", **values)
    beat("static, another member stays", 1, "two")
    beat("static, no such instance", 1, instance="none")
    beat("static, without instance", 1, instance=None)
    beat("static, another leaves for a while", -2, "two")
    beat("static, leaves for a while", -2)
    talk.record("static, away", talk.do(m.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group]))
    beat("static, stays although it left", 1)
    beat("static, leaves for a while again", -2)
    beat("static, started anew", 0, "two", **values)
    beat("static, the former self", 1)
    beat("static, the former self without instance", 1, instance=None)
    beat("static, the former self leaves", -1)
    beat("static, stays", 1, "two")
    beat("static, leaves", -1, "two")
    beat("static, leaves again", -1, "two")


@step(m.CONSUMER_GROUP_HEARTBEAT)
def refuses_members_that_come_back_without_their_answers(talk: Conversation, version: int) -> None:
    """A member that waits for partitions may miss one answer, and come back with epoch 0, but not two (KAFKA-19233). A
    static member may not miss any."""
    group = talk.own("cl")
    values: dict[str, Any] = {"subscribed_topic_names": [talk.topic], "server_assignor": "range", **_JOINING}

    def beat(label: str, epoch: int, name: str, **more: Any) -> Any:
        return talk.ask(f"lost, {label}", group_id=group, member_id=f"{group}-{name}", member_epoch=epoch, **more)

    beat("the owner of all", 0, "one", **values)
    for time in ("first", "second", "third"):
        beat(f"joins for the {time} time", 0, "two", **values)
    beat("goes on with its epoch", 2, "two")
    beat("a static member", 0, "three", instance_id="i", **values)
    beat("a static member comes back", 0, "three", instance_id="i", **values)
    beat("a static member goes on with its epoch", 3, "three", instance_id="i")
    beat("the static member leaves for a while", -2, "three", instance_id="i")
    beat("the static member comes back after that", 0, "three", instance_id="i", **values)
    for name, instance in (("three", "i"), ("two", None), ("one", None)):
        beat(f"{name} leaves", -1, name, instance_id=instance)


@step(m.CONSUMER_GROUP_HEARTBEAT)
def reads_topics_that_match(talk: Conversation, version: int) -> None:
    if version < 1:
        return
    group = talk.own("cr")

    def beat(label: str, epoch: int, name: str = "one", **more: Any) -> Any:
        values = {**_JOINING, **more} if epoch == 0 else more
        return talk.ask(label, group_id=group, member_id=f"{group}-{name}", member_epoch=epoch, **values)

    def wait_for_epoch(epoch: int) -> None:
        while talk.do(m.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group]).groups[0].group_epoch < epoch:
            pass

    beat("an expression", 0, subscribed_topic_regex=f"{talk.topic}|none.*")
    wait_for_epoch(2)
    talk.record("an expression, described", talk.do(m.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group]))
    beat("an expression, then", 1)
    beat("an expression, stays", 2)
    beat("the same expression", 0, "two", subscribed_topic_regex=f"{talk.topic}|none.*")
    beat("the same expression, leaves", -1, "two")
    beat("an expression, leaves", -1)
    for label, expression in (("an empty expression", ""), ("part of a name", talk.topic[:-1])):
        name = talk.own(label.replace(" ", "-"))
        values = {"group_id": name, "member_id": name, "subscribed_topic_regex": expression, **_JOINING}
        talk.ask(label, member_epoch=0, **values)
        talk.ask(f"{label}, stays", group_id=name, member_id=name, member_epoch=1)
        talk.ask(f"{label}, leaves", group_id=name, member_id=name, member_epoch=-1)


@step(m.CONSUMER_GROUP_HEARTBEAT)
def takes_over_a_classic_group(talk: Conversation, version: int) -> None:
    group, other = talk.own("ct"), talk.own("ctc")
    joined = member(talk, group)

    def beat(label: str, name: str = group, **more: Any) -> None:
        values: dict[str, Any] = {"subscribed_topic_names": [talk.topic], **_JOINING, **more}
        talk.ask(label, group_id=name, member_id=f"{name}-one", member_epoch=0, **values)

    talk.ask("stays in a classic group", group_id=group, member_id=f"{group}-one", member_epoch=1)
    talk.do(m.LEAVE_GROUP, 3, group_id=group, members=[{"member_id": joined[0]}])
    beat("joins a classic group without members")
    talk.do(m.CONSUMER_GROUP_HEARTBEAT, 1, group_id=group, member_id=f"{group}-one", member_epoch=-1)
    first = member(talk, group)
    talk.do(m.LEAVE_GROUP, 3, group_id=group, members=[{"member_id": first[0]}])
    foreign = member(talk, other, protocol_type="connect")
    beat("joins a classic group of another kind", other)
    talk.do(m.LEAVE_GROUP, 3, group_id=other, members=[{"member_id": foreign[0]}])


@step(m.CONSUMER_GROUP_HEARTBEAT)
def joins_members_of_the_classic_protocol(talk: Conversation, version: int) -> None:
    group = talk.own("cl")
    member(talk, group, stable=False)
    values: dict[str, Any] = {"subscribed_topic_names": [talk.topic], **_JOINING}
    named = {"group_id": group, "member_id": f"{group}-one"}
    refused = talk.do(m.CONSUMER_GROUP_HEARTBEAT, version, member_epoch=0, **named, **values)
    talk.record("joins classic members", refused.error_code)


@step(m.CONSUMER_GROUP_DESCRIBE)
def describes_consumer_groups(talk: Conversation, version: int) -> None:
    group, classic = talk.own("cd"), talk.own("cdc")

    def describe(label: str, *groups: str, **more: Any) -> None:
        talk.ask(label, group_ids=groups, **more)

    describe("none")
    describe("no group's name", "")
    describe("no such group", group)
    consumer(talk, group, rack_id="r", instance_id="i")
    describe("stable", group, include_authorized_operations=True)
    describe("two groups", group, f"{group}-none")
    leave(talk, group, instance_id="i")
    describe("after all have left", group)
    consumer(talk, group, server_assignor="range")
    describe("with an assignor", group)
    leave(talk, group)
    joined = member(talk, classic)
    describe("a classic group", classic)
    talk.do(m.LEAVE_GROUP, 3, group_id=classic, members=[{"member_id": joined[0]}])


# ---- what other requests make of a consumer group


@step(m.JOIN_GROUP)
def joins_a_consumer_group(talk: Conversation, version: int) -> None:
    group = talk.own("cj")
    consumer(talk, group)
    talk.ask("another type, to a consumer group", **joining(group, version=version, protocol_type="connect"))
    # From version 4 on, Kafka first gives the member its id: it would not answer before the others gave partitions up.
    if version >= 4:
        refused = talk.do(m.JOIN_GROUP, version, **joining(group, version=version))
        # Not its member id: the ids of the later steps would have other numbers.
        talk.record("members of the other protocol", refused.error_code)
    leave(talk, group)
    if version < 4:
        joined = talk.ask("a consumer group without members", **joining(group, version=version))
        talk.do(m.LEAVE_GROUP, 3, group_id=group, members=[{"member_id": joined.member_id}])


@step(m.HEARTBEAT)
@step(m.SYNC_GROUP)
@step(m.LEAVE_GROUP)
def keeps_classic_requests_away(talk: Conversation, version: int) -> None:
    group = talk.own("ck")
    consumer(talk, group)
    values = {"group_id": group, "generation_id": 1, "assignments": [], "protocol_name": "range"}
    for label, name in (("a consumer", f"{talk.name}-one"), ("a stranger", "nobody")):
        gone = [{"member_id": name}]
        talk.ask(f"{label} of a consumer group", member_id=name, members=gone, protocol_type="consumer", **values)
    if talk.api_key == m.LEAVE_GROUP:
        talk.record("the consumer is gone", talk.do(m.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group]))
    else:
        leave(talk, group)


@step(m.DESCRIBE_GROUPS)
def describes_a_consumer_group_as_a_classic_group(talk: Conversation, version: int) -> None:
    group = talk.own("ce")
    consumer(talk, group)
    talk.ask("a consumer group", groups=[group])
    leave(talk, group)
    talk.ask("a consumer group without members", groups=[group])


@step(m.LIST_GROUPS)
def lists_consumer_groups(talk: Conversation, version: int) -> None:
    empty, stable, assigning = (talk.own(f"cg{number}") for number in range(3))
    for name in (empty, stable, assigning):
        consumer(talk, name)
    consumer(talk, assigning, "two")
    leave(talk, assigning, "two")
    leave(talk, empty)

    def query(label: str, **more: Any) -> None:
        listed = talk.do(m.LIST_GROUPS, version, **more)
        ours = tuple(entry for entry in listed.groups if entry.group_id in (empty, stable, assigning))
        talk.record(label, (listed.error_code, ours))

    query("consumer groups")
    if version >= 4:
        for states in (["Stable"], ["empty"], ["ASSIGNING"], ["Reconciling"]):
            query(f"consumer groups in states {states}", states_filter=states)
    if version >= 5:
        for types in (["consumer"], ["Consumer"], ["classic"], ["consumer", "classic"]):
            query(f"consumer groups of types {types}", types_filter=types)
        query("consumer groups, both filters", types_filter=["consumer"], states_filter=["stable"])
    for name in (stable, assigning):
        leave(talk, name)


@step(m.DELETE_GROUPS)
def deletes_consumer_groups(talk: Conversation, version: int) -> None:
    group = talk.own("cx")
    consumer(talk, group)
    talk.ask("a consumer group with a member", groups_names=[group])
    leave(talk, group)
    talk.ask("a consumer group without members", groups_names=[group])
    talk.record("a consumer group, after", talk.do(m.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group]))


@step(m.OFFSET_COMMIT)
def commits_offsets_of_consumers(talk: Conversation, version: int) -> None:
    group = talk.own("co")
    name = f"{talk.name}-one"
    consumer(talk, group)

    def request(label: str, member_id: str, epoch: int) -> None:
        entry = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "", "commit_timestamp": -1}
        topics = [{"name": talk.topic, "partitions": [entry]}]
        values = {"generation_id_or_member_epoch": epoch, "member_id": member_id, "retention_time": -1}
        talk.ask(f"{label} of a consumer group", group_id=group, topics=topics, **values)

    for label, member_id, epoch in (
        ("a member", name, 1),
        ("an older epoch", name, 0),
        ("a future epoch", name, 2),
        ("no epoch", name, -1),
        ("a stranger", "nobody", 1),
        ("anybody", "", -1),
    ):
        request(label, member_id, epoch)
    leave(talk, group)
    request("anybody, after all have left,", "", -1)
    request("a stranger, after all have left,", "nobody", 1)


@step(m.OFFSET_FETCH)
def fetches_offsets_of_consumers(talk: Conversation, version: int) -> None:
    if version < 8:
        return
    group = talk.own("cf")
    name = f"{talk.name}-one"
    consumer(talk, group)
    topics = [{"name": talk.topic, "partition_indexes": [0]}]
    for label, member_id, epoch in (
        ("a member", name, 1),
        ("an older epoch", name, 0),
        ("no epoch", name, -1),
        ("a stranger", "nobody", 1),
        ("no name", "", -1),
        ("anybody", None, -1),
    ):
        groups = [{"group_id": group, "member_id": member_id, "member_epoch": epoch, "topics": topics}]
        talk.ask(f"{label} of a consumer group", groups=groups)
    leave(talk, group)


@step(m.OFFSET_DELETE)
def deletes_offsets_of_consumers(talk: Conversation, version: int) -> None:
    group, other = talk.own("cv"), talk.own("cv-t")
    make_topic(talk, other, 1)
    consumer(talk, group)
    for label, topic in (("is read", talk.topic), ("is not read", other)):
        topics = [{"name": topic, "partitions": [{"partition_index": 0}]}]
        talk.ask(f"a topic that {label} by a consumer group", group_id=group, topics=topics)
    leave(talk, group)
    delete(talk, other)


@step(m.TXN_OFFSET_COMMIT)
def commits_offsets_of_consumers_in_a_transaction(talk: Conversation, version: int) -> None:
    group, name = talk.own("cw"), f"{talk.name}-one"
    consumer(talk, group)
    transactional_id = talk.own("cw-x")
    values = {"transactional_id": transactional_id, "transaction_timeout": 30_000, "producer_id": -1}
    producer = talk.do(m.INIT_PRODUCER_ID, 4, producer_epoch=-1, **values)
    ids = {
        "transactional_id": transactional_id,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "group_id": group,
    }
    talk.do(m.ADD_OFFSETS_TO_TXN, 3, **ids)
    topics = [{"name": talk.topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    for label, member_id, epoch in (
        ("a member", name, 1),
        ("an older epoch", name, 0),
        ("a stranger", "nobody", 1),
        ("nobody", "", -1),
    ):
        if version >= 3 or label == "nobody":
            named = {"generation_id": epoch, "member_id": member_id}
            talk.ask(f"{label} of a consumer group", **ids, topics=topics, **named)
    talk.do(m.END_TXN, 3, committed=False, **ids)
    leave(talk, group)
