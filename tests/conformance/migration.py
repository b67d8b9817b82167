"""Steps of script.py: groups whose members change from the classic protocol to the consumer protocol, and back."""

from __future__ import annotations

import struct
from typing import Any

from kafkabuf.protocol import messages as m
from tests.conformance.consumer_groups import consumer, leave
from tests.conformance.groups import joining, subscription
from tests.conformance.groups import leave as leave_classic
from tests.conformance.script import Conversation, step

Joined = tuple[str, int]


def assignment(topic: str, *partitions: int, data: bytes | None = None) -> bytes:
    """A ConsumerProtocolAssignment of version 0."""
    indexes = struct.pack(f">{len(partitions) + 1}i", len(partitions), *partitions)
    user_data = struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
    return struct.pack(">hih", 0, 1, len(topic)) + topic.encode() + indexes + user_data


def join(talk: Conversation, group: str, member_id: str = "", **more: Any) -> Any:
    more = {"protocols": [("range", subscription(talk.topic))], **more}
    answer = talk.do(m.JOIN_GROUP, 5, **joining(group, member_id, version=5, **more))
    if int(answer.error_code) == 79:
        answer = talk.do(m.JOIN_GROUP, 5, **joining(group, answer.member_id, version=5, **more))
    return answer


def sync(talk: Conversation, group: str, member: Joined, assigned: bytes | None = None, **more: Any) -> Any:
    assignments = [] if assigned is None else [{"member_id": member[0], "assignment": assigned}]
    values = {"generation_id": member[1], "member_id": member[0], "assignments": assignments}
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    return talk.do(m.SYNC_GROUP, 5, group_id=group, **values, **{**named, **more})


def member_of(joined: Any) -> Joined:
    return joined.member_id, joined.generation_id


def stable(talk: Conversation, group: str, *partitions: int, instance: str | None = None) -> Joined:
    """The only member of a classic group, with these partitions."""
    joined = member_of(join(talk, group, instance=instance))
    assert sync(talk, group, joined, assignment(talk.topic, *partitions), group_instance_id=instance).error_code == 0
    return joined


def heartbeat(talk: Conversation, group: str, member: Joined, **more: Any) -> Any:
    return talk.do(m.HEARTBEAT, 3, group_id=group, generation_id=member[1], member_id=member[0], **more)


def describe(talk: Conversation, label: str, group: str) -> None:
    talk.record(f"{label}, described", talk.do(m.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group]))


def commit(talk: Conversation, group: str, member: Joined, version: int) -> Any:
    entry = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    topics = [{"name": talk.topic, "partitions": [entry]}]
    named = {"generation_id_or_member_epoch": member[1], "member_id": member[0]}
    return talk.do(m.OFFSET_COMMIT, version, group_id=group, topics=topics, **named)


@step(m.CONSUMER_GROUP_HEARTBEAT)
def upgrades_a_group_and_goes_back(talk: Conversation, version: int) -> None:
    group = talk.own("mu")
    old = stable(talk, group, 0, 1, 2)

    def beat(label: str, epoch: int, **more: Any) -> Any:
        values: dict[str, Any] = {"subscribed_topic_names": [talk.topic], "rebalance_timeout": 60_000}
        more = {**values, "topic_partitions": [], **more} if epoch == 0 else more
        return talk.ask(label, group_id=group, member_id=f"{group}-one", member_epoch=epoch, **more)

    beat("upgrade", 0)
    describe(talk, "upgrade", group)
    talk.record("upgrade, commit before joining", commit(talk, group, old, 8))
    talk.record("upgrade, heartbeat before joining", heartbeat(talk, group, old))
    talk.record("upgrade, sync before joining", sync(talk, group, old))
    talk.record("upgrade, heartbeat of a stranger", heartbeat(talk, group, ("nobody", old[1])))
    talk.record("upgrade, heartbeat of a consumer", heartbeat(talk, group, (f"{group}-one", old[1] + 1)))
    rejoined = talk.record("upgrade, joins again", join(talk, group, old[0]))
    new = member_of(rejoined)
    talk.record("upgrade, another protocol", sync(talk, group, new, protocol_name="sticky"))
    talk.record("upgrade, another type", sync(talk, group, new, protocol_type="connect"))
    talk.record("upgrade, an older generation", sync(talk, group, old))
    talk.record("upgrade, sync", sync(talk, group, new))
    talk.record("upgrade, heartbeat", heartbeat(talk, group, new))
    talk.record("upgrade, heartbeat of an older generation", heartbeat(talk, group, old))
    talk.record("upgrade, commit", commit(talk, group, new, 8))
    talk.record("upgrade, commit of an older generation", commit(talk, group, old, 9))
    beat("upgrade, gets its partitions", old[1] + 1)
    describe(talk, "upgrade, in the end", group)
    beat("downgrade", -1)
    talk.record("downgrade, described", talk.do(m.DESCRIBE_GROUPS, 5, groups=[group]).groups[0].group_state)
    talk.record("downgrade, heartbeat", heartbeat(talk, group, new))
    talk.record("downgrade, sync", sync(talk, group, new))
    last = talk.record("downgrade, joins again", join(talk, group, new[0]))
    talk.record("downgrade, sync again", sync(talk, group, member_of(last), assignment(talk.topic, 0, 1)))
    leave_classic(talk, group, old[0])


@step(m.CONSUMER_GROUP_HEARTBEAT)
def upgrades_no_group_with_other_assignments(talk: Conversation, version: int) -> None:
    values: dict[str, Any] = {"subscribed_topic_names": [talk.topic], "rebalance_timeout": 60_000}
    cases = {
        "malformed": (b"mine", "consumer"),
        "of a custom assignor": (assignment(talk.topic, 0, data=b"x"), "consumer"),
        "of another type": (b"mine", "connect"),
        "empty": (b"", "consumer"),
    }
    for label, (assigned, kind) in cases.items():
        group = talk.own(f"ma-{label.replace(' ', '-')}")
        joined = member_of(join(talk, group, protocol_type=kind))
        sync(talk, group, joined, assigned, protocol_type=kind)
        named = {"group_id": group, "member_id": f"{group}-one", "topic_partitions": [], **values}
        refused = talk.do(m.CONSUMER_GROUP_HEARTBEAT, version, member_epoch=0, **named)
        talk.record(f"{label} assignment", (refused.error_code, refused.error_message))
        leave_classic(talk, group, joined[0])
        if refused.error_code == 0:
            talk.do(m.CONSUMER_GROUP_HEARTBEAT, 1, group_id=group, member_id=f"{group}-one", member_epoch=-1)


@step(m.CONSUMER_GROUP_HEARTBEAT)
def static_members_change_their_protocol(talk: Conversation, version: int) -> None:
    group = talk.own("ms")
    old = stable(talk, group, 0, 1, 2, instance="i")
    upgraded = consumer(talk, group, instance_id="i")
    talk.record("a static migrant, changes its protocol", upgraded)
    describe(talk, "a static migrant, changes its protocol", group)
    talk.record("a static migrant, its former self", heartbeat(talk, group, old, group_instance_id="i"))
    consumer(talk, group, "two")
    back = join(talk, group, instance="i")
    talk.record("a static migrant, changes back", back)
    describe(talk, "a static migrant, changes back", group)
    talk.record("a static migrant, syncs", sync(talk, group, member_of(back), group_instance_id="i"))
    talk.record("a static migrant, no such instance", heartbeat(talk, group, member_of(back), group_instance_id="j"))
    leave(talk, group, "two")
    leave_classic(talk, group, back.member_id)


@step(m.JOIN_GROUP)
def joins_consumers(talk: Conversation, version: int) -> None:
    group = talk.own("mj")
    consumer(talk, group)
    named: dict[str, Any] = {"version": version, "protocols": [("range", subscription(talk.topic))]}
    talk.ask("no protocol, to consumers", **joining(group, **{**named, "protocols": []}))
    talk.ask("a short session, to consumers", **joining(group, **{**named, "session_timeout": 1}))
    first = talk.ask("to consumers", **joining(group, **named))
    if int(first.error_code) == 79:
        first = talk.ask("to consumers, with an id", **joining(group, first.member_id, **named))
    other: dict[str, Any] = {**named, "protocols": [("sticky", subscription(talk.topic))]}
    talk.ask("to consumers, without a common protocol", **joining(group, "other", **other))
    talk.ask("to consumers, malformed", **joining(group, "odd", **{**named, "protocols": [("range", b"x")]}))
    describe(talk, "to consumers", group)
    talk.ask("a consumer's id", **joining(group, f"{talk.name}-one", **named))
    describe(talk, "a consumer's id", group)
    gone = [{"member_id": first.member_id}, {"member_id": f"{talk.name}-one"}]
    talk.record("leaves consumers", talk.do(m.LEAVE_GROUP, 3, group_id=group, members=gone))
