"""Hostile and broken clients: slow, silent and too many clients, compression bombs. Other clients must not notice.

Time comes from the injected network clock.
"""

from __future__ import annotations

import contextlib
import gzip
import logging
import resource
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cramjam
import pytest

from kafkabuf.broker import ConnectionLimits, EmbeddedCluster
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.records.compression import GZIP, LZ4, SNAPPY, ZSTD, decompress, unpack
from kafkabuf.broker.records.compression import compress as pack
from kafkabuf.clock import ManualClock
from kafkabuf.errors import ConfigError, CorruptMessageError
from kafkabuf.protocol import messages
from kafkabuf.protocol.messages import API_VERSIONS, FETCH, METADATA, PRODUCE
from kafkabuf.protocol.schema import MOST_ITEMS
from tests.broker.raw_client import RawClient, batch, message, varint
from tests.needs import SANITIZED

MIB = 1024 * 1024
# An error response or a closed connection must come within this time. The CPU time of the working thread counts here,
# since the machine may be busy with other things.
SOON = 30.0 if SANITIZED else 3.0


class World:
    """A node whose connections follow the test's clock, and one client that the node must keep serving."""

    def __init__(self, **limits: int) -> None:
        self.clock = ManualClock()
        self.cluster = EmbeddedCluster(verify_records=True, limits=ConnectionLimits(**limits)).start()
        self.cluster._call(lambda c: setattr(c, "network_clock", self.clock))
        self.cluster.create_topic("t", 2)
        self.clients: list[RawClient] = []
        self.bystander = self.connect()

    def connect(self) -> RawClient:
        self.clients.append(RawClient(self.cluster.bootstrap_servers, 5))
        return self.clients[-1]

    def advance(self, seconds: float) -> None:
        """Moves the clock and makes the node check every connection's time."""
        self.clock.advance(seconds)
        self.cluster._call(check_overdue_connections)

    def served(self) -> bool:
        return bool(self.bystander.ask(API_VERSIONS, 0).error_code == 0)

    def connections(self, expected: int) -> bool:
        """Whether `expected` connections are open. Waits until the node has noticed the closed ones."""
        deadline = time.monotonic() + 5
        while self.cluster.stats().connections != expected and time.monotonic() < deadline:
            threading.Event().wait(0.005)
        return self.cluster.stats().connections == expected

    def close(self) -> None:
        for one in self.clients:
            one.socket.close()
        self.cluster.stop()


def check_overdue_connections(cluster: Cluster) -> None:
    for one in tuple(cluster.nodes[1].connections):
        one.check_overdue()


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    one = World(**getattr(request, "param", {}))
    yield one
    one.close()


@contextlib.contextmanager
def soon(world: World | None = None) -> Iterator[None]:
    def used() -> float:
        return time.thread_time() if world is None else world.cluster._call(lambda _: time.thread_time())

    began = used()
    yield
    assert used() - began < SOON


# ---- slow and silent ones --------------------------------------------------------------------------------------------


def test_request_that_drips_in_is_cut_off_in_time(world: World) -> None:
    slow = world.connect()
    slow.socket.sendall(struct.pack(">ihh", 1000, PRODUCE, 9))
    for _ in range(6):
        before = world.cluster.stats().bytes_in
        slow.socket.sendall(b"x")
        while world.cluster.stats().bytes_in == before:
            pass
        assert world.served()
        world.advance(5)
    assert world.connections(2)
    world.advance(0.1)
    assert slow.closed()
    assert world.served()


def test_gap_between_requests_closes_no_connection(world: World) -> None:
    client = world.connect()
    for _ in range(3):
        assert client.ask(API_VERSIONS, 0).error_code == 0
        world.advance(31)
    assert client.ask(API_VERSIONS, 0).error_code == 0


@pytest.mark.parametrize("held_by", ["long poll", "throttling"])
def test_client_that_waits_for_the_node_stays_connected(world: World, held_by: str) -> None:
    """Bytes of the client's next request wait meanwhile: the client is not slow."""
    client = world.connect()
    if held_by == "long poll":
        client.send(FETCH, 12, max_wait=60_000, min_bytes=1, topics=[{"topic": "t", "partitions": [{"partition": 0}]}])
    else:
        world.cluster.throttle_next(API_VERSIONS, 60_000)
        client.ask(API_VERSIONS, 0)
    client.socket.sendall(struct.pack(">ih", 100, API_VERSIONS))
    received = 4 + 2 + 14 + 2
    while world.cluster.stats().bytes_in < received:
        pass
    for _ in range(3):
        world.advance(400)
        assert world.served()
    assert world.connections(2)


def test_idle_connection_is_closed(world: World) -> None:
    idle = world.connect()
    idle.ask(API_VERSIONS, 0)
    for _ in range(2):
        world.advance(299)
        assert world.served()
    world.advance(3)
    assert idle.closed()
    assert world.served(), "it was used meanwhile"


@pytest.mark.parametrize("last", [False, True])
def test_peer_that_does_not_read_its_response_is_closed(world: World, last: bool) -> None:
    """The client reads nothing of 8 MB. With `last`, only the flush of this response keeps the connection open."""
    for _ in range(8):
        world.bystander.produce("t", batch([b"x" * 1_000_000]))
    lazy = world.connect()
    if last:
        world.cluster.cut_after(7 * MIB, sent=True)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 8 * MIB}
    lazy.send(FETCH, 12, max_wait=0, min_bytes=1, max_bytes=8 * MIB, topics=[{"topic": "t", "partitions": [partition]}])
    world.cluster.wait_for_request(FETCH)
    for seconds in (29, 2) if last else (29, 2, 540, 20, 10):
        assert world.connections(2)
        world.advance(seconds)
        assert world.served()
    assert world.connections(1)


# ---- too many --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [{"max_connections": 4}], indirect=True)
def test_connection_beyond_the_limit_is_refused(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert world.served()
    friends = [world.connect() for _ in range(3)]
    assert world.connections(4)
    with caplog.at_level(logging.WARNING, "kafkabuf.broker"):
        for _ in range(9):
            with soon(world):
                assert world.connect().closed()
    assert caplog.text.count("4 connections are open, refusing more") == 4, "the 1st, 2nd, 4th and 8th"
    assert world.served()
    friends[0].socket.close()
    assert world.connections(3)
    assert world.connect().ask(API_VERSIONS, 0).error_code == 0


@pytest.mark.parametrize("name", ConnectionLimits.__slots__)
def test_limit_of_zero_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0: at least 1"):
        ConnectionLimits(**{name: 0})


def test_a_thousand_idle_connections_are_cheap() -> None:
    """1,000 connections take at most 1 % of one CPU, and 8 KiB each on the node's side, asyncio's part included."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # both ends are in this process
    with EmbeddedCluster() as cluster, contextlib.ExitStack() as stack:
        first = stack.enter_context(RawClient(cluster.bootstrap_servers))
        first.ask(API_VERSIONS, 0)
        before = resident()
        clients = [stack.enter_context(RawClient(cluster.bootstrap_servers)) for _ in range(1000)]
        for one in clients:
            one.send(API_VERSIONS, 0)
        for one in clients:
            assert one.receive(API_VERSIONS, 0).error_code == 0
        assert cluster.stats().connections == 1001
        assert resident() - before < 8 * MIB
        used, began = cluster._call(lambda _: time.thread_time()), time.monotonic()
        threading.Event().wait(1.1)
        used = cluster._call(lambda _: time.thread_time()) - used
        assert used / (time.monotonic() - began) < 0.01, "of the cluster's thread"
        assert clients[500].ask(API_VERSIONS, 0).error_code == 0


def resident(peak: bool = False) -> int:
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["VmHWM" if peak else "VmRSS"].split()[0]) * 1024


def forget_peak() -> int:
    """Resets the peak of resident memory. Returns the resident memory."""
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    return resident()


# ---- requests that would grow ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [{"socket_request_max_bytes": 5000}], indirect=True)
def test_request_above_its_size_limit_is_refused(world: World) -> None:
    assert world.connect().produce("t", batch([b"x" * 4500])).error_code == 0
    hostile = world.connect()
    hostile.socket.sendall(struct.pack(">ih", 5001, PRODUCE))
    assert hostile.closed()


def test_large_request_without_records_is_refused(world: World) -> None:
    names = [{"name": "x" * 200} for _ in range(5300)]
    with soon(world):
        hostile = world.connect()
        with contextlib.suppress(OSError):
            hostile.send(METADATA, 9, topics=names)
        assert hostile.closed()
    names = [{"name": f"{index:x>200}"} for index in range(100)]
    assert len(world.connect().ask(METADATA, 9, topics=names, allow_auto_topic_creation=False).topics) == 100


@pytest.mark.parametrize("nested", [False, True])
def test_produce_request_with_too_many_items_is_refused(world: World, nested: bool) -> None:
    """Topics without names, or partitions without records: a few bytes each on the wire."""
    head = messages.encode_request_header(PRODUCE, 9, 1, "x") + b"\0\xff\xff\0\0\0\0"
    count = 3 * MOST_ITEMS
    if nested:
        body = b"\x02\x02t" + unsigned(count + 1) + b"\0\0\0\0\0\0" * count + b"\0\0"
    else:
        body = unsigned(count + 1) + b"\x01\x01\0" * count + b"\0"
    hostile = world.connect()
    before = forget_peak()
    with soon(world):
        hostile.send_frame(head + body)
        assert hostile.closed()
    assert resident(peak=True) - before < 8 * MIB
    assert world.served()


@pytest.mark.parametrize("nested", [False, True])
def test_any_request_with_too_many_items_is_refused(world: World, nested: bool) -> None:
    """Topics in Metadata, partitions of one topic in DescribeProducers; nothing else in the request is wrong."""
    for count in (MOST_ITEMS - nested, MOST_ITEMS + 1 - nested):
        key, version = (messages.DESCRIBE_PRODUCERS, 0) if nested else (METADATA, 9)
        body = (
            b"\x02\x02t" + unsigned(count + 1) + bytes(4 * count + 2)
            if nested
            else unsigned(count + 1) + b"\x02!\0" * count
        )
        hostile = world.connect()
        before = forget_peak()
        with soon(world):
            hostile.send_frame(
                messages.encode_request_header(key, version, 1, "x") + body + b"\0" * (1 if nested else 4)
            )
            assert (hostile.receive_frame() is None) == (count + nested > MOST_ITEMS)
        assert resident(peak=True) - before < 8 * MIB
        assert world.served()


def unsigned(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (damaged(batch([b"x"]), 17), 2),
        (damaged(batch([b"x"]), 65), 2),
        (batch([b"x"], body=b"\xff" * 20), 87),
        (batch([b"x"], body=b"\x80"), 87),
        (batch([b"x"], body=varint(2**62)), 87),
        (batch([b"x"], body=varint(-5)), 87),
        (batch([b"x"], count=2**31 - 1, last_delta=2**31 - 2), 87),
        (batch([b"x"], count=-1, last_delta=-2), 87),
        (batch([b"x"], attributes=SNAPPY), 2),
        (batch([b"x"], attributes=ZSTD), 2),
        (batch([b"x"])[:40], 2),
        (struct.pack(">qi", 0, -1) + batch([b"x"])[12:], 2),
    ],
)
def test_broken_records_are_refused(world: World, records: bytes, code: int) -> None:
    hostile = world.connect()
    with soon(world):
        assert hostile.produce("t", records).error_code == code
    assert world.cluster.end_offset("t", 0) == 0
    assert world.served()


# ---- bombs -----------------------------------------------------------------------------------------------------------


def test_refused_topic_name_cannot_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kafkabuf.broker")
    with EmbeddedCluster() as cluster, RawClient(cluster.bootstrap_servers) as client:
        assert client.produce("a\nnode 1: all is well", batch([b"v"])).error_code != 0
    (line,) = (record.getMessage() for record in caplog.records if "refused" in record.getMessage())
    assert "\n" not in line


def xerial(data: bytes) -> bytes:
    """The frame of Java's SnappyOutputStream: blocks of 32 KiB."""
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + 32768])) for at in range(0, len(data), 32768)]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(one)) + one for one in blocks)


CODECS: dict[str, tuple[int, Callable[[bytes], Any]]] = {
    "gzip": (GZIP, gzip.compress),
    "snappy": (SNAPPY, cramjam.snappy.compress_raw),
    "xerial": (SNAPPY, xerial),
    "lz4": (LZ4, partial(pack, LZ4)),
    "zstd": (ZSTD, cramjam.zstd.compress),
}


@pytest.fixture(scope="module")
def bombs() -> dict[str, bytes]:
    """Bombs of 96 MiB each, compressed to about 10 KiB to 4.6 MiB. Their first record is one of no bytes."""
    return {name: bytes(compress(bytes(96 * MIB))) for name, (_, compress) in CODECS.items()}


@pytest.mark.parametrize("name", CODECS)
def test_compression_bomb_is_refused(bombs: dict[str, bytes], name: str) -> None:
    data = bombs[name]
    before = forget_peak()
    with soon(), pytest.raises(CorruptMessageError, match="or too large"):
        for _ in unpack(CODECS[name][0], data, 40 * MIB):
            pass
    assert resident(peak=True) - before < 64 * MIB


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("size", [0, 1, 1000, 100_000, 3 * MIB])
def test_harmless_data_is_decompressed(name: str, size: int) -> None:
    codec, compress = CODECS[name]
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    assert decompress(codec, bytes(compress(data)), 4 * MIB) == data
    if size:
        assert decompress(codec, bytes(compress(data)), size) == data
        with pytest.raises(CorruptMessageError):
            decompress(codec, bytes(compress(data)), size - 1)


@pytest.mark.parametrize("name", CODECS)
def test_damaged_compressed_data_is_refused(name: str) -> None:
    codec, compress = CODECS[name]
    whole = bytes(compress(bytes(range(256)) * 10))
    for data in (whole[: len(whole) // 2], b"\xff" * 100, b""):
        if name == "xerial" and not data.startswith(b"\x82"):
            continue
        with pytest.raises(CorruptMessageError):
            decompress(codec, data, MIB)


@pytest.mark.parametrize("size", [-4, -1, 2**31 - 1, 1000])
def test_wrong_block_size_is_refused(size: int) -> None:
    data = b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, size) + bytes(cramjam.snappy.compress_raw(b"x"))
    with soon(), pytest.raises(CorruptMessageError, match=f"a block says {size} bytes"):
        decompress(SNAPPY, data, MIB)


@pytest.mark.parametrize("name", ["gzip", "xerial", "lz4", "zstd"])
def test_bomb_in_a_request_is_refused_at_once(world: World, bombs: dict[str, bytes], name: str) -> None:
    codec, data = CODECS[name][0], bombs[name]
    if len(data) > 900_000:
        data = data[:200_000]
    hostile = world.connect()
    with soon(world):
        # INVALID_RECORD, where the first record is seen before the end of the bomb.
        code = hostile.produce("t", batch([b"x"], attributes=codec, body=data)).error_code
        assert code == (2 if name in ("lz4", "zstd") else 87)
    if name != "zstd":
        with soon(world):
            assert hostile.produce_v2("t", message(data, attributes=codec))[0] == 2
    assert world.served()


def test_many_small_bombs_share_one_limit(world: World) -> None:
    """Each message is within its limit, but the compressed messages of a set share one limit."""
    small = gzip.compress(message(bytes(24 * MIB)))
    assert world.connect().produce_v2("t", message(small, attributes=GZIP))[0] == 0
    with soon(world):
        code, _ = world.connect().produce_v2("t", message(small, attributes=GZIP) * 200)
    assert code == 2
    assert world.served()
