"""Requests of a few bytes that ask for much: the node bounds what they get, and serves other clients meanwhile."""

from __future__ import annotations

import select
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.apis.records import fetch as fetch_api
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.front import server
from kafkabuf.broker.nodes.catalogue import MAX_CHANGES
from kafkabuf.broker.storage import memory
from kafkabuf.broker.waiting import slices
from kafkabuf.protocol import messages as m
from tests.broker.raw_client import RawClient, batch

POLICY_VIOLATION, INVALID_REQUEST, UNKNOWN_TOPIC, TOPIC_EXISTS = 44, 42, 3, 36
MESSAGE_TOO_LARGE = 10
BROKER = 4


class World:
    def __init__(self, **options: Any) -> None:
        self.cluster = EmbeddedCluster(**options).start()
        self.client = RawClient(self.cluster.bootstrap_servers.split(",")[0], 60)
        self.bystander = RawClient(self.cluster.bootstrap_servers.split(",")[0], 60)

    def create(self, *topics: tuple[str, int], dry: bool = False) -> list[int]:
        """The error codes."""
        answer = self.client.ask(m.CREATE_TOPICS, 4, **creation(topics, dry))
        return [int(topic.error_code) for topic in answer.topics]

    def fetch(self, *partitions: tuple[int, int], **more: Any) -> Any:
        """The whole response; `partitions` are (index, offset)."""
        items = [{"partition": index, "fetch_offset": at, "partition_max_bytes": 1 << 30} for index, at in partitions]
        values = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 30, **more}
        return self.client.ask(m.FETCH, 12, topics=[{"topic": "t", "partitions": items}], **values)

    def served_before(self, key: int, version: int, **values: Any) -> int:
        """Sends a request. Returns how many requests of another client are answered before its response comes."""
        self.bystander.ask(m.API_VERSIONS, 0)
        self.client.send(key, version, **values)
        served = 0
        # select() takes no descriptor above 1023.
        response = select.poll()
        response.register(self.client.socket, select.POLLIN)
        while not response.poll(0):
            self.bystander.ask(m.API_VERSIONS, 0)
            served += 1
        return served

    def close(self) -> None:
        self.client.socket.close()
        self.bystander.socket.close()
        self.cluster.stop()


def creation(topics: Any, dry: bool = False) -> dict[str, Any]:
    asked = [
        {"name": name, "num_partitions": count, "replication_factor": -1, "assignments": [], "configs": []}
        for name, count in topics
    ]
    return {"topics": asked, "timeout": 60_000, "validate_only": dry}


@pytest.fixture
def world() -> Iterator[World]:
    opened = World()
    yield opened
    opened.close()


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A quick machine does a work of thousands of steps in a few slices of the usual length. The thread of the test
    would wait for the GIL for as long as a slice, too."""
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0005)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    yield
    sys.setswitchinterval(interval)


# ---- topics


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize(
    "counts", [[2**31 - 1], [MAX_CHANGES + 1], [MAX_CHANGES], [1, 6000, 6000], [-1, 2**31 - 1]], ids=str
)
def test_request_for_too_many_partitions_creates_nothing(world: World, counts: list[int], dry: bool) -> None:
    topics = [(f"t{index}", count) for index, count in enumerate(counts)]
    assert world.create(*topics, dry=dry) == [POLICY_VIOLATION] * len(counts)
    assert world.cluster.topics() == {}


def test_request_for_too_many_topics_creates_nothing(world: World) -> None:
    topics = [(f"t{index}", 1) for index in range(MAX_CHANGES // 2 + 1)]
    assert set(world.create(*topics)) == {POLICY_VIOLATION}
    assert world.create(*topics[1:], dry=True) == [0] * (MAX_CHANGES // 2)
    assert world.cluster.topics() == {}


def test_topic_does_not_grow_by_too_many_partitions(world: World) -> None:
    world.cluster.create_topic("t", 2)
    world.cluster.create_topic("u", 2)

    def grow(*topics: tuple[str, int], dry: bool = False) -> list[int]:
        asked = [{"name": name, "count": count, "assignments": None} for name, count in topics]
        answer = world.client.ask(m.CREATE_PARTITIONS, 3, topics=asked, timeout=1000, validate_only=dry)
        return [int(topic.error_code) for topic in answer.results]

    assert grow(("t", 2**31 - 1)) == grow(("t", MAX_CHANGES + 3), dry=True) == [POLICY_VIOLATION]
    assert grow(("t", MAX_CHANGES + 2), dry=True) == [0]
    assert grow(("t", 3), ("u", MAX_CHANGES + 2)) == [0, POLICY_VIOLATION]
    assert grow(("u", 3), ("u", 4)) == [INVALID_REQUEST]
    assert world.cluster.topics() == {"t": 3, "u": 2}


def test_metadata_creates_no_topic_if_it_names_too_many(world: World) -> None:
    names = [{"name": f"t{index}"} for index in range(MAX_CHANGES // 2 + 1)]
    answer = world.client.ask(m.METADATA, 9, topics=names, allow_auto_topic_creation=True)
    assert {int(topic.error_code) for topic in answer.topics} == {UNKNOWN_TOPIC}
    assert world.cluster.topics() == {}
    answer = world.client.ask(m.METADATA, 9, topics=names[:2], allow_auto_topic_creation=True)
    assert [int(topic.error_code) for topic in answer.topics] == [0, 0]


def test_others_are_served_while_topics_come_and_go(short_slices: None) -> None:
    world = World(brokers=3)
    names = [f"n{index}" for index in range(300)]
    try:
        assert world.served_before(m.CREATE_TOPICS, 7, **creation([("t", 3000)])) > 2
        assert world.client.receive(m.CREATE_TOPICS, 7).topics[0].error_code == 0
        asked = [{"name": "t", "count": 5000, "assignments": None}]
        assert world.served_before(m.CREATE_PARTITIONS, 3, topics=asked, timeout=1, validate_only=False) > 2
        assert world.client.receive(m.CREATE_PARTITIONS, 3).results[0].error_code == 0
        assert world.served_before(m.METADATA, 9, topics=[{"name": name} for name in names]) > 2
        assert {topic.error_code for topic in world.client.receive(m.METADATA, 9).topics} == {0}
        assert world.served_before(m.DELETE_TOPICS, 5, topic_names=["t", *names], timeout=1) > 2
        assert {topic.error_code for topic in world.client.receive(m.DELETE_TOPICS, 5).responses} == {0}
        assert world.cluster.topics() == {}
    finally:
        world.close()


def test_others_are_served_while_markers_are_written(world: World, short_slices: None) -> None:
    """Another client sees the log grow."""
    world.cluster.create_topic("t", 1)
    marker = {"producer_id": 1, "producer_epoch": 0, "coordinator_epoch": 0, "transaction_result": False}
    markers = [{**marker, "topics": [{"name": "t", "partition_indexes": [0] * 100}]}] * 100
    end = [{"name": "t", "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}]
    world.client.send(m.WRITE_TXN_MARKERS, 1, markers=markers)
    seen = {0}
    while max(seen) < 10_000:
        seen.add(world.bystander.ask(m.LIST_OFFSETS, 5, topics=end).topics[0].partitions[0].offset)
    assert len(seen) > 3
    answer = world.client.receive(m.WRITE_TXN_MARKERS, 1)
    assert {part.error_code for marker in answer.markers for part in marker.topics[0].partitions} == {0}


def test_two_requests_for_one_topic_create_it_once(world: World) -> None:
    """The second request comes while the first is carried out, and then finds the topic. So does a deletion."""
    world.client.send(m.CREATE_TOPICS, 7, **creation([("t", 9000)]))
    again = world.bystander.ask(m.CREATE_TOPICS, 7, **creation([("t", 1)]))
    assert again.topics[0].error_code == TOPIC_EXISTS
    assert world.client.receive(m.CREATE_TOPICS, 7).topics[0].error_code == 0
    world.client.send(
        m.CREATE_PARTITIONS,
        3,
        topics=[{"name": "t", "count": 18_000, "assignments": None}],
        timeout=1,
        validate_only=False,
    )
    deleted = world.bystander.ask(m.DELETE_TOPICS, 5, topic_names=["t"], timeout=1)
    assert deleted.responses[0].error_code == 0
    assert world.client.receive(m.CREATE_PARTITIONS, 3).results[0].error_code == 0
    assert world.cluster.topics() == {}
    world.cluster.create_topic("t", 2)
    assert world.client.produce("t", batch([b"x"]), partition=1).base_offset == 0


def test_topic_is_created_for_a_client_that_goes_away(world: World) -> None:
    world.client.send(m.CREATE_TOPICS, 7, **creation([("t", 9000)]))
    world.client.socket.close()
    again = world.bystander.ask(m.CREATE_TOPICS, 7, **creation([("t", 1)]))
    assert again.topics[0].error_code == TOPIC_EXISTS
    assert world.cluster.topics() == {"t": 9000}


def test_records_are_replicated_in_a_topic_of_thousands_of_partitions() -> None:
    world = World(brokers=3)
    try:
        world.cluster.create_topic("t", 2000)
        leader, _ = world.cluster.leader("t", 1999)
        with RawClient(world.cluster.bootstrap_servers.split(",")[leader - 1], 60) as client:
            assert client.produce("t", batch([b"x"]), partition=1999).error_code == 0
    finally:
        world.close()


def set_for_all_nodes(client: RawClient, name: str, value: str) -> None:
    configs = [{"name": name, "config_operation": 0, "value": value}]
    resources = [{"resource_type": BROKER, "resource_name": "", "configs": configs}]
    answer = client.ask(m.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=False)
    assert [int(response.error_code) for response in answer.responses] == [0]


def test_topic_in_the_making_gets_the_settings_that_change_meanwhile(world: World, short_slices: None) -> None:
    world.client.send(m.CREATE_TOPICS, 7, **creation([("t", 9000)]))
    set_for_all_nodes(world.bystander, "message.max.bytes", "100")
    assert world.cluster.topics() == {}, "the topic is not there yet"
    assert world.client.receive(m.CREATE_TOPICS, 7).topics[0].error_code == 0
    assert world.client.produce("t", batch([b"x" * 200])).error_code == MESSAGE_TOO_LARGE


def test_setting_of_all_nodes_reaches_the_topics_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_STEPS", 1)
    for index in range(3):
        world.cluster.create_topic(f"t{index}")

    def change(cluster: Cluster) -> list[str | None]:
        """The setting in each topic after the first slice."""
        configs = {**cluster.node_configs.dynamic(""), "message.max.bytes": "100"}
        cluster.node_configs.replace("", configs, dry_run=False)
        return [topic.defaults.get("max.message.bytes") for topic in cluster.catalogue.topics.values()]

    assert world.cluster._call(change) == ["100", None, None]
    deadline = time.monotonic() + 30
    while world.client.produce("t2", batch([b"x" * 200])).error_code != MESSAGE_TOO_LARGE:
        assert time.monotonic() < deadline


# ---- repeats


def test_repeated_topic_is_described_once(world: World) -> None:
    world.cluster.create_topic("t", 100)
    answer = world.client.ask(m.METADATA, 9, topics=[{"name": "t"}] * 1000)
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("t", 100)]
    resources = [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}] * 1000
    assert len(world.client.ask(m.DESCRIBE_CONFIGS, 4, resources=resources).results) == 1
    numbers = [
        {"resource_type": BROKER, "resource_name": name, "configuration_keys": None} for name in ("1", "01", "+1")
    ]
    assert len(world.client.ask(m.DESCRIBE_CONFIGS, 4, resources=numbers).results) == 1
    assert len(world.client.ask(m.DESCRIBE_GROUPS, 5, groups=["g"] * 1000).groups) == 1
    groups = [{"group_id": "g", "topics": None}] * 1000
    assert len(world.client.ask(m.OFFSET_FETCH, 8, groups=groups).groups) == 1


def test_repeated_partition_of_a_fetch_is_sent_once(world: World) -> None:
    world.cluster.create_topic("t", 2)
    for _ in range(3):
        world.client.produce("t", batch([b"x" * 1000]))
    once = world.fetch((0, 0)).responses[0].partitions[0].records
    answer = world.fetch(*[(0, 0)] * 500, (1, 0), (0, 0))
    assert [(part.partition_index, len(part.records or b"")) for part in answer.responses[0].partitions] == [
        (0, len(once)),
        (1, 0),
    ]
    assert [len(part.records or b"") for part in world.fetch((0, 0), (0, 3)).responses[0].partitions] == [0], "the last"


# ---- Fetch


def test_fetch_gets_no_more_than_the_node_allows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.cluster.create_topic("t", 10)
    for index in range(10):
        world.client.produce("t", batch([b"x" * 1000]), partition=index)
    size = len(world.fetch((0, 0)).responses[0].partitions[0].records)
    monkeypatch.setattr(fetch_api, "FETCH_MAX_BYTES", 3 * size)
    # Ten partitions have more than the node sends at once: min_bytes asks for more than there can ever be.
    answer = world.fetch(*[(index, 0) for index in range(10)], min_bytes=1 << 30, max_wait=3_600_000)
    assert sum(len(part.records or b"") for part in answer.responses[0].partitions) == 3 * size


def test_fetch_of_tiny_batches_ends_after_a_number_of_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_BUFFERS", 7)
    world.cluster.create_topic("t")
    for _ in range(20):
        world.client.produce("t", batch([b""]))
    size = len(batch([b""]))
    lengths = [len(world.fetch((0, offset)).responses[0].partitions[0].records) for offset in (0, 7, 14)]
    assert lengths == [7 * size, 7 * size, 6 * size]


def test_large_response_is_cut_without_a_copy() -> None:
    large, small = bytes(3 * server._PIECE), [bytes([index]) * 1000 for index in range(100)]
    buffers = (b"head", *small, large, b"tail")
    pieces = list(server._cut(buffers, 1 << 30))
    assert b"".join(map(bytes, pieces)) == b"".join(buffers)
    assert max(map(len, pieces)) <= server._PIECE
    of_large = [piece for piece in pieces if isinstance(piece, memoryview)]
    assert sum(map(len, of_large)) == len(large)
    assert all(piece.obj is large for piece in of_large)
    assert b"".join(map(bytes, server._cut(buffers, 1234))) == b"".join(buffers)[:1234]


def test_large_response_arrives_whole(world: World) -> None:
    world.cluster.create_topic("t")
    values = [bytes([index]) * 900_000 for index in range(12)]
    for value in values:
        world.client.produce("t", batch([value]))
    records = world.fetch((0, 0)).responses[0].partitions[0].records
    stored = world.cluster.records("t", 0)
    assert bytes(records) == b"".join(stored)
    assert world.client.ask(m.API_VERSIONS, 0).error_code == 0, "the connection goes on"


def test_response_is_cut_at_the_byte_that_a_test_asks_for(world: World) -> None:
    world.cluster.create_topic("t")
    world.client.produce("t", batch([b"x" * 900_000]))
    world.cluster.cut_after(700_000, sent=True)
    item = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 30}
    world.client.send(
        m.FETCH, 12, max_wait=0, min_bytes=1, max_bytes=1 << 30, topics=[{"topic": "t", "partitions": [item]}]
    )
    (length,) = struct.unpack(">i", world.client._receive(4) or b"")
    assert length > 900_000
    assert world.client._receive(700_000 - 4) is not None
    assert world.client._receive(1) is None


# ---- many partitions in one request


def test_others_are_served_between_the_partitions_of_a_produce_request(world: World, short_slices: None) -> None:
    count = 5000
    world.cluster.create_topic("t", count)
    data = [{"index": index, "records": batch([b"x"])} for index in range(count)]
    served = world.served_before(m.PRODUCE, 9, acks=1, timeout=1, topic_data=[{"name": "t", "partition_data": data}])
    answer = world.client.receive(m.PRODUCE, 9)
    assert served > 2
    assert {int(part.error_code) for part in answer.responses[0].partition_responses} == {0}
    assert set(world.cluster.end_offsets("t").values()) == {1}


def test_others_are_served_between_the_partitions_of_an_ending_transaction(world: World, short_slices: None) -> None:
    count = 5000
    world.cluster.create_topic("t", count)
    ids = {"transactional_id": "tx"}
    producer = world.client.ask(m.INIT_PRODUCER_ID, 4, **ids, transaction_timeout=60_000)
    ids |= {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    added = {**ids, "topics": [{"name": "t", "partitions": list(range(count))}]}
    world.client.ask(m.ADD_PARTITIONS_TO_TXN, 3, **{f"v3_and_below_{name}": value for name, value in added.items()})
    assert world.served_before(m.END_TXN, 3, **ids, committed=True) > 2
    assert world.client.receive(m.END_TXN, 3).error_code == 0
    assert set(world.cluster.end_offsets("t").values()) == {1}


def test_records_cut_off_one_by_one_cost_no_look_at_every_partition() -> None:
    """The followers wait for all partitions in one request. Each partition whose records go asks whether it still
    waits: 3,000 questions about 1,000 partitions would take seconds."""
    world = World(brokers=2)
    try:
        world.cluster.create_topic("t", 3000)
        partitions = [{"partition_index": index, "offset": 0} for index in range(3000)]
        before = world.cluster._call(_cpu)
        answer = world.client.ask(m.DELETE_RECORDS, 2, topics=[{"name": "t", "partitions": partitions}], timeout=1)
        assert len(answer.topics[0].partitions) == 3000
        assert world.cluster._call(_cpu) - before < 5
    finally:
        world.close()


def _cpu(_: Any) -> float:
    return time.thread_time()


def test_commit_to_what_does_not_exist_makes_no_group(world: World) -> None:
    """As in Kafka, the error for the partition comes before that of the group."""
    world.cluster.create_topic("t", 1)
    for name, index, generation in (("other", 0, -1), ("t", 1, -1), ("t", 1, 7)):
        partitions = [{"partition_index": index, "committed_offset": 1, "committed_metadata": ""}]
        values = {"group_id": "g", "generation_id_or_member_epoch": generation, "member_id": ""}
        answer = world.client.ask(m.OFFSET_COMMIT, 8, topics=[{"name": name, "partitions": partitions}], **values)
        assert answer.topics[0].partitions[0].error_code == UNKNOWN_TOPIC
    assert world.client.ask(m.LIST_GROUPS, 4).groups == ()
