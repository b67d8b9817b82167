"""The broker byte by byte: Produce and Fetch against kio's schemas, stored bytes, error codes."""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from kio.serial import entity_writer

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.wire import fetch, produce
from kafkabuf.broker.wire._partition_result import PartitionResult
from kafkabuf.errors import InvalidRequestError
from kafkabuf.protocol import messages
from kafkabuf.protocol.messages import RequestHeader
from tests.broker.raw_client import NOW, RawClient, batch, message
from tests.waiting import wait_until

TOPIC_ID = UUID(int=77)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(verify_records=True) as one:
        one.create_topic("t", 2)
        yield one


# ---- the hand-written codecs against kio's


def header(api_key: int, version: int) -> RequestHeader:
    size = len(messages.encode_request_header(api_key, version, 5, "c"))
    return RequestHeader(api_key, version, 5, "c", size)


@pytest.mark.parametrize("version", range(3, produce.MAX_VERSION + 1))
def test_produce_request_is_read_as_kio_wrote_it(version: int) -> None:
    by_id = version >= produce.FIRST_TOPIC_ID
    names: list[str | UUID] = [UUID(int=n) for n in (1, 2, 3)] if by_id else ["a", "ü", "none"]
    partitions = [[{"index": 3, "records": b"xyz"}, {"index": 4, "records": None}], [{"index": 0, "records": b""}], []]
    topics = [
        {"topic_id" if by_id else "name": name, "partition_data": data}
        for name, data in zip(names, partitions, strict=True)
    ]
    entity = messages.build_request(0, version, transactional_id="tx", acks=-1, timeout=30_000, topic_data=topics)
    frame = messages.encode_request(0, version, 5, "c", entity)
    found = produce.decode_request(frame, messages.decode_request_header(frame))
    assert (found.transactional_id, found.acks, found.timeout_ms) == ("tx", -1, 30_000)
    assert found.topics == [(names[0], [(3, b"xyz"), (4, None)]), (names[1], [(0, b"")]), (names[2], [])]
    for size in range(header(0, version).size, len(frame)):
        with pytest.raises(InvalidRequestError):
            produce.decode_request(frame[:size], header(0, version))
    with pytest.raises(InvalidRequestError):
        produce.decode_request(frame + b"\0", header(0, version))


@pytest.mark.parametrize("version", range(3, produce.MAX_VERSION + 1))
def test_produce_response_is_read_by_kio(version: int) -> None:
    results = [
        PartitionResult(3, 0, 1234, -1, 17),
        PartitionResult(4, 6, error_message="elsewhere", leader=(7, 3), record_errors=[(0, "bad"), (9, "")]),
    ]
    by_id = version >= produce.FIRST_TOPIC_ID
    names: list[str | UUID] = [UUID(int=1), UUID(int=2)] if by_id else ["a", "b"]
    response = produce.ProduceResponse([(names[0], results), (names[1], [])], [(7, "hö", 9092), (8, "h" * 200, 1)])
    frame = produce.encode_response(header(0, version), response, 9)
    correlation_id, entity = messages.decode_response(0, version, frame)
    assert correlation_id == 5
    assert [topic.topic_id if by_id else topic.name for topic in entity.responses] == names
    first, second = entity.responses[0].partition_responses
    assert (first.index, first.error_code, first.base_offset, first.log_append_time) == (3, 0, 1234, None)
    assert (second.index, second.error_code, second.base_offset) == (4, 6, -1)
    if version >= 5:
        assert (first.log_start_offset, second.log_start_offset) == (17, -1)
    if version >= 8:
        assert (first.error_message, second.error_message) == (None, "elsewhere")
        errors = [(one.batch_index, one.batch_index_error_message) for one in second.record_errors]
        assert (first.record_errors, errors) == ((), [(0, "bad"), (9, "")])
    if version >= 10:
        hints = [(one.current_leader.leader_id, one.current_leader.leader_epoch) for one in (first, second)]
        assert hints == [(-1, -1), (7, 3)]
        found = [(one.node_id, one.host, one.port, one.rack) for one in entity.node_endpoints]
        assert found == [(7, "hö", 9092, None), (8, "h" * 200, 1, None)]
    assert entity.throttle_time.total_seconds() == 0.009


def fetch_topic(version: int) -> dict[str, Any]:
    return {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "tü"}


@pytest.mark.parametrize("version", range(fetch.MIN_VERSION, fetch.MAX_VERSION + 1))
def test_fetch_request_is_read_as_kio_wrote_it(version: int) -> None:
    partition = {"partition": 6, "current_leader_epoch": 8, "fetch_offset": 2**40, "partition_max_bytes": 99}
    entity = messages.build_request(
        1,
        version,
        max_wait=500,
        min_bytes=2,
        max_bytes=1000,
        isolation_level=1,
        session_id=11,
        session_epoch=12,
        topics=[{**fetch_topic(version), "partitions": [partition]}],
        forgotten_topics_data=[{**fetch_topic(version), "partitions": [1, 2]}],
        rack_id="r",
        cluster_id="tagged",
    )
    frame = messages.encode_request(1, version, 5, "c", entity)
    found = fetch.decode_request(frame, messages.decode_request_header(frame))
    assert (found.max_wait_ms, found.min_bytes, found.max_bytes, found.isolation_level) == (500, 2, 1000, 1)
    assert (found.session_id, found.session_epoch) == ((11, 12) if version >= 7 else (0, -1))
    epoch = 8 if version >= 9 else -1
    topic = TOPIC_ID if version >= 13 else "tü"
    assert found.topics == [(topic, [fetch.FetchPartition(6, epoch, 2**40, 99)])]
    for size in range(header(1, version).size, len(frame)):
        with pytest.raises(InvalidRequestError):
            fetch.decode_request(frame[:size], header(1, version))


@pytest.mark.parametrize("version", range(fetch.MIN_VERSION, fetch.MAX_VERSION + 1))
def test_fetch_response_is_read_by_kio(version: int) -> None:
    topic: str | UUID = TOPIC_ID if version >= 13 else "tü"
    partitions = [
        fetch.FetchedPartition(1, 0, 50, 40, 7, [(5, 33), (6, 44)], [b"abc", bytearray(b"defg")], 7),
        fetch.FetchedPartition(2, 6),
        fetch.FetchedPartition(3, 0, 5, 5, 5, []),
    ]
    frame = b"".join(fetch.encode_response(header(1, version), [(topic, partitions)]))
    _, entity = messages.decode_response(1, version, frame)
    one, two, three = entity.responses[0].partitions
    assert (one.partition_index, one.error_code, one.high_watermark, one.last_stable_offset) == (1, 0, 50, 40)
    assert [(each.producer_id, each.first_offset) for each in one.aborted_transactions] == [(5, 33), (6, 44)]
    assert (two.aborted_transactions, three.aborted_transactions) == (None, ())
    assert (one.records, two.records, three.records) == (b"abcdefg", b"", b"")
    assert (two.partition_index, two.error_code, three.high_watermark) == (2, 6, 5)
    if version >= 5:
        assert one.log_start_offset == 7


# ---- Produce


@pytest.mark.parametrize("version", range(3, produce.FIRST_TOPIC_ID))
def test_stored_bytes_are_those_sent(cluster: EmbeddedCluster, client: RawClient, version: int) -> None:
    sent = [batch([b"a", b"b"]), batch([None])]
    assert [client.produce("t", data, version=version).base_offset for data in sent] == [0, 2]
    stored = cluster.records("t", 0)
    assert [one[:16] for one in stored] == [
        struct.pack(">qii", 0, len(sent[0]) - 12, 0),
        struct.pack(">qii", 2, len(sent[1]) - 12, 0),
    ]
    assert [one[16:] for one in stored] == [one[16:] for one in sent]
    assert (cluster.end_offset("t", 0), cluster.end_offset("t", 1)) == (3, 0)


def test_message_sets_get_their_offsets(cluster: EmbeddedCluster, client: RawClient) -> None:
    inner = b"".join(message(b"in%d" % n, offset=n) for n in range(3))
    data = message(b"zero", magic=0) + message(b"one", key=b"k") + message(gzip.compress(inner), attributes=1)
    assert client.produce_v2("t", data) == (0, 0)
    assert client.produce_v2("t", message(b"last")) == (0, 5)
    assert cluster.end_offset("t", 0) == 6
    got = client.fetch("t", 0).records
    first_two = message(b"zero", magic=0, offset=0) + message(b"one", key=b"k", offset=1)
    wrapper = message(gzip.compress(inner), attributes=1, offset=4)
    assert got == first_two + wrapper + message(b"last", offset=5)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, 87),
        (b"", 87),
        (batch([b"x"])[:-1], 2),
        (batch([b"x"])[:-1] + b"!", 2),
        (batch([b"x"], count=2), 87),
        (batch([b"x" * 1_048_588]), 10),
        (batch([b"x"], attributes=7), 76),
        (batch([b"x"], timestamps=[2**62]), 32),
        (batch([b"x"], body=b"\x02"), 87),
        (message(b"old"), 87),
    ],
)
def test_bad_records_are_refused_with_the_right_code(
    cluster: EmbeddedCluster, client: RawClient, records: bytes | None, code: int
) -> None:
    answer = client.produce("t", records)
    assert (answer.error_code, answer.base_offset) == (code, -1)
    assert answer.error_message
    assert cluster.end_offset("t", 0) == 0
    assert client.produce("t", batch([b"x"])).error_code == 0


def test_bad_partition_leaves_the_others_written(cluster: EmbeddedCluster, client: RawClient) -> None:
    wrong = batch([b"x"])[:-1] + b"!"
    partitions = [{"index": 0, "records": wrong}, {"index": 1, "records": batch([b"y"])}, {"index": 2, "records": b""}]
    topics = [{"name": "t", "partition_data": partitions}, {"name": "no", "partition_data": partitions[1:2]}]
    answer = client.ask(0, 9, acks=1, timeout=1000, topic_data=topics)
    assert [one.error_code for one in answer.responses[0].partition_responses] == [2, 0, 3]
    assert [one.error_code for one in answer.responses[1].partition_responses] == [3]
    assert cluster.end_offsets("t") == {0: 0, 1: 1}


def test_produce_without_acks_gets_no_response(cluster: EmbeddedCluster, client: RawClient) -> None:
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
    client.send(0, 9, acks=0, timeout=1000, topic_data=data)
    assert client.ask(18, 0).error_code == 0
    assert cluster.end_offset("t", 0) == 1


def test_error_without_acks_closes_the_connection(cluster: EmbeddedCluster, client: RawClient) -> None:
    data = [{"name": "t", "partition_data": [{"index": 0, "records": b"junk"}]}]
    client.send(0, 9, acks=0, timeout=1000, topic_data=data)
    assert client.closed()


def test_acks_of_two_are_refused(client: RawClient) -> None:
    assert client.produce("t", batch([b"x"]), acks=2).error_code == 21


def test_topic_limit_overrides_that_of_the_cluster(cluster: EmbeddedCluster, client: RawClient) -> None:
    cluster.create_topic("small", configs={"max.message.bytes": "100"})
    assert client.produce("small", batch([b"x"])).error_code == 0
    assert client.produce("small", batch([b"x" * 100])).error_code == 10


def test_every_idempotent_producer_gets_its_own_id(client: RawClient) -> None:
    ids = [client.ask(22, version, transaction_timeout=1000).producer_id for version in range(6)]
    assert len(set(ids)) == 6
    again = client.ask(22, 5, transaction_timeout=1000, producer_id=ids[0], producer_epoch=4)
    assert (again.producer_id in ids, again.producer_epoch) == (False, 0)
    assert client.produce("t", batch([b"x"], producer=(ids[0], 0, 0))).error_code == 0


# ---- Fetch and ListOffsets


def test_fetch_limits_hold(client: RawClient) -> None:
    data = [batch([b"%d" % n * 100]) for n in range(3)]
    for one in data:
        client.produce("t", one)
    size = len(data[0])
    assert len(client.fetch("t", 0).records) == 3 * size
    assert len(client.fetch("t", 1).records) == 2 * size
    assert len(client.fetch("t", 0, partition_max_bytes=2 * size + 1).records) == 2 * size
    assert len(client.fetch("t", 0, max_bytes=2 * size - 1).records) == size
    assert len(client.fetch("t", 0, max_bytes=1, partition_max_bytes=1).records) == size


@pytest.mark.parametrize(
    ("max_bytes", "expected"), [(200, [1, 1]), (199, [1, 0]), (100, [1, 0]), (1, [1, 0]), (0, [1, 0])]
)
def test_fetch_limit_is_shared_by_all_partitions(client: RawClient, max_bytes: int, expected: list[int]) -> None:
    data = batch([b"x" * 32])
    assert len(data) == 100
    for index in range(2):
        client.produce("t", data, partition=index)
    wanted = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 1000} for index in range(2)]
    topics = [{"topic": "t", "partitions": wanted}]
    answer = client.ask(1, 12, max_wait=0, min_bytes=1, max_bytes=max_bytes, topics=topics)
    assert [len(one.records) // len(data) for one in answer.responses[0].partitions] == expected


def test_fetch_out_of_range_is_refused(cluster: EmbeddedCluster, client: RawClient) -> None:
    client.produce("t", batch([b"x"]))
    assert [client.fetch("t", offset).error_code for offset in (-1, 0, 1, 2)] == [1, 0, 0, 1]
    assert client.fetch("t", 0, partition=5).error_code == 3
    assert client.fetch("no", 0).error_code == 3
    assert client.fetch("t", 0, current_leader_epoch=0).error_code == 0
    assert client.fetch("t", 0, current_leader_epoch=1).error_code == 75
    cluster.create_topic("trimmed", configs={"retention.bytes": "1"})
    for _ in range(2):
        client.produce("trimmed", batch([b"x"]))
    assert [client.fetch("trimmed", offset).error_code for offset in (0, 1)] == [1, 0]
    assert client.fetch("trimmed", 1).log_start_offset == 1


def test_fetch_by_topic_id_finds_the_topic(client: RawClient) -> None:
    client.produce("t", batch([b"x"]))
    topic_id = client.ask(3, 12, topics=[{"name": "t"}]).topics[0].topic_id
    for wanted, code in ((topic_id, 0), (TOPIC_ID, 100)):
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        answer = client.ask(
            1, 16, max_wait=0, min_bytes=1, max_bytes=1000, topics=[{"topic_id": wanted, "partitions": [partition]}]
        )
        assert answer.responses[0].topic_id == wanted
        assert answer.responses[0].partitions[0].error_code == code


def test_fetch_session_is_never_opened(client: RawClient) -> None:
    values: dict[str, Any] = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "topics": []}
    assert client.ask(1, 12, session_epoch=0, **values).session_id == 0
    assert client.ask(1, 12, session_id=5, session_epoch=1, **values).error_code == 70


def test_long_poll_waits_for_enough_bytes(cluster: EmbeddedCluster, client: RawClient) -> None:
    data = batch([b"x"])
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000}
    topics = [{"topic": "t", "partitions": [partition]}]
    began = time.monotonic()
    client.send(1, 12, max_wait=9_000, min_bytes=2 * len(data), max_bytes=10_000, topics=topics)
    with RawClient(cluster.bootstrap_servers) as other:
        other.produce("t", data)
        client.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(10)
        other.produce("t", data)
    assert len(client.receive(1, 12).responses[0].partitions[0].records) == 2 * len(data)
    assert time.monotonic() - began < 5


def test_long_poll_ends_with_its_leader(client: RawClient) -> None:
    with EmbeddedCluster(brokers=2) as two:
        two.create_topic("t")
        leader, _ = two.leader("t", 0)
        addresses = {number: f"{host}:{port}" for number, (host, port, _) in two.nodes().items()}
        with RawClient(addresses[leader]) as one:
            partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000}
            one.send(
                1, 12, max_wait=9_000, min_bytes=1, max_bytes=1000, topics=[{"topic": "t", "partitions": [partition]}]
            )
            time.sleep(0.02)
            two.move_leader("t", 0, 3 - leader)
            one.socket.settimeout(5)
            assert one.receive(1, 12).responses[0].partitions[0].error_code == 6


def test_parked_request_ends_with_its_connection(cluster: EmbeddedCluster) -> None:
    def parked() -> int:
        return cluster._call(lambda state: state.nodes[1].fetches.delayed)

    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}
    with RawClient(cluster.bootstrap_servers) as client:
        topics = [{"topic": "t", "partitions": [partition]}]
        client.send(1, 12, max_wait=600_000, min_bytes=1, max_bytes=1, topics=topics)
        wait_until(lambda: parked() == 1)
    wait_until(lambda: parked() == 0)


def list_offset(client: RawClient, timestamp: int, version: int = 8, partition: int = 0) -> Any:
    wanted = {"partition_index": partition, "timestamp": timestamp}
    return client.ask(2, version, topics=[{"name": "t", "partitions": [wanted]}]).topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 9))
def test_list_offsets_finds_each_timestamp(client: RawClient, version: int) -> None:
    client.produce("t", batch([b"a", b"b", b"c"], timestamps=[NOW, NOW + 20, NOW + 10]))
    client.produce("t", batch([b"d"], timestamps=[NOW + 15]))
    asked = {-1: 4, -2: 0, NOW: 0, NOW + 1: 1, NOW + 21: -1, 0: 0}
    if version >= 7:
        asked[-3] = 1
    if version >= 8:
        asked[-4] = 0
    assert {timestamp: list_offset(client, timestamp, version).offset for timestamp in asked} == asked
    assert list_offset(client, NOW + 1, version).timestamp == NOW + 20
    assert list_offset(client, -1, version, partition=9).error_code == 3


def test_kio_has_its_own_writer(client: RawClient) -> None:
    """The codec tests use kio's writer as their oracle: it must not be our own."""
    assert entity_writer.__module__.startswith("kio.")
