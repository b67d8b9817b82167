"""TLS and SASL of the embedded broker with three clients; its certificates and settings."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider

from kafkabuf import KafkaProducer
from kafkabuf.broker import ConnectionLimits, EmbeddedCluster, Security
from kafkabuf.errors import ConfigError, SaslAuthenticationError, SslAuthenticationError
from kafkabuf.protocol.messages import API_VERSIONS
from tests.broker.raw_client import RawClient
from tests.network.tls.certificates import Authority, Identity

SECRET = "sentinel-password"
USERS = {"alice": SECRET, "bob": "other-sentinel"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def identity(authority: Authority) -> Identity:
    return authority.issue("broker", "DNS:localhost", "IP:127.0.0.1")


# ---- clients ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_cluster(identity: Identity) -> Iterator[EmbeddedCluster]:
    security = Security(ssl_certfile=identity.store, users=USERS, oauth_validator=lambda token: token.split("-")[0])
    assert security.protocol == "SASL_SSL"
    with EmbeddedCluster(brokers=2, security=security) as cluster:
        cluster.create_topic("t", 2)
        yield cluster


def with_ours(cluster: EmbeddedCluster, ca: str, mechanism: str, **more: Any) -> None:
    user = {"sasl_username": "alice", "sasl_password": more.get("password", SECRET)}
    if mechanism == "OAUTHBEARER":
        user = {"sasl_oauthbearer_token_provider": lambda: more.get("token", "alice-token")}
    settings = {"security_protocol": "SASL_SSL", "ssl_truststore_location": ca, "sasl_mechanism": mechanism, **user}
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, max_block_ms=5000, **settings) as producer:
        producer.send("t", b"ours", partition=0).result(10)


def with_confluent(cluster: EmbeddedCluster, ca: str, mechanism: str, **more: Any) -> None:
    failed: list[Any] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": ca,
        "sasl.mechanism": mechanism,
        "error_cb": failed.append,
    }
    if mechanism == "OAUTHBEARER":
        settings["oauth_cb"] = lambda _: (more.get("token", "alice-token"), 4e9)
    else:
        settings |= {"sasl.username": "alice", "sasl.password": more.get("password", SECRET)}
    producer = confluent_kafka.Producer(settings)
    producer.produce("t", b"confluent", partition=0)
    for _ in range(100):
        if not producer.flush(0.1):
            return
        if any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in failed):
            raise SaslAuthenticationError(str(failed[0]))
    raise AssertionError(failed)


def with_kafka_python(cluster: EmbeddedCluster, ca: str, mechanism: str, **more: Any) -> None:
    user: dict[str, Any] = {"sasl_plain_username": "alice", "sasl_plain_password": more.get("password", SECRET)}
    if mechanism == "OAUTHBEARER":
        user = {"sasl_oauth_token_provider": Tokens()}
    settings = {"security_protocol": "SASL_SSL", "ssl_cafile": ca, "sasl_mechanism": mechanism, **user}
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings)
    producer.send("t", b"kafka-python", partition=0).get(10)
    producer.close()


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def token(self) -> str:
        return "alice-token"


@pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
@pytest.mark.parametrize("client", [with_ours, with_confluent, with_kafka_python])
def test_client_authenticates_over_tls(
    tls_cluster: EmbeddedCluster, authority: Authority, client: Callable[..., None], mechanism: str
) -> None:
    before = tls_cluster.end_offset("t", 0)
    client(tls_cluster, str(authority.certificate), mechanism)
    assert tls_cluster.end_offset("t", 0) == before + 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("client", [with_ours, with_confluent])
def test_wrong_password_is_refused(
    tls_cluster: EmbeddedCluster,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
    client: Callable[..., None],
    mechanism: str,
) -> None:
    with pytest.raises(SaslAuthenticationError):
        client(tls_cluster, str(authority.certificate), mechanism, password="guessed")
    assert SECRET not in caplog.text
    assert "guessed" not in caplog.text


def test_kafkabuf_producer_refuses_an_unknown_certificate(tls_cluster: EmbeddedCluster, folder: Path) -> None:
    with pytest.raises(SslAuthenticationError):
        with_ours(tls_cluster, str(Authority(folder, "stranger").certificate), "PLAIN")


# ---- TLS -------------------------------------------------------------------------------------------------------------


def secured_socket(cluster: EmbeddedCluster, ca: Authority, identity: Identity | None = None) -> ssl.SSLSocket:
    host, port, _ = cluster.nodes()[1]
    context = ssl.create_default_context(cafile=str(ca.certificate))
    if identity is not None:
        context.load_cert_chain(identity.store)
    sock = socket.create_connection((host, port), 5)
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except OSError:
        sock.close()
        raise


def let_in(cluster: EmbeddedCluster, ca: Authority, identity: Identity | None) -> bool:
    try:
        with secured_socket(cluster, ca, identity) as sock:
            return api_versions(sock) != b""
    except OSError:
        return False


def api_versions(sock: socket.socket) -> bytes:
    sock.sendall(struct.pack(">ihhih", 10, API_VERSIONS, 0, 7, -1))
    return sock.recv(8)


@pytest.mark.parametrize("client_auth", ["requested", "required"])
def test_client_certificate_is_checked(
    authority: Authority, identity: Identity, folder: Path, client_auth: Any
) -> None:
    security = Security(ssl_certfile=identity.store, ssl_cafile=authority.certificate, ssl_client_auth=client_auth)
    with EmbeddedCluster(security=security) as cluster:
        with secured_socket(cluster, authority, authority.issue("client")) as known:
            assert api_versions(known)[4:] == struct.pack(">i", 7)
        stranger = Authority(folder, "other").issue("stranger")
        assert not let_in(cluster, authority, stranger)
        assert let_in(cluster, authority, None) == (client_auth == "requested")


def test_plain_text_or_silence_on_a_tls_port_is_closed(authority: Authority, identity: Identity) -> None:
    limits = ConnectionLimits(authentication_timeout_ms=100)
    with EmbeddedCluster(security=Security(ssl_certfile=identity.store), limits=limits) as cluster:
        with RawClient(cluster.bootstrap_servers, 5) as plain, RawClient(cluster.bootstrap_servers, 5) as silent:
            plain.send(API_VERSIONS, 0)
            assert plain.socket.recv(100)[:1] in (b"", b"\x15"), "an alert of TLS, or the end"
            assert silent.closed()
        with secured_socket(cluster, authority) as good:
            assert api_versions(good)


def test_stop_never_waits_for_a_silent_client(identity: Identity) -> None:
    limits = ConnectionLimits(authentication_timeout_ms=60_000)
    cluster = EmbeddedCluster(security=Security(ssl_certfile=identity.store), limits=limits).start()
    with RawClient(cluster.bootstrap_servers, 5) as silent:
        while not cluster._call(lambda c: asyncio.all_tasks(c.loop) - {asyncio.current_task()}):
            pass
        began = time.monotonic()
        cluster.stop()
        assert time.monotonic() - began < 5
        assert silent.closed()


@pytest.mark.parametrize("settings", ["keyfile", "encrypted"])
def test_key_may_be_in_a_separate_file(authority: Authority, identity: Identity, settings: str) -> None:
    security = Security(ssl_certfile=identity.certificate, ssl_keyfile=identity.key)
    if settings == "encrypted":
        locked = authority.issue("locked", "IP:127.0.0.1", password=SECRET)
        security = Security(ssl_certfile=locked.certificate, ssl_keyfile=locked.key, ssl_key_password=SECRET)
    with EmbeddedCluster(security=security) as cluster, secured_socket(cluster, authority) as sock:
        assert api_versions(sock)


def test_bad_files_are_refused_at_the_start(authority: Authority, identity: Identity, folder: Path) -> None:
    locked = authority.issue("locked2", password=SECRET)
    for certfile, keyfile, password in [
        (folder / "nothing.pem", None, None),
        (identity.certificate, None, None),
        (locked.certificate, locked.key, None),
        (locked.certificate, locked.key, "guessed"),
        (identity.certificate, locked.key, SECRET),
    ]:
        security = Security(ssl_certfile=certfile, ssl_keyfile=keyfile, ssl_key_password=password)
        with pytest.raises(ConfigError, match="TLS: ") as raised:
            EmbeddedCluster(security=security).start()
        assert SECRET not in str(raised.value)


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"ssl_keyfile": "k"}, "need an ssl_certfile"),
        ({"ssl_certfile": "c", "ssl_client_auth": "required"}, "go together"),
        ({"ssl_certfile": "c", "ssl_cafile": "ca"}, "go together"),
        ({"ssl_certfile": "c", "ssl_client_auth": "always"}, "none, requested, required are allowed"),
        ({"sasl_mechanisms": ["PLAIN"]}, "PLAIN needs users"),
        ({"users": USERS, "sasl_mechanisms": "OAUTHBEARER"}, "needs oauth_validator"),
        ({"users": USERS, "sasl_mechanisms": "GSSAPI"}, "'GSSAPI' is unknown"),
        ({"users": {"alice": ""}}, "must not be empty"),
        ({"users": {"a\0b": "x"}}, "contain a NUL"),
        ({"oauth_validator": "anything"}, "a callable or 'unsecured'"),
        ({"connections_max_reauth_ms": -1}, "0 and above"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        Security(**settings)
    assert SECRET not in str(raised.value)


def test_password_is_not_in_the_repr() -> None:
    security = Security(users=USERS, ssl_certfile="c", ssl_key_password=SECRET)
    assert SECRET not in repr(security)
    assert security.sasl_mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    assert [Security().protocol, Security(users=USERS).protocol] == ["PLAINTEXT", "SASL_PLAINTEXT"]
