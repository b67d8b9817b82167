"""Requests that are queued behind a full in-flight table, after the broker refused a request in front of them.

The broker remembers the last five batches of a producer and partition. If the Sender sent more while the first must be
repeated, the broker would not recognise the first, and would append it twice.
"""

from __future__ import annotations

import itertools
import socket
import time
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import NetworkError
from kafkabuf.network import resolve
from kafkabuf.network._io import Poller
from kafkabuf.network.client import Completion
from kafkabuf.network.resolve import Address
from kafkabuf.producer import KafkaProducer
from kafkabuf.protocol import messages
from kafkabuf.sending._produce import build_request
from rigs.fake_client import Answer, encode_answer, read_records
from rigs.producer import PRODUCER_ID, SLAB, TOPIC, Rig, assert_whole
from tests.network.support import PATIENCE, brokers, one_broker, produce
from tests.network.test_io import connected, poll_for_frames, prefixed
from tests.sending.duplicating_proxy import DuplicatingProxy
from tests.sending.test_bad_responses import Responder
from tests.transactions.idempotence_support import idempotent, numbers, of_epoch

VERSION = 12
GOOD = encode_answer(VERSION, 1, {(TOPIC, 0): Answer()})
REFUSED = encode_answer(VERSION, 2, {(TOPIC, 1): Answer(7)})


# ---- the poll call ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("armed", [False, True])
def test_response_with_an_error_starts_no_queued_request(armed: bool) -> None:
    rig = Rig(leaders=(1,) * 4, slabs=8)
    poller = Poller()
    with connected(poller, max_in_flight=2) as (connection, theirs):
        batches = []
        for partition in range(4):
            rig.send(b"%d" % partition * (SLAB - 200), partition)
            batches.append(rig.drain_one(partition))
        frames = [build_request(VERSION, number, b"c", -1, 100, [batch]) for number, batch in enumerate(batches, 1)]
        size = frames[0].nbytes
        for number, frame in enumerate(frames, 1):
            frame.correlation_id = number
            connection.send(frame)
        poller.poll(0)
        assert len(theirs.recv(10 * size)) == 2 * size
        theirs.sendall(prefixed(GOOD))
        poll_for_frames(poller, connection, 1)
        assert len(theirs.recv(10 * size)) == size
        theirs.sendall(prefixed(REFUSED))
        poll_for_frames(poller, connection, 1)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        if armed:  # the owner takes the queued frames back
            assert connection.take_back() == frames[3:]
            assert connection.take_back() == []
            poller.poll(0)
            with pytest.raises(BlockingIOError):
                theirs.recv(1)
            connection.send(frames[3])
        poller.poll(0)  # the owner has handled the response, and the rest may go
        assert len(theirs.recv(10 * size)) == size
    poller.close()


def test_taking_frames_back_keeps_the_frames_that_were_started() -> None:
    """Queued frames may stand behind no frame, or behind a frame that is written or started."""
    rig = Rig(leaders=(1,) * 3)
    for written, started in itertools.product((False, True), (0, 1)):
        poller = Poller()
        with connected(poller, max_in_flight=started) as (connection, theirs):
            frames = []
            for partition in range(3):
                rig.send(b"%d" % partition, partition)
                frames.append(build_request(VERSION, 1, b"c", -1, 100, [rig.drain_one(partition)]))
            data = [frame.to_bytes() for frame in frames]
            connection.send(frames[0])
            if written:
                poller.poll(0)
            connection.send(frames[1])
            if started:
                poller.poll(0)
            kept = 1 if started else 0
            assert connection.take_back() == frames[kept:2]
            for frame in frames[kept:]:
                connection.send(frame)
            poller.poll(0)
            got = theirs.recv(10_000) if started else b""
            assert got == b"".join(data[:kept])
            assert connection.queued == 3 - kept
            connection.close()
        poller.close()


# ---- the network client ----------------------------------------------------------------------------------------------


def test_clients_own_request_is_not_taken_back() -> None:
    with one_broker() as (rigged, broker):
        for number in range(8):
            rigged.client.send(0, produce(context=number))
        delivered: list[Completion] = []
        entity = messages.build_request(messages.METADATA, 9, topics=[])
        rigged.client.connections.submit(rigged.client.requests.nodes[0], entity, delivered.append)  # behind all that
        rigged.client.poll(0)
        broker.cluster = None
        for number in range(8, 10):
            rigged.client.send(0, produce(context=number))
        assert [request.context for request in rigged.client.take_back(0, 0)] == [5, 6, 7, 8, 9]
        assert rigged.client.take_back(0, 0) == []
        assert rigged.client.in_flight(0) == 6
        received = [broker.next_request() for _ in range(5)]
        for request in received:
            request.reply(b"")
        assert [done.request.context for done in rigged.completions(5)] == [0, 1, 2, 3, 4]
        last = broker.next_request()
        assert last.header.api_key == messages.METADATA
        last.reply_entity(brokers=[], controller_id=-1, topics=[])
        rigged.poll_until(lambda: delivered)
        assert rigged.client.take_back(7, 0) == []


def test_node_with_more_than_enough_requests_queued_takes_no_further_ones() -> None:
    """The client's own requests come on top of those that the Sender may queue."""
    with one_broker() as (rigged, broker):
        while rigged.client.ready(0) or rigged.client.takes_ahead(0):
            rigged.client.send(0, produce())
        for own in range(1, 4):
            entity = messages.build_request(messages.METADATA, 9, topics=[])
            rigged.client.connections.submit(rigged.client.requests.nodes[0], entity, lambda completion: None)
            assert not rigged.client.takes_ahead(0), own
        broker.cluster = None


# ---- the Sender ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [6, 7, 20])
def test_no_sixth_batch_is_sent_while_the_first_may_have_to_be_repeated(code: int) -> None:
    rig = idempotent()
    rig.client.ahead = 8
    futures = rig.fill(batches=12)
    sent = rig.sent_after_turn()
    assert [request.started for request in sent] == [True] * 5 + [False] * 6  # the twelfth is open
    rig.client.answer(sent[0])
    rig.client.answer(sent[1], code)
    rig.turn()
    assert rig.client.under_way == sent[2:6]
    assert [batch.base_sequence for batch in rig.queue().batches] == [1, -1, -1, -1, -1, -1, -1]
    assert rig.queue().next_sequence == 6
    for request in sent[2:6]:
        rig.client.answer(request, code if code != 20 else 0)
        rig.turn()
    rig.clock.advance(0.2)
    rig.ack_all()
    assert all(future.done() for future in futures)
    assert of_epoch(rig, 0) == list(range(12))
    assert_whole(rig.pool)


def test_numbers_of_another_partition_have_no_gap_after_a_refusal() -> None:
    rig = idempotent(leaders=(1, 1))
    rig.client.ahead = 8
    rig.client.limit = 1
    for _ in range(3):
        rig.fill(0)
        rig.fill(1)
    first, *ahead = rig.sent_after_turn()
    assert [request.partitions for request in [first, *ahead]] == [[0, 1], [0, 1]]  # the third batches are open
    rig.client.answer(first, 7, 0)
    rig.turn()
    assert [queue.next_sequence for queue in rig.topic.queues] == [1, 1]
    assert rig.queue(1).in_flight == rig.queue(0).in_flight == 0
    (healthy,) = rig.sent_after_turn()
    assert healthy.partitions == [1]
    assert numbers(healthy, 1) == (PRODUCER_ID, 0, 1)
    rig.client.answer(healthy)
    rig.clock.advance(0.2)
    rig.ack_all()
    assert_whole(rig.pool)


def test_batch_that_expired_while_queued_ahead_gives_its_memory_back() -> None:
    rig = idempotent(delivery_timeout_ms=1_000)
    rig.client.ahead = 8
    rig.client.limit = 1
    futures = rig.fill(batches=4)
    sent = rig.sent_after_turn()
    rig.clock.advance(1)
    rig.turn()
    assert all(future.done() for future in futures)
    rig.client.answer(sent[0], 7)
    rig.turn()
    assert not rig.client.under_way
    assert_whole(rig.pool)


def test_without_numbers_no_batch_overtakes_a_refused_batch() -> None:
    rig = idempotent(enable_idempotence=False)
    rig.client.ahead = 8
    rig.client.limit = 1
    futures = rig.fill(batches=4)
    sent = rig.sent_after_turn()
    rig.client.answer(sent[0], 6)
    rig.turn()
    assert not rig.client.under_way
    assert list(rig.queue().batches) == [future.batch for future in futures]
    rig.clock.advance(0.2)
    rig.ack_all()
    assert_whole(rig.pool)


def test_requests_of_a_lost_connection_are_handled_once() -> None:
    rig = idempotent()
    rig.client.ahead = 8
    rig.client.limit = 1
    rig.fill(batches=4)
    for request in rig.sent_after_turn():
        rig.client.fail(request, NetworkError("gone"))
    rig.turn()
    rig.clock.advance(0.2)
    rig.ack_all()
    assert_whole(rig.pool)


def test_batches_that_never_left_a_lost_connection_are_as_if_never_sent() -> None:
    rig = idempotent(retries=1)
    rig.client.ahead = 8
    rig.client.limit = 2
    futures = rig.fill(batches=6)
    sent = rig.sent_after_turn()
    assert len(sent) == 5  # the sixth is open
    for request in sent[:2]:
        rig.client.fail(request, NetworkError("gone"))
    for request in reversed(sent[2:]):
        rig.client.fail(request, NetworkError("the request never left: gone"), never_left=True)
    rig.client.unready.add(1)
    rig.turn()
    rig.client.unready.clear()
    waiting = list(rig.queue().batches)
    assert waiting == [future.batch for future in futures]
    assert [batch.attempts for batch in waiting] == [1, 1, 0, 0, 0, 0]
    assert [batch.base_sequence for batch in waiting] == [0, 1, -1, -1, -1, -1]
    assert rig.queue().next_sequence == 2
    assert rig.queue().in_flight == 0
    rig.clock.advance(0.2)
    rig.ack_all()
    assert of_epoch(rig, 0) == list(range(6))
    assert all(future.exception() is None for future in futures)
    assert_whole(rig.pool)


def test_batch_that_expired_before_it_left_gives_its_memory_back() -> None:
    rig = idempotent(delivery_timeout_ms=1_000)
    futures = rig.fill()
    (sent,) = rig.sent_after_turn()
    rig.clock.advance(1)
    rig.turn()
    rig.client.fail(sent, NetworkError("the request never left"), never_left=True)
    rig.turn()
    assert all(future.done() for future in futures)
    assert not rig.queue().batches
    assert_whole(rig.pool)


def test_broker_that_asks_for_a_pause_gets_nothing_that_was_queued_ahead() -> None:
    rig = idempotent()
    rig.client.ahead = 8
    rig.client.limit = 1
    rig.fill(batches=4)
    sent = rig.sent_after_turn()
    assert [request.started for request in sent] == [True, False, False]
    answers = {key: Answer() for key in sent[0].produced.records}
    rig.client.answer_with(sent[0], encode_answer(12, sent[0].correlation_id, answers, throttle_ms=500))
    rig.turn()
    assert rig.client.pauses == [(1, 500)]
    assert not rig.client.under_way
    assert [batch.base_sequence for batch in rig.queue().batches] == [-1, -1, -1]
    rig.ack_all()
    assert of_epoch(rig, 0) == [0, 1, 2, 3]
    assert_whole(rig.pool)


# ---- over sockets ----------------------------------------------------------------------------------------------------


def test_duplicate_responses_start_no_more_requests_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedCluster(default_partitions=1) as cluster:
        (port,) = (int(server.rpartition(":")[2]) for server in cluster.bootstrap_servers.split(","))
        proxy = DuplicatingProxy(port, frozenset(range(3, 200, 10)))
        real = resolve.connect

        def through_the_proxy(address: Address, **buffers: int) -> socket.socket:
            return real(Address(address.family, (address.sockaddr[0], proxy.port)), **buffers)

        monkeypatch.setattr(resolve, "connect", through_the_proxy)
        try:
            cluster.create_topic("t", partitions=1)
            values = [b"%6d" % number + b"x" * 1_000 for number in range(2_000)]
            with KafkaProducer(
                bootstrap_servers=cluster.bootstrap_servers,
                batch_size=4_096,
                linger_ms=5,
                retry_backoff_ms=1,
                reconnect_backoff_ms=1,
            ) as producer:
                futures = [producer.send("t", value) for value in values]
                for future in futures:
                    future.result(PATIENCE)
            assert proxy.duplicated > 3
            assert proxy.most_unanswered <= 5
            stored = [record.value for data in cluster.records("t", 0) for record in read_records(data)]
            assert stored == values
        finally:
            proxy.close()


def test_records_that_never_left_survive_a_lost_connection_without_retries() -> None:
    settings: dict[str, Any] = {"retries": 0, "enable_idempotence": False, "max_in_flight_requests_per_connection": 2}
    with brokers() as (broker,):
        server = "{}:{}".format(*broker.address)
        with KafkaProducer(
            bootstrap_servers=server, batch_size=512, linger_ms=0, reconnect_backoff_ms=1, **settings
        ) as producer:
            client = producer._sender._client
            proof = producer.send("t", b"first")
            responder = Responder(broker)
            assert proof.result(PATIENCE).offset == 5
            producer._metadata.await_update(PATIENCE)  # no further Metadata request takes a place in flight below
            responder.stop()
            futures = [producer.send("t", b"%3d" % number + b"x" * 400) for number in range(11)]
            limit = time.monotonic() + PATIENCE
            while client.in_flight(0) < 10 and time.monotonic() < limit:
                time.sleep(0.001)
            for _ in range(2):  # the requests that have left stay without a response
                broker.next_request()
            broker.drop_connections()
            with pytest.raises(NetworkError):
                futures[0].result(PATIENCE)
            responder = Responder(broker)
            try:
                failed = [future for future in futures if future.exception(PATIENCE) is not None]
            finally:
                responder.stop()
            assert failed == futures[:2]
