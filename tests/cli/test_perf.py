"""`kafkabuf perf`: what it sends, counts and prints, alone and beside other clients."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.cli import main
from kafkabuf.cli.perf.load import Driver, Load, Tally, Window, summary
from kafkabuf.errors import NetworkError
from kafkabuf.record_metadata import BatchOutcome
from rigs.jars import resolve_kafka_tools
from rigs.real_kafka import KAFKA_4

INVALID_RECORD = 87
PRODUCE = 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.nodeid))}"
    cluster.create_topic(name)
    return name


def perf(cluster: EmbeddedCluster, topic: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["perf", topic, *arguments, "-b", cluster.bootstrap_servers])


def figures(path: Path) -> dict[str, dict[str, object]]:
    return {found["client"]: found for found in json.loads(path.read_text())}


def test_counts_what_the_cluster_has(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = perf(cluster, topic, "-n", "5000", "--record-size", "10", "--json", str(out))
    assert result.exit_code == 0, result.output
    assert "kafkabuf: 5,000 records sent" in result.output
    assert cluster.end_offset(topic, 0) == 5001  # one before the clock runs
    assert {len(message.value or b"") for message in cluster.messages(topic)} == {10}
    found = figures(out)["kafkabuf"]
    assert (found["records"], found["failed"]) == (5000, 0)
    latency = found["latency_s"]
    assert isinstance(latency, dict)
    assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]


def test_lines_of_a_payload_file_go_in_turn(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    payload = tmp_path / "lines"
    payload.write_bytes(b"a\nbb\n\nccc")
    assert perf(cluster, topic, "-n", "6", "--payload-file", str(payload)).exit_code == 0
    assert [message.value for message in cluster.messages(topic)[1:]] == [b"a", b"bb", b"", b"ccc", b"a", b"bb"]


def test_pace_is_kept(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert perf(cluster, topic, "-n", "100", "--throughput", "500", "--json", str(out)).exit_code == 0
    found = figures(out)["kafkabuf"]["seconds"]
    assert isinstance(found, float)
    assert found >= 99 / 500


def test_transactions_are_committed(cluster: EmbeddedCluster, topic: str) -> None:
    assert perf(cluster, topic, "-n", "25", "--transaction-size", "10").exit_code == 0
    assert len(cluster.messages(topic)) == 26
    assert cluster.end_offset(topic, 0) == 26 + 4  # and a marker for each transaction


def test_failed_records_are_counted_and_fail_the_command(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    cluster.fail_next(PRODUCE, INVALID_RECORD, times=1000, topic=topic)
    result = perf(cluster, topic, "-n", "50", "--json", str(out))
    assert result.exit_code == 1
    assert "50 records failed" in result.output
    found = figures(out)["kafkabuf"]
    assert (found["records"], found["failed"]) == (0, 50)


@pytest.mark.parametrize("client", ["aiokafka", "confluent", "kafka-python"])
def test_peer_sends_the_same_records(cluster: EmbeddedCluster, topic: str, client: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = perf(cluster, topic, "-n", "300", "--compare", client, "--json", str(out))
    assert result.exit_code == 0, result.output
    assert f"times the rate of {client}" in result.output
    found = figures(out)
    assert {name: each["records"] for name, each in found.items()} == {client: 300, "kafkabuf": 300}
    assert found[client]["latency_s"]
    assert cluster.end_offset(topic, 0) == 602
    assert len({message.value for message in cluster.messages(topic)}) == 1


def test_kafka_s_own_tool_sends_the_same_records(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "kafka-producer-perf-test.sh"
    tool.parent.mkdir()
    main_class = "org.apache.kafka.tools.ProducerPerformance"
    tool.write_text(f'#!/bin/sh\nexec java -cp "{resolve_kafka_tools(KAFKA_4)}/*" {main_class} "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("KAFKA_HOME", os.fspath(tmp_path))
    out = tmp_path / "out.json"
    result = perf(cluster, topic, "-n", "300", "--compare", "java", "--json", str(out))
    assert result.exit_code == 0, result.output
    assert figures(out)["java"]["records"] == 300
    assert cluster.end_offset(topic, 0) == 601
    assert len({message.value for message in cluster.messages(topic)}) == 1
    payload = tmp_path / "payload"
    payload.write_bytes(b"\xff\n")  # the tool would send U+FFFD
    result = perf(cluster, topic, "--compare", "java", "--payload-file", str(payload))
    assert (result.exit_code, "--payload-file of UTF-8" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--record-size", "5", "--payload-file", __file__], "not both"),
        (["--transaction-size", "5", "--compare", "confluent"], "--transaction-size"),
        (["--compare", "java"], "KAFKA_HOME"),
        (["--compare", "confluent", "-X", "security.protocol=SSL"], "PLAINTEXT"),
        (["-n", "0"], "-n"),
        (["-X", "linger=5"], "linger"),
    ],
)
def test_wrong_options_are_refused(
    cluster: EmbeddedCluster, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    result = perf(cluster, "t", *arguments)
    assert result.exit_code == 2, result.output
    assert said in result.output


def test_plot_without_matplotlib_is_refused_before_the_run(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = perf(cluster, topic, "-n", "100", "--plot", str(tmp_path / "out.png"))
    assert result.exit_code == 2
    assert "pip install matplotlib" in result.output
    assert cluster.end_offset(topic, 0) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plot", "out.odd"], "odd is none of"),
        (["--plot", "missing/out.png"], "there is no folder missing"),
        (["--json", "missing/out.json"], "there is no folder missing"),
    ],
)
def test_output_that_cannot_be_written_is_refused_before_the_run(
    cluster: EmbeddedCluster, topic: str, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkabuf.cli.perf.command._kinds_of_plots", lambda: {"png"})
    result = perf(cluster, topic, "-n", "100", *arguments)
    assert (result.exit_code, said in result.output) == (2, True), result.output
    assert cluster.end_offset(topic, 0) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_full_disk_is_named_with_its_file_behind_the_figures(
    cluster: EmbeddedCluster, topic: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkabuf.cli.perf.command._kinds_of_plots", lambda: {"png"})
    monkeypatch.setattr("kafkabuf.cli.perf.command._draw", lambda results, path: path.write_bytes(b"a picture"))
    result = perf(cluster, topic, "-n", "100", option, "/dev/full")
    assert result.exit_code == 1
    assert "kafkabuf: 100 records sent" in result.output
    assert "Error: /dev/full cannot be read or written: No space left on device" in result.output


def test_figures_of_one_client_are_printed_before_the_next_fails(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise NetworkError("gone")

    monkeypatch.setattr("kafkabuf.cli.perf.load.own_sending", fail)
    result = perf(cluster, topic, "-n", "100", "--compare", "confluent")
    assert (result.exit_code, "confluent: 100 records sent" in result.output) == (1, True), result.output


@pytest.mark.parametrize("client", ["kafkabuf", "aiokafka", "confluent", "kafka-python"])
def test_ctrl_c_ends_the_load_and_what_was_sent_is_counted(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, client: str
) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "kafkabuf", "perf", topic, "-b", cluster.bootstrap_servers]
    command += ["--throughput", "100", "-n", "100000", "--json", str(out)]
    command += ["--compare", client] if client != "kafkabuf" else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "records/s" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.splitlines()[-1] == "Error: interrupted"
    assert "Traceback" not in told
    found = figures(out)[client]
    assert found["failed"] == 0
    # kafka-python takes a callback behind its send(). The signal may come between the two: one record is not counted.
    uncounted = (0, 1) if client == "kafka-python" else (0,)
    assert found["records"] in [cluster.end_offset(topic, 0) - 1 - records for records in uncounted]


@pytest.mark.parametrize("client", ["kafkabuf", "aiokafka", "confluent", "kafka-python"])
def test_second_ctrl_c_does_not_wait_and_the_acknowledged_are_counted(client: str) -> None:
    """The node stands still: without the second signal the wait lasts two minutes."""
    with EmbeddedCluster() as cluster:
        command = [sys.executable, "-m", "kafkabuf", "perf", "t", "-b", cluster.bootstrap_servers, "-n", "100000"]
        # So slow that no batch gets full: aiokafka's send() would wait for its acknowledgement.
        command += ["--throughput", "20", *(["--compare", client] if client != "kafkabuf" else [])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            bound = threading.Timer(60, process.kill)
            bound.start()
            try:
                assert process.stderr is not None
                assert "records/s" in process.stderr.readline()
                cluster.pause_node(1)
                # In a second without an acknowledgement, records were sent.
                while f"{client}: 0 records/s" not in (line := process.stderr.readline()):
                    assert line
                process.send_signal(signal.SIGINT)
                assert "waiting for the last acknowledgements" in process.stderr.readline()
                process.send_signal(signal.SIGINT)
                out, told = process.communicate(timeout=60)
            finally:
                bound.cancel()
                process.kill()
                cluster.resume_node(1)
    assert (process.returncode, told.splitlines()[-1]) == (130, "Error: interrupted")
    assert "Warning" not in told
    assert re.match(f"{client}: [0-9]+ records sent", out)


class Stuck:
    """A client whose flush() is interrupted so many times."""

    def __init__(self, times: int) -> None:
        self.left, self.given_up = times, False

    def flush(self) -> None:
        self.left -= 1
        if self.left >= 0:
            raise KeyboardInterrupt

    def send(self, values: Sequence[bytes], sent: float) -> None: ...

    def sleep(self, seconds: float) -> None: ...

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def give_up(self) -> None:
        self.given_up = True


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_behind_the_last_record_counts_what_was_acknowledged(times: int) -> None:
    tally, stuck = Tally(), Stuck(times)
    tally.acknowledged = 7
    windows: list[Window] = []
    driver = Driver(Load("t", [b"value"], 9), tally, windows.append)
    driver.run(stuck)
    assert (driver.interrupted, stuck.given_up, windows[-1].records) == (True, times == 2, 7)


@pytest.mark.parametrize("client", ["kafkabuf", "confluent"])
def test_load_whose_broker_has_gone_ends_with_its_time_outs(client: str) -> None:
    with EmbeddedCluster() as cluster:
        command = [sys.executable, "-m", "kafkabuf", "perf", "t", "-b", cluster.bootstrap_servers, "-n", "1000"]
        command += ["--throughput", "200", *(["--compare", client] if client != "kafkabuf" else [])]
        for name in ("delivery.timeout.ms=3000", "request.timeout.ms=2000", "max.block.ms=2000"):
            command += ["-X", name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert "records/s" in process.stderr.readline()
    with process:
        try:
            out, told = process.communicate(timeout=90)
        finally:
            process.kill()
    assert (process.returncode, "Traceback" in told) == (1, False), told
    assert f"{client}: " in told
    assert "Error: " in told
    assert out.startswith(f"{client}: ") or client != "kafkabuf"


def test_settings_of_the_file_are_used(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "producer.properties"
    file.write_text("batch.size=7\nlinger.ms=-1\n")
    result = perf(cluster, topic, "--config", str(file))
    assert result.exit_code == 2
    assert "linger.ms" in result.output


def test_failed_batch_counts_all_of_its_records() -> None:
    tally = Tally()
    tally.on_batch(BatchOutcome("t", 0, -1, 7, 0, 0, NetworkError("gone"), {}, [1.0]))
    assert (tally.acknowledged, tally.failed, tally.first_error, len(tally.latencies)) == (0, 7, "gone", 0)


def test_percentiles_are_those_of_the_sorted_sample() -> None:
    found = summary([float(number) for number in range(1000, 0, -1)])
    assert (found["p50"], found["p99"], found["p99.9"], found["max"]) == (501.0, 991.0, 1000.0, 1000.0)
    assert summary([]) == {}
