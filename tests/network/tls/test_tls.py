"""TLS from the client's side, against TLS servers over real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkabuf.errors import ConfigError, KafkaError, NetworkError, SslAuthenticationError
from kafkabuf.network._io import Connection, Poller
from kafkabuf.network._tls import TlsConnection
from kafkabuf.network.tls import context as tls
from tests.network.security_support import SecureBroker, failure, secured, server_context
from tests.network.support import PATIENCE, config_for, poison, produce, read_exactly
from tests.network.test_io import answer_to, frame_of
from tests.network.tls.certificates import Authority

SECRET = "sentinel-key-password"


class Certificates:
    def __init__(self, folder: Path) -> None:
        self.ca = Authority(folder)
        self.stranger = Authority(folder, "stranger")
        self.server = self.ca.issue("server", "DNS:kafka.test", "IP:127.0.0.1")
        self.other = self.ca.issue("other", "DNS:elsewhere.test", "IP:192.0.2.1")
        self.expired = self.ca.issue("expired", "DNS:kafka.test", expired=True)
        self.unknown = self.stranger.issue("unknown", "DNS:kafka.test")
        self.client = self.ca.issue("client", "DNS:client.test", password=SECRET)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def trusting(certificates: Certificates) -> dict[str, str]:
    return {"ssl_truststore_location": str(certificates.ca.certificate)}


# ---- certificates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["kafka.test", "kafka.test.", "127.0.0.1"])
def test_right_certificate_is_accepted(certificates: Certificates, host: str) -> None:
    broker = SecureBroker(server_context(certificates.server))
    with secured(broker, host, **trusting(certificates)) as (rigged, _):
        rigged.connect(0)
        rigged.client.send(0, produce(b"over TLS"))
        rigged.poll_until(lambda: broker.requests.qsize())
        assert broker.next_request().frame.endswith(b"over TLS")


@pytest.mark.parametrize(
    ("identity", "host", "advice"),
    [
        ("other", "kafka.test", "subjectAltNames"),
        ("other", "127.0.0.1", "subjectAltNames"),
        ("server", "127.0.0.2", "subjectAltNames"),
        ("server", "kafka.test.evil.test", "subjectAltNames"),
        ("expired", "kafka.test", "renew the certificate"),
        ("unknown", "kafka.test", "ssl.truststore.location"),
    ],
)
def test_wrong_certificate_is_refused(certificates: Certificates, identity: str, host: str, advice: str) -> None:
    broker = SecureBroker(server_context(getattr(certificates, identity)))
    with secured(broker, host, **trusting(certificates)) as (rigged, _):
        error = failure(rigged)
        assert isinstance(error, SslAuthenticationError)
        assert advice in str(error)
        assert not error.retriable
        assert broker.greetings == [], "the client sent a request before it checked the certificate"
        rigged.poll_until(lambda: broker.failures)
        assert "ALERT" in str(broker.failures[0]).upper(), "the broker got no TLS alert"


def test_systems_cas_do_not_trust_an_unknown_ca(certificates: Certificates) -> None:
    with secured(SecureBroker(server_context(certificates.server))) as (rigged, _):
        assert isinstance(failure(rigged), SslAuthenticationError)


def test_empty_algorithm_switches_off_the_check_of_the_name_only(certificates: Certificates) -> None:
    settings = {"ssl_endpoint_identification_algorithm": "", **trusting(certificates)}
    with secured(SecureBroker(server_context(certificates.other)), **settings) as (rigged, _):
        rigged.connect(0)
    with secured(SecureBroker(server_context(certificates.unknown)), **settings) as (rigged, _):
        assert isinstance(failure(rigged), SslAuthenticationError)


def test_tls_1_1_is_refused(certificates: Certificates) -> None:
    context = server_context(certificates.server)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with secured(SecureBroker(context), **trusting(certificates)) as (rigged, _):
        error = failure(rigged)
        assert isinstance(error, SslAuthenticationError)
        assert "ssl.enabled.protocols" in str(error)


def test_missing_client_certificate_is_named_in_the_error(certificates: Certificates) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = server_context(certificates.server, client_ca=str(certificates.ca.certificate))
        context.maximum_version = version
        with secured(SecureBroker(context), **trusting(certificates)) as (rigged, _):
            error = failure(rigged)
            assert isinstance(error, SslAuthenticationError), version
            assert "ssl.keystore.location" in str(error)


@pytest.mark.parametrize("memfd", [True, False])
def test_client_certificate_is_sent(certificates: Certificates, memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not memfd:  # as on macOS
        monkeypatch.delattr(os, "memfd_create")
    client = certificates.client
    as_text = {
        "ssl_keystore_key": client.key.read_text(),
        "ssl_keystore_certificate_chain": client.certificate.read_text(),
    }
    in_one_line = {name: text.replace("\n", " ") for name, text in as_text.items()}
    for keystore in ({"ssl_keystore_location": str(client.store)}, as_text, in_one_line):
        context = server_context(certificates.server, client_ca=str(certificates.ca.certificate))
        settings = {**trusting(certificates), **keystore, "ssl_key_password": SECRET}
        with secured(SecureBroker(context), **settings) as (rigged, broker):
            rigged.connect(0)
            sock = broker.sockets[1]
            assert isinstance(sock, ssl.SSLSocket)
            assert sock.getpeercert()


def test_trusted_certificates_may_be_one_line(certificates: Certificates) -> None:
    text = (certificates.stranger.certificate.read_text() + certificates.ca.certificate.read_text()).replace("\n", " ")
    broker = SecureBroker(server_context(certificates.server))
    with secured(broker, "kafka.test", ssl_truststore_certificates=text) as (rigged, _):
        rigged.connect(0)


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"ssl_truststore_location": "/nowhere.pem"}, "No such file"),
        ({"ssl_truststore_location": __file__}, "not readable as PEM, JKS or PKCS12"),
        ({"ssl_truststore_certificates": "nonsense"}, "ssl.truststore.certificates"),
        ({"ssl_keystore_location": __file__}, "not readable as PEM, JKS or PKCS12"),
        ({"ssl_keystore_key": "nonsense"}, "both are needed"),
        ({"ssl_keystore_key": "nonsense", "ssl_keystore_location": __file__}, "leave one|both are needed"),
        ({"ssl_truststore_certificates": "nonsense", "ssl_truststore_location": __file__}, "leave one"),
        ({"ssl_enabled_protocols": "TLSv1.1,TLSv1.2"}, "'TLSv1.2' or 'TLSv1.3'"),
        ({"ssl_enabled_protocols": ""}, "both"),
        ({"ssl_cipher_suites": "TLS_NULL_WITH_NOTHING"}, "no suite"),
        ({"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256"}, "only together"),
        ({"ssl_cipher_suites": "ECDHE-RSA-AES128-GCM-SHA256", "ssl_enabled_protocols": "TLSv1.3"}, "no suite for"),
    ],
)
def test_bad_setting_is_refused_when_the_context_is_made(settings: dict[str, str], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice) as caught:
        tls.client_context(config_for(security_protocol="SSL", **settings))
    assert "nonsense" not in str(caught.value)


def test_key_that_no_pipe_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    key, chain = (
        f"-----BEGIN {label}-----\n{text}\n-----END {label}-----\n"
        for label, text in (("PRIVATE KEY", "sentinel" * 200_000), ("CERTIFICATE", "nonsense"))
    )
    settings = {"ssl_keystore_key": key, "ssl_keystore_certificate_chain": chain}
    with pytest.raises(ConfigError, match=r"more than a pipe .* name the file in ssl\.keystore\.location") as caught:
        tls.client_context(config_for(security_protocol="SSL", **settings))
    assert "sentinel" not in str(caught.value)


def test_encrypted_key_needs_the_right_password(certificates: Certificates) -> None:
    location = str(certificates.client.key)
    with pytest.raises(ConfigError, match=r"ssl\.key\.password"):
        tls.client_context(config_for(ssl_keystore_location=location))
    with pytest.raises(ConfigError, match=r"ssl\.key\.password") as caught:
        tls.client_context(config_for(ssl_keystore_location=location, ssl_key_password="sentinel-wrong"))
    assert "sentinel" not in str(caught.value)


def test_javas_names_of_cipher_suites_are_translated() -> None:
    named = {
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    }
    for java, openssl in named.items():
        context = tls.client_context(config_for(ssl_cipher_suites=java))
        assert [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"] == [openssl]
        assert context.maximum_version is ssl.TLSVersion.TLSv1_2, "a suite of TLS 1.3 could be chosen"


# ---- peers that do not speak TLS -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("greeting", "fatal"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True),
        (b"\x16\x03\x03\xff\xff" + bytes(2000), True),
        (b"\x15\x03\x03\x00\x02\x02\x28", True),  # a TLS alert: handshake failure
        (b"", False),
        (b"\x16\x03\x03", False),
    ],
)
def test_garbage_or_silence_in_the_handshake_fails_the_connection(
    certificates: Certificates, greeting: bytes, fatal: bool
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def respond() -> None:
        sock, _ = listener.accept()
        sock.recv(10_000)
        sock.sendall(greeting)
        sock.shutdown(socket.SHUT_WR)
        read_exactly(sock, 100_000)
        sock.close()

    thread = threading.Thread(target=respond)
    thread.start()
    poller = Poller()
    connection = open_tls(poller, certificates, listener.getsockname()[1])
    error = poll_for_error(poller, connection)
    thread.join(PATIENCE)
    listener.close()
    poller.close()
    assert isinstance(error, SslAuthenticationError if fatal else NetworkError)
    assert "TLS" in str(error)


def test_handshake_with_a_silent_peer_times_out(certificates: Certificates) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    broker = SecureBroker(server_context(certificates.server))
    broker.close()
    broker.port = listener.getsockname()[1]
    with secured(broker, **trusting(certificates)) as (rigged, _):
        sock, _ = accept_while_polling(listener, rigged.client.poll)
        rigged.settle()
        errors: list[KafkaError] = []
        rigged.metadata.on_failure = errors.append  # type: ignore[method-assign, assignment]
        rigged.clock.advance(10.001)
        rigged.poll_until(lambda: errors)
        assert "not established in time" in str(errors[0])
        assert errors[0].retriable
        sock.close()
    listener.close()


# ---- frames through TLS ----------------------------------------------------------------------------------------------


@pytest.fixture
def pair(certificates: Certificates) -> Iterator[tuple[Poller, TlsConnection, ssl.SSLSocket]]:
    """A Poller, a connection after its handshake, and the other end of the connection."""
    with connected(certificates, 0x7FFFFFFF) as poller_and_ends:
        yield poller_and_ends


@contextlib.contextmanager
def connected(certificates: Certificates, max_in_flight: int) -> Iterator[tuple[Poller, TlsConnection, ssl.SSLSocket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    accepted: list[ssl.SSLSocket] = []
    context = server_context(certificates.server)
    thread = threading.Thread(target=lambda: accepted.append(context.wrap_socket(theirs, server_side=True)))
    thread.start()
    poller = Poller()
    connection = TlsConnection(tls.client_context(config_for(**trusting(certificates))), "kafka.test")
    poller.register(ours, "broker 1 at kafka.test:9092", max_in_flight=max_in_flight, connection=connection)
    until(poller, lambda: accepted)  # not only `connected`: poll must also write the client's last handshake message
    with accepted[0]:
        yield poller, connection, accepted[0]
    poller.close()


def test_partial_writes_neither_lose_nor_repeat_bytes(pair: tuple[Poller, TlsConnection, ssl.SSLSocket]) -> None:
    poller, connection, theirs = pair
    parts = [os.urandom(size) for size in (1, 3_000_000, 7, 65_536, 4095, 4096, 16_384, 2_500_000)]
    parts += [os.urandom(61) for _ in range(3000)]
    expected = b"".join(parts) * 2
    received = bytearray()
    frames = [frame_of(*parts), frame_of(*parts)]
    for frame in frames:
        connection.send(frame)
    poller.poll(0)
    assert connection.queued == 2, "the socket took all at once: nothing was partial"
    reader = threading.Thread(target=lambda: received.extend(read_exactly(theirs, len(expected))))
    reader.start()
    until(poller, lambda: connection.queued == 0)
    reader.join(PATIENCE)
    assert bytes(received) == expected
    assert all(frame.written for frame in frames)


def test_frame_is_written_only_once_its_ciphertext_is_sent(pair: tuple[Poller, TlsConnection, ssl.SSLSocket]) -> None:
    poller, connection, theirs = pair
    frame = frame_of(b"x" * 200_000)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    while True:
        filler = frame_of(b"f" * 100_000)
        connection.send(filler)
        poller.poll(0)
        if not filler.written:
            break
    connection.send(frame)
    poller.poll(0)
    assert not frame.written

    def drain() -> None:
        with contextlib.suppress(OSError):  # the connection closes under it
            read_exactly(theirs, 100_000_000)

    reader = threading.Thread(target=drain)
    reader.start()
    until(poller, lambda: frame.written)
    connection.close()
    reader.join(PATIENCE)


def test_frame_that_the_peer_has_read_is_written_though_the_next_frame_is_not(
    pair: tuple[Poller, TlsConnection, ssl.SSLSocket],
) -> None:
    """The peer may answer the first frame then: the client takes a response to an unwritten frame for a fault."""
    poller, connection, theirs = pair
    filled = 0
    while connection.unsent < 262_144:  # from here on frames wait, and one stretch may encrypt several of them
        connection.send(frame_of(b"f" * 100_000))
        poller.poll(0)
        filled += 100_000
    first, second = frame_of(b"1" * 5000), frame_of(b"2" * 1_000_000)
    connection.send(first)
    connection.send(second)
    reader = threading.Thread(target=read_exactly, args=(theirs, filled + 5000))
    reader.start()
    until(poller, lambda: first.written)
    assert not second.written
    reader.join(PATIENCE)
    connection.close()


def test_encryption_runs_only_a_stretch_ahead(pair: tuple[Poller, TlsConnection, ssl.SSLSocket]) -> None:
    """Ciphertext lies in memory of its own, outside buffer.memory, and the client cannot take it back."""
    poller, connection, theirs = pair
    frames = [frame_of(b"x" * 200_000) for _ in range(30)]
    for frame in frames:
        connection.send(frame)
        poller.poll(0)
    # The next stretch of 256 KiB is encrypted while less than that waits for the socket. TLS adds bytes to each record.
    assert 0 < connection.unsent < 600_000
    received: list[int] = []
    reader = threading.Thread(target=lambda: received.append(len(read_exactly(theirs, 6_000_000))))
    reader.start()
    until(poller, lambda: connection.queued == 0)
    reader.join(PATIENCE)
    assert received == [6_000_000]
    assert connection.unsent == 0
    assert all(frame.written for frame in frames)


def test_slab_is_not_read_after_its_frame_is_written(pair: tuple[Poller, TlsConnection, ssl.SSLSocket]) -> None:
    poller, connection, theirs = pair
    received = bytearray()
    reader = threading.Thread(target=lambda: received.extend(read_exactly(theirs, 20 * 500_000)))
    reader.start()
    for _ in range(20):
        payload = bytes(b"p" * 499_999) + b"."  # an object of its own, because poison() writes into it
        frame = frame_of(payload)
        connection.send(frame)
        until(poller, lambda frame=frame: frame.written)
        poison(payload)
    reader.join(PATIENCE)
    assert bytes(received) == (b"p" * 499_999 + b".") * 20


def test_slab_is_not_read_after_its_connection_is_closed(pair: tuple[Poller, TlsConnection, ssl.SSLSocket]) -> None:
    poller, connection, theirs = pair
    payloads = [bytes(b"p" * 999_999) + b"." for _ in range(5)]
    frames = [frame_of(payload) for payload in payloads]
    for frame in frames:
        connection.send(frame)
    poller.poll(0)
    connection.close()
    for payload in payloads:
        poison(payload)
    assert not frames[-1].written
    assert b"\xdd" not in read_to_error(theirs)
    with pytest.raises(NetworkError):
        connection.send(frame_of(b"more"))


def test_at_most_max_in_flight_frames_are_unanswered(certificates: Certificates) -> None:
    with connected(certificates, 2) as (poller, connection, theirs):
        for number, name in enumerate((b"one.", b"two.", b"three", b"four.")):
            connection.send(frame_of(name, number=number))
        poller.poll(0)
        assert read_exactly(theirs, 8) == b"one.two."
        theirs.sendall(b"\0\0\0\6" + answer_to(0, b"an"))
        until(poller, lambda: connection.queued == 1)
        assert connection.take_frames() == [answer_to(0, b"an")]
        assert read_exactly(theirs, 5) == b"three"
        theirs.sendall(b"\0\0\0\4" + answer_to(1) + b"\0\0\0\4\0")
        until(poller, lambda: connection.queued == 0)
        theirs.sendall(answer_to(2)[1:])
        frames = connection.take_frames()
        limit = time.monotonic() + PATIENCE
        while len(frames) < 2 and time.monotonic() < limit:
            poller.poll(0.5)
            frames += connection.take_frames()
        assert frames == [answer_to(1), answer_to(2)]
        assert read_exactly(theirs, 5) == b"four."


@pytest.mark.parametrize("stray", [answer_to(0), answer_to(2), answer_to(-1)], ids=["twice", "ahead", "-1"])
def test_only_the_next_expected_response_starts_a_waiting_frame(certificates: Certificates, stray: bytes) -> None:
    with connected(certificates, 1) as (poller, connection, theirs):
        for number in range(4):
            connection.send(frame_of(b"%4d" % number, number=number))
        poller.poll(0)
        theirs.sendall(b"\0\0\0\4" + answer_to(0))
        until(poller, lambda: connection.queued == 2)
        assert read_exactly(theirs, 8) == b"   0   1"
        assert connection.take_frames() == [answer_to(0)]
        theirs.sendall(b"\0\0\0\4" + stray + b"\0\0\0\4" + answer_to(1))
        until(poller, connection.take_frames)
        poller.poll(0)
        assert connection.queued == 2


def test_large_responses_arrive_intact(pair: tuple[Poller, TlsConnection, ssl.SSLSocket]) -> None:
    poller, connection, theirs = pair
    answers = [os.urandom(size) for size in (4, 100_000, 16_384, 3_000_000, 5)]
    sender = threading.Thread(target=theirs.sendall, args=(b"".join(len(a).to_bytes(4, "big") + a for a in answers),))
    sender.start()
    frames: list[bytes] = []
    until(poller, lambda: len(frames_of(frames, connection)) == 5)
    sender.join(PATIENCE)
    assert frames == answers


def test_too_long_response_fails_the_connection(pair: tuple[Poller, TlsConnection, ssl.SSLSocket]) -> None:
    poller, connection, theirs = pair
    frame = frame_of(b"ask.")
    frame.largest_response = 512 * 1024
    connection.send(frame)
    poller.poll(0)
    theirs.sendall((512 * 1024 + 1).to_bytes(4, "big") + b"data")
    assert "announced a frame of 524289 bytes" in str(poll_for_error(poller, connection))


def test_bytes_changed_on_the_way_fail_the_connection(certificates: Certificates) -> None:
    """An attacker flips one bit of a response. The connection fails with a retriable error."""
    listener = socket.create_server(("127.0.0.1", 0))
    ready = threading.Event()

    def serve() -> None:
        sock, _ = listener.accept()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        peer = server_context(certificates.server).wrap_bio(incoming, outgoing, server_side=True)
        while True:
            try:
                peer.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(100_000))
        peer.write(b"\0\0\0\4good")
        sock.sendall(outgoing.read())
        ready.wait(PATIENCE)
        peer.write(b"\0\0\0\4evil")
        record = bytearray(outgoing.read())
        record[-1] ^= 1
        sock.sendall(record)
        read_exactly(sock, 100_000)
        sock.close()

    thread = threading.Thread(target=serve)
    thread.start()
    poller = Poller()
    connection = open_tls(poller, certificates, listener.getsockname()[1])
    frames: list[bytes] = []
    until(poller, lambda: frames_of(frames, connection) == [b"good"])
    ready.set()
    error = poll_for_error(poller, connection)
    thread.join(PATIENCE)
    listener.close()
    poller.close()
    assert isinstance(error, NetworkError)
    assert connection.take_frames() == []


# ---- helpers ---------------------------------------------------------------------------------------------------------


def open_tls(poller: Poller, certificates: Certificates, port: int) -> Connection:
    context = tls.client_context(config_for(**trusting(certificates)))
    sock = socket.create_connection(("127.0.0.1", port))
    return poller.register(sock, "broker 1 at kafka.test:9092", connection=TlsConnection(context, "kafka.test"))


def until(poller: Poller, condition: object) -> None:
    assert callable(condition)
    limit = time.monotonic() + PATIENCE
    while not condition():
        poller.poll(0.05)
        assert time.monotonic() < limit, "the condition never held"


def poll_for_error(poller: Poller, connection: Connection) -> KafkaError:
    until(poller, lambda: connection.error is not None)
    assert connection.closed
    assert connection.error is not None
    return connection.error


def frames_of(frames: list[bytes], connection: Connection) -> list[bytes]:
    frames += connection.take_frames()
    return frames


def read_to_error(sock: ssl.SSLSocket) -> bytes:
    data = bytearray()
    try:
        while part := sock.recv(1 << 16):
            data += part
    except OSError:
        pass
    return bytes(data)


def accept_while_polling(listener: socket.socket, poll: object) -> tuple[socket.socket, object]:
    assert callable(poll)
    listener.setblocking(False)
    limit = time.monotonic() + PATIENCE
    while True:
        poll(0.02)
        try:
            return listener.accept()
        except BlockingIOError:
            assert time.monotonic() < limit
