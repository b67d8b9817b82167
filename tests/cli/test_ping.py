"""`kafkabuf ping`: each step has its exit status and a sentence, and nothing is written unless asked."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.cli import main, probe
from kafkabuf.errors import NetworkError
from kafkabuf.network.resolve import Address, resolve
from tests.network.tls.certificates import Authority

PRODUCE = 0
TOPIC_AUTHORIZATION_FAILED = 29


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, auto_create_topics=True) as running:
        running.create_topic("orders", 2)
        yield running


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedCluster]:
    users = {"alice": "secret", "admin": "secret"}
    with EmbeddedCluster(security=Security(users=users, authorizer=True, super_users=["User:admin"])) as running:
        running.create_topic("orders")
        running.add_acl("User:alice", "DESCRIBE", topic="orders")
        yield running


def ping(servers: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["ping", "--timeout", "5", *arguments, "-b", servers])


def as_user(name: str, password: str = "secret") -> list[str]:
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": name}
    return [word for pair in {**settings, "sasl.password": password}.items() for word in ("-X", "=".join(pair))]


def failed(result: Result) -> str:
    (line,) = [line for line in result.output.splitlines() if line.startswith("failed")]
    return line


def test_every_step_of_a_cluster_that_works(cluster: EmbeddedCluster) -> None:
    result = ping(cluster.bootstrap_servers, "orders", "--json")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.output.splitlines()]
    assert all(line["ok"] and line["error"] is None and line["ms"] >= 0 for line in lines)
    first, second = cluster.bootstrap_servers.split(",")
    steps = [(line["target"], line["step"]) for line in lines]
    transport = ["dns", "tcp"]
    assert steps == [
        *((first, step) for step in [*transport, "api versions", "metadata"]),
        *(("topic orders", step) for step in ["metadata", "authorization"]),
        *((second, step) for step in [*transport, "api versions"]),
        *((f"broker 1 at {first}", step) for step in transport),
        *((f"broker 2 at {second}", step) for step in transport),
    ]


def test_writes_a_record_only_when_asked_and_creates_no_topic(cluster: EmbeddedCluster) -> None:
    assert ping(cluster.bootstrap_servers, "orders").exit_code == 0
    assert sum(cluster.end_offsets("orders").values()) == 0
    assert ping(cluster.bootstrap_servers, "new-topic", "--record").exit_code == 15
    assert "new-topic" not in cluster.topics()
    result = ping(cluster.bootstrap_servers, "orders", "--record")
    assert result.exit_code == 0, result.output
    assert [message.value for message in cluster.messages("orders")] == [b"kafkabuf ping"]


def test_unknown_host_is_dns() -> None:
    result = ping("no-such-host.invalid:9092")
    assert result.exit_code == 10
    assert "no-such-host.invalid" in failed(result)


def test_closed_port_is_tcp() -> None:
    result = ping("127.0.0.1:1")
    assert result.exit_code == 11
    assert "Connection refused" in failed(result)


def test_one_bootstrap_server_is_enough(cluster: EmbeddedCluster) -> None:
    result = ping(f"127.0.0.1:1,{cluster.bootstrap_servers}")
    assert result.exit_code == 0, result.output
    assert "127.0.0.1:1 " in failed(result)


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("protocol", "status", "advice"),
    [
        ("PLAINTEXT", 14, "is this a Kafka listener, and is security.protocol=PLAINTEXT right for it?"),
        ("SSL", 12, "does this listener speak TLS (see security.protocol)?"),
    ],
)
def test_port_that_says_nothing_is_explained_within_the_timeout(
    silent: str, protocol: str, status: int, advice: str
) -> None:
    result = ping(silent, "--timeout", "0.2", "-X", f"security.protocol={protocol}")
    assert result.exit_code == status
    assert "within --timeout" in failed(result)
    assert advice in failed(result)


def test_plaintext_listener_is_tls(cluster: EmbeddedCluster) -> None:
    result = ping(cluster.bootstrap_servers.split(",")[0], "-X", "security.protocol=SSL")
    assert result.exit_code == 12
    assert "security.protocol" in failed(result)


def test_certificate_is_shown_and_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.issue("broker", "IP:127.0.0.1")
    with EmbeddedCluster(security=Security(ssl_certfile=identity.store)) as running:
        tls = ["-X", "security.protocol=SSL"]
        trusting = ping(running.bootstrap_servers, *tls, "-X", f"ssl.truststore.location={authority.certificate}")
        assert trusting.exit_code == 0, trusting.output
        assert "TLSv1.3" in trusting.output
        assert "valid until" in trusting.output
        result = ping(running.bootstrap_servers, *tls)
        assert result.exit_code == 12
        assert "ssl.truststore.location" in failed(result)


@contextmanager
def wanting_certificates(authority: Authority, *, alert: bool) -> Iterator[str]:
    """A port of TLS that refuses clients without a certificate, as Kafka with an alert, or in silence."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("broker", "IP:127.0.0.1").store)
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED

    def refuse(accepted: socket.socket) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        with accepted:
            while received := accepted.recv(65536):
                incoming.write(received)
                try:
                    tls.do_handshake()
                except ssl.SSLWantReadError:
                    accepted.sendall(outgoing.read())
                except ssl.SSLError:
                    accepted.sendall(outgoing.read() if alert else b"")
                    return

    def serve(server: socket.socket) -> None:
        with suppress(OSError):  # the server is closed
            while True:
                refuse(server.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(("alert", "status"), [(True, 12), (False, 14)])
def test_missing_certificate_of_the_client_is_named(tmp_path: Path, alert: bool, status: int) -> None:
    """TLS 1.3 refuses it behind the handshake, when the step of TLS has worked."""
    authority = Authority(tmp_path)
    trusting = ["-X", "security.protocol=SSL", "-X", f"ssl.truststore.location={authority.certificate}"]
    with wanting_certificates(authority, alert=alert) as address:
        result = ping(address, *trusting)
    assert result.exit_code == status, result.output
    assert "ssl.keystore.location" in failed(result)


def test_wrong_password_is_sasl_and_shown_nowhere(guarded: EmbeddedCluster) -> None:
    result = ping(guarded.bootstrap_servers, *as_user("alice", "guessed"))
    assert result.exit_code == 13
    assert "guessed" not in result.output
    assert "SCRAM-SHA-256 as alice" in ping(guarded.bootstrap_servers, *as_user("alice")).output


def test_client_without_sasl_learns_at_once_that_the_port_wants_it(guarded: EmbeddedCluster) -> None:
    result = ping(guarded.bootstrap_servers, "--timeout", "600")
    assert result.exit_code == 15
    assert "SASL" in failed(result)


@pytest.mark.parametrize(
    ("topic", "status", "word"), [("nope", 16, "may not see the topic"), ("orders", 16, "may not write")]
)
def test_missing_right_is_authorization(guarded: EmbeddedCluster, topic: str, status: int, word: str) -> None:
    result = ping(guarded.bootstrap_servers, topic, *as_user("alice"))
    assert result.exit_code == status, result.output
    assert word in failed(result)
    assert ping(guarded.bootstrap_servers, "orders", *as_user("admin")).exit_code == 0


def test_address_that_the_cluster_names_must_work_too(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def resolve_once(host: str, port: int) -> list[Address]:
        found.append(host)
        if len(found) > 1:
            raise NetworkError("advertised.listeners names a host that this machine does not know")
        return resolve(host, port)

    monkeypatch.setattr(probe, "resolve", resolve_once)
    result = ping(cluster.bootstrap_servers.split(",")[0])
    assert result.exit_code == 10
    assert "broker 1 at" in result.output
    assert "its advertised.listeners needs one that this host reaches" in result.output


def test_name_server_that_does_not_answer_is_dns_within_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def resolve_never(host: str, port: int) -> list[Address]:
        assert ended.wait(60)
        return []

    monkeypatch.setattr(probe, "resolve", resolve_never)
    began = time.monotonic()
    result = ping("kafka.invalid:9092", "--timeout", "0.2")
    ended.set()
    assert result.exit_code == 10
    assert "no name server answers for 'kafka.invalid' within --timeout (0.2 s)" in failed(result)
    assert time.monotonic() - began < 30


def test_address_that_the_cluster_names_must_answer_as_a_broker(cluster: EmbeddedCluster) -> None:
    first, second = cluster.bootstrap_servers.split(",")
    cluster.pause_node(2)
    try:
        result = ping(first, "--timeout", "0.5")
    finally:
        cluster.resume_node(2)
    assert result.exit_code == 14, result.output
    assert f"broker 2 at {second}" in failed(result)
    assert "its advertised.listeners needs one that this host reaches" in failed(result)


def test_address_of_ipv6_stands_in_brackets() -> None:
    assert "  [::1]:1  " in ping("[::1]:1").output


def test_refused_record_has_its_own_status(cluster: EmbeddedCluster) -> None:
    cluster.fail_next(PRODUCE, TOPIC_AUTHORIZATION_FAILED)
    result = ping(cluster.bootstrap_servers, "orders", "--record")
    assert result.exit_code == 17, result.output


def test_options_that_contradict_each_other_are_refused(cluster: EmbeddedCluster) -> None:
    assert ping(cluster.bootstrap_servers, "--record").exit_code == 2
    assert ping(cluster.bootstrap_servers, "a/b").exit_code == 2
    assert ping("").exit_code == 2
