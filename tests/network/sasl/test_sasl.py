"""SASL from the client's side: mechanisms by themselves, and against brokers that lie."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import pickle
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkabuf import KafkaProducer
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import (
    ConfigError,
    IllegalSaslStateError,
    KafkaError,
    NetworkError,
    SaslAuthenticationError,
    SslAuthenticationError,
    TimeoutError,
    UnsupportedSaslMechanismError,
)
from kafkabuf.network.resolve import Address
from kafkabuf.network.sasl.mechanisms import jaas_options
from kafkabuf.network.sasl.scram import Scram
from kafkabuf.protocol import messages
from tests.network.security_support import Refused, ScramServer, SecureBroker, failure, plain, secured, server_context
from tests.network.support import ALL_VERSIONS, PATIENCE, Received, produce
from tests.network.tls.certificates import Authority

SECRET = "sentinel-password"
ALICE = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": SECRET}
BY_SCRAM = {**ALICE, "sasl_mechanism": "SCRAM-SHA-512"}


def scram_broker(**lies: Any) -> SecureBroker:
    return SecureBroker(exchanges={"SCRAM-SHA-512": ScramServer("SCRAM-SHA-512", SECRET, **lies)})


# ---- mechanisms over a connection ------------------------------------------------------------------------------------


def test_plain_authenticates() -> None:
    with secured(SecureBroker(exchanges={"PLAIN": plain("alice", SECRET)}), **ALICE) as (rigged, broker):
        rigged.connect(0)
        rigged.client.send(0, produce(b"records"))
        rigged.poll_until(lambda: broker.requests.qsize())
        assert broker.early == []


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("username", ["alice", "a,b=c", "=2C,=3D", "Ünïcode 名", "=,"])
def test_scram_authenticates(mechanism: str, username: str) -> None:
    server = ScramServer(mechanism, SECRET, iterations=8192)
    settings = {**ALICE, "sasl_mechanism": mechanism, "sasl_username": username}
    with secured(SecureBroker(exchanges={mechanism: server}), **settings) as (rigged, broker):
        rigged.connect(0)
        assert server.username == username
        assert not any(SECRET.encode() in token for token in broker.tokens)


def test_jaas_text_authenticates() -> None:
    text = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice"\n password="{SECRET}";'
    settings = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_jaas_config": text}
    with secured(scram_broker(), **settings) as (rigged, _):
        rigged.connect(0)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_wrong_password_is_fatal_and_not_retried_at_once(mechanism: str) -> None:
    server: Callable[[], Any] = plain("alice", "other") if mechanism == "PLAIN" else ScramServer(mechanism, "other")
    settings = {**ALICE, "sasl_mechanism": mechanism}
    with secured(SecureBroker(exchanges={mechanism: server}), **settings) as (rigged, broker):
        error = failure(rigged)
        assert isinstance(error, SaslAuthenticationError)
        assert "Authentication failed" in str(error)
        assert not error.retriable
        assert SECRET not in str(error)
        rigged.settle()
        assert len(broker.handshakes) == 1, "the client tried again without a back-off"


def test_refusal_counts_though_the_broker_closes_behind_it(tmp_path: Any) -> None:
    """A slow client finds the response and the end of the stream in one poll."""
    ca = Authority(tmp_path)
    context = server_context(ca.issue("server", "DNS:kafka.test"))
    answer, arrived = threading.Event(), select.poll()

    class Closing(SecureBroker):
        def _authenticate(self, request: Received) -> None:
            super()._authenticate(request)
            assert isinstance(request.sock, ssl.SSLSocket)
            request.sock.setblocking(False)  # the client ends its stream later
            with contextlib.suppress(ssl.SSLWantReadError):
                request.sock.unwrap()
            request.sock.shutdown(socket.SHUT_RDWR)

    def refuse(_: bytes) -> bytes:
        assert answer.wait(PATIENCE)
        raise Refused("Authentication failed")

    def connector(address: Address) -> socket.socket:
        sock = socket.create_connection(address.sockaddr)
        copies.append(sock.dup())
        arrived.register(copies[-1], getattr(select, "POLLRDHUP", select.POLLHUP))
        return sock

    copies: list[socket.socket] = []
    broker = Closing(context, {"PLAIN": lambda: refuse})
    trusted = ca.certificate.read_text()
    with secured(broker, ssl_truststore_certificates=trusted, connector=connector, **ALICE) as (rigged, _):
        rigged.poll_until(lambda: broker.tokens)
        answer.set()
        assert arrived.poll(PATIENCE * 1000)
        assert isinstance(failure(rigged), SaslAuthenticationError)
    for copy in copies:
        copy.close()


def test_refused_password_fails_a_waiting_send_at_once() -> None:
    """A thread that waits in send() gets the error at once, and does not wait for max.block.ms."""
    broker = SecureBroker(exchanges={"PLAIN": plain("alice", "other")})
    settings = {**ALICE, "security_protocol": "SASL_PLAINTEXT", "bootstrap_servers": f"127.0.0.1:{broker.port}"}
    with KafkaProducer(settings) as producer:
        with pytest.raises(SaslAuthenticationError, match="Invalid username or password"):
            producer.send("t", b"v")
    broker.close()


class Leader(SecureBroker):
    """A broker that acknowledges every batch of partition 0 of topic t."""

    def handle(self, request: Any) -> bool:
        if request.header.api_key != messages.PRODUCE or request.sock not in self._passed:
            return super().handle(request)
        done = {"index": 0, "error_code": 0, "base_offset": 0, "log_append_time": None, "log_start_offset": 0}
        request.reply_entity(responses=[{"name": "t", "partition_responses": [done]}])
        return True


@contextlib.contextmanager
def front_and_leader(exchange: Callable[[], Any], **settings: Any) -> Iterator[tuple[KafkaProducer, SecureBroker]]:
    """A producer whose bootstrap server accepts it, and the leader of t, which has an `exchange` of its own."""
    front, leader = SecureBroker(exchanges={"PLAIN": plain("alice", SECRET)}), Leader(exchanges={"PLAIN": exchange})
    nodes = [{"node_id": i, "host": b.host, "port": b.port} for i, b in enumerate((front, leader))]
    partition = {"error_code": 0, "partition_index": 0, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1]}
    topic = {"error_code": 0, "name": "t", "is_internal": False, "partitions": [partition]}
    front.cluster = leader.cluster = {"brokers": nodes, "controller_id": 0, "topics": [topic]}
    secured = {**ALICE, "security_protocol": "SASL_PLAINTEXT", "bootstrap_servers": f"127.0.0.1:{front.port}"}
    with KafkaProducer({**secured, "enable_idempotence": False, **settings}) as producer:
        yield producer, leader
    front.close()
    leader.close()


def test_buffered_records_outlive_a_refusal_that_passes(caplog: pytest.LogCaptureFixture) -> None:
    buffered, attempts = threading.Event(), itertools.count()

    def refuse(token: bytes) -> bytes:
        raise Refused("the users are not loaded yet")

    def exchange() -> Any:
        buffered.wait(60)
        return refuse if next(attempts) < 2 else plain("alice", SECRET)()

    with front_and_leader(exchange) as (producer, leader):
        futures = [producer.send("t", b"v") for _ in range(1_000)]
        buffered.set()
        assert [future.exception(60) for future in futures] == [None] * 1_000
        assert len(leader.handshakes) == 3
    assert "the users are not loaded yet" in caplog.text
    assert SECRET not in caplog.text


def test_records_for_a_leader_that_goes_on_refusing_fail_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    times = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 500, "linger_ms": 0}
    with front_and_leader(plain("alice", "other"), **times) as (producer, _leader):
        error = producer.send("t", b"v").exception(60)
        assert isinstance(error, TimeoutError)
        assert "refused the PLAIN credentials" in str(error)
    assert SECRET not in caplog.text


def test_client_uses_no_other_mechanism_than_the_configured_one() -> None:
    with secured(SecureBroker(exchanges={"PLAIN": plain("alice", SECRET)}), **BY_SCRAM) as (rigged, broker):
        error = failure(rigged)
        assert isinstance(error, UnsupportedSaslMechanismError)
        assert "only: PLAIN" in str(error)
        rigged.settle()
        assert broker.handshakes == ["SCRAM-SHA-512"]
        assert broker.tokens == []


def test_listener_without_sasl_gets_no_password() -> None:
    class Plaintext(SecureBroker):
        def handle(self, request: Any) -> bool:
            if request.header.api_key != messages.SASL_HANDSHAKE:
                return False
            request.reply_entity(error_code=34, mechanisms=[])
            return True

    with secured(Plaintext(), security_protocol="SASL_PLAINTEXT", **ALICE) as (rigged, _):
        error = failure(rigged)
        assert isinstance(error, IllegalSaslStateError)
        assert "security.protocol" in str(error)
    old = SecureBroker(exchanges={"PLAIN": plain("alice", SECRET)})
    old.versions = {**ALL_VERSIONS, messages.SASL_HANDSHAKE: (0, 0)}
    with secured(old, **ALICE) as (rigged, _):
        assert isinstance(failure(rigged), KafkaError)
        assert old.tokens == []


def test_broker_with_a_wrong_certificate_gets_no_byte_of_sasl(tmp_path: Any) -> None:
    """A man in the middle with a certificate of his own."""
    wrong = Authority(tmp_path).issue("mallory", "DNS:mallory.test")
    trusted = Authority(tmp_path, "trusted")
    for identity in (wrong, trusted.issue("mallory2", "DNS:mallory.test")):
        broker = SecureBroker(server_context(identity), {"PLAIN": plain("alice", SECRET)})
        with secured(broker, ssl_truststore_location=str(trusted.certificate), **ALICE) as (rigged, _):
            assert isinstance(failure(rigged), KafkaError)
            rigged.settle()
            assert broker.tokens == []
            assert broker.handshakes == []
            assert broker.greetings == []


def test_broker_that_responds_without_tls_is_refused(tmp_path: Any) -> None:
    """A man in the middle responds to a SASL_SSL client in the clear."""
    heard = bytearray()

    class Stripping(SecureBroker):
        def _serve(self, sock: socket.socket) -> None:
            response = messages.build_response(messages.API_VERSIONS, 0, error_code=0, api_keys=[])
            frame = messages.encode_response(messages.API_VERSIONS, 0, 1, response)
            with contextlib.suppress(OSError):  # reset by the client
                heard.extend(sock.recv(10_000))
                sock.sendall(len(frame).to_bytes(4, "big") + frame)
                heard.extend(sock.recv(10_000))

    settings = {"security_protocol": "SASL_SSL", "ssl_truststore_location": str(Authority(tmp_path).certificate)}
    with secured(Stripping(), **settings, **ALICE) as (rigged, _):
        error = failure(rigged)
        assert isinstance(error, SslAuthenticationError)
        assert "does not seem to speak TLS" in str(error)
    assert heard.startswith(b"\x16\x03"), "the first bytes are not TLS's"
    assert SECRET.encode() not in heard


def test_scram_over_tls_authenticates(tmp_path: Any) -> None:
    ca = Authority(tmp_path)
    context = server_context(ca.issue("server", "DNS:kafka.test"))
    broker = SecureBroker(context, {"SCRAM-SHA-512": ScramServer("SCRAM-SHA-512", SECRET)})
    with secured(broker, ssl_truststore_certificates=ca.certificate.read_text(), **BY_SCRAM) as (rigged, _):
        rigged.connect(0)
        assert all(isinstance(request.sock, ssl.SSLSocket) for request in broker.greetings)


# ---- SCRAM under attack ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 0, -1, 4095, 1_000_001, 10**9, 10**18])
def test_number_of_iterations_is_bounded(iterations: int) -> None:
    with secured(scram_broker(iterations=iterations), **BY_SCRAM) as (rigged, broker):
        error = failure(rigged)
        assert isinstance(error, SaslAuthenticationError)
        assert f"{iterations} iterations" in str(error)
        assert len(broker.tokens) == 1, "the client sent a proof"


@pytest.mark.parametrize("lie", [lambda ours: ours, lambda ours: "x" + ours + "y", lambda ours: "other"])
def test_nonce_that_does_not_extend_the_clients_is_refused(lie: Callable[[str], str]) -> None:
    with secured(scram_broker(nonce=lie), **BY_SCRAM) as (rigged, broker):
        assert "nonce" in str(failure(rigged))
        assert len(broker.tokens) == 1


@pytest.mark.parametrize("signature", [b"\0" * 64, b"short", b"x" * 65])
def test_wrong_signature_of_the_server_is_refused(signature: bytes) -> None:
    with secured(scram_broker(signature=signature), **BY_SCRAM) as (rigged, _):
        error = failure(rigged)
        assert isinstance(error, SaslAuthenticationError)
        assert "wrong signature" in str(error)


@pytest.mark.parametrize(
    "answers",
    [
        [b""],  # success at once, without knowing the password
        [b"v=" + b"A" * 88],
        [b"nonsense"],
        [b"\xff\xfe"],
        [b"m=ext,r=NONCEx,s=c2FsdA==,i=4096"],  # an extension that must be understood
        [b"r=NONCEx,s=!!!!,i=4096"],
        [b"r=NONCEx,s=c2FsdA,i=4096"],
        [b"r=NONCEx,s=c2FsdA==,i=99999999999999999999999"],
        [b"r=NONCEx,s=c2FsdA==,i=4_096"],
        [b"r=NONCEx,s=" + b"A" * 5000 + b",i=4096"],
        [b"r=NONCEx,s=c2FsdA==,i=4096", b""],
        [b"r=NONCEx,s=c2FsdA==,i=4096", b"e=other-error"],
        [b"r=NONCEx,s=c2FsdA==,i=4096", b"v=%%%"],
        [b"r=NONCEx,s=c2FsdA==,i=4096", b"v="],
    ],
)
def test_exchange_that_is_not_scrams_is_refused(answers: list[bytes]) -> None:
    exchange = Scram("SCRAM-SHA-256", "alice", SECRET).begin(nonce="NONCE")
    assert exchange.respond(b"") == b"n,,n=alice,r=NONCE"
    *before, last = answers
    for answer in before:
        assert exchange.respond(answer) is not None, "the exchange ended without a signature"
    with pytest.raises(SaslAuthenticationError) as caught:
        exchange.respond(last)
    assert SECRET not in str(caught.value)


@given(st.lists(st.binary(max_size=60) | st.text("rsiv=,0123456789NONCEx").map(str.encode), max_size=4))
def test_random_challenges_never_complete_a_scram_exchange(answers: list[bytes]) -> None:
    exchange = Scram("SCRAM-SHA-256", "alice", SECRET).begin(nonce="NONCE")
    exchange.respond(b"")
    try:
        for answer in answers:
            assert exchange.respond(answer) is not None
    except SaslAuthenticationError:
        pass


def test_scram_reproduces_the_example_of_the_rfc() -> None:
    """RFC 7677, section 3."""
    exchange = Scram("SCRAM-SHA-256", "user", "pencil").begin(nonce="rOprNGfwEbeRWgbNEkqO")
    assert exchange.respond(b"") == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    proof = exchange.respond(b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert proof == b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.respond(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


def test_salted_password_is_derived_once_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    derive = hashlib.pbkdf2_hmac

    def watched(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return derive(*arguments)

    with secured(scram_broker(), **BY_SCRAM) as (rigged, _):
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", watched)
        rigged.connect(0)
    ours = [name for name in threads if name.startswith("kafkabuf-sasl")]
    assert len(ours) == 1, "derived again for the second connection, or in the Sender's thread"


# ---- the length of sessions (KIP-368) --------------------------------------------------------------------------------


def test_session_is_renewed_in_time_on_the_same_connection() -> None:
    broker = SecureBroker(exchanges={"PLAIN": plain("alice", SECRET)}, session_ms=60_000)
    with secured(broker, **ALICE) as (rigged, _):
        rigged.connect(0)
        rigged.poll_until(lambda: len(broker.handshakes) == 2)  # the bootstrap connection, and node 0's
        rigged.clock.advance(53.9)
        rigged.settle()
        assert len(broker.handshakes) == 2
        rigged.clock.advance(0.2)  # 85 + 10/2 % of the minute
        rigged.poll_until(lambda: len(broker.handshakes) == 4)
        rigged.connect(0)
        rigged.connect(-1)
        assert len(broker.greetings) == 2, "the client opened a new connection instead"
        rigged.clock.advance(54.1)
        rigged.poll_until(lambda: len(broker.handshakes) == 6)


def test_no_request_is_sent_while_a_session_is_renewed() -> None:
    """A broker closes a connection that sends another request between SaslHandshake and the end of SASL."""
    broker = SecureBroker(exchanges={"PLAIN": plain("alice", SECRET)}, session_ms=60_000)
    with secured(broker, **ALICE, max_in_flight_requests_per_connection=2) as (rigged, _):
        rigged.connect(0)
        rigged.client.send(0, produce(b"before"))
        rigged.client.send(0, produce(b"before too"))
        rigged.poll_until(lambda: broker.requests.qsize() == 2)
        rigged.client.requests.nodes[0].reauthenticate_at = rigged.clock.monotonic()
        rigged.client.connections.check_by(0.0)
        rigged.client.poll(0)
        assert not rigged.client.ready(0), "the client takes a request during the renewal"
        with pytest.raises(NetworkError):
            rigged.client.send(0, produce(b"between"))
        for _ in range(2):
            broker.next_request().reply(b"")
        done = rigged.completions(2)
        assert [completion.error for completion in done] == [None, None]
        rigged.connect(0)
        rigged.client.send(0, produce(b"after"))
        rigged.poll_until(lambda: broker.requests.qsize())
        assert broker.early == []
        assert len(broker.greetings) == 2


def test_refused_renewal_and_the_refusals_behind_it_are_retried_with_a_back_off() -> None:
    broker = SecureBroker(exchanges={"PLAIN": plain("alice", SECRET)}, session_ms=60_000)
    with secured(broker, **ALICE) as (rigged, _):
        rigged.connect(0)
        assert broker.exchanges is not None
        broker.exchanges["PLAIN"] = plain("alice", "changed")
        node = rigged.client.requests.nodes[0]
        node.reauthenticate_at = rigged.clock.monotonic()
        rigged.client.connections.check_by(0.0)
        rigged.poll_until(lambda: node.connection is None)
        assert rigged.client.connection_delay(0) == pytest.approx(0.05)
        rigged.clock.advance(5.0)
        rigged.poll_until(lambda: rigged.client.ready(0) or node.authentication_error)
        assert 0 < rigged.client.connection_delay(0) <= 1.2
        assert isinstance(rigged.client.connection_error(), SaslAuthenticationError)
        broker.exchanges["PLAIN"] = plain("alice", SECRET)
        rigged.clock.advance(5.0)
        rigged.connect(0)


def test_authentication_with_a_silent_broker_times_out() -> None:
    def never() -> Any:
        raise Refused

    class Silent(SecureBroker):
        def handle(self, request: Any) -> bool:
            if request.header.api_key == messages.SASL_AUTHENTICATE:
                self.tokens.append(b"")
                return True
            return super().handle(request)

    broker = Silent(exchanges={"PLAIN": never})
    broker.exchanges = {"PLAIN": plain("alice", SECRET)}
    with secured(broker, **ALICE) as (rigged, _):
        rigged.poll_until(lambda: broker.tokens)
        errors: list[KafkaError] = []
        rigged.metadata.on_failure = errors.append  # type: ignore[method-assign, assignment]
        rigged.clock.advance(30.001)
        rigged.poll_until(lambda: errors)
        assert errors[0].retriable


def test_long_response_before_authentication_is_refused() -> None:
    class Talker(SecureBroker):
        def handle(self, request: Any) -> bool:
            request.sock.sendall((512 * 1024 + 1).to_bytes(4, "big") + b"x")
            return True

    with secured(Talker(exchanges={"PLAIN": plain("alice", SECRET)}), **ALICE) as (rigged, _):
        assert "allowed are 4 to 524288" in str(failure(rigged))


# ---- settings and secrets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({}, "is GSSAPI .*which needs sasl.kerberos.service.name"),
        ({**ALICE, "sasl_mechanism": "GSSAPI"}, "takes no sasl.username"),
        ({"sasl_mechanism": "CRAM-MD5"}, "SCRAM-SHA-512"),
        ({"sasl_mechanism": "PLAIN"}, "sasl_username"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "alice"}, "sasl_password"),
        ({**ALICE, "sasl_password": SECRET + "\0"}, "NUL"),
        ({**ALICE, "sasl_password": [SECRET]}, r"sasl\.password"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": f"username={SECRET}"}, "form"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": f"x.Y required password={SECRET};"}, "PlainLoginModule"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "token_provider"),
    ],
)
def test_bad_sasl_settings_are_refused_at_construction(settings: dict[str, Any], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice) as caught:
        KafkaProducer(bootstrap_servers="127.0.0.1:9", security_protocol="SASL_PLAINTEXT", **settings)
    assert SECRET not in str(caught.value)


def test_jaas_text_is_parsed_with_its_quotes() -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    text = rf' {module} Required username="a;b" password="with \"quotes\" \\ and = ;" user_admin=plain.word ; '
    expected = {"username": "a;b", "password": 'with "quotes" \\ and = ;', "user_admin": "plain.word"}
    assert jaas_options(text, "PLAIN") == expected
    text = f"""kafkashaded.{module} required\n  username='al "ice"' password='a; b' ;"""
    assert jaas_options(text, "PLAIN") == {"username": 'al "ice"', "password": "a; b"}
    for bad in (
        f"{module} required username=a",
        f'{module} required username="a;',
        f"{module} required username='a;",
        f"{module} username=a;",
        "",
    ):
        with pytest.raises(ConfigError):
            jaas_options(bad, "PLAIN")


def test_secret_appears_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    broker = SecureBroker(exchanges={"PLAIN": plain("alice", SECRET)}, session_ms=60_000)
    with secured(broker, **ALICE) as (rigged, _):
        rigged.connect(0)
        rigged.client.send(0, produce(b"records"))
        broker.drop_connections()
        (done,) = rigged.completions(1)
        shown = [repr(done), str(done.error), repr(rigged.client.connections.authenticator)]
        connections = rigged.client.connections
        assert isinstance(connections._config, ProducerConfig)
        shown += [repr(vars(connections)), repr(connections._config), str(connections._config)]
    with secured(scram_broker(signature=b"x"), **BY_SCRAM) as (rigged, _):
        shown += [repr(failure(rigged)), repr(vars(rigged.client.connections))]
    assert not [text for text in shown if SECRET in text]
    assert SECRET not in caplog.text


def test_pickled_settings_keep_the_password() -> None:
    config = ProducerConfig.from_mapping({"bootstrap.servers": "h:1", "security.protocol": "sasl_ssl"}, ALICE)
    copy = pickle.loads(pickle.dumps(config))
    assert copy.sasl_password.get_secret_value() == SECRET
