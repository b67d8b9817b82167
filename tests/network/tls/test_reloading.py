"""A certificate that is renewed while the producer is open, over real sockets."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.clock import ManualClock
from kafkabuf.errors import ConfigError
from kafkabuf.network.reloading import ReloadingTls
from kafkabuf.network.tls import context as tls
from tests.network.security_support import SecureBroker, failure, secured, server_context
from tests.network.support import PATIENCE, Rig, config_for
from tests.network.tls.certificates import Authority


class Files:
    """A CA, a stranger, a server, and two certificates of a client, of which the second is a renewal."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.stranger = Authority(folder), Authority(folder, "stranger")
        self.server = self.ca.issue("server", "DNS:kafka.test", "IP:127.0.0.1")
        self.former, self.renewed = self.ca.issue("former"), self.ca.issue("renewed")
        self.ca_text, self.stranger_text = self.ca.certificate.read_text(), self.stranger.certificate.read_text()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


class Naming:
    """The context of a server that wants a certificate of its clients, and notes the common name in each."""

    def __init__(self, files: Files) -> None:
        self.names: list[str] = []
        self._context = server_context(files.server, client_ca=str(files.ca.certificate))

    def wrap_socket(self, sock: socket.socket, *, server_side: bool) -> ssl.SSLSocket:
        secured = self._context.wrap_socket(sock, server_side=server_side)
        peer: Any = secured.getpeercert()
        self.names += [value for group in peer["subject"] for name, value in group if name == "commonName"]
        return secured


def stores(files: Files, folder: Path) -> dict[str, Path]:
    """The files that a client of `files.former` names in its settings."""
    made = {"ssl_truststore_location": folder / "trust.pem", "ssl_keystore_location": folder / "key.pem"}
    made["ssl_truststore_location"].write_text(files.ca_text)
    made["ssl_keystore_location"].write_bytes(files.former.store.read_bytes())
    return made


def reconnect(rigged: Rig, broker: SecureBroker) -> None:
    """End the connection from the broker's side, and wait for the next that takes requests."""
    greeted = len(broker.greetings)
    broker.drop_connections()
    rigged.poll_until(lambda: not rigged.client.ready(0))
    rigged.clock.advance(5.0)
    rigged.poll_until(lambda: len(broker.greetings) > greeted and rigged.client.ready(0))


def test_renewed_key_store_is_used_by_new_connections(files: Files, tmp_path: Path) -> None:
    named = stores(files, tmp_path)
    naming = Naming(files)
    broker = SecureBroker(naming)  # type: ignore[arg-type]
    with secured(broker, **{name: str(path) for name, path in named.items()}) as (rigged, _):
        rigged.connect(0)
        _replace(named["ssl_keystore_location"], files.renewed.store.read_bytes())
        rigged.clock.advance(5.0)
        rigged.settle()
        assert rigged.client.ready(0), "a connection was closed because a file changed"
        reconnect(rigged, broker)
    assert naming.names[0] == "former"
    assert naming.names[-1] == "renewed"


def test_changed_trust_store_is_used_by_new_connections(files: Files, tmp_path: Path) -> None:
    trusted = tmp_path / "trust.pem"
    trusted.write_text(files.stranger_text)
    broker = SecureBroker(server_context(files.server))
    with secured(broker, ssl_truststore_location=str(trusted)) as (rigged, _):
        assert "ssl.truststore.location" in str(failure(rigged))
        trusted.write_text(files.ca_text)
        del rigged.metadata.on_failure
        rigged.clock.advance(5.0)
        rigged.connect(0)


@pytest.mark.parametrize("damage", ["half", "empty", "missing", "a folder", "another key"])
def test_damaged_file_leaves_the_former_content_in_use_and_is_said_once(
    files: Files, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The keystore is a file that another process is just writing, or that a mistake has put in its place."""
    named = stores(files, tmp_path)
    store = named["ssl_keystore_location"]
    naming = Naming(files)
    broker = SecureBroker(naming)  # type: ignore[arg-type]
    with secured(broker, **{name: str(path) for name, path in named.items()}) as (rigged, _):
        rigged.connect(0)
        whole = files.renewed.store.read_bytes()
        _damage(store, damage, files)
        with caplog.at_level(logging.INFO, "kafkabuf.network"):
            reconnect(rigged, broker)
            reconnect(rigged, broker)
            assert _warnings(caplog) == 1
            if store.is_dir():
                store.rmdir()
            store.write_bytes(whole)
            reconnect(rigged, broker)
        assert "new connections use the new content" in caplog.text
        assert _warnings(caplog) == 1
    assert naming.names[-1] == "renewed"
    assert set(naming.names[:-1]) == {"former"}


def _damage(store: Path, damage: str, files: Files) -> None:
    match damage:
        case "half":
            whole = files.renewed.store.read_bytes()
            store.write_bytes(whole[: len(whole) // 2])
        case "empty":
            store.write_bytes(b"")
        case "another key":
            store.write_text(files.former.key.read_text() + files.renewed.certificate.read_text())
        case _:
            store.unlink()
            if damage == "a folder":
                store.mkdir()


def _warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum("cannot be used" in record.getMessage() for record in caplog.records)


def _replace(path: Path, content: bytes) -> None:
    """As a renewal does it: by renaming, without a moment in which the file is incomplete."""
    other = path.with_suffix(".new")
    other.write_bytes(content)
    os.replace(other, path)


# ---- the check -------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The contexts that were made."""
    contexts: list[Any] = []
    original = tls.client_context

    def noting(config: Any) -> Any:
        contexts.append(original(config))
        return contexts[-1]

    monkeypatch.setattr(tls, "client_context", noting)
    return contexts


def test_files_are_read_at_most_once_a_second(files: Files, tmp_path: Path, made: list[Any]) -> None:
    clock, trusted = ManualClock(), tmp_path / "trust.pem"
    trusted.write_text(files.ca_text)
    secure = ReloadingTls(config_for(security_protocol="SSL", ssl_truststore_location=str(trusted)), clock)
    trusted.write_text(files.stranger_text)
    clock.advance(0.9)
    secure("kafka.test")
    assert len(made) == 1
    clock.advance(0.2)
    secure("kafka.test")
    assert len(made) == 2
    trusted.write_text(files.ca_text)
    secure("kafka.test")
    assert len(made) == 2


def test_change_is_seen_though_time_and_size_of_the_file_stay(files: Files, tmp_path: Path, made: list[Any]) -> None:
    clock, trusted = ManualClock(), tmp_path / "trust.pem"
    trusted.write_text(files.ca_text + " ")
    status = trusted.stat()
    secure = ReloadingTls(config_for(security_protocol="SSL", ssl_truststore_location=str(trusted)), clock)
    trusted.write_text(files.ca_text + "\n")
    os.utime(trusted, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert trusted.stat().st_mtime_ns == status.st_mtime_ns
    clock.advance(2)
    secure("kafka.test")
    assert len(made) == 2


def test_file_that_is_being_written_is_not_used(files: Files, tmp_path: Path, made: list[Any]) -> None:
    """The first half of a trust store is a trust store with fewer CAs: connections would fail by it."""
    clock, trusted = ManualClock(wall_ms=1_700_000_000_000), tmp_path / "trust.pem"
    trusted.write_text(files.ca_text + files.stranger_text)
    secure = ReloadingTls(config_for(security_protocol="SSL", ssl_truststore_location=str(trusted)), clock)
    clock.advance(2)
    trusted.write_text(files.ca_text)
    os.utime(trusted, ns=(0, clock.time_ms() * 1_000_000))
    secure("kafka.test")
    assert len(made) == 1
    clock.advance(2)
    secure("kafka.test")
    assert len(made) == 2


def test_unchanged_files_make_no_new_context(files: Files, tmp_path: Path, made: list[Any]) -> None:
    clock, trusted = ManualClock(), tmp_path / "trust.pem"
    trusted.write_text(files.ca_text)
    secure = ReloadingTls(config_for(security_protocol="SSL", ssl_truststore_location=str(trusted)), clock)
    for _ in range(5):
        clock.advance(2)
        os.utime(trusted)
        secure("kafka.test")
    assert len(made) == 1


def test_pipe_is_not_read_again(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell gives `<(command)` as a pipe: to open it again would hang the Sender."""
    clock, trusted = ManualClock(), tmp_path / "trust.pem"
    trusted.write_text(files.ca_text)
    secure = ReloadingTls(config_for(security_protocol="SSL", ssl_truststore_location=str(trusted)), clock)
    trusted.unlink()
    os.mkfifo(trusted)
    monkeypatch.setattr(tls, "client_context", _never)
    clock.advance(2)
    secure("kafka.test")
    secure("kafka.test")


def _never(config: Any) -> Any:
    raise ConfigError("a pipe holds no store")


def test_unusable_store_still_fails_the_opening(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location"):
        ReloadingTls(
            config_for(security_protocol="SSL", ssl_truststore_location=str(tmp_path / "none.pem")), ManualClock()
        )


# ---- with the embedded cluster ---------------------------------------------------------------------------------------


def test_producer_writes_with_a_renewed_certificate_and_is_not_opened_anew(files: Files, tmp_path: Path) -> None:
    """The cluster lets only the renewed certificate write."""
    named = stores(files, tmp_path)
    security = Security(
        ssl_certfile=files.server.store,
        ssl_cafile=files.ca.certificate,
        ssl_client_auth="required",
        authorizer=True,
        super_users=["User:CN=renewed"],
    )
    with EmbeddedCluster(brokers=1, security=security) as cluster:
        cluster.create_topic("t", 1)
        with KafkaProducer(
            {name: str(path) for name, path in named.items()},
            bootstrap_servers=cluster.bootstrap_servers,
            security_protocol="SSL",
            connections_max_idle_ms=300,
            enable_idempotence=False,
        ) as producer:
            with pytest.raises(PermissionError):
                producer.send("t", b"v").result(PATIENCE)
            _replace(named["ssl_keystore_location"], files.renewed.store.read_bytes())
            limit = time.monotonic() + PATIENCE
            while not _written(producer):
                assert time.monotonic() < limit, "the producer goes on with the former certificate"


def _written(producer: KafkaProducer) -> bool:
    """Whether a record is written, once no connection is open."""
    while producer.metrics()["producer-metrics"]["connection-count"]:
        pass
    try:
        producer.send("t", b"v").result(PATIENCE)
    except PermissionError:
        return False
    return True
