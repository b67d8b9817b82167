"""The rig of real Kafka does what the tests rely on."""

from __future__ import annotations

import hashlib
import shutil
import socket
import struct
import threading
import zlib
from pathlib import Path

import pytest
from confluent_kafka import Producer

from rigs import jars, real_kafka
from rigs.jars import JarsUnavailableError, Module
from rigs.ports import free_ports
from rigs.real_kafka import KAFKA_3_9, KAFKA_4, TEST_JVM, RealKafka, RealKafkaError


def _produce_v2(kafka: RealKafka, topic: str, value: bytes) -> tuple[int, int]:
    """Send Produce v2 with one magic 1 message, byte by byte as the protocol says; return (error code, base offset)."""
    body = struct.pack(">bbqii", 1, 0, 1_600_000_000_000, -1, len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    message_set = struct.pack(">qi", 0, len(message)) + message
    name = struct.pack(">h", len(topic)) + topic.encode()
    request = struct.pack(">hhih", 0, 2, 7, -1)  # header v1: Produce, version 2, correlation id, null client id
    request += struct.pack(">hii", 1, 10_000, 1) + name
    request += struct.pack(">iii", 1, 0, len(message_set)) + message_set
    host, port = kafka.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection, connection.makefile("rb") as stream:
        connection.sendall(struct.pack(">i", len(request)) + request)
        prefix = stream.read(4)
        if len(prefix) < 4:
            raise ConnectionError("the server closed the connection")
        response = stream.read(struct.unpack(">i", prefix)[0])
    partition_response = struct.Struct(">ihq")  # partition, error code, base offset
    start = 4 + 4 + len(name) + 4
    _, error, offset = partition_response.unpack_from(response, start)
    return error, offset


def test_kafka_3_9_takes_magic_1_and_stores_magic_2(kafka_3_9: RealKafka) -> None:
    kafka_3_9.create_topic("harness-magic-1")
    assert _produce_v2(kafka_3_9, "harness-magic-1", b"old") == (0, 0)
    dump = kafka_3_9.dump_log("harness-magic-1")
    assert "payload: old" in dump
    assert "magic: 2" in dump, "3.9 converts the message: its log holds no magic 1"


def test_kafka_4_refuses_produce_v2(kafka_4: RealKafka) -> None:
    kafka_4.create_topic("harness-magic-1")
    with pytest.raises(ConnectionError):
        _produce_v2(kafka_4, "harness-magic-1", b"old")


def test_two_servers_have_ports_and_folders_of_their_own(kafka_4: RealKafka, kafka_3_9: RealKafka) -> None:
    assert kafka_4.bootstrap_servers != kafka_3_9.bootstrap_servers
    assert kafka_4.log_dir != kafka_3_9.log_dir


def test_dump_shows_one_partition(kafka_4: RealKafka) -> None:
    kafka_4.create_topic("harness-dump", partitions=2)
    producer = Producer({"bootstrap.servers": kafka_4.bootstrap_servers})
    producer.produce("harness-dump", b"zero", partition=0)
    producer.produce("harness-dump", b"one", key=b"k", partition=1, headers=[("h", b"x")])
    assert producer.flush(10) == 0
    dump = kafka_4.dump_log("harness-dump", 1)
    assert "isvalid: true" in dump
    assert "headerKeys: [h] key: k payload: one" in dump
    assert "payload: zero" not in dump


def test_dump_of_an_unknown_partition_is_an_error(kafka_4: RealKafka) -> None:
    with pytest.raises(RealKafkaError, match="no segment of harness-nowhere-0"):
        kafka_4.dump_log("harness-nowhere")


def test_error_of_a_server_that_dies_has_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        (free,) = free_ports(1)
        monkeypatch.setattr(real_kafka, "free_ports", lambda count: [port, free])
        kafka = RealKafka(jvm_options=TEST_JVM)
        with pytest.raises(RealKafkaError, match=rf"(?s)while starting.*127\.0\.0\.1:{port}.*BindException"):
            kafka.start()
    with pytest.raises(RealKafkaError, match="not started"):
        _ = kafka.log_dir


def test_wrong_server_property_is_reported() -> None:
    with pytest.raises(RealKafkaError, match=r"(?s)StorageTool format.*num\.partitions"):
        RealKafka(options={"num.partitions": "many"}, jvm_options=TEST_JVM).start()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kafkabuf"


def test_failed_fetch_leaves_no_folder(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "ivysettings.xml"  # names an empty repository: Ivy needs no network
    settings.write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers><filesystem name="none">'
        f'<artifact pattern="{tmp_path}/none/[artifact]-[revision].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    monkeypatch.setenv("KAFKABUF_IVY_SETTINGS", str(settings))
    monkeypatch.setattr(jars, "ATTEMPTS", 1)
    with pytest.raises(JarsUnavailableError, match=r"(?s)org\.example:thing:1\.0.*KAFKABUF_IVY_SETTINGS.*UNRESOLVED"):
        jars.resolve("thing-1.0", [Module("org.example", "thing", "1.0")])
    assert [path.name for path in empty_cache.iterdir()] == [".lock"]


@pytest.fixture
def thing(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cached folder of a set with one jar, whose checksum is known."""
    monkeypatch.setattr(jars, "CHECKSUMS", tmp_path / "jars.sha256")
    other_set = f"{'0' * 64}  thing-1.0.1/thing-1.0.1.jar\n"
    jars.CHECKSUMS.write_text(f"{hashlib.sha256(b'jar').hexdigest()}  thing-1.0/thing-1.0.jar\n{other_set}")
    folder = empty_cache / "thing-1.0"
    folder.mkdir(parents=True)
    (folder / "thing-1.0.jar").write_bytes(b"jar")
    return folder


def test_jars_with_the_checksums_of_the_repository_are_used(thing: Path) -> None:
    assert jars.resolve("thing-1.0", []) == thing
    assert jars.resolve("thing-1.0", []) == thing


@pytest.mark.parametrize(
    ("name", "content"), [("thing-1.0.jar", b"another"), ("thing-1.0.jar", None), ("unknown-1.0.jar", b"jar")]
)
def test_changed_missing_or_unknown_jar_is_refused(thing: Path, name: str, content: bytes | None) -> None:
    if content is None:
        (thing / name).unlink()
    else:
        (thing / name).write_bytes(content)
    with pytest.raises(JarsUnavailableError, match=rf"thing-1\.0/{name}.*--accept thing-1\.0"):
        jars.resolve("thing-1.0", [])


def test_checked_jars_are_checked_again_under_other_checksums(thing: Path) -> None:
    jars.resolve("thing-1.0", [])
    jars.CHECKSUMS.write_text(f"{'0' * 64}  thing-1.0/thing-1.0.jar\n")
    with pytest.raises(JarsUnavailableError, match="other checksums"):
        jars.resolve("thing-1.0", [])


def test_accepted_jars_replace_the_checksums_of_their_set_alone(thing: Path) -> None:
    (thing / "thing-1.0.jar").write_bytes(b"another")
    jars._accept("thing-1.0")
    assert jars.resolve("thing-1.0", []) == thing
    assert jars.checksums("thing-1.0.1").startswith("0" * 64)


def test_every_set_of_jars_that_the_tests_use_has_checksums() -> None:
    kafkas = (KAFKA_4, KAFKA_3_9)
    names = {jars.SPARK_KAFKA, f"kafka-tools-{KAFKA_4}", *(f"kafka-{each}" for each in kafkas)}
    assert all(jars.checksums(name) for name in names)


def test_processes_that_start_together_fetch_once(thing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(thing)
    fetches: list[str] = []
    together = threading.Barrier(4)

    def fetch(name: str, modules: list[Module], target: Path) -> None:
        fetches.append(name)
        (target / "ivy.xml").touch()
        (target / "thing-1.0.jar").write_bytes(b"jar")

    def ask() -> None:
        together.wait()
        assert (jars.resolve("thing-1.0", []) / "thing-1.0.jar").is_file()

    monkeypatch.setattr(jars, "_run_ivy", fetch)
    threads = [threading.Thread(target=ask) for _ in range(4)]  # flock tells open files apart, not processes
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetches == ["thing-1.0"]


def test_missing_java_is_refused_with_the_version_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JarsUnavailableError, match=r"No Java found.*version 17 or newer"):
        jars.java()


def test_java_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JarsUnavailableError, match=r"too old: version 17 or newer is needed"):
        jars.java()
