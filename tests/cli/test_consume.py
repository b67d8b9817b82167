"""`kafkabuf consume`: which records it prints, how, and when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import confluent_kafka
import pytest
from click.testing import CliRunner, Result

from kafkabuf import KafkaProducer
from kafkabuf.broker import ConsumerRecord, EmbeddedCluster, Security
from kafkabuf.cli import main
from kafkabuf.cli.connection import config_of
from kafkabuf.cli.record_format import formatter
from kafkabuf.cli.topic_reader import TopicReader
from kafkabuf.errors import UnknownTopicOrPartitionError
from kafkabuf.protocol import messages as m
from rigs.real_kafka import RealKafka
from tests.broker.raw_client import NOW, RawClient, batch

NOT_LEADER_OR_FOLLOWER = 6
TOPIC_AUTHORIZATION_FAILED = 29


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, 2)
    return name


def consume(servers: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["consume", *arguments, "-b", servers])


def send(servers: str, topic: str, *values: bytes, partition: int = 0, **settings: Any) -> None:
    with KafkaProducer(bootstrap_servers=servers, **settings) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)
        producer.flush()


def buffered() -> dict[str, str]:
    """The environment, in which Python buffers its output: the command must not rely on the opposite."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@contextmanager
def running(servers: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """The running command and its output. It must print no error."""
    command = [sys.executable, "-m", "kafkabuf", "consume", *arguments, "--bootstrap-servers", servers]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield process, process.stdout
            assert process.stderr.read() == ""
        finally:
            process.kill()


# ---- formats


RECORD = ConsumerRecord("orders", 3, 42, NOW, b"key", "wärt".encode(), [("a", b"1"), ("b", None)])


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("value", "wärt\n"),
        ("key-value", "key\twärt\n"),
        (r"%t/%p/%o %T %k=%s (%K, %S) %h 100%%\n", f"orders/3/42 {NOW} key=wärt (3, 5) a=1,b= 100%\n"),
        (r"%s\t\\n\q\0", "wärt\t\\n\\q\0"),
        ("%s", "wärt"),
    ],
)
def test_record_is_printed_as_the_format_says(text: str, printed: str) -> None:
    assert formatter(text)(RECORD) == printed.encode()


def test_null_and_bytes_are_told_apart_in_json() -> None:
    assert json.loads(formatter("json")(RECORD)) == {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp": NOW,
        "key": "key",
        "value": "wärt",
        "headers": [["a", "1"], ["b", None]],
    }
    line = formatter("json")(ConsumerRecord("t", 0, 0, NOW, None, b"\xff\n"))
    assert (json.loads(line)["key"], json.loads(line)["value"]) == (None, {"hex": "ff0a"})
    assert line.count(b"\n") == 1
    assert formatter("%k,%s,%K,%S")(ConsumerRecord("t", 0, 0, NOW, None, b"")) == b",,-1,0"


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["-f", "%q"], 2, "%q is no token of a template: there are %s, %S, %k"),
        (["-f", "values"], 2, "'values' is none of value, key-value, json, nor a template"),
        (["-n", "0"], 2, "0 is not in the range x>=1"),
        (["--timeout", "nan"], 2, "a number of seconds is needed, found nan"),
        (["-p", "7"], 1, "has no partition 7: its partitions are 0 to 1"),
    ],
)
def test_senseless_option_is_refused(
    cluster: EmbeddedCluster, topic: str, arguments: list[str], code: int, reason: str
) -> None:
    result = consume(cluster.bootstrap_servers, topic, *arguments)
    assert result.exit_code == code, result.output
    assert reason in " ".join(result.output.split())


def test_terminal_gets_no_control_characters() -> None:
    record = ConsumerRecord("t", 0, 0, NOW, b"\x1b[2J", "ä\t\x9b1m\r\x7f\n".encode() + b"\x9b", [("\x1b", b"\0")])
    shown = formatter("\x1b%k %s %h", visible=True)(record)
    assert shown == "\x1b\\x1b[2J ä\t\\x9b1m\\x0d\\x7f\n\\x9b \\x1b=\\x00".encode()
    as_json = formatter("json")(ConsumerRecord("t", 0, 0, NOW, b"\x1b", "\x9b\x7fä".encode()))
    assert "ä" in as_json.decode()
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) <= 0x9F for character in as_json.decode()[:-1])
    assert json.loads(as_json)["value"] == "\x9b\x7fä"


def test_template_may_have_any_bytes() -> None:
    assert formatter("\udcff%s")(RECORD) == b"\xff" + "wärt".encode()


@pytest.mark.parametrize("name", ["", "a b", "a\udcff", ".."])
def test_illegal_topic_is_refused(cluster: EmbeddedCluster, name: str) -> None:
    result = consume(cluster.bootstrap_servers, name)
    assert result.exit_code == 2
    assert "a topic's name has 1 to 249 of" in " ".join(result.output.split())


# ---- what it reads


def test_partition_may_be_named_twice(cluster: EmbeddedCluster, topic: str) -> None:
    send(cluster.bootstrap_servers, topic, b"v")
    result = consume(cluster.bootstrap_servers, topic, "-p", "0", "-p", "0", "--from-beginning", "-e")
    assert (result.exit_code, result.output) == (0, "v\n")


def add_partition(cluster: EmbeddedCluster, topic: str) -> None:
    with RawClient(cluster.bootstrap_servers.split(",")[0]) as client:
        topics = [{"name": topic, "count": 3, "assignments": None}]
        client.ask(m.CREATE_PARTITIONS, 3, topics=topics, timeout_ms=10_000, validate_only=False)


def test_reader_reads_new_partitions(cluster: EmbeddedCluster, topic: str) -> None:
    with reading(cluster, topic, **{"metadata.max.age.ms": "100"}) as reader:
        add_partition(cluster, topic)
        send(cluster.bootstrap_servers, topic, b"new", partition=2)
        assert values(reader, 1) == [b"new"]


def test_ends_and_chosen_partitions_leave_new_partitions_out(cluster: EmbeddedCluster, topic: str) -> None:
    with reading(cluster, topic, **{"metadata.max.age.ms": "100"}) as reader:
        ends = reader.ends()
        add_partition(cluster, topic)
        send(cluster.bootstrap_servers, topic, b"new", partition=2)
        assert reader.poll(0.5) == []
        assert {*reader.offsets} == {*ends}


def test_topic_that_was_made_again_ends_the_reader(cluster: EmbeddedCluster, topic: str) -> None:
    servers = cluster.bootstrap_servers
    send(servers, topic, b"0", b"1")
    with reading(cluster, topic) as reader:
        assert values(reader, 2) == [b"0", b"1"]
        with RawClient(servers.split(",")[0]) as client:
            client.ask(m.DELETE_TOPICS, 5, topic_names=[topic], timeout_ms=10_000)
        cluster.create_topic(topic, 2)
        send(servers, topic, b"2", b"3", b"4")
        with pytest.raises(UnknownTopicOrPartitionError, match="was deleted while"):
            values(reader, 100)


def test_all_records_up_to_the_end_are_printed(cluster: EmbeddedCluster, topic: str) -> None:
    servers = cluster.bootstrap_servers
    values = [b"%d" % number for number in range(5000)]
    send(servers, topic, *values[::2], compression_type="zstd")
    send(servers, topic, *values[1::2], partition=1)
    result = consume(servers, topic, "--from-beginning", "-e", "-f", r"%p %s\n")
    assert result.exit_code == 0, result.output
    lines = result.stdout_bytes.splitlines()
    assert [line for line in lines if line.startswith(b"0")] == [b"0 " + value for value in values[::2]]
    assert [line for line in lines if line.startswith(b"1")] == [b"1 " + value for value in values[1::2]]
    one = consume(servers, topic, "--from-beginning", "-e", "-p", "1", "-n", "3")
    assert one.stdout_bytes.split() == values[1:6:2]
    assert consume(servers, topic, "-e").stdout_bytes == b"", "it begins at the end"


def test_aborted_and_open_records_are_left_out(cluster: EmbeddedCluster, topic: str) -> None:
    servers = cluster.bootstrap_servers
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(20)
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        assert producer.flush(20) == 0
        end(20)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(20) == 0
    assert consume(servers, topic, "--from-beginning", "-e").stdout_bytes == b"committed\n"
    everything = consume(servers, topic, "--from-beginning", "-e", "--isolation-level", "read_uncommitted")
    assert everything.stdout_bytes == b"aborted\ncommitted\nopen\n"
    producer.abort_transaction(20)


def test_too_few_records_are_an_error(cluster: EmbeddedCluster, topic: str) -> None:
    send(cluster.bootstrap_servers, topic, b"one")
    result = consume(cluster.bootstrap_servers, topic, "--from-beginning", "-n", "2", "--timeout", "0.2")
    assert result.exit_code == 1
    assert result.stdout_bytes == b"one\n"
    assert "1 of 2 records came" in result.stderr
    assert consume(cluster.bootstrap_servers, topic, "--timeout", "0").exit_code == 0


def test_missing_topic_is_not_created(cluster: EmbeddedCluster) -> None:
    result = consume(cluster.bootstrap_servers, "missing", "-e")
    assert result.exit_code == 1
    assert "there is no topic 'missing'" in result.stderr
    assert "missing" not in cluster.topics()


def test_settings_of_the_connection_are_used(tmp_path: Path) -> None:
    with EmbeddedCluster(security=Security(users={"alice": "secret"})) as cluster:
        user: dict[str, Any] = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "alice", "sasl_password": "secret"}
        send(cluster.bootstrap_servers, "t", b"one", security_protocol="SASL_PLAINTEXT", **user)
        file = tmp_path / "client.properties"
        text = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=alice\nsasl.password="
        file.write_text(text + "secret")
        arguments = ("t", "--from-beginning", "-e", "--config", str(file))
        assert consume(cluster.bootstrap_servers, *arguments).stdout_bytes == b"one\n"
        result = consume(cluster.bootstrap_servers, *arguments, "-X", "sasl.password=wrong")
        assert result.exit_code == 1
        assert "Traceback" not in result.output
        assert "SCRAM" in result.stderr


# ---- trouble


@contextmanager
def reading(cluster: EmbeddedCluster, topic: str, **properties: str) -> Iterator[TopicReader]:
    config = config_of(cluster.bootstrap_servers, None, tuple(f"{name}={value}" for name, value in properties.items()))
    with TopicReader(config, topic, committed=True) as reader:
        reader.open((), from_beginning=True)
        yield reader


def values(reader: TopicReader, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        records = reader.poll(20)
        assert records, f"{len(found)} of {count} records came"
        found += [record.value for record in records]
    return found


def test_reader_follows_a_moved_and_a_dead_leader(cluster: EmbeddedCluster, topic: str) -> None:
    servers = cluster.bootstrap_servers
    with reading(cluster, topic) as reader:
        send(servers, topic, b"0")
        assert values(reader, 1) == [b"0"]
        cluster.fail_next(m.FETCH, NOT_LEADER_OR_FOLLOWER, times=2, topic=topic)
        cluster.drop_next(m.FETCH)
        send(servers, topic, b"1")
        assert values(reader, 1) == [b"1"]
        leader, _ = cluster.leader(topic, 0)
        cluster.move_leader(topic, 0, leader % 3 + 1)
        send(servers, topic, b"moved")
        assert values(reader, 1) == [b"moved"]
        leader, _ = cluster.leader(topic, 0)
        cluster.kill_node(leader)
        try:
            send(servers, topic, b"2", b"3")
            assert values(reader, 2) == [b"2", b"3"]
        finally:
            cluster.start_node(leader)


def test_reader_goes_on_behind_deleted_records(cluster: EmbeddedCluster, topic: str) -> None:
    servers = cluster.bootstrap_servers
    with reading(cluster, topic) as reader:
        send(servers, topic, b"0", b"1", b"2", b"3")
        host, port, _ = cluster.nodes()[cluster.leader(topic, 0)[0]]
        with RawClient(f"{host}:{port}") as client:
            topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 3}]}]
            client.ask(m.DELETE_RECORDS, 2, topics=topics, timeout=10_000)
        assert values(reader, 1) == [b"3"]
        assert reader.notes == ["partition 0 has no offset 0 any more: reading goes on at offset 3"]
        reader.offsets[0] = 100
        reader.notes.clear()
        send(servers, topic, b"4")
        while not reader.notes:
            assert not reader.poll(0.01)
        assert reader.notes == ["partition 0 has no offset 100 any more: reading goes on at offset 5"]


def test_deleted_topic_and_missing_rights_end_the_reader(cluster: EmbeddedCluster, topic: str) -> None:
    with reading(cluster, topic) as reader:
        cluster.fail_next(m.FETCH, TOPIC_AUTHORIZATION_FAILED, topic=topic)
        with pytest.raises(PermissionError, match="error code 29"):
            reader.poll(20)
    with reading(cluster, topic, **{"max.block.ms": "300"}) as reader:
        with RawClient(cluster.bootstrap_servers.split(",")[0]) as client:
            client.ask(m.DELETE_TOPICS, 5, topic_names=[topic], timeout=1000)
        with pytest.raises(UnknownTopicOrPartitionError, match="was deleted"):
            reader.poll(20)
    assert topic not in cluster.topics()


def test_batch_larger_than_the_limits_is_read(topic: str) -> None:
    with EmbeddedCluster(max_message_bytes=20 << 20) as cluster:
        cluster.create_topic(topic)
        with RawClient(cluster.bootstrap_servers) as client:
            assert client.produce(topic, batch([b"x" * (12 << 20)])).error_code == 0
        with reading(cluster, topic) as reader:
            assert values(reader, 1) == [b"x" * (12 << 20)]


# ---- as a process


def test_records_are_printed_as_they_come_until_ctrl_c(cluster: EmbeddedCluster, topic: str) -> None:
    with running(cluster.bootstrap_servers, topic) as (process, output):
        cluster.wait_for_request(m.FETCH, topic=topic, timeout=20)
        for number in range(3):
            send(cluster.bootstrap_servers, topic, b"%d" % number)
            assert output.readline() == f"{number}\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert output.read() == ""


def test_ctrl_c_before_the_records_that_were_asked_for_is_no_success(cluster: EmbeddedCluster, topic: str) -> None:
    with running(cluster.bootstrap_servers, topic, "-n", "2") as (process, output):
        cluster.wait_for_request(m.FETCH, topic=topic, timeout=20)
        send(cluster.bootstrap_servers, topic, b"one")
        assert output.readline() == "one\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.read() == "Error: 1 of 2 records came\n"
        assert process.wait(10) == 1


def test_closed_pipe_ends_the_command_silently(cluster: EmbeddedCluster, topic: str) -> None:
    send(cluster.bootstrap_servers, topic, b"x" * 100_000, b"y" * 100_000)
    with running(cluster.bootstrap_servers, topic, "--from-beginning") as (process, output):
        assert output.read(10) == "x" * 10
        output.close()
        send(cluster.bootstrap_servers, topic, b"z" * 100_000)
        assert process.wait(20) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_full_output_is_explained(cluster: EmbeddedCluster, topic: str) -> None:
    send(cluster.bootstrap_servers, topic, b"x")
    command = [sys.executable, "-m", "kafkabuf", "consume", topic, "--from-beginning", "-b", cluster.bootstrap_servers]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, env=buffered())
    assert done.returncode == 1
    assert "the output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_output_is_explained(cluster: EmbeddedCluster, topic: str) -> None:
    command = f'exec "$0" -m kafkabuf consume {topic} -b {cluster.bootstrap_servers} >&-'
    done = subprocess.run(["/bin/sh", "-c", command, sys.executable], stderr=subprocess.PIPE, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (1, "Error: the output cannot be written: it is closed\n")


# ---- real Kafka


def test_records_of_real_kafka_are_printed(kafka_4: RealKafka) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    kafka_4.create_topic(topic, 2)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka_4.bootstrap_servers, "transactional.id": topic, "compression.type": "lz4"}
    )
    producer.init_transactions(30)
    for number in range(4):
        producer.begin_transaction()
        for each in range(100):
            producer.produce(topic, b"%d-%d" % (number, each), partition=each % 2)
        assert producer.flush(30) == 0
        producer.commit_transaction(30) if number % 2 else producer.abort_transaction(30)
    result = consume(kafka_4.bootstrap_servers, topic, "--from-beginning", "-e")
    assert result.exit_code == 0, result.output
    assert sorted(result.stdout_bytes.split()) == sorted(b"%d-%d" % (n, each) for n in (1, 3) for each in range(100))
    everything = consume(
        kafka_4.bootstrap_servers, topic, "--from-beginning", "-e", "--isolation-level", "read_uncommitted"
    )
    assert len(everything.stdout_bytes.split()) == 400


def test_what_json_prints_can_be_sent_again(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    servers = cluster.bootstrap_servers
    twice = [("h", b"\xff\x00"), ("n", None), ("h", b""), ("j", b'{"hex":1}')]
    with KafkaProducer(bootstrap_servers=servers) as producer:
        producer.send(
            topic, b'{"a":1}\nx', key=b'{"k:1":2}', headers=twice, partition=0, timestamp_ms=1_700_000_000_000
        )
        producer.send(topic, None, key="ä".encode(), partition=0)
        producer.send(topic, b"", partition=0)
    path = tmp_path / "printed.jsonl"
    path.write_bytes(consume(servers, topic, "--from-beginning", "-e", "-f", "json").stdout_bytes)
    columns = ("--key", "key", "--value", "value", "--headers", "headers", "--timestamp", "timestamp")
    copy = f"{topic}-copy"
    result = CliRunner().invoke(main, ["produce", copy, str(path), *columns, "-b", servers])
    assert result.exit_code == 0, result.stderr
    found = [(r.key, r.value, r.headers, r.timestamp) for r in cluster.messages(copy)]
    assert found == [(r.key, r.value, r.headers, r.timestamp) for r in cluster.messages(topic)]
    assert found[0][2] == twice
