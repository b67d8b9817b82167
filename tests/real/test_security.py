"""SCRAM over TLS, PLAIN, certificates, tokens and delegation tokens against Apache Kafka 4.1.2, each on a listener."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.errors import AuthenticationError, SaslAuthenticationError, SslAuthenticationError
from rigs.jars import java, resolve_kafka, resolve_kafka_tools
from rigs.ports import free_ports
from rigs.real_kafka import KAFKA_4, TOOL_JVM, RealKafka
from rigs.real_kafka import logging as logging_at
from tests.broker.front.sasl_script import plain_dialogues, token_dialogues
from tests.network.tls.certificates import Authority, Identity
from tests.real.consumers import read_with_confluent

SECRET = 'sentinel, with = and "'
SESSION_MS = 1000
LISTENERS = {"SCRAM": "SASL_SSL", "PLAIN": "SASL_PLAINTEXT", "CERTIFICATE": "SSL", "TOKEN": "SASL_PLAINTEXT"}
_MODULES = "org.apache.kafka.common.security"


class SecureKafka(RealKafka):
    """A node with a listener for each way to authenticate. Its stores are PEM files."""

    def __init__(self, ca: Authority, identity: Identity) -> None:
        super().__init__(KAFKA_4)
        self._ca, self._identity = ca, identity
        self.ports: dict[str, int] = {}

    def _properties(self, port: int, controller_port: int) -> dict[str, str]:
        self.ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
        plain = super()._properties(port, controller_port)
        more = "".join(f",{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        advertised = "".join(f",{name}://localhost:{port}" for name, port in self.ports.items())
        protocols = "".join(f",{name}:{protocol}" for name, protocol in LISTENERS.items())
        escaped = SECRET.replace('"', '\\\\"')
        return plain | {
            "listeners": plain["listeners"] + more,
            "advertised.listeners": plain["advertised.listeners"] + advertised,
            "listener.security.protocol.map": plain["listener.security.protocol.map"] + protocols,
            "delegation.token.secret.key": "of the tests",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._identity.store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._ca.certificate),
            "listener.name.certificate.ssl.client.auth": "required",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            "listener.name.scram.scram-sha-512.connections.max.reauth.ms": str(SESSION_MS),
            "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.plain.plain.sasl.jaas.config": (
                f'{_MODULES}.plain.PlainLoginModule required user_alice="{escaped}";'
            ),
            "listener.name.plain.plain.connections.max.reauth.ms": "600000",
            "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.token.oauthbearer.sasl.jaas.config": (
                f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
            ),
        }


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def kafka(ca: Authority) -> Iterator[SecureKafka]:
    server = SecureKafka(ca, ca.issue("broker", "DNS:localhost"))
    with server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion("ali,ce=", info, SECRET.encode())
        for done in admin.alter_user_scram_credentials([user]).values():
            done.result(30)
        server.create_topic("t", 2)
        yield server


@contextlib.contextmanager
def producer_for(kafka: SecureKafka, listener: str, **settings: Any) -> Iterator[KafkaProducer]:
    address = f"localhost:{kafka.ports[listener]}"
    with KafkaProducer(
        {"bootstrap.servers": address, "security.protocol": LISTENERS[listener], "max.block.ms": 60_000}, **settings
    ) as producer:
        yield producer


def assert_arrives(kafka: SecureKafka, topic: str, producer: KafkaProducer, count: int, size: int) -> None:
    kafka.create_topic(topic)
    values = [b"%08d" % i + bytes(size) for i in range(count)]
    for value in values:
        producer.send(topic, value)
    producer.flush(20)
    assert values_in(kafka, topic) == values


def values_in(kafka: SecureKafka, topic: str) -> list[bytes | None]:
    (partition,) = read_with_confluent(kafka, topic)
    return [partition[offset].value for offset in sorted(partition)]


def scram(ca: Authority) -> dict[str, Any]:
    return {
        "ssl_truststore_location": str(ca.certificate),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "ali,ce=",
        "sasl_password": SECRET,
    }


def test_large_records_arrive_over_scram_and_tls(kafka: SecureKafka, ca: Authority) -> None:
    with producer_for(kafka, "SCRAM", **scram(ca), batch_size=200_000) as producer:
        assert_arrives(kafka, "scram", producer, 150, 90_000)


def test_no_record_is_lost_when_sessions_are_renewed(
    kafka: SecureKafka, ca: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kafkabuf.network")
    kafka.create_topic("session")
    sent = 0
    with producer_for(kafka, "SCRAM", **scram(ca), linger_ms=0) as producer:
        for _ in range(5):
            end = time.monotonic() + 2.2 * SESSION_MS / 1000
            while time.monotonic() < end:
                producer.send("session", b"%d" % sent).result(10)
                sent += 1
            # On a busy machine the client may be late: the broker then closes the connection, and a new one follows.
            renewed = caplog.text.count("has authenticated us") - caplog.text.count("connecting to")
            if renewed >= 2:
                break
    assert renewed >= 2, "no session was renewed on its connection"
    assert SECRET not in caplog.text
    assert values_in(kafka, "session") == [b"%d" % i for i in range(sent)]


def test_records_arrive_over_plain(kafka: SecureKafka) -> None:
    escaped = SECRET.replace('"', '\\"')
    text = f'{_MODULES}.plain.PlainLoginModule required username="alice" password="{escaped}";'
    with producer_for(kafka, "PLAIN", sasl_mechanism="PLAIN", sasl_jaas_config=text) as producer:
        assert_arrives(kafka, "plain", producer, 100, 1000)


def test_records_arrive_with_a_client_certificate(kafka: SecureKafka, ca: Authority) -> None:
    client = ca.issue("client", password=SECRET)
    settings = {"ssl_truststore_location": str(ca.certificate), "ssl_keystore_location": str(client.store)}
    with producer_for(kafka, "CERTIFICATE", **settings, ssl_key_password=SECRET) as producer:
        assert_arrives(kafka, "certificate", producer, 1000, 1000)


def test_records_arrive_with_a_token(kafka: SecureKafka) -> None:
    def token() -> str:
        claims = {"sub": "alice", "iat": time.time(), "exp": time.time() + 3600}
        parts = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in ({"alg": "none"}, claims)]
        return "".join(part.rstrip(b"=").decode() + "." for part in parts)

    settings = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_provider": token}
    with producer_for(kafka, "TOKEN", **settings) as producer:
        assert_arrives(kafka, "token", producer, 100, 1000)


@pytest.mark.parametrize(
    ("listener", "settings", "expected"),
    [
        ("SCRAM", {"sasl_password": "wrong"}, SaslAuthenticationError),
        ("SCRAM", {"sasl_username": "nobody"}, SaslAuthenticationError),
        ("SCRAM", {"sasl_mechanism": "PLAIN"}, AuthenticationError),
        ("SCRAM", {"ssl_truststore_location": None}, SslAuthenticationError),
        ("PLAIN", {"sasl_mechanism": "PLAIN"}, SaslAuthenticationError),
        ("CERTIFICATE", {}, SslAuthenticationError),
        ("TOKEN", {"sasl_mechanism": "OAUTHBEARER"}, SaslAuthenticationError),
    ],
)
def test_failed_authentication_raises_at_once(
    kafka: SecureKafka, ca: Authority, listener: str, settings: dict[str, Any], expected: type[Exception]
) -> None:
    if listener == "TOKEN":
        settings = {**settings, "sasl_oauthbearer_token_provider": lambda: "no.jwt.atall"}
    with producer_for(kafka, listener, **{**scram(ca), **settings}) as producer:
        start = time.monotonic()
        with pytest.raises(expected) as caught:
            producer.send("t", b"v")
        assert time.monotonic() - start < 20  # of 60 for max.block.ms; the machine may be busy
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("listener", ["PLAIN", "TOKEN"])
def test_embedded_broker_authenticates_as_kafka_does(kafka: SecureKafka, listener: str) -> None:
    """Both brokers give the same response to each request, and close the connection at the same requests."""
    real = f"127.0.0.1:{kafka.ports[listener]}"
    security = Security(users={"alice": SECRET}, sasl_mechanisms=["PLAIN"], connections_max_reauth_ms=600_000)
    if listener == "TOKEN":
        security = Security(oauth_validator="unsecured")
    with EmbeddedCluster(security=security) as cluster:
        ours, theirs = (
            token_dialogues(address) if listener == "TOKEN" else plain_dialogues(address, f"\0alice\0{SECRET}".encode())
            for address in (cluster.bootstrap_servers, real)
        )
    assert {name: (ours[name], dialogue) for name, dialogue in theirs.items() if ours[name] != dialogue} == {}


# ---- delegation tokens (KIP-48) --------------------------------------------------------------------------------------


class DelegationToken(NamedTuple):
    token_id: str
    hmac: str

    def settings(self, ca: Authority, tokenauth: str = 'tokenauth="true"') -> dict[str, Any]:
        module = f"{_MODULES}.scram.ScramLoginModule"
        return {
            "ssl_truststore_location": str(ca.certificate),
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_jaas_config": f'{module} required username="{self.token_id}" password="{self.hmac}" {tokenauth};',
        }


@pytest.fixture
def run_token_tool(kafka: SecureKafka, ca: Authority, tmp_path: Path) -> Any:
    """kafka-delegation-tokens.sh as the user of SCRAM."""
    escaped = SECRET.replace('"', '\\\\"')
    (tmp_path / "client.properties").write_text(
        "security.protocol=SASL_SSL\nssl.truststore.type=PEM\nsasl.mechanism=SCRAM-SHA-512\n"
        f"ssl.truststore.location={ca.certificate}\n"
        f'sasl.jaas.config={_MODULES}.scram.ScramLoginModule required username="ali,ce=" password="{escaped}";\n'
    )
    classpath = f"{resolve_kafka_tools(KAFKA_4)}/*:{resolve_kafka(KAFKA_4)}/*"
    command = [
        java(),
        *TOOL_JVM,
        *logging_at("warn"),
        "-cp",
        classpath,
        "org.apache.kafka.tools.DelegationTokenCommand",
    ]
    command += ["--bootstrap-server", f"localhost:{kafka.ports['SCRAM']}"]
    command += ["--command-config", str(tmp_path / "client.properties")]

    def run(*arguments: str) -> str:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_records_arrive_with_a_delegation_token_until_it_expires(
    kafka: SecureKafka, ca: Authority, run_token_tool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kafkabuf")
    row = run_token_tool("--create", "--max-life-time-period", "-1").strip().splitlines()[-1].split()
    token = DelegationToken(row[0], row[1])
    with producer_for(kafka, "SCRAM", **token.settings(ca), linger_ms=0) as producer:
        await_token(producer)
        assert_arrives(kafka, "delegated", producer, 100, 1000)
    run_token_tool("--expire", "--expiry-time-period", "-1", "--hmac", token.hmac)
    error = await_refusal(kafka, token.settings(ca))
    assert isinstance(error, SaslAuthenticationError)
    assert f"delegation token {token.token_id}: it has expired" in str(error)
    assert token.hmac not in caplog.text + str(error)


def await_token(producer: KafkaProducer[Any, Any]) -> None:
    """A broker learns of a new token a moment after it was made."""
    deadline = time.monotonic() + 60
    while True:
        try:
            producer.send("t", b"v").result(20)
            return
        except SaslAuthenticationError:
            assert time.monotonic() < deadline


def await_refusal(kafka: SecureKafka, settings: dict[str, Any]) -> Exception:
    """The error of the first new producer that the broker does not accept any more."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with producer_for(kafka, "SCRAM", **settings) as producer:
                producer.send("t", b"v").result(20)
        except Exception as error:
            return error
    raise AssertionError("the token is still good")


@pytest.mark.parametrize(
    "credentials",
    [
        pytest.param(("ali,ce=", SECRET.replace('"', r"\""), 'tokenauth="true"'), id="a user is no token"),
        pytest.param(("unknown", "aG1hYw==", 'tokenauth="true"'), id="unknown token"),
    ],
)
def test_wrong_delegation_token_is_refused(
    kafka: SecureKafka, ca: Authority, credentials: tuple[str, str, str]
) -> None:
    *token, tokenauth = credentials
    with producer_for(kafka, "SCRAM", **DelegationToken(*token).settings(ca, tokenauth)) as producer:
        with pytest.raises(SaslAuthenticationError, match="another token takes another producer"):
            producer.send("t", b"v").result(20)
