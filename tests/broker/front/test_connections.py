"""The broker's connections: hostile frames, large frames, slow readers, the order of responses."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
import struct
import threading
import time
import warnings
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster, apis
from kafkabuf.broker.apis.dispatch import APIS, PendingResponse, dispatch
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.front.server import Connection
from kafkabuf.clock import SystemClock
from kafkabuf.errors import KafkaError
from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient, batch
from tests.protocol.test_messages import sample


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(verify_records=True) as one:
        one.create_topic("t", 2)
        yield one


def hostile_frames() -> list[tuple[str, bytes, str]]:
    def frame(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    body = messages.encode_request(3, 9, 1, "x", messages.build_request(3, 9, topics=[]))
    counts = messages.encode_request_header(3, 9, 1, "x") + b"\xff\xff\xff\xff\x07"
    produce_count = messages.encode_request_header(0, 9, 1, "x") + b"\0\xff\xff\0\0\0\0" + b"\xff\xff\xff\xff\x07"
    negative = messages.encode_request_header(0, 3, 1, "x") + struct.pack(">hhii", -1, -1, 0, -2)
    return [
        ("negative length", struct.pack(">i", -1), "0 to 104857600 are allowed"),
        ("huge length", struct.pack(">i", 2**31 - 1), "0 to 104857600 are allowed"),
        ("one byte too long", struct.pack(">i", 100 * 1024 * 1024 + 1), "0 to 104857600 are allowed"),
        ("empty", frame(b""), "its header alone takes more"),
        ("short header", frame(b"\0\3\0\1\0"), "its header alone takes more"),
        ("unknown key", frame(struct.pack(">hhih", 9999, 0, 1, -1)), "API key 9999 is not served"),
        ("negative key", frame(struct.pack(">hhih", -1, 0, 1, -1)), "API key -1 is not served"),
        ("unknown version", frame(struct.pack(">hhih", 3, 99, 1, -1)), "versions 0 to 13 are served"),
        ("negative version", frame(struct.pack(">hhih", 3, -1, 1, -1)), "versions 0 to 13 are served"),
        ("client id beyond the frame", frame(struct.pack(">hhih", 3, 1, 1, 500)), "malformed request header"),
        ("client id no text", frame(struct.pack(">hhih", 3, 1, 1, 1) + b"\xff"), "malformed request header"),
        ("truncated body", frame(body[:-2]), "malformed metadata v9"),
        ("count beyond the frame", frame(counts), "malformed metadata v9"),
        ("produce count beyond the frame", frame(produce_count), "malformed produce v9"),
        ("negative produce count", frame(negative), "malformed produce v3"),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "0 to 1048576 are allowed"),
    ]


@pytest.mark.parametrize(("name", "data", "reason"), hostile_frames())
def test_hostile_frame_closes_only_its_own_connection(
    cluster: EmbeddedCluster, client: RawClient, caplog: pytest.LogCaptureFixture, name: str, data: bytes, reason: str
) -> None:
    with caplog.at_level(logging.WARNING, "kafkabuf.broker"), RawClient(cluster.bootstrap_servers) as hostile:
        hostile.socket.sendall(data)
        hostile.socket.settimeout(5)
        assert hostile.closed()
    assert reason in caplog.text
    assert client.ask(18, 0).error_code == 0


def damaged(frame: bytes, random: Random) -> bytes:
    """`frame` with up to three bytes changed behind the version, or cut short, or longer."""
    out = bytearray(frame)
    for _ in range(random.randrange(4)):
        out[random.randrange(4, len(out))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
    kind = random.randrange(4)
    return bytes(out[: random.randrange(4, len(out))] if kind == 0 else out + b"\0\1" if kind == 1 else out)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_request_raises_nothing_but_kafka_errors(seed: int) -> None:
    async def body() -> None:
        cluster = Cluster(ClusterConfig(max_message_bytes=1_000_000, verify_records=True), SystemClock(), loop())
        await cluster.start()
        cluster.catalogue.create_topic("t")
        random = Random(seed)
        for frame in sample_frames():
            for _ in range(20):
                try:
                    _, answer = dispatch(cluster.nodes[1], damaged(frame, random))
                except KafkaError:
                    continue
                if isinstance(answer, PendingResponse):
                    answer.give_up()
        await cluster.stop()

    def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    apis.load()
    asyncio.run(body())


def sample_frames() -> list[bytes]:
    """A request of every API and version that the broker serves, with a value in each field."""
    frames = []
    for one in APIS.values():
        for version in range(max(one.min_version, 3 if one.key == 0 else 0), one.max_version + 1):
            entity = sample(messages.request_class(one.key, version), filled=True)
            if one.key == messages.PRODUCE:
                data = [{"name": "t", "partition_data": [{"index": 0, "records": batch([b"x", None])}]}]
                entity = messages.build_request(0, version, acks=-1, timeout=7, topic_data=data)
            frames.append(messages.encode_request(one.key, version, 1, "c", entity))
    return frames


def test_unsupported_version_of_api_versions_gets_the_supported_versions(client: RawClient) -> None:
    client.send_frame(struct.pack(">hhih", 18, 99, 6, -1) + b"\0\0\0")
    frame = client.receive_frame()
    assert frame is not None
    correlation_id, entity = messages.decode_response(18, 99, frame)
    assert (correlation_id, entity.error_code) == (6, 35)
    assert {one.api_key: one.max_version for one in entity.api_keys}[18] == 5
    assert client.ask(18, 3).error_code == 0


# The fields without which the broker closes the connection.
NOT_EMPTY: dict[int, dict[str, int]] = {
    messages.PRODUCE: {"acks": -1},
    messages.DESCRIBE_ACLS: {"resource_type_filter": 1, "operation": 1, "permission_type": 1},
}


def test_every_advertised_version_is_answered(cluster: EmbeddedCluster, client: RawClient) -> None:
    """The broker answers an empty request of every API and version in ApiVersions."""
    for one in client.ask(18, 3).api_keys:
        for version in range(max(one.min_version, 3 if one.api_key == 0 else 0), one.max_version + 1):
            values = NOT_EMPTY.get(one.api_key, {})
            cluster.clear_faults()
            assert client.ask(one.api_key, version, **values) is not None


def test_requests_in_one_packet_are_answered_in_order(client: RawClient) -> None:
    frames = b""
    for number in range(50):
        data = struct.pack(">hhih", 18, 0, number, -1)
        frames += struct.pack(">i", len(data)) + data
    for at in range(0, len(frames), 7):
        client.socket.sendall(frames[at : at + 7])
    got = [client.receive_frame() for _ in range(50)]
    assert [struct.unpack_from(">i", frame or b"")[0] for frame in got] == list(range(50))


def test_request_never_overtakes_the_request_before_it(cluster: EmbeddedCluster, client: RawClient) -> None:
    cluster.delay_next(messages.METADATA, 0.05)
    first, second = client.send(3, 9, topics=[]), client.send(18, 0)
    frames = [client.receive_frame() or b"" for _ in range(2)]
    assert [struct.unpack_from(">i", frame)[0] for frame in frames] == [first, second]


def test_large_frame_arrives_whole(cluster: EmbeddedCluster, client: RawClient) -> None:
    cluster.create_topic("large", configs={"max.message.bytes": "9000000"})
    data = batch([bytes(range(256)) * 30_000])
    assert client.produce("large", data).error_code == 0
    assert cluster.records("large", 0)[0][16:] == data[16:]
    assert client.produce("t", batch([b"small"])).error_code == 0


def used_bytes() -> tuple[int, int]:
    """(virtual, resident)"""
    with open("/proc/self/statm") as statm:
        pages = statm.read().split()
    return int(pages[0]) * resource.getpagesize(), int(pages[1]) * resource.getpagesize()


def test_announced_length_takes_no_memory_before_its_bytes_come(cluster: EmbeddedCluster) -> None:
    virtual, resident = used_bytes()
    waiting = [RawClient(cluster.bootstrap_servers) for _ in range(20)]
    for one in waiting:
        one.socket.sendall(struct.pack(">ihhih", 100 * 1024 * 1024, 0, 9, 1, -1) + bytes(40_000))
    with RawClient(cluster.bootstrap_servers) as other:
        assert other.ask(18, 0).error_code == 0
    assert used_bytes()[0] - virtual < 256 * 1024 * 1024
    assert used_bytes()[1] - resident < 8 * 1024 * 1024
    for one in waiting:
        one.socket.close()


def test_peer_that_does_not_read_blocks_no_other_client(cluster: EmbeddedCluster, client: RawClient) -> None:
    for _ in range(8):
        client.produce("t", batch([b"x" * 1_000_000]))
    with RawClient(cluster.bootstrap_servers) as lazy:
        lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 24}
        topics = [{"topic": "t", "partitions": [partition]}]
        sender = threading.Thread(target=ask_again_and_again, args=(lazy, topics), daemon=True)
        sender.start()
        began, before = time.monotonic(), used_bytes()[1]
        for _ in range(50):
            assert client.produce("t", batch([b"y"]), partition=1).error_code == 0
        assert time.monotonic() - began < 5
        # One response of 8 MB is under way; the node makes no other until the client has read it.
        assert used_bytes()[1] - before < 40 * 1024 * 1024
        # The responses that the client reads in the end are whole.
        for _ in range(3):
            answer = lazy.receive_frame()
            assert answer is not None
            _, entity = messages.decode_response(1, 12, answer)
            assert len(entity.responses[0].partitions[0].records) > 8_000_000
    sender.join()


def ask_again_and_again(client: RawClient, topics: list[dict[str, Any]]) -> None:
    try:
        for _ in range(40):
            client.send(1, 12, max_wait=0, min_bytes=1, max_bytes=1 << 24, topics=topics)
    except OSError:
        pass


def test_request_is_unparked_when_its_connection_is_lost_at_once() -> None:
    """A Fetch parks, and its connection is lost in the same turn of the loop, before any task awaits the response."""

    async def body() -> None:
        cluster = Cluster(
            ClusterConfig(max_message_bytes=1_000_000, verify_records=True),
            SystemClock(),
            asyncio.get_running_loop(),
        )
        await cluster.start()
        cluster.catalogue.create_topic("t")
        node = cluster.nodes[1]
        connection = Connection(node)
        asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        topics = [{"topic": "t", "partitions": [asked]}]
        entity = messages.build_request(messages.FETCH, 4, max_wait=60_000, min_bytes=1, max_bytes=1000, topics=topics)
        frame = messages.encode_request(messages.FETCH, 4, 1, "c", entity)
        data = struct.pack(">i", len(frame)) + frame
        connection.get_buffer(len(data))[: len(data)] = data
        connection.buffer_updated(len(data))
        assert connection.parked
        assert node.fetches.delayed == 1
        connection.connection_lost(None)
        del connection
        await asyncio.sleep(0.01)
        gc.collect()
        assert node.fetches.delayed == 0
        await cluster.stop()

    apis.load()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(body())
        gc.collect()
    assert [str(one.message) for one in warned] == []
