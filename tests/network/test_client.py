"""Requests and responses of the network client, against brokers that misbehave."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kafkabuf.clock import ManualClock, SystemClock
from kafkabuf.errors import ClosedError, ConfigError, NetworkError, UnsupportedVersionError
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.network._io import Poller
from kafkabuf.network._metrics import ProducerStats
from kafkabuf.network.client import NetworkClient, Request
from kafkabuf.network.resolve import bootstrap_hosts
from kafkabuf.protocol import messages
from kafkabuf.protocol._frame import Frame
from tests.network.support import (
    PATIENCE,
    FakeBroker,
    Rig,
    brokers,
    cluster_of,
    config_for,
    one_broker,
    poison,
    produce,
    read_exactly,
    read_to_end,
    rig,
)

# More than the socket buffers of both ends hold.
HUGE = 24_000_000


def in_thread(target: Any, *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=args)
    thread.start()
    return thread


# ---- handshake -------------------------------------------------------------------------------------------------------


def test_client_names_itself_and_its_version_in_the_handshake() -> None:
    with one_broker() as (_, broker):
        greeting = broker.greetings[0]
        assert (greeting.header.version, greeting.header.client_id) == (3, "kafkabuf")
        entity = greeting.entity()
        assert entity.client_software_name == "kafkabuf"
        # What KIP-511 allows; the broker refuses the handshake otherwise.
        assert re.fullmatch(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", entity.client_software_version)


def test_broker_without_api_versions_3_is_greeted_again_with_version_0() -> None:
    with brokers(greets=False) as (broker,), rig(broker) as rigged:
        refuse = in_thread(lambda: broker.next_request().reply_entity(version=0, error_code=35, api_keys=[]))
        rigged.poll_until(lambda: not refuse.is_alive())
        again = broker.requests
        rigged.poll_until(lambda: not again.empty())
        second = broker.next_request()
        assert second.header.version == 0
        second.reply_entity(error_code=0, api_keys=[{"api_key": 3, "min_version": 0, "max_version": 1}])
        rigged.poll_until(lambda: rigged.metadata.snapshot.brokers)
        assert [request.header.version for request in broker.metadata_requests] == [1]
        assert rigged.client.api_version(-1, messages.METADATA, (0, 12)) == 1
        assert len(broker.sockets) == 1, "the second handshake used a second connection"


def test_missing_common_version_is_refused_by_the_client() -> None:
    with one_broker() as (rigged, _):
        assert rigged.client.api_version(0, messages.PRODUCE, range(3, 10)) == 9
        assert rigged.client.api_version(0, messages.PRODUCE, (3, 99)) == 13
        with pytest.raises(
            UnsupportedVersionError, match=r"broker 0 at .*:\d+ supports versions 0 to 13 .*kafkabuf 20 to 21"
        ):
            rigged.client.api_version(0, messages.PRODUCE, range(20, 22))
        with pytest.raises(UnsupportedVersionError, match="does not offer API 22"):
            rigged.client.api_version(0, messages.INIT_PRODUCER_ID, (0, 3))
        with pytest.raises(NetworkError, match="broker 7 is not connected"):
            rigged.client.api_version(7, messages.PRODUCE, (0, 3))


def test_broker_too_old_for_metadata_fails_waiting_callers() -> None:
    with brokers(versions={messages.API_VERSIONS: (0, 0)}) as (broker,), rig(broker) as rigged:
        raised: list[BaseException] = []

        def wait() -> None:
            with pytest.raises(UnsupportedVersionError, match=r"bootstrap server .* does not offer API 3") as caught:
                rigged.metadata.await_topic("t", None)
            raised.append(caught.value)

        waiter = in_thread(wait)
        rigged.poll_until(lambda: not waiter.is_alive())
        assert raised


# ---- bootstrap -------------------------------------------------------------------------------------------------------


def test_unresolvable_bootstrap_servers_are_refused_at_construction() -> None:
    servers = [("no.such.host.invalid", 9092), ("b_b.invalid", 1)]
    with pytest.raises(ConfigError, match=r"no entry .*: no\.such\.host\.invalid:9092 \(.*b_b\.invalid:1 \("):
        rig(*servers).__enter__()


def test_empty_bootstrap_list_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is empty"):
        bootstrap_hosts(())


def test_bad_bootstrap_entry_leaves_the_others_usable() -> None:
    with brokers() as (broker,), rig(("no.such.host.invalid", 9092), broker) as rigged:
        rigged.connect(0)


# ---- responses -------------------------------------------------------------------------------------------------------


def test_completions_come_in_the_order_of_their_requests() -> None:
    with one_broker() as (rigged, broker):
        for i in range(5):
            rigged.client.send(0, produce(context=i))
        assert not rigged.client.ready(0), "more than five requests may be in flight"
        assert rigged.client.in_flight(0) == 5

        def answer() -> None:
            for i in range(5):
                broker.next_request().reply(b"%d" % i)

        thread = in_thread(answer)
        done = rigged.completions(5)
        thread.join(PATIENCE)
        assert [(c.request.context, c.response and c.response[4:]) for c in done] == [(i, b"%d" % i) for i in range(5)]
        assert all(c.error is None and c.node_id == 0 and c.latency >= 0 for c in done)
        assert rigged.client.ready(0)


def test_frame_that_is_being_sent_keeps_its_expected_response() -> None:
    with one_broker() as (rigged, _):
        frame = produce().build(0)
        rigged.client.send(0, Request(messages.PRODUCE, 3, lambda _: frame, None, True))
        number = frame.correlation_id
        with pytest.raises(ValueError, match="before it is sent"):
            rigged.client.send(0, Request(messages.PRODUCE, 3, lambda _: frame, None, False))
        assert (frame.notify, frame.correlation_id) == (False, number)
        assert rigged.client.in_flight(0) == 1


def test_response_to_an_entity_request_decodes_to_an_entity() -> None:
    with one_broker() as (rigged, broker):
        rigged.client.send_entity(0, messages.build_request(messages.FIND_COORDINATOR, 1, key="k", key_type=0), "mine")
        thread = in_thread(lambda: broker.next_request().reply_entity(node_id=4, host="h", port=1, error_code=0))
        (done,) = rigged.completions(1)
        thread.join(PATIENCE)
        assert done.request.context == "mine"
        assert done.decode().node_id == 4


@pytest.mark.parametrize("strays", ["wrong id", "no request", "negative length"])
def test_stray_response_fails_only_its_own_connection(strays: str) -> None:
    with brokers(2) as (good, bad), rig(good) as rigged:
        rigged.connect(0)
        rigged.connect(1)
        rigged.client.send(0, produce(context="good"))
        rigged.client.send(1, produce(context="bad 1"))
        rigged.client.send(1, produce(context="bad 2"))
        rigged.client.poll(0)
        asked = bad.next_request()
        if strays == "wrong id":
            asked.reply(b"", correlation_id=asked.header.correlation_id + 1)
        elif strays == "no request":
            asked.reply(b"")
            bad.next_request().reply(b"")
            asked.reply(b"", correlation_id=77)
        else:
            asked.sock.sendall(b"\x80\0\0\0")
        rigged.poll_until(lambda: not rigged.client.ready(1) and rigged.client.connection_delay(1) < 1)
        thread = in_thread(lambda: good.next_request().reply(b"fine"))
        (done,) = (c for c in rigged.completions(1) if c.request.context == "good")
        thread.join(PATIENCE)
        assert done.error is None


def test_requests_of_a_lost_connection_fail_in_order() -> None:
    with one_broker() as (rigged, broker):
        for i in range(3):
            rigged.client.send(0, produce(context=i))
        rigged.client.poll(0)
        broker.next_request().reply(b"first")
        broker.next_request()
        broker.drop_connections()
        done = rigged.completions(3)
        assert [c.request.context for c in done] == [0, 1, 2]
        assert done[0].error is None
        for lost in done[1:]:
            assert isinstance(lost.error, NetworkError)
            assert lost.error.retriable
            assert f"broker 0 at 127.0.0.1:{broker.port} failed" in str(lost.error)
        assert rigged.client.in_flight(0) == 0


def test_disconnect_makes_the_client_update_metadata() -> None:
    with one_broker() as (rigged, broker):
        before = rigged.metadata.snapshot.version
        rigged.clock.advance(1)
        broker.drop_connections()
        rigged.poll_until(lambda: not rigged.client.ready(0))
        rigged.clock.advance(1)
        rigged.poll_until(lambda: rigged.metadata.snapshot.version > before)


def test_client_recovers_from_malformed_metadata() -> None:
    with brokers() as (broker,), rig(broker) as rigged:
        broker.cluster = None
        rigged.poll_until(lambda: not broker.requests.empty())
        # 2^31 - 1 brokers in a frame of a few bytes.
        broker.next_request().reply(b"\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff\x07")
        broker.cluster = cluster_of(broker)
        rigged.poll_until(lambda: rigged.client.connection_delay(-1) < 1)
        rigged.clock.advance(2)
        rigged.connect(0)


# ---- the invariant: no span is read after its completion -------------------------------------------------------------


@contextlib.contextmanager
def deaf_broker(**settings: Any) -> Iterator[tuple[Rig, socket.socket]]:
    """A client connected to broker 0, which stops reading after the handshake, and the broker's socket."""
    entry, deaf = FakeBroker(), FakeBroker(reads=False)
    entry.cluster = cluster_of(deaf)
    try:
        with rig(entry, **settings) as rigged:
            rigged.connect(0)
            deaf.sockets[0].settimeout(PATIENCE)  # if the connection stays open, the test fails and does not hang
            yield rigged, deaf.sockets[0]
    finally:
        entry.close()
        deaf.close()


def record_ids(request: Request, ids: list[int]) -> Request:
    """The request, which adds to `ids` the correlation ids that it is built with."""
    build = request.build

    def build_and_record(correlation_id: int) -> Frame:
        ids.append(correlation_id)
        return build(correlation_id)

    return Request(
        request.api_key,
        request.version,
        build_and_record,
        request.context,
        request.expects_response,
        request.timeout,
    )


def test_socket_reads_no_span_after_a_time_out_completes_its_request() -> None:
    with deaf_broker(request_timeout_ms=2000) as (rigged, theirs):
        payloads = [bytes(bytearray(b"A" * HUGE)) for _ in range(2)]
        for payload in payloads:
            rigged.client.send(0, produce(payload))
        assert rigged.settle() == []
        rigged.clock.advance(2.1)
        done = rigged.completions(2)
        assert isinstance(done[0].error, NetworkError)
        assert "within 2100 ms; the connection is closed" in str(done[0].error)
        for payload in payloads:
            poison(payload)  # the slabs have new owners
        rigged.client.poll(0)
        received = read_to_end(theirs)
        assert 0xDD not in received
        assert len(received) < 2 * HUGE


def test_requests_that_never_left_are_marked_and_complete_last_in_reverse() -> None:
    with deaf_broker() as (rigged, theirs):
        rigged.client.send(0, produce(b"A" * HUGE, context="in part"))
        for number in range(6):
            rigged.client.send(0, produce(context=number))
        assert rigged.settle() == []
        theirs.close()
        done = rigged.completions(7)
        assert [c.request.context for c in done] == ["in part", 5, 4, 3, 2, 1, 0]
        assert [c.never_left for c in done] == [False] + [True] * 6
        for completion in done[1:]:
            assert "the request never left: connection to broker 0" in str(completion.error)
            assert isinstance(completion.error, NetworkError)


def test_response_before_its_request_is_written_closes_the_connection() -> None:
    with deaf_broker() as (rigged, theirs):
        payload = bytes(bytearray(b"A" * HUGE))
        ids: list[int] = []
        rigged.client.send(0, record_ids(produce(payload), ids))
        assert rigged.settle() == []
        theirs.sendall(b"\0\0\0\x04" + ids[0].to_bytes(4, "big"))
        (done,) = rigged.completions(1)
        assert "before it was sent in full" in str(done.error)
        poison(payload)
        rigged.client.poll(0)
        assert 0xDD not in read_to_end(theirs)


def test_acks_0_completes_when_its_last_byte_is_written() -> None:
    with deaf_broker() as (rigged, theirs):
        ids: list[int] = []
        rigged.client.send(0, record_ids(produce(context="answered"), ids))
        rigged.client.send(0, produce(b"A" * HUGE, answered=False, context="huge"))
        rigged.client.send(0, produce(b"B", answered=False, context="small"))
        assert rigged.settle() == []
        theirs.sendall(b"\0\0\0\x04" + ids[0].to_bytes(4, "big"))
        assert [c.request.context for c in rigged.completions(1)] == ["answered"]
        thread = in_thread(read_exactly, theirs, HUGE)
        done = rigged.completions(2)
        assert [(c.request.context, c.response, c.error) for c in done] == [("huge", None, None), ("small", None, None)]
        thread.join(PATIENCE)


# ---- time-outs and idleness ------------------------------------------------------------------------------------------


def test_time_out_of_one_broker_leaves_another_alone() -> None:
    with brokers(2) as (slow, quick), rig(slow, request_timeout_ms=5000) as rigged:
        rigged.connect(0)
        rigged.connect(1)
        rigged.client.send(0, produce(context="slow"))
        rigged.clock.advance(3)
        rigged.client.send(1, produce(context="quick"))
        assert rigged.settle() == []
        rigged.clock.advance(2.5)
        (done,) = rigged.completions(1)
        assert done.request.context == "slow"
        assert done.latency == pytest.approx(5.5)
        thread = in_thread(lambda: quick.next_request().reply(b""))
        (done,) = rigged.completions(1)
        thread.join(PATIENCE)
        assert (done.request.context, done.error) == ("quick", None)


def test_time_out_of_a_request_runs_from_its_start() -> None:
    with one_broker(request_timeout_ms=5000, max_in_flight_requests_per_connection=1) as (rigged, broker):
        for name in ("first", "second"):
            rigged.client.send(0, produce(context=name))
        rigged.client.poll(0)
        first = broker.next_request()
        rigged.clock.advance(4)
        assert broker.requests.empty()
        first.reply(b"")
        assert [c.request.context for c in rigged.completions(1)] == ["first"]
        rigged.clock.advance(4)
        assert rigged.settle() == []
        rigged.clock.advance(1.5)
        (done,) = rigged.completions(1)
        assert done.request.context == "second"
        assert done.latency == pytest.approx(5.5)


def test_at_most_eight_requests_wait_behind_a_full_in_flight_table() -> None:
    with one_broker() as (rigged, broker):
        for number in range(13):
            assert rigged.client.takes_ahead(0)
            rigged.client.send(0, produce(context=number))
        assert not rigged.client.takes_ahead(0)
        rigged.client.poll(0)
        seen = [broker.next_request() for _ in range(5)]
        rigged.settle()
        assert broker.requests.empty()
        for received in seen:
            received.reply(b"")
        rigged.completions(5)

        def answer() -> None:
            for _ in range(8):
                broker.next_request().reply(b"")

        thread = in_thread(answer)
        assert [c.request.context for c in rigged.completions(8)] == list(range(5, 13))
        thread.join(PATIENCE)
        assert not rigged.client.takes_ahead(1), "not connected"


def test_request_with_a_time_out_of_its_own_keeps_it() -> None:
    with one_broker() as (rigged, _):
        rigged.client.send(0, produce(context=1))
        rigged.client.send(0, produce(context=2, timeout=0.5))
        rigged.clock.advance(0.6)
        assert [c.request.context for c in rigged.completions(2)] == [1, 2]


def test_poll_returns_when_a_time_out_is_due() -> None:
    with one_broker(request_timeout_ms=20, linger_ms=0) as (rigged, _):
        rigged.client.send(0, produce())
        rescue = threading.Timer(PATIENCE, rigged.client.wakeup)
        rescue.start()
        # The clock stands still, so the poll cannot complete the request. It must still return for the time-out.
        assert rigged.client.poll(None) == []
        assert rescue.is_alive()
        rescue.cancel()


def test_only_an_idle_connection_is_closed() -> None:
    with one_broker(connections_max_idle_ms=5_000) as (rigged, broker):
        rigged.client.requests.stats = stats = ProducerStats()
        rigged.clock.advance(4)
        rigged.client.send(0, produce())
        rigged.client.poll(0)
        rigged.clock.advance(6)
        assert rigged.settle() == [], "a connection was closed that waits for a response"
        broker.next_request().reply(b"")
        rigged.completions(1)
        rigged.clock.advance(4)
        rigged.settle()
        assert rigged.client.connection_delay(0) == float("inf"), "a connection was closed that was used 4 s ago"
        rigged.clock.advance(2)
        rigged.settle()
        assert rigged.client.connection_delay(0) == 0.0
        assert stats.closed.total == 2, "not closed: the connections to the broker and to the bootstrap server"
        rigged.connect(0)  # the client connects again when it needs the node


def test_close_completes_requests_in_flight_with_closed_error() -> None:
    with one_broker() as (rigged, _):
        payload = bytes(bytearray(b"A" * 100))
        rigged.client.send(0, produce(payload, context="x"))
        (done,) = rigged.client.close()
        assert done.request.context == "x"
        assert isinstance(done.error, ClosedError)
        rigged.client.wakeup()  # a user thread may call this after close()


def test_request_queued_behind_a_full_table_fails_with_its_connection() -> None:
    with one_broker(max_in_flight_requests_per_connection=1) as (rigged, broker):
        rigged.client.send(0, produce())
        assert not rigged.client.ready(0)
        assert rigged.client.takes_ahead(0)
        entity = messages.build_request(messages.API_VERSIONS, 0)
        rigged.client.send_entity(0, entity, "ahead")
        rigged.poll_until(broker.requests.qsize)
        rigged.settle()
        assert broker.requests.qsize() == 1, "the queued request was started"
        broker.drop_connections()
        first, ahead = rigged.completions(2)
        assert isinstance(ahead.error, NetworkError)
        assert ahead.error.retriable
        assert (first.request.context, ahead.request.context) == (None, "ahead")


def test_times_of_a_request_are_those_of_time_monotonic() -> None:
    # With the machine's clock the client reads the clock in C.
    with brokers() as (broker,):
        config = config_for(broker)
        metadata, poller = Metadata(config, SystemClock()), Poller()
        rigged = Rig(NetworkClient(config, SystemClock(), metadata, poller), metadata, ManualClock(), poller)
        with contextlib.closing(rigged.client):
            rigged.connect(0)
            before = time.monotonic()
            rigged.client.send(0, produce(answered=False))
            (entry,) = rigged.client.requests.nodes[0].in_flight
            assert before <= entry.sent_at <= time.monotonic()
            assert entry.deadline == pytest.approx(entry.sent_at + config.request_timeout_ms / 1000)
