"""Brokers with too long or malformed responses, connections that fail, and the errors that users read about them."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.clock import ManualClock
from kafkabuf.errors import NetworkError, TopicAuthorizationError, error_for_code, printable
from kafkabuf.network import bounds, failure_log
from kafkabuf.network._request import decoded
from kafkabuf.network.connection_state import State
from kafkabuf.network.failure_log import FailureLog
from kafkabuf.network.resolve import Resolver, resolve
from kafkabuf.process.background import BackgroundCall
from kafkabuf.protocol import messages
from kafkabuf.sending._produce import build_request
from rigs.producer import Rig as ProducerRig
from tests.network.security_support import SecureBroker, plain, secured, server_context
from tests.network.support import (
    PATIENCE,
    FakeBroker,
    Rig,
    brokers,
    cluster_of,
    one_broker,
    produce,
    rig,
    topic_of,
)
from tests.network.test_reconnect import closed_port
from tests.network.tls.certificates import Authority

ENDLESS = (100_000_000 - 1).to_bytes(4, "big")


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def error_of(rigged: Rig, node_id: int = -1) -> str:
    """The error of the node's first connection."""
    rigged.client.ready(node_id)
    rigged.poll_until(lambda: rigged.client.last_error(node_id) is not None)
    return str(rigged.client.last_error(node_id))


# ---- how long a response may be --------------------------------------------------------------------------------------


@pytest.mark.parametrize("topics", [0, 1, 3, 100])
def test_metadata_response_is_bounded_by_the_topics_in_the_request(topics: int) -> None:
    with brokers() as (broker,), rig(broker) as rigged:
        broker.cluster = None
        for number in range(topics):
            rigged.metadata.add_topic(f"t{number}")
        rigged.poll_until(lambda: not broker.requests.empty())
        broker.next_request().sock.sendall(ENDLESS)
        allowed = min(1 + 4 * topics, 32) * 1024 * 1024
        assert f"frame of 99999999 bytes, allowed are 4 to {allowed};" in error_of(rigged)


def test_response_to_the_handshake_is_bounded() -> None:
    with brokers(greets=False) as (broker,), rig(broker) as rigged:
        rigged.poll_until(lambda: not broker.requests.empty())
        broker.next_request().sock.sendall((512 * 1024 + 1).to_bytes(4, "big"))
        assert "allowed are 4 to 524288;" in error_of(rigged)


def test_response_about_a_coordinator_is_bounded() -> None:
    with one_broker() as (rigged, broker):
        rigged.client.send_entity(0, messages.build_request(messages.FIND_COORDINATOR, 3, key="k", key_type=0))
        rigged.client.poll(0)
        broker.next_request().sock.sendall((100_000).to_bytes(4, "big"))
        (done,) = rigged.completions(1)
        assert "frame of 100000 bytes" in str(done.error)


def test_frame_without_a_request_is_bounded() -> None:
    with one_broker() as (rigged, broker):
        broker.sockets[-1].sendall(ENDLESS)
        for sock in broker.sockets:
            with contextlib.suppress(OSError):
                sock.sendall(ENDLESS)
        assert "allowed are 4 to 65536 without a request" in error_of(rigged, 0)


def test_produce_response_may_explain_every_record_and_no_more() -> None:
    rigged = ProducerRig(leaders=(1, 1))
    for partition in (0, 1):
        for _ in range(10):
            rigged.send(b"v", partition)
    batches = [rigged.drain_one(partition) for partition in (0, 1)]
    frame = build_request(12, 1, b"c", -1, 100, batches)
    assert 2 * 10 * 250 < frame.largest_response < 100_000
    for batch in batches:
        batch.end_read()


def test_too_long_response_is_refused_by_its_announced_length() -> None:
    """The client refuses the announced length, and does not wait for a hundred megabytes."""
    with one_broker() as (rigged, broker):
        rigged.client.send_entity(0, messages.build_request(messages.INIT_PRODUCER_ID, 1))
        rigged.client.poll(0)
        asked = broker.next_request()
        with contextlib.suppress(OSError):
            asked.sock.sendall(ENDLESS + bytes(1_000_000))
        (done,) = rigged.completions(1)
        assert isinstance(done.error, NetworkError)


# ---- long responses --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def long_metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Rig, FakeBroker, threading.Event, list[str]]]:
    """A client that has asked for a topic of 12,000 partitions. The decoding of the response waits for the event."""
    go = threading.Event()
    names: list[str] = []
    decode = messages.decode_response

    def slow(api_key: int, version: int, frame: bytes) -> Any:
        if len(frame) > bounds.LARGEST_DECODED_AT_ONCE:
            names.append(threading.current_thread().name)
            go.wait(PATIENCE)
        return decode(api_key, version, frame)

    monkeypatch.setattr(messages, "decode_response", slow)
    with brokers() as (broker,), rig(broker) as rigged:
        rigged.connect(0)
        assert broker.cluster is not None
        broker.cluster["topics"] = [topic_of("long", [0] * 12_000)]
        rigged.metadata.add_topic("long")
        try:
            rigged.poll_until(lambda: names)
            yield rigged, broker, go, names
        finally:
            go.set()


def test_decoding_of_long_metadata_does_not_hold_up_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    with long_metadata(monkeypatch) as (rigged, broker, go, names):
        assert names == ["kafkabuf-decode"]
        rigged.client.send(0, produce(context="meanwhile"))
        rigged.client.poll(0)
        broker.next_request().reply(b"")
        assert [done.request.context for done in rigged.completions(1)] == ["meanwhile"]
        assert "long" not in rigged.metadata.snapshot.topics
        go.set()
        rigged.poll_until(lambda: "long" in rigged.metadata.snapshot.topics)
        assert len(rigged.metadata.snapshot.topics["long"].partitions) == 12_000


def test_close_does_not_wait_for_the_decoding_of_long_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    with long_metadata(monkeypatch) as (rigged, _, go, _names):
        start = time.monotonic()
        rigged.client.close()
        assert time.monotonic() - start < PATIENCE / 2
        assert rigged.metadata.time_to_update(rigged.clock.monotonic()) < float("inf"), "the update is still under way"
        go.set()


def test_long_malformed_metadata_fails_its_connection() -> None:
    with brokers() as (broker,), rig(broker) as rigged:
        rigged.connect(0)
        broker.cluster = None
        rigged.metadata.add_topic("long")
        rigged.poll_until(lambda: not broker.requests.empty())
        broker.next_request().reply(b"\0" + bytes(4) + b"\xff" * 500_000)
        rigged.poll_until(lambda: rigged.client.last_error(0) or rigged.client.last_error(-1))
        assert "is not understood: malformed metadata" in str(
            rigged.client.last_error(0) or rigged.client.last_error(-1)
        )
        broker.cluster = cluster_of(broker, topics={"long": 1})
        rigged.clock.advance(2)
        rigged.poll_until(lambda: "long" in rigged.metadata.snapshot.topics)


def test_step_fails_at_once_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    step: BackgroundCall[int] = BackgroundCall(lambda: 1, lambda: woken.append(1), "name")
    assert step.done
    assert woken == [1]
    with pytest.raises(Exception, match="can't start new thread"):
        step.result()


def test_long_response_is_checked_like_a_short_response() -> None:
    request = messages.build_request(messages.FIND_COORDINATOR, 3, key="k", key_type=0)
    with one_broker() as (rigged, _):
        asked = rigged.client.connections.request(request)
    answer = messages.build_response(
        messages.FIND_COORDINATOR, 3, node_id=1, host="h", port=1, error_code=0, throttle_time=-5
    )
    with pytest.raises(Exception, match="pause of -5 ms"):
        decoded(asked, messages.encode_response(messages.FIND_COORDINATOR, 3, 1, answer))


# ---- names and texts from a broker -----------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["a\0b", "a\nWARNING all is lost", "\x1b[2Jx", "..", "x" * 300])
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_invalid_host_name_fails_only_its_own_connection(
    host: str, protocol: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    context = server_context(authority.issue("kafka.test", "DNS:kafka.test")) if protocol == "SSL" else None
    broker = SecureBroker(context)
    trusted = {"ssl_truststore_location": str(authority.certificate)} if protocol == "SSL" else {}
    with secured(broker, **trusted) as (rigged, _):
        assert broker.cluster is not None
        broker.cluster["brokers"] += [{"node_id": 1, "host": host, "port": broker.port}]
        if protocol == "PLAINTEXT":
            rigged.client.connections._resolver = with_the_systems_resolver(rigged.client.connections._resolver)
        rigged.connect(0)
        error = error_of(rigged, 1)
        assert "broker 1 at " in error
        assert error.isprintable()
        assert all(text.isprintable() for text in warnings_in(caplog))
        assert rigged.client.ready(0)


def with_the_systems_resolver(resolver: Resolver) -> Resolver:
    return lambda host, port: resolver(host, port) if host == "kafka.test" else resolve(host, port)


def test_text_of_a_broker_is_printed_on_one_line() -> None:
    assert printable("a\nb\x1b[1m\u202e\0 ü 漢") == r"a\nb\x1b[1m\u202e\x00 ü 漢"
    assert printable("x" * 2000) == "x" * 1000 + "..."
    error = error_for_code(TopicAuthorizationError.code, "no\r\nWARNING root: hacked")
    assert str(error) == r"no\r\nWARNING root: hacked"
    assert "TopicAuthorization" in str(error_for_code(TopicAuthorizationError.code, ""))


# ---- connections that fail -------------------------------------------------------------------------------------------


def test_failures_of_many_connections_are_logged_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    with brokers() as (broker,), rig(broker) as rigged:
        assert broker.cluster is not None
        host, port = closed_port()
        broker.cluster["brokers"] += [{"node_id": 1 + i, "host": host, "port": port} for i in range(300)]
        rigged.connect(0)
        caplog.clear()
        for node_id in range(1, 301):
            rigged.client.ready(node_id)
        rigged.poll_until(lambda: all(rigged.client.last_error(node_id) for node_id in range(1, 301)))
        assert len(warnings_in(caplog)) == failure_log.MOST_WARNINGS
        caplog.clear()
        rigged.clock.advance(failure_log.PERIOD)
        rigged.settle()
        (rest,) = [text for text in warnings_in(caplog) if "more connections failed" in text]
        assert rest.startswith("290 more connections failed in the last minute, the last of them with: connection to")


def test_number_of_failures_left_out_is_logged_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog()
    for number in range(failure_log.MOST_WARNINGS + 2):
        failures.warn(f"failure {number}", 0.0)
    assert failures.due == failure_log.PERIOD
    failures.log_left_out()
    failures.log_left_out()
    assert warnings_in(caplog)[-1].startswith("2 more connections failed")
    assert len(warnings_in(caplog)) == failure_log.MOST_WARNINGS + 1
    failures.warn("the next minute", failure_log.PERIOD)
    assert warnings_in(caplog)[-1] == "the next minute"


def test_error_of_a_node_is_known_until_it_is_ready_again() -> None:
    with one_broker() as (rigged, broker):
        assert rigged.client.last_error(0) is None
        assert rigged.client.last_error(77) is None
        rigged.client.send(0, produce())
        rigged.client.poll(0)
        broker.drop_connections()
        rigged.completions(1)
        assert "the peer closed it" in str(rigged.client.last_error(0))
        rigged.clock.advance(1)
        rigged.connect(0)
        assert rigged.client.last_error(0) is None


def test_error_of_the_clients_own_code_fails_the_connection_and_not_the_turn() -> None:
    with one_broker() as (rigged, broker):

        def fail(_: object) -> None:
            raise IndexError("a bug of the client")

        entity = messages.build_request(messages.METADATA, 9, topics=[])
        rigged.client.connections.submit(rigged.client.requests.nodes[0], entity, fail)
        rigged.client.send(0, produce(context="behind it"))
        (done,) = rigged.completions(1)
        assert "is not understood: IndexError: a bug of the client" in str(done.error)
        rigged.clock.advance(1)
        rigged.connect(0)
        del broker


# ---- what users read -------------------------------------------------------------------------------------------------


def test_error_of_a_refused_connection_says_what_to_check() -> None:
    with rig(closed_port()) as rigged:
        error = error_of(rigged)
        assert "Connection refused" in error
        assert "check bootstrap.servers" in error
        assert "check bootstrap.servers" in rigged.metadata.circumstances()
    with brokers() as (broker,), rig(broker) as rigged:
        assert broker.cluster is not None
        host, port = closed_port()
        broker.cluster["brokers"] += [{"node_id": 1, "host": host, "port": port}]
        rigged.connect(0)
        assert "advertised.listeners" in error_of(rigged, 1)


@pytest.mark.parametrize("abrupt", [False, True])
def test_error_of_one_broker_of_a_cluster_does_not_take_the_settings_for_wrong(abrupt: bool) -> None:
    with hangs_up(abrupt=abrupt) as (host, port), brokers() as (broker,), rig(broker) as rigged:
        assert broker.cluster is not None
        broker.cluster["brokers"] += [{"node_id": 1, "host": host, "port": port}]
        rigged.connect(0)
        error = error_of(rigged, 1)
        assert "other brokers of the cluster have responded: is this one starting, or too busy to respond?" in error
        assert "right for this port" not in error


@pytest.mark.parametrize("trouble", ["down", "hangs up", "frozen"])
def test_error_of_a_broker_that_responded_before_advises_no_settings(trouble: str) -> None:
    with one_broker() as (rigged, broker):
        broker.drop_connections()
        rigged.poll_until(lambda: not rigged.client.ready(0))
        broker.greets = False
        if trouble == "down":
            broker.close()
        rigged.clock.advance(1)
        assert not rigged.client.ready(0)
        if trouble != "down":
            rigged.poll_until(lambda: not broker.requests.empty())  # the handshake
        if trouble == "hangs up":
            broker.drop_connections()
        if trouble == "frozen":
            rigged.clock.advance(31)
        rigged.poll_until(lambda: rigged.client.requests.nodes[0].state is State.DISCONNECTED)
        error = str(rigged.client.last_error(0))
        assert "the broker responded before: is it down, or too busy to respond?" in error
        assert "security.protocol" not in error
        assert "advertised.listeners" not in error


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_lack_of_descriptors_is_no_fault_of_the_broker(number: int) -> None:
    def connector(address: object) -> Any:
        raise OSError(number, os.strerror(number))

    with one_broker() as (rigged, broker):
        broker.drop_connections()
        rigged.poll_until(lambda: not rigged.client.ready(0))
        rigged.client.connections._connector = connector
        rigged.clock.advance(1)
        rigged.client.ready(0)
        rigged.poll_until(lambda: "too many" in str(rigged.client.last_error(0)).lower())
        error = str(rigged.client.last_error(0))
    assert "ulimit -n" in error
    assert "the broker" not in error


@pytest.mark.parametrize("abrupt", [False, True])
def test_tls_spoken_to_a_plaintext_port_names_the_security_protocol(abrupt: bool) -> None:
    with hangs_up(abrupt=abrupt) as address, rig(address, security_protocol="SSL") as rigged:
        error = error_of(rigged)
        assert "ended the connection during the TLS handshake" in error
        assert "security.protocol" in error
        assert "security.protocol" in rigged.metadata.circumstances()


@pytest.mark.parametrize("abrupt", [False, True])
def test_plaintext_spoken_to_a_port_that_hangs_up_names_the_security_protocol(abrupt: bool) -> None:
    with hangs_up(abrupt=abrupt) as address, rig(address) as rigged:
        error = error_of(rigged)
        assert "the peer did not respond as a broker does: is security.protocol=PLAINTEXT right for this port?" in error
        assert "security.protocol" in rigged.metadata.circumstances()


def test_plaintext_spoken_to_a_tls_port_names_the_security_protocol(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    broker = SecureBroker(server_context(authority.issue("kafka.test", "DNS:kafka.test")))
    with secured(broker, security_protocol="PLAINTEXT") as (rigged, _):
        assert "security.protocol" in error_of(rigged)


def test_error_of_a_port_that_wants_sasl_says_so() -> None:
    broker = SecureBroker(exchanges={"PLAIN": plain("alice", "secret")})
    with secured(broker, security_protocol="PLAINTEXT") as (rigged, _):
        assert "does this port want SASL? security.protocol is PLAINTEXT" in error_of(rigged)


def test_silent_port_names_the_security_protocol() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        clock = ManualClock()
        with rig(listener.getsockname(), clock=clock, security_protocol="SSL") as rigged:
            rigged.poll_until(lambda: rigged.client.requests.nodes[-1].connection is not None)
            rigged.settle()
            clock.advance(100)
            assert "does not respond to the TLS handshake: is security.protocol=SSL right" in error_of(rigged)
        with rig(listener.getsockname(), clock=clock, request_timeout_ms=1000) as rigged:
            rigged.poll_until(lambda: rigged.client.in_flight(-1))
            clock.advance(100)
            assert "is security.protocol=PLAINTEXT right for this port?" in error_of(rigged)


@contextlib.contextmanager
def hangs_up(*, abrupt: bool) -> Iterator[tuple[str, int]]:
    """A port that closes a connection when the client sends something."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                sock.recv(1 if abrupt else 12_000)
                if abrupt:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


WRONG_PORT = """
import sys
from kafkabuf import KafkaProducer
try:
    KafkaProducer(bootstrap_servers=sys.argv[1], max_block_ms=300).send("t", b"v")
except TimeoutError as error:
    print(error)
"""


def test_wrong_port_is_reported_without_any_logging_set_up() -> None:
    address = "{}:{}".format(*closed_port())
    done = subprocess.run(
        [sys.executable, "-c", WRONG_PORT, address], capture_output=True, text=True, timeout=60, check=True
    )
    expected = f"connection to bootstrap server {address} failed: Connection refused; is a broker listening there?"
    assert expected in done.stderr
    assert expected in done.stdout
    assert done.stderr.count("\n") < 10


# ---- pauses and sessions ---------------------------------------------------------------------------------------------


def test_pause_is_cut_to_five_minutes() -> None:
    with one_broker(request_timeout_ms=5000, metadata_max_age_ms=1_000_000) as (rigged, _):
        rigged.client.send(0, produce(context="under way"))
        for _attempt in range(10):
            rigged.client.throttle(0, produce(version=9), 2**31 - 1)
        assert rigged.client.connection_delay(0) == pytest.approx(300.0)
        assert rigged.settle() == []
        rigged.clock.advance(305.1)  # the time-out runs on after the pause; ten such responses do not add up
        (done,) = rigged.completions(1)
        assert "no response" in str(done.error)


def test_session_of_a_millisecond_is_renewed_once_a_second() -> None:
    broker = SecureBroker(exchanges={"PLAIN": plain("alice", "secret")}, session_ms=1)
    settings = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": "secret"}
    with secured(broker, **settings) as (rigged, _):
        rigged.connect(0)
        rigged.poll_until(lambda: len(broker.handshakes) == 2)
        for _ in range(50):
            rigged.clock.advance(0.015)
            rigged.client.poll(0.001)
        assert len(broker.handshakes) == 2
        rigged.clock.advance(0.5)
        rigged.poll_until(lambda: len(broker.handshakes) == 4)
