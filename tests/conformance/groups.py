"""Steps of script.py: consumer groups and their offsets."""

from __future__ import annotations

import struct
from typing import Any

from kafkabuf.protocol import messages as m
from tests.broker.raw_client import RawClient
from tests.conformance.script import Conversation, step

_SESSION = 30_000
Joined = tuple[str, int]


def subscription(*topics: str) -> bytes:
    """The metadata with which a consumer joins (ConsumerProtocolSubscription, version 0)."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def joining(group: str, member_id: str = "", *, version: int, instance: str | None = None, **more: Any) -> Any:
    """The values of a JoinGroup request."""
    protocols = more.pop("protocols", [("range", subscription("none"))])
    return {
        "group_id": group,
        "session_timeout": _SESSION,
        "rebalance_timeout": _SESSION,
        "member_id": member_id,
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
        **more,
    }


def member(talk: Conversation, group: str, *, version: int = 5, stable: bool = True, **more: Any) -> Joined:
    """Join as a group's only member; returns its id and generation. If `stable`, it gets its assignment, too."""
    answer = talk.do(m.JOIN_GROUP, version, **joining(group, version=version, **more))
    if int(answer.error_code) == 79:
        answer = talk.do(m.JOIN_GROUP, version, **joining(group, answer.member_id, version=version, **more))
    assert answer.error_code == 0, answer
    if stable:
        mine = [{"member_id": answer.member_id, "assignment": b"mine"}]
        values = {"generation_id": answer.generation_id, "member_id": answer.member_id, "assignments": mine}
        talk.do(m.SYNC_GROUP, 3, group_id=group, group_instance_id=more.get("instance"), **values)
    return answer.member_id, answer.generation_id


def rebalance(talk: Conversation, group: str) -> RawClient:
    """A second member joins: the group rebalances until the test closes the client that is returned."""
    other = RawClient(talk.address)
    other.send(m.JOIN_GROUP, 3, **joining(group, version=3))
    while not talk.do(m.DESCRIBE_GROUPS, 3, groups=[group]).groups[0].group_state.startswith("Preparing"):
        pass
    return other


def settle(talk: Conversation) -> None:
    """Wait until Kafka shows a new group: it reads groups from its log, which the next write of any group updates."""
    commit(talk, f"{talk.name}-settled")


def leave(talk: Conversation, group: str, *members: str) -> None:
    gone = [{"member_id": member_id} for member_id in members]
    talk.do(m.LEAVE_GROUP, 3, group_id=group, members=gone)


@step(m.FIND_COORDINATOR)
def finds_coordinators(talk: Conversation, version: int) -> None:
    for kind in (0, 1, 7) if version else (0,):
        talk.ask(f"of kind {kind}", key=talk.name, key_type=kind, coordinator_keys=[talk.name, f"{talk.name}-2"])
    if version < 4:
        talk.ask("of nothing", key="", key_type=0)


@step(m.JOIN_GROUP)
def joins_groups(talk: Conversation, version: int) -> None:
    group = talk.own("j")

    def join(label: str, member_id: str = "", name: str = group, **more: Any) -> Any:
        return talk.ask(label, **joining(name, member_id, version=version, **more))

    join("no group's name", name="")
    join("a session too long", session_timeout=1_800_001)
    join("a session of 0 ms", session_timeout=0)
    join("no protocols", name=f"{group}-2", protocols=[])
    join("no protocol type", name=f"{group}-2", protocol_type="")
    join("a stranger, to no group", "nobody", f"{group}-3")
    first = join("a new member")
    if version >= 4:
        first = join("with its id", first.member_id)
    join("again", first.member_id)
    join("a stranger", "nobody")
    join("another type", protocol_type="connect")
    join("another protocol", protocols=[("sticky", b"")])
    mine = [{"member_id": first.member_id, "assignment": b"mine"}]
    values = {"generation_id": first.generation_id, "member_id": first.member_id, "assignments": mine}
    talk.do(m.SYNC_GROUP, 3, group_id=group, **values)
    join("the leader, again", first.member_id)
    join("with other protocols", first.member_id, protocols=[("range", b"x"), ("sticky", b"")])
    leave(talk, group, first.member_id)
    join("the one that left", first.member_id)


@step(m.JOIN_GROUP)
def joins_groups_as_static_member(talk: Conversation, version: int) -> None:
    if version < 5:
        return
    group = talk.own("js")

    def join(label: str, member_id: str = "", **more: Any) -> Any:
        return talk.ask(label, **joining(group, member_id, version=version, instance="one", **more))

    first = join("static")
    join("static, started anew before it had its assignment")
    second = join("static, once more")
    values = {"generation_id": second.generation_id, "member_id": second.member_id, "group_instance_id": "one"}
    mine = [{"member_id": second.member_id, "assignment": b"mine"}]
    talk.do(m.SYNC_GROUP, 3, group_id=group, assignments=mine, **values)
    third = join("static, started anew")
    join("static, the former self", second.member_id)
    join("static, the very first self", first.member_id)
    join("static, under another instance", third.member_id, group_instance_id="two")
    values = {"generation_id": third.generation_id, "member_id": third.member_id, "group_instance_id": "one"}
    talk.record("static, its assignment", talk.do(m.SYNC_GROUP, 3, group_id=group, **values))
    join("static, with other protocols", protocols=[("range", b"x"), ("sticky", b"")])
    (described,) = talk.do(m.DESCRIBE_GROUPS, 3, groups=[group]).groups
    leave(talk, group, *(joined.member_id for joined in described.members))


@step(m.SYNC_GROUP)
def syncs_groups(talk: Conversation, version: int) -> None:
    group, static = talk.own("y"), talk.own("ys")

    def sync(label: str, sender: Joined, name: str = group, **more: Any) -> None:
        assignments = [{"member_id": sender[0], "assignment": b"for you"}]
        values = {"protocol_type": "consumer", "protocol_name": "range", "assignments": assignments, **more}
        talk.ask(label, group_id=name, generation_id=sender[1], member_id=sender[0], **values)

    sync("no group's name", ("nobody", 1), "")
    sync("no such group", ("nobody", 1))
    joined = member(talk, group, stable=False)
    sync("a stranger", ("nobody", joined[1]))
    sync("an older generation", (joined[0], joined[1] - 1))
    sync("a future generation", (joined[0], joined[1] + 1))
    if version >= 5:
        sync("another protocol", joined, protocol_name="sticky")
        sync("another type", joined, protocol_type="connect")
        sync("no protocol", joined, protocol_name=None, protocol_type=None)
    sync("the leader", joined)
    sync("again", joined, assignments=[])
    other = rebalance(talk, group)
    sync("while the group rebalances", joined)
    other.socket.close()
    leave(talk, group, joined[0])
    if version >= 3:
        former = member(talk, static, instance="one")
        member(talk, static, instance="one")
        sync("static, the former self", former, static, group_instance_id="one")
        sync("static, no such instance", former, static, group_instance_id="two")


@step(m.HEARTBEAT)
def keeps_sessions(talk: Conversation, version: int) -> None:
    group, static = talk.own("h"), talk.own("hs")

    def heartbeat(label: str, sender: Joined, name: str = group, **more: Any) -> None:
        talk.ask(label, group_id=name, generation_id=sender[1], member_id=sender[0], **more)

    heartbeat("no group's name", ("nobody", 1), "")
    heartbeat("no such group", ("nobody", 1))
    joined = member(talk, group, stable=False)
    heartbeat("before the assignment", joined)
    leave(talk, group, joined[0])
    heartbeat("after all have left", joined)
    joined = member(talk, group)
    heartbeat("a member", joined)
    heartbeat("a stranger", ("nobody", joined[1]))
    heartbeat("an older generation", (joined[0], joined[1] - 1))
    heartbeat("a future generation", (joined[0], joined[1] + 1))
    other = rebalance(talk, group)
    heartbeat("while the group rebalances", joined)
    other.socket.close()
    leave(talk, group, joined[0])
    if version >= 3:
        former = member(talk, static, instance="one")
        now = member(talk, static, instance="one")
        heartbeat("static", now, static, group_instance_id="one")
        heartbeat("static, the former self", former, static, group_instance_id="one")
        heartbeat("static, no such instance", now, static, group_instance_id="two")


@step(m.LEAVE_GROUP)
def leaves_groups(talk: Conversation, version: int) -> None:
    group, static = talk.own("l"), talk.own("ls")

    def request(label: str, *members: tuple[str, str | None], name: str = group) -> None:
        gone = [{"member_id": member_id, "group_instance_id": instance} for member_id, instance in members]
        talk.ask(label, group_id=name, member_id=members[0][0] if members else "", members=gone)

    request("no group's name", ("nobody", None), name="")
    request("no such group", ("nobody", None))
    joined = member(talk, group)
    request("a stranger", ("nobody", None))
    request("a member", (joined[0], None))
    request("again", (joined[0], None))
    promised = talk.do(m.JOIN_GROUP, 5, **joining(group, version=5)).member_id
    request("a member that only has its id", (promised, None))
    if version >= 3:
        joined = member(talk, group)
        request("a member and a stranger", (joined[0], None), ("nobody", None))
        request("nobody")
        former = member(talk, static, instance="one")
        member(talk, static, instance="one")
        request("static, the former self", (former[0], "one"), name=static)
        request("static, no such instance", ("", "two"), name=static)
        request("static, by its instance", ("", "one"), name=static)
        request("static, again", ("", "one"), name=static)


@step(m.DESCRIBE_GROUPS)
def describes_groups(talk: Conversation, version: int) -> None:
    group = talk.own("b")
    talk.ask("no such group", groups=[group])
    talk.ask("no group's name", groups=[""])
    talk.ask("none", groups=[])
    joined = member(talk, group, stable=False)
    settle(talk)
    talk.ask("before the assignment", groups=[group])
    leave(talk, group, joined[0])
    talk.ask("after all have left", groups=[group], include_authorized_operations=True)
    joined = member(talk, group, instance="one")
    talk.ask("stable", groups=[group])
    other = rebalance(talk, group)
    talk.ask("while it rebalances", groups=[group])
    other.socket.close()
    leave(talk, group, joined[0])
    commit(talk, f"{group}-2")
    talk.ask("with offsets alone", groups=[f"{group}-2"])


@step(m.LIST_GROUPS)
def lists_groups(talk: Conversation, version: int) -> None:
    empty, stable, completing = (talk.own(f"g{number}") for number in range(3))
    commit(talk, empty)
    ids = [member(talk, stable), member(talk, completing, stable=False)]
    settle(talk)

    def query(label: str, **more: Any) -> None:
        listed = talk.do(m.LIST_GROUPS, version, **more)
        ours = tuple(entry for entry in listed.groups if entry.group_id in (empty, stable, completing))
        talk.record(label, (listed.error_code, ours))

    query("all")
    if version >= 4:
        for states in (["Stable"], ["stable", "EMPTY"], ["CompletingRebalance"], ["Dead"], ["nonsense"]):
            query(f"in states {states}", states_filter=states)
    if version >= 5:
        for types in (["classic"], ["Classic"], ["consumer"], ["nonsense"], ["classic", "consumer"]):
            query(f"of types {types}", types_filter=types)
    leave(talk, stable, ids[0][0])
    leave(talk, completing, ids[1][0])


@step(m.DELETE_GROUPS)
def deletes_groups(talk: Conversation, version: int) -> None:
    group = talk.own("x")
    commit(talk, f"{group}-2")
    joined = member(talk, group)
    for label, name in (
        ("no such group", f"{group}-none"),
        ("no name", ""),
        ("one with offsets", f"{group}-2"),
        ("again", f"{group}-2"),
        ("one with a member", group),
    ):
        talk.ask(label, groups_names=[name])
    leave(talk, group, joined[0])
    talk.ask("after it has left", groups_names=[group, group])


# ---- offsets


def commit(talk: Conversation, group: str, offset: int = 3, partition: int = 0, **more: Any) -> Any:
    entry = {"partition_index": partition, "committed_offset": offset, "committed_metadata": "note"}
    values = {"generation_id_or_member_epoch": -1, "member_id": "", **more}
    answer = talk.do(m.OFFSET_COMMIT, 7, group_id=group, topics=[{"name": talk.topic, "partitions": [entry]}], **values)
    assert answer.topics[0].partitions[0].error_code == 0, answer
    return answer


@step(m.OFFSET_COMMIT)
def commits_offsets(talk: Conversation, version: int) -> None:
    group, static = talk.own("o"), talk.own("os")

    def request(label: str, sender: Joined = ("", -1), name: str = group, **more: Any) -> None:
        entry = {
            "partition_index": more.pop("partition", 0),
            "committed_offset": more.pop("offset", 5),
            "committed_leader_epoch": 0,
            "committed_metadata": more.pop("metadata", "note"),
            "commit_timestamp": -1,
        }
        topic = more.pop("topic", talk.topic)
        values = {"generation_id_or_member_epoch": sender[1], "member_id": sender[0], "retention_time": -1, **more}
        talk.ask(label, group_id=name, topics=[{"name": topic, "partitions": [entry]}], **values)

    request("no group's name", name="")
    request("a generation of no group", ("nobody", 3))
    request("a member of no group", ("nobody", -1))
    request("anybody")
    request("a negative offset", offset=-2)
    request("without metadata", metadata=None)
    request("long metadata", metadata="x" * 4096)
    request("metadata too long", metadata="x" * 4097)
    request("no such partition", partition=9)
    request("no such topic", topic=f"{talk.topic}-none")
    request("a generation of a group without members", ("", 3))
    joined = member(talk, group, stable=False)
    request("before the assignment", joined)
    request("anybody, before the assignment")
    leave(talk, group, joined[0])
    joined = member(talk, group)
    request("a member", joined)
    request("anybody, where there are members")
    request("a stranger", ("nobody", joined[1]))
    request("an older generation", (joined[0], joined[1] - 1))
    request("no generation", (joined[0], -1))
    other = rebalance(talk, group)
    request("while the group rebalances", joined)
    other.socket.close()
    leave(talk, group, joined[0])
    talk.ask("nothing", group_id=group, generation_id_or_member_epoch=-1, member_id="", retention_time=-1, topics=[])
    if version >= 7:
        former = member(talk, static, instance="one")
        now = member(talk, static, instance="one")
        request("static", now, static, group_instance_id="one")
        request("static, the former self", former, static, group_instance_id="one")


@step(m.OFFSET_FETCH)
def fetches_offsets(talk: Conversation, version: int) -> None:
    group = talk.own("f")
    commit(talk, group, 3)
    commit(talk, group, 4, 1)

    def query(label: str, name: str, wanted: dict[str, list[int]] | None) -> None:
        topics = wanted and [{"name": topic, "partition_indexes": indexes} for topic, indexes in wanted.items()]
        talk.ask(label, group_id=name, topics=topics, groups=[{"group_id": name, "topics": topics}])

    query("some", group, {talk.topic: [0, 1, 2]})
    query("no such partition", group, {talk.topic: [9]})
    query("no such topic", group, {f"{talk.topic}-none": [0]})
    query("no such group", f"{group}-none", {talk.topic: [0]})
    query("no group's name", "", {talk.topic: [0]})
    if version >= 2:
        query("all", group, None)
        query("all of no such group", f"{group}-none", None)
    if version >= 8:
        names = [{"group_id": name, "topics": None} for name in (group, f"{group}-none")]
        talk.ask("of two groups", groups=names)


@step(m.OFFSET_DELETE)
def deletes_offsets(talk: Conversation, version: int) -> None:
    group, reading = talk.own("v"), talk.own("vr")
    commit(talk, group)

    def request(label: str, name: str, topic: str = talk.topic, partition: int = 0) -> None:
        talk.ask(label, group_id=name, topics=[{"name": topic, "partitions": [{"partition_index": partition}]}])

    request("no group's name", "")
    request("no such group", f"{group}-none")
    request("no such topic", group, f"{talk.topic}-none")
    request("no such partition", group, partition=9)
    request("one", group)
    request("again", group)
    wanted = [{"name": talk.topic, "partition_indexes": [0]}]
    talk.record("one, after", talk.do(m.OFFSET_FETCH, 5, group_id=group, topics=wanted))
    joined = member(talk, reading, protocols=[("range", subscription(talk.topic))])
    request("of a topic that is read", reading)
    leave(talk, reading, joined[0])
    request("of a topic that was read", reading)
    joined = member(talk, reading, protocols=[("range", subscription("none"))])
    request("of a topic that is not read", reading)
    leave(talk, reading, joined[0])
    joined = member(talk, f"{reading}-2", protocol_type="connect")
    request("of a group that is not of consumers", f"{reading}-2")
    leave(talk, f"{reading}-2", joined[0])
