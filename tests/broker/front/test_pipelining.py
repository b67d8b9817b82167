"""Clients that send thousands of requests without waiting, or a request with many batches that must be read: the node
serves other clients meanwhile, and answers in order."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kafkabuf.broker import apis
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.front.server import Connection
from kafkabuf.broker.waiting.slices import SLICE_STEPS
from kafkabuf.clock import ManualClock
from kafkabuf.protocol import messages as m
from tests.broker.apis.test_bounds import World, short_slices, world
from tests.broker.raw_client import NOW, RawClient, batch
from tests.broker.records.test_bombs import packed, record, records_of

__all__ = ["short_slices", "world"]
IN_FUTURE = NOW + 10**13
INVALID_TIMESTAMP = 32


def heartbeat(correlation_id: int) -> bytes:
    request = m.build_request(m.HEARTBEAT, 0, group_id="g", generation_id=1, member_id="m")
    frame = m.encode_request(m.HEARTBEAT, 0, correlation_id, "c", request)
    return struct.pack(">i", len(frame)) + frame


class Transport(asyncio.Transport):
    """The broker's end of a connection, which takes every byte at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.lost = False

    def is_closing(self) -> bool:
        return self.lost

    def write(self, data: Any) -> None:
        self.sent += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def correlation_ids(self) -> list[int]:
        at, ids = 0, []
        while at < len(self.sent):
            size, correlation_id = struct.unpack_from(">ii", self.sent, at)
            ids.append(correlation_id)
            at += 4 + size
        return ids


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Connection, Transport]]:
    """A connection to a cluster whose clock stands still."""
    apis.load()
    cluster = Cluster(ClusterConfig(), ManualClock(), asyncio.get_running_loop())
    await cluster.start()
    connection, transport = Connection(cluster.nodes[1]), Transport()
    connection.connection_made(transport)
    yield connection, transport
    connection.connection_lost(None)
    await cluster.stop()


def feed(connection: Connection, data: bytes) -> None:
    """`data` has come at once, into a buffer that a large request has left."""
    connection._buffer = bytearray(max(len(data), len(connection._buffer)))
    room = connection.get_buffer(-1)
    room[: len(data)] = data
    connection.buffer_updated(len(data))


def test_others_are_served_between_the_requests_that_a_client_has_sent_at_once() -> None:
    """A slice ends after a number of steps, if the clock stands still."""
    number = 5 * SLICE_STEPS

    async def body() -> None:
        async with connected() as (connection, transport):
            feed(connection, b"".join(map(heartbeat, range(number))))
            assert len(transport.correlation_ids()) == SLICE_STEPS
            turns = 0
            while len(answered := transport.correlation_ids()) < number:
                await asyncio.sleep(0)
                turns += 1
            assert turns >= 4
            assert answered == list(range(number))
            await asyncio.sleep(0)
            feed(connection, heartbeat(number))
            assert transport.correlation_ids()[-1] == number, "the connection goes on"

    asyncio.run(body())


def test_request_that_comes_while_others_are_queued_is_answered_in_order() -> None:
    number = 2 * SLICE_STEPS

    async def body() -> None:
        async with connected() as (connection, transport):
            late = heartbeat(number)
            data = b"".join(map(heartbeat, range(number)))
            connection._buffer = bytearray(len(data) + len(late))
            for piece in (data, late):
                connection.get_buffer(-1)[: len(piece)] = piece
                connection.buffer_updated(len(piece))
            assert len(transport.correlation_ids()) <= SLICE_STEPS
            while len(answered := transport.correlation_ids()) <= number:
                await asyncio.sleep(0)
            assert answered == list(range(number + 1))

    asyncio.run(body())


def test_client_that_is_gone_gets_no_further_responses() -> None:
    """asyncio would log each of them."""

    async def body() -> None:
        async with connected() as (connection, transport):
            feed(connection, heartbeat(1))
            transport.lost = True
            feed(connection, heartbeat(2) + heartbeat(3))
            assert transport.correlation_ids() == [1]

    asyncio.run(body())


def several(count: int, records: bytes) -> dict[str, Any]:
    """A Produce request with the same batch for `count` partitions."""
    data = [{"index": index, "records": records} for index in range(count)]
    return {"acks": 1, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": data}]}


def test_others_are_served_between_the_batches_of_a_request_that_must_be_read(world: World, short_slices: None) -> None:
    """Less than 200 KiB of the client become 80 MiB."""
    world.cluster.create_topic("t", 20)
    bomb = packed("gzip", record(0, bytes(4 << 20)), 1, newest=IN_FUTURE)
    assert world.served_before(m.PRODUCE, 9, **several(20, bomb)) > 5
    answer = world.client.receive(m.PRODUCE, 9)
    assert {int(part.error_code) for part in answer.responses[0].partition_responses} == {0}, "only the header lied"


def test_response_names_a_number_of_bad_records_and_one_of_each_batch(world: World) -> None:
    world.cluster.create_topic("t", 5)
    count = 4000
    times = [IN_FUTURE, IN_FUTURE + count - 1]
    bad = batch([b""] * 2, timestamps=times, body=records_of([b""] * count), count=count, last_delta=count - 1)
    with RawClient(world.cluster.bootstrap_servers) as client:
        answer = client.ask(m.PRODUCE, 9, **several(5, bad))
    parts = answer.responses[0].partition_responses
    assert [int(part.error_code) for part in parts] == [INVALID_TIMESTAMP] * 5
    assert [len(part.record_errors) for part in parts] == [4000, 4000, 2000, 1, 1]
    assert f"{count} of the {count} records of the batch are refused" in parts[4].error_message
