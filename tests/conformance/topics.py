"""Steps of script.py: topics, their records and settings, and the cluster itself."""

from __future__ import annotations

import gzip
import time
from typing import Any
from uuid import UUID

from kafkabuf.protocol import messages as m
from tests.broker.raw_client import NOW, batch
from tests.conformance.script import Conversation, step

_NOBODY = UUID(int=77)
_LOG_APPEND_TIME = 0x08
WAIT = 5000
PATIENCE = 30.0  # seconds


def make_topic(talk: Conversation, name: str, partitions: int = 1, **configs: str) -> UUID:
    """Create a topic, and wait until its leaders take records."""
    asked = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }
    created = talk.do(m.CREATE_TOPICS, 7, topics=[asked], timeout=WAIT, validate_only=False).topics[0]
    assert created.error_code == 0, created
    wanted = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        answer = talk.do(m.LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": name, "partitions": wanted}])
        if not any(partition.error_code for partition in answer.topics[0].partitions):
            return UUID(str(created.topic_id))
        time.sleep(0.01)
    raise AssertionError(f"topic {name} has no leaders")


def produce(talk: Conversation, topic: str, records: bytes | None, partition: int = 0, **more: Any) -> Any:
    values = {"transactional_id": None, "acks": -1, "timeout": WAIT, **more}
    data = [{"index": partition, "records": records}]
    return talk.do(m.PRODUCE, 9, topic_data=[{"name": topic, "partition_data": data}], **values)


def prepare(talk: Conversation) -> None:
    """Create the topic and the records that all steps may read."""
    talk.topic_id = make_topic(talk, talk.topic, 3)
    produce(talk, talk.topic, batch([b"a", b"b", b"c"], timestamps=[NOW, NOW + 20, NOW + 10]))
    produce(talk, talk.topic, batch([b"d"], timestamps=[NOW + 15]))
    # The first FindCoordinator makes Kafka create the topics of its coordinators.
    for key_type in (0, 1):
        talk.do(m.FIND_COORDINATOR, 3, key=talk.name, key_type=key_type)
    # Kafka's first producer id is 0, which means "no producer" in some responses: use it up.
    talk.do(m.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=1, producer_id=-1, producer_epoch=-1)


# ---- records


@step(m.PRODUCE)
def produces(talk: Conversation, version: int) -> None:
    name = talk.own("p")
    known = make_topic(talk, name, 2)

    def send(label: str, records: bytes | None, topic: str = name, topic_id: UUID = known, **more: Any) -> None:
        partition = more.pop("partition", 0)
        data = [{"index": partition, "records": records}]
        values = {"transactional_id": None, "acks": -1, "timeout": WAIT, **more}
        talk.ask(label, topic_data=[{"name": topic, "topic_id": topic_id, "partition_data": data}], **values)

    send("a batch", batch([b"a", b"b"]))
    send("the leader alone", batch([b"c"]), acks=1)
    send("three acks", batch([b"c"]), acks=3)
    send("no such partition", batch([b"c"]), partition=2)
    send("no such topic", batch([b"c"]), f"{name}-none", _NOBODY)
    send("no bytes", b"")
    send("a wrong checksum", batch([b"c"])[:-1] + b"!")
    send("more records than there are", batch([b"c"], count=2))
    send("too large", batch([b"x" * 1_100_000]))
    send("an unknown codec", batch([b"c"], attributes=7))
    send("magic 1", b"\0" * 8 + b"\0\0\0\x0e" + b"\0" * 4 + b"\x01" + b"\0" * 9)
    send("the next", batch([b"d"]))


@step(m.PRODUCE)
def refuses_records(talk: Conversation, version: int) -> None:
    """Records that a topic's configs refuse: the response names each."""
    now = time.time_ns() // 1_000_000
    past, future = now - 700_000, now + 700_000
    limits = {"message_timestamp_before_max_ms": "600000", "message_timestamp_after_max_ms": "600000"}
    names: dict[str, Any] = {"limits": limits, "compact": {"cleanup_policy": "compact"}, "hour": {}}
    names["both"] = {**limits, "cleanup_policy": "compact,delete"}
    names["append"] = {**limits, "message_timestamp_type": "LogAppendTime"}
    ids = {name: make_topic(talk, talk.own(name), **configs) for name, configs in names.items()}

    def send(label: str, topic: str, records: bytes) -> None:
        data = [{"index": 0, "records": records}]
        values = {"transactional_id": None, "acks": -1, "timeout": WAIT}
        entry = {"name": talk.own(topic), "topic_id": ids[topic], "partition_data": data}
        talk.ask(f"{topic}: {label}", topic_data=[entry], **values)

    def pack(codec: int, **more: Any) -> bytes:
        records = batch([b"v"] * 5, **more)
        return batch([b"v"] * 5, attributes=1, body=gzip.compress(records[61:]), **more) if codec else records

    for codec, name in enumerate(("plain", "gzip")):
        send(f"in time, {name}", "limits", pack(codec, timestamps=[now - 500_000, now, now, now, now + 500_000]))
        send(f"early and late, {name}", "limits", pack(codec, timestamps=[now, past, now, future, now]))
        send(f"no timestamps, {name}", "limits", pack(codec, timestamps=[-1] * 5))
        send(f"some keys, {name}", "compact", pack(codec, keys=[b"k", None, b"", None, b"k"]))
        send(f"keys, {name}", "compact", pack(codec, keys=[b"k"] * 5))
        both = {"keys": [None, b"k", None, b"k", b"k"], "timestamps": [past, future, now, now, now]}
        send(f"keys and times, {name}", "both", pack(codec, **both))
        send(f"a key, {name}", "both", pack(codec, keys=[b"k"] * 4 + [None], timestamps=[now] * 4 + [future]))
        send(f"any time, {name}", "append", pack(codec, timestamps=[now, past, now, future, now]))
        send(f"two hours ahead, {name}", "hour", pack(codec, timestamps=[now] * 4 + [now + 7_200_000]))
        send(f"years old, {name}", "hour", pack(codec, timestamps=[NOW] * 5))
    for topic in ("append", "limits"):
        send("the leader's type", topic, batch([b"v"], timestamps=[now], attributes=_LOG_APPEND_TIME))
    stamped = batch([b"v"] * 2, timestamps=[now, future], attributes=_LOG_APPEND_TIME)
    send("the leader's type, late", "limits", stamped)
    send("afterwards", "limits", batch([b"d"], timestamps=[now]))


@step(m.FETCH)
def fetches_appended_times(talk: Conversation, version: int) -> None:
    """Batches whose timestamps or timestamp type the leader replaces."""
    if version > 12:
        return
    now = time.time_ns() // 1_000_000
    for kind in ("CreateTime", "LogAppendTime"):
        topic = talk.own(kind)
        make_topic(talk, topic, message_timestamp_type=kind)
        produce(talk, topic, batch([b"v"] * 2, timestamps=[now, now]))
        produce(talk, topic, batch([b"v"] * 2, timestamps=[now, now], attributes=_LOG_APPEND_TIME))
        item = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
        wanted = [{"topic": topic, "partitions": [item]}]
        fetched = talk.do(m.FETCH, version, max_wait=0, min_bytes=0, max_bytes=1 << 20, session_epoch=-1, topics=wanted)
        records = bytes(fetched.responses[0].partitions[0].records)
        stamps = []
        while records:
            attributes, newest = records[22], int.from_bytes(records[35:43], "big")
            stamps.append((attributes, newest >= now, newest < now + 60_000, newest == now or kind != "CreateTime"))
            records = records[12 + int.from_bytes(records[8:12], "big") :]
        talk.record(kind, tuple(stamps))


@step(m.FETCH)
def fetches(talk: Conversation, version: int) -> None:
    def fetch(label: str, offset: int, *, topic: str | None = None, topic_id: UUID | None = None, **more: Any) -> None:
        item = {
            "partition": more.pop("partition", 0),
            "fetch_offset": offset,
            "partition_max_bytes": more.pop("partition_max_bytes", 1 << 20),
            "current_leader_epoch": more.pop("current_leader_epoch", -1),
            "last_fetched_epoch": more.pop("last_fetched_epoch", -1),
        }
        wanted = {"topic": topic or talk.topic, "topic_id": topic_id or talk.topic_id, "partitions": [item]}
        values = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": -1, **more}
        talk.ask(label, topics=[wanted], **values)

    fetch("from the start", 0)
    fetch("within a batch", 1)
    fetch("at the end", 4)
    fetch("beyond the end", 5)
    fetch("before the start", -1)
    fetch("one batch", 0, partition_max_bytes=1)
    fetch("read committed", 0, isolation_level=1)
    fetch("an empty partition", 0, partition=1)
    fetch("no such partition", 0, partition=9)
    fetch("no such topic", 0, topic=f"{talk.topic}-none", topic_id=_NOBODY)
    fetch("an older epoch", 0, current_leader_epoch=0)
    fetch("a future epoch", 0, current_leader_epoch=9)
    fetch("an unknown session", 0, session_id=77, session_epoch=3)
    talk.ask("nothing", max_wait=9_000, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=[])
    many = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": -1}
    for label, wanted in (
        ("a partition again and again", [[(0, 1)] + [(0, 0)] * 5]),
        ("a partition again, with another offset", [[(0, 0), (1, 0), (0, 4)]]),
        ("a topic again", [[(0, 0)], [(1, 0)]]),
        ("a topic without partitions", [[]]),
    ):
        items = [
            [{"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20} for index, offset in topic]
            for topic in wanted
        ]
        asked = [{"topic": talk.topic, "topic_id": talk.topic_id, "partitions": partitions} for partitions in items]
        talk.ask(label, topics=asked, **many)


@step(m.LIST_OFFSETS)
def lists_offsets(talk: Conversation, version: int) -> None:
    def query(label: str, timestamp: int, topic: str = talk.topic, partition: int = 0, **more: Any) -> None:
        item = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": more.pop("epoch", -1)}
        talk.ask(label, replica_id=-1, topics=[{"name": topic, "partitions": [item]}], **more)

    for timestamp in (-1, -2, -3, -4, -5, -6, -9):
        query(f"at {timestamp}", timestamp)
        query(f"at {timestamp}, read committed", timestamp, isolation_level=1)
        query(f"at {timestamp} of nothing", timestamp, partition=1)
    for after in (-1, 0, 1, 15, 20, 21):
        query(f"by time, {after}", NOW + after)
    query("no such partition", -1, partition=9)
    query("no such topic", -1, topic=f"{talk.topic}-none")
    query("a future epoch", -1, epoch=9)
    query("the current epoch", -1, epoch=0)
    twice = [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}] * 2
    talk.ask("the same partition twice", replica_id=-1, topics=[{"name": talk.topic, "partitions": twice}])


@step(m.OFFSET_FOR_LEADER_EPOCH)
def looks_for_epochs(talk: Conversation, version: int) -> None:
    for label, partition, current, wanted in (
        ("the first", 0, -1, 0),
        ("of nothing", 1, -1, 0),
        ("to come", 0, -1, 5),
        ("none", 0, -1, -1),
        ("no such partition", 9, -1, 0),
        ("believing in an epoch to come", 0, 5, 0),
        ("believing in the present epoch", 0, 0, 0),
    ):
        item = {"partition": partition, "current_leader_epoch": current, "leader_epoch": wanted}
        talk.ask(label, replica_id=-1, topics=[{"topic": talk.topic, "partitions": [item]}])
    item = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    talk.ask("no such topic", replica_id=-1, topics=[{"topic": f"{talk.topic}-none", "partitions": [item]}])


@step(m.DELETE_RECORDS)
def deletes_records(talk: Conversation, version: int) -> None:
    name = talk.own("r")
    make_topic(talk, name, 2)
    produce(talk, name, batch([b"a", b"b", b"c"]))

    def cut(label: str, offset: int, topic: str = name, partition: int = 0) -> None:
        asked = {"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}
        talk.ask(label, topics=[asked], timeout=WAIT)

    cut("some", 2)
    cut("less", 1)
    cut("too many", 4)
    cut("a negative offset", -2)
    cut("of nothing", 0, partition=1)
    cut("no such partition", 0, partition=9)
    cut("no such topic", 0, topic=f"{name}-none")
    cut("all", -1)


# ---- topics


@step(m.METADATA)
def tells_metadata(talk: Conversation, version: int) -> None:
    def query(label: str, *topics: dict[str, Any], **more: Any) -> None:
        talk.ask(label, topics=list(topics), allow_auto_topic_creation=False, **more)

    query("one", {"name": talk.topic})
    query("one again and again", *[{"name": talk.topic}] * 5)
    query(
        "with operations",
        {"name": talk.topic},
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    if version:
        query("no topics")
    if version >= 4:
        query("no such topic", {"name": f"{talk.topic}-none"})
        query("no name", {"name": "a b"})
    if version >= 10:
        query("by id", {"name": None, "topic_id": talk.topic_id})
        query("no such id", {"name": None, "topic_id": _NOBODY})


@step(m.DESCRIBE_TOPIC_PARTITIONS)
def describes_partitions(talk: Conversation, version: int) -> None:
    names = [talk.topic, f"{talk.topic}-none", "a b"]
    talk.ask("some", topics=[{"name": name} for name in names])
    talk.ask("two at most", topics=[{"name": talk.topic}], response_partition_limit=2)
    for index in (0, 2, 3, 9):
        cursor = {"topic_name": talk.topic, "partition_index": index}
        talk.ask(f"from {index} on", topics=[{"name": talk.topic}], cursor=cursor)
    talk.ask("after all", topics=[{"name": talk.topic}], cursor={"topic_name": "~", "partition_index": 0})
    behind = {"topic_name": "!", "partition_index": 2}
    talk.ask("from a topic before", topics=[{"name": talk.topic}], cursor=behind)
    talk.ask("a negative place", topics=[{"name": talk.topic}], cursor={**behind, "partition_index": -1})


@step(m.CREATE_TOPICS)
def creates_topics(talk: Conversation, version: int) -> None:
    def create(label: str, name: str, partitions: int = 1, factor: int = 1, **more: Any) -> None:
        asked = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": factor,
            "assignments": [
                {"partition_index": index, "broker_ids": nodes} for index, nodes in more.pop("placed", {}).items()
            ],
            "configs": [{"name": key, "value": value} for key, value in more.pop("configs", {}).items()],
        }
        talk.ask(label, topics=[asked], timeout=WAIT, validate_only=more.pop("dry", False))

    name = talk.own("c")
    create("only asked whether", name, 2, dry=True)
    create("with settings", name, 2, configs={"retention.bytes": "5", "cleanup.policy": "compact,delete"})
    create("again", name, 2)
    for label, wrong in (("no name", ""), ("a space", "a b"), ("a dot", "."), ("too long", "x" * 250)):
        create(label, wrong)
    create("no partitions", f"{name}-2", 0)
    create("minus two partitions", f"{name}-2", -2)
    create("two replicas", f"{name}-2", 1, 2)
    create("no replicas", f"{name}-2", 1, 0)
    for label, placed in (
        ("placed", {0: [1]}),
        ("placed nowhere", {0: []}),
        ("on an unknown node", {0: [999]}),
        ("twice on a node", {0: [1, 1]}),
        ("the first one missing", {1: [1]}),
    ):
        create(label, f"{name}-2", -1, -1, placed=placed, dry=True)
    create("placed and counted", f"{name}-2", 1, 1, placed={0: [1]}, dry=True)
    for label, key, value in (
        ("no such setting", "such.a.setting", "1"),
        ("a setting that is not a number", "retention.ms", "x"),
        ("a setting out of range", "min.insync.replicas", "0"),
        ("a setting that is not a known word", "cleanup.policy", "burn"),
        ("a setting that is neither true nor false", "preallocate", "maybe"),
        ("a setting that is null", "retention.ms", None),
    ):
        create(label, f"{name}-2", configs={key: value}, dry=True)
    if version >= 4:
        create("by default", f"{name}-3", -1, -1, dry=True)
    twice = {"name": f"{name}-4", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    talk.ask("twice in a request", topics=[twice, twice], timeout=WAIT, validate_only=True)
    for label, counts, dry in (
        ("as many partitions as there are numbers", [2**31 - 1], False),
        ("as many partitions as there are numbers, only asked", [2**31 - 1], True),
        ("too many partitions", [10_001], False),
        ("too many partitions, the topic counted", [10_000], False),
        ("too many partitions in two topics", [1, 6_000, 6_000], False),
        ("a wrong number and too many partitions", [-5, 10_001], False),
        ("nearly too many partitions", [9_999], True),
    ):
        asked = [{**twice, "name": f"{name}-{index}", "num_partitions": count} for index, count in enumerate(counts, 5)]
        talk.ask(label, topics=asked, timeout=WAIT, validate_only=dry)
    for label, number in (("too many topics", 5_001), ("nearly too many topics", 5_000)):
        asked = [{**twice, "name": f"{name}-{index}"} for index in range(5, 5 + number)]
        answer = talk.do(m.CREATE_TOPICS, version, topics=asked, timeout=WAIT, validate_only=True)
        talk.record(label, (len(answer.topics), *{topic.error_code for topic in answer.topics}))


@step(m.DELETE_TOPICS)
def deletes_topics(talk: Conversation, version: int) -> None:
    name = talk.own("d")
    known = make_topic(talk, name)
    if version < 6:
        talk.ask("one", topic_names=[name], timeout=WAIT)
        talk.ask("again", topic_names=[name], timeout=WAIT)
        return
    for label, topic, topic_id in (
        ("neither name nor id", None, None),
        ("both name and id", name, known),
        ("no such id", None, _NOBODY),
        ("by id", None, known),
        ("by name, again", name, None),
    ):
        talk.ask(label, topics=[{"name": topic, "topic_id": topic_id}], timeout=WAIT)


@step(m.CREATE_PARTITIONS)
def creates_partitions(talk: Conversation, version: int) -> None:
    name = talk.own("g")
    make_topic(talk, name, 2)

    def grow(label: str, count: int, nodes: list[list[int]] | None = None, topic: str = name, dry: bool = True) -> None:
        assignments = None if nodes is None else [{"broker_ids": replicas} for replicas in nodes]
        asked = {"name": topic, "count": count, "assignments": assignments}
        talk.ask(label, topics=[asked], timeout=WAIT, validate_only=dry)

    for wanted in (3, 2, 1, 0):
        grow(f"to {wanted}", wanted)
    grow("no such topic", 3, topic=f"{name}-none")
    placements: list[list[list[int]]] = [[[1]], [[1], [1]], [[1, 1]], [[999]], [[]], []]
    for placed in placements:
        grow(f"placed on {placed}", 3, placed)
    for count in (2**31 - 1, 10_003, 10_002):
        grow(f"to {count}", count)
    twice = [{"name": name, "count": count, "assignments": None} for count in (3, 4)]
    talk.ask("twice in a request", topics=twice, timeout=WAIT, validate_only=True)
    grow("for good", 3, dry=False)
    grow("for good, again", 3, dry=False)


@step(m.ELECT_LEADERS)
def elects_leaders(talk: Conversation, version: int) -> None:
    for kind in (0, 1, 7) if version else (0,):
        for label, topic, partition in (
            ("one", talk.topic, 0),
            ("no such partition", talk.topic, 9),
            ("no such topic", f"{talk.topic}-none", 0),
        ):
            asked = [{"topic": topic, "partitions": [partition]}]
            talk.ask(f"{label}, {kind}", election_type=kind, topic_partitions=asked, timeout=WAIT)


@step(m.LIST_PARTITION_REASSIGNMENTS)
def lists_reassignments(talk: Conversation, version: int) -> None:
    talk.ask("all", topics=None)
    talk.ask("one", topics=[{"name": talk.topic, "partition_indexes": [0]}])
    talk.ask("no such topic", topics=[{"name": f"{talk.topic}-none", "partition_indexes": [0]}])
