"""`kafkabuf broker`: its output, its users and certificates, its end."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafkabuf import KafkaProducer
from kafkabuf.broker.controls import Stats
from kafkabuf.cli import main
from kafkabuf.cli.broker_status import describe
from kafkabuf.errors import SaslAuthenticationError
from tests.network.certificates import Authority


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


def test_status_is_a_line_of_the_terminal() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kafkabuf", "broker", "--brokers", "3", "--port", "0"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "150"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = ""
        try:
            while "3/3 nodes up, 0 connections, 0 requests/s, 0 B/s in, 0 B/s out, 0 parked" not in shown:
                shown += os.read(ours, 1000).decode()
            os.write(ours, b"\x03")  # Ctrl-C: the terminal sends the signal only to its own session
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
        finally:
            process.kill()
            os.close(ours)
    assert len(re.findall("bootstrap.servers=127", shown)) == 1
    assert "Traceback" not in shown


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
