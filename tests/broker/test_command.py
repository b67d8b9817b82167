"""`kafkabuf broker`: its output, its users and certificates, its end."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from rich.console import Console

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.controls import Stats
from kafkabuf.broker.overview import GroupNumbers, TopicNumbers
from kafkabuf.cli import main
from kafkabuf.cli.broker import status as broker_status
from kafkabuf.cli.broker.command import stop_signals
from kafkabuf.cli.broker.status import Status, describe
from kafkabuf.cli.broker.tables import Overview, overview_below
from kafkabuf.errors import RecordTooLargeError, SaslAuthenticationError, TopicAuthorizationError
from tests.network.tls.certificates import Authority


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running command and its bootstrap servers. It must end with status 0 and print no error."""
    command = [sys.executable, "-m", "kafkabuf", "broker", "--port", "0", *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **streams, text=True, env=os.environ | environment) as process:  # type: ignore[call-overload]
        try:
            yield process, process.stdout.readline().strip().removeprefix("bootstrap.servers=")
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def send(settings: dict[str, object], topic: str = "t") -> int:
    with KafkaProducer(settings, max_block_ms=5000) as producer:
        return producer.send(topic, b"x").result(10).offset


def test_super_user_of_the_command_may_do_everything() -> None:
    users = ("--user", "admin:a", "--user", "alice:b", "--super-user", "User:admin")
    with running(*users) as (_, servers):
        settings: dict[str, object] = {"bootstrap.servers": servers, "security.protocol": "SASL_PLAINTEXT"}
        settings |= {"sasl.mechanism": "PLAIN", "enable.idempotence": False}
        assert send(settings | {"sasl.username": "admin", "sasl.password": "a"}) == 0
        with pytest.raises(TopicAuthorizationError):
            send(settings | {"sasl.username": "alice", "sasl.password": "b"})


def test_command_uses_its_users_and_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.issue("broker", "IP:127.0.0.1")
    tls = ("--tls", str(identity.certificate), "--tls-key", str(identity.key))
    more = ("--sasl", "SCRAM-SHA-256", "--unsecured-tokens")
    with running(*tls, *more, KAFKABUF_USERS="alice:pass:word bob:other") as (process, servers):
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line == "security.protocol=SASL_SSL  sasl.mechanism=SCRAM-SHA-256|OAUTHBEARER"
        settings: dict[str, object] = {
            "bootstrap.servers": servers,
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": str(authority.certificate),
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
        }
        assert send({**settings, "sasl.password": "pass:word"}) == 0
        with pytest.raises(SaslAuthenticationError):
            send({**settings, "sasl.password": "wrong"})


def test_second_run_continues_the_data_folder(tmp_path: Path) -> None:
    for expected in (0, 1):
        with running("--data-dir", str(tmp_path / "data")) as (_, servers):
            assert send({"bootstrap.servers": servers}) == expected


def test_command_takes_kafkas_settings() -> None:
    with running("--config", "message.max.bytes=500", "--config", "auto.create.topics.enable=true") as (_, servers):
        with pytest.raises(RecordTooLargeError):
            KafkaProducer({"bootstrap.servers": servers}, max_block_ms=5000).send("t", b"x" * 600).result(10)


@pytest.mark.parametrize(
    ("setting", "text"), [("num.partitions", "not of the form"), ("num.partions=3", "do you mean num.partitions?")]
)
def test_command_refuses_a_setting_with_the_reason(setting: str, text: str) -> None:
    command = [sys.executable, "-m", "kafkabuf", "broker", "--port", "0", "--config", setting]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert text in " ".join(done.stderr.replace("│", " ").split())


def shown_until(terminal: int, pattern: str, shown: str = "") -> str:
    """`shown`, and what the terminal shows then, up to a match of the pattern."""
    poll = select.poll()
    poll.register(terminal, select.POLLIN)
    deadline = time.monotonic() + 60
    while not re.search(pattern, shown, re.DOTALL):
        left = deadline - time.monotonic()
        readable = poll.poll(1000 * left) if left > 0 else []
        assert readable, f"the terminal shows no {pattern!r} within a minute: {shown!r}"
        shown += os.read(terminal, 1000).decode(errors="replace")
    return shown


def test_status_is_a_line_of_the_terminal() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kafkabuf", "broker", "--brokers", "3", "--port", "0"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "150"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        try:
            shown = shown_until(ours, "3/3 nodes up, 0 connections, 0 requests/s, 0 B/s in, 0 B/s out, 0 parked")
            os.write(ours, b"\x03")  # Ctrl-C: the terminal sends the signal only to its own session
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(ours)
    assert len(re.findall("bootstrap.servers=127", shown)) == 1
    assert "Traceback" not in shown


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM])
def test_terminal_gets_its_cursor_back(number: signal.Signals) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kafkabuf", "broker", "--port", "0"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "150"}
    hide, show = re.escape("\x1b[?25l"), re.escape("\x1b[?25h")
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        try:
            shown = shown_until(ours, hide)
            process.send_signal(number)
            assert process.wait(60) == 0
            shown_until(ours, show, shown)
        finally:
            process.kill()
            os.close(theirs)
            os.close(ours)


def test_command_under_nohup_ignores_the_end_of_its_terminal() -> None:
    assert signal.SIGHUP in stop_signals()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stop_signals() == {signal.SIGINT, signal.SIGTERM, signal.SIGQUIT}
    finally:
        signal.signal(signal.SIGHUP, before)


def test_table_has_topics_and_groups() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kafkabuf", "broker", "--port", "0", "--partitions", "3"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "150", "LINES": "30", "NO_COLOR": "1"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        try:
            shown = shown_until(ours, r"bootstrap\.servers=\S+\r\n")
            servers = re.findall(r"bootstrap\.servers=(\S+)\r\n", shown)[0]
            send({"bootstrap.servers": servers}, "orders")
            consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "shop"})
            consumer.commit(offsets=[confluent_kafka.TopicPartition("orders", 0, 0)], asynchronous=False)
            shown = shown_until(ours, r"orders +3 +1 +0 .*shop +1 +0 +\d +Empty", shown)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            consumer.close()
        finally:
            process.kill()
            os.close(ours)
    assert not re.search(r"\x1b\[[\d;]*3\dm", shown), "NO_COLOR"


def topic(name: str, end_offsets: int = 0, lagging: int = 0) -> TopicNumbers:
    return TopicNumbers(name, 2, end_offsets, end_offsets // 2, 10 * end_offsets, 0, lagging)


def drawn(overview: Overview, height: int, **environment: str) -> list[str]:
    output = io.StringIO()
    console = Console(
        file=output, force_terminal=True, width=100, height=height, _environ={"TERM": "xterm", **environment}
    )
    console.print(overview_below("the line", overview, height))
    return output.getvalue().splitlines()


def test_busiest_topics_come_first_and_the_tables_fit() -> None:
    topics = [topic("quiet", 10), topic("busy", 1000), topic("new", 5), topic("made again", 5)]
    groups = [GroupNumbers(f"group {number}", "Stable", 1, 1, number) for number in range(20)]
    overview = Overview(topics, groups, {"quiet": 10, "busy": 900, "made again": 100}, 0.5)
    assert [overview.rate(each) for each in topics] == [0.0, 200.0, 10.0, 10.0]
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in drawn(overview, 30)]
    assert [line.split("  ")[0] for line in lines[3:7]] == ["busy", "made again", "new", "quiet"]
    assert lines[3].split() == ["busy", "2", "500", "200", "10", "kB"]
    assert "... and 14 more groups" in lines
    for height in range(1, 40):
        assert len(drawn(overview, height)) <= height
        assert drawn(overview, height)[0] == "the line"
    assert len(drawn(Overview([], [], {}, 1.0), 30)) == 1


def test_colour_is_left_out_on_request() -> None:
    overview = Overview([topic("t", lagging=1)], [], {}, 1.0)
    assert any("\x1b[31m1 with a replica not in sync" in line for line in drawn(overview, 10))
    assert not any("\x1b[31m" in line for line in drawn(overview, 10, NO_COLOR="1"))


@pytest.mark.parametrize("terminal", [{}, {"force_terminal": True, "_environ": {"TERM": "dumb"}}])
def test_pipe_gets_lines_only_when_they_change(terminal: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter([False, False, False, True])
    monkeypatch.setattr(broker_status, "_arrives", lambda signals, seconds: next(waits))
    with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        output = io.StringIO()
        Status(cluster, Console(file=output, **terminal)).show_until(set())
    assert output.getvalue() == "1/1 nodes up, 0 connections, 0 requests/s, 0 B/s in, 0 B/s out, 0 parked\n"


def test_numbers_are_those_of_the_cluster() -> None:
    with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic("t", 2)
        cluster.create_topic("u")
        assert cluster.group_numbers() == []
        for _ in range(5):
            send({"bootstrap.servers": cluster.bootstrap_servers})
        cluster.wait_for_messages("t", 5)
        client = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"})
        ends = cluster.end_offsets("t")
        committed = [confluent_kafka.TopicPartition("t", partition, max(end - 1, 0)) for partition, end in ends.items()]
        client.commit(offsets=committed, asynchronous=False)
        client.close()
        lag = sum(min(end, 1) for end in ends.values())
        assert cluster.group_numbers() == [GroupNumbers("g", "Empty", 0, 2, lag)]
        numbers = {each.name: each for each in cluster.topic_numbers()}
        nbytes = sum(len(data) for partition in range(2) for data in cluster.records("t", partition))
        assert numbers["t"] == TopicNumbers("t", 2, 5, 5, nbytes, 0, 0)
        assert numbers["u"] == TopicNumbers("u", 1, 0, 0, 0, 0, 0)
        cluster.kill_node(cluster.leader("u", 0)[0])
        assert next(each for each in cluster.topic_numbers() if each.name == "u").lagging == 1


def test_rates_are_those_of_the_time_between() -> None:
    before = Stats(3, 3, 10, 0, 1000, 5_000, 10)
    now = Stats(3, 2, 1234, 7, 3468, 1_005_000, 10)
    shown = describe(now, before, 2.0)
    assert shown == "2/3 nodes up, 1,234 connections, 1,234 requests/s, 500 kB/s in, 0 B/s out, 7 parked"
    assert "1 MB/s in" in describe(Stats(1, 1, 0, 0, 0, 999_600, 0), Stats(1, 1, 0, 0, 0, 0, 0), 1.0)


def test_taken_port_is_explained() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, ["broker", "--port", str(port)])
    assert result.exit_code == 1
    assert f"Address already in use (while attempting to bind on address ('127.0.0.1', {port}))" in result.output
    assert "free ports with --port 0" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--user", "alice"], 2, "number 1 is not of the form NAME:PASSWORD"),
        (["--user", "a:b", "--user", "c:"], 2, "number 2 is not of the form"),
        (["--sasl", "PLAIN"], 1, "PLAIN needs users"),
        (["--sasl", "GSSAPI"], 2, "is not one of 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512'"),
        (["--tls", "/nowhere.pem"], 2, "does not exist"),
        (["--tls-key", __file__], 1, "need an ssl_certfile"),
        (["--tls", __file__], 1, "PEM files with a chain and its key are needed"),
        (["--data-dir", __file__], 2, "is a file"),
    ],
)
def test_senseless_option_is_refused(arguments: list[str], code: int, reason: str) -> None:
    result = CliRunner().invoke(main, ["broker", "--port", "0", *arguments])
    assert result.exit_code == code, result.output
    assert reason in " ".join(result.output.split())
    assert "Traceback" not in result.output
