"""`kafkabuf spool drain`: what a killed process left arrives once and in order, and what does not arrive stays."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.cli import main
from rigs.producer import TOPIC, Rig
from tests.cli.test_spool import RECORDS, sent, spoil
from tests.spool.test_recovery import killed
from tests.waiting import wait_until

pytest_plugins = ["tests.cli.fixtures"]

NOWHERE = "127.0.0.1:1"
SIZES = {"buffer_memory": 1 << 20, "batch_size": 8000}  # a full batch would go before the kill
LATER = {"linger_ms": 600_000, "delivery_timeout_ms": 700_000}
MAGIC_1 = {"record_magic": 1, "enable_idempotence": False}

KILLED = """
import ast, os, sys
from kafkabuf import KafkaProducer
settings, topic, values = ast.literal_eval(sys.argv[1]), sys.argv[2], ast.literal_eval(sys.argv[3])
producer = KafkaProducer(**settings)
for value in values:
    producer.send(topic, value, partition=0)
os._exit(0)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "buffer"


def spool(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, ["spool", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def drain(path: Path, servers: str, *arguments: str) -> Result:
    return spool("drain", path, "-b", servers, *arguments)


def waiting(path: Path) -> int:
    found = json.loads(spool("inspect", path, "--json").stdout)
    return int(found["records"])


def leave(path: Path, cluster: EmbeddedCluster, topic: str, values: list[bytes], **settings: Any) -> None:
    """A process sends the values to its file, and is killed before a request goes."""
    named = {"bootstrap_servers": cluster.bootstrap_servers, "buffer_path": str(path), **SIZES, **LATER, **settings}
    subprocess.run([sys.executable, "-c", KILLED, repr(named), topic, repr(values)], check=True, timeout=60)
    assert waiting(path) == len(values)


def values_in(cluster: EmbeddedCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in cluster.messages(topic)]


VALUES = [b"%d" % number for number in range(500)]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_drain_delivers_what_a_killed_process_left_once_and_in_order(
    path: Path, cluster: EmbeddedCluster, topic: str, compression: str
) -> None:
    leave(path, cluster, topic, VALUES, compression_type=compression)
    result = drain(path, cluster.bootstrap_servers)
    assert result.exit_code == 0, result.output
    assert "500 of 500 records delivered" in result.stderr
    assert values_in(cluster, topic) == VALUES
    again = drain(path, cluster.bootstrap_servers)
    assert (again.exit_code, "holds no record that waits" in again.stderr) == (0, True)
    assert values_in(cluster, topic) == VALUES


def test_sizes_are_those_of_the_file_whatever_is_configured(path: Path, cluster: EmbeddedCluster, topic: str) -> None:
    leave(path, cluster, topic, VALUES, buffer_memory=70_001, batch_size=9_000)
    result = drain(path, cluster.bootstrap_servers, "-X", "batch.size=100", "-X", "buffer.memory=1000000")
    assert result.exit_code == 0, result.output
    assert values_in(cluster, topic) == VALUES


def test_outcome_is_told_to_programs_by_partition(path: Path, cluster: EmbeddedCluster, topic: str) -> None:
    leave(path, cluster, topic, VALUES)
    result = drain(path, cluster.bootstrap_servers, "--json")
    outcome = json.loads(result.stdout)
    assert (outcome["records"], outcome["delivered"], outcome["remaining"]) == (500, 500, 0)
    (partition,) = outcome["partitions"]
    assert (partition["topic"], partition["partition"], partition["delivered"]) == (topic, 0, 500)
    assert (outcome["uncommitted"], outcome["damaged"], outcome["path"]) == (0, [], str(path))


def test_what_has_not_gone_in_time_stays_in_the_file(path: Path, cluster: EmbeddedCluster, topic: str) -> None:
    leave(path, cluster, topic, VALUES)
    result = drain(path, NOWHERE, "--timeout", "0.2")
    assert (result.exit_code, f"500 remain in {path}" in result.stderr) == (1, True), result.output
    assert waiting(path) == 500
    assert drain(path, cluster.bootstrap_servers).exit_code == 0
    assert values_in(cluster, topic) == VALUES


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_leaves_the_rest_in_the_file(
    path: Path, cluster: EmbeddedCluster, topic: str, number: signal.Signals, status: int
) -> None:
    leave(path, cluster, topic, VALUES)
    command = [sys.executable, "-m", "kafkabuf", "spool", "drain", str(path), "-b", NOWHERE]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: json.loads(spool("inspect", path, "--json").stdout)["held_by"] == process.pid)
            process.send_signal(number)
            assert process.wait(60) == status
            assert process.stderr is not None
            assert f"interrupted; 0 of 500 records delivered, 500 remain in {path}" in process.stderr.read()
        finally:
            process.kill()
    assert waiting(path) == 500


def test_records_that_may_be_in_the_cluster_are_kept_if_the_user_wants_that(
    path: Path, cluster: EmbeddedCluster, topic: str
) -> None:
    """Records of magic 1 have no numbers by which the log could tell."""
    leave(path, cluster, topic, VALUES, **MAGIC_1)
    kept = drain(path, cluster.bootstrap_servers, "-X", "kafkabuf.buffer.unproven=keep", "--json")
    outcome = json.loads(kept.stdout)
    assert (kept.exit_code, outcome["unproven"], outcome["remaining"]) == (1, 500, 500)
    assert waiting(path) == 500
    delivered = drain(path, cluster.bootstrap_servers)
    assert (delivered.exit_code, "nobody can know" in delivered.stderr) == (0, True), delivered.output
    assert values_in(cluster, topic) == VALUES


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "name the cluster: --bootstrap-servers"),
        (["-b", NOWHERE, "-X", "transactional.id=t"], "this command has no transactions"),
        (["-b", NOWHERE, "-X", "acks=0"], "kafkabuf.buffer.path needs acks of 1 or all"),
        (["-b", NOWHERE, "--timeout", "nan"], "is no finite number"),
    ],
)
def test_wrong_option_is_named_and_the_file_stays_as_it_is(path: Path, arguments: list[str], reason: str) -> None:
    rig = Rig(file=path)
    rig.send(b"x")
    left = killed(rig, path.with_name("left"))
    before = left.read_bytes()
    result = spool("drain", left, *arguments)
    assert (result.exit_code, reason in result.stderr) == (2, True), result.output
    assert left.read_bytes() == before


def test_file_of_nothing_but_damage_is_told(path: Path) -> None:
    rig = Rig(file=path)
    rig.send(b"x")
    left = killed(rig, path.with_name("left"))
    spoil(left, place=0)
    result = drain(left, NOWHERE)
    assert result.exit_code == 1
    assert "holds no record that waits, and 1 damaged batches: kafkabuf spool check says why" in result.stderr


@pytest.mark.parametrize("form", [("jsonl", "--hex"), ("parquet", "--value-format", "raw")])
def test_produce_sends_what_export_has_written(
    path: Path, cluster: EmbeddedCluster, topic: str, tmp_path: Path, form: tuple[str, ...]
) -> None:
    rig = Rig(file=path)
    for record in RECORDS:
        rig.producer.send(TOPIC, **record)
    suffix, *options = form
    copy = tmp_path / f"copy.{suffix}"
    assert spool("export", path, "--format", suffix, "--output", copy).exit_code == 0
    columns = [word for name in ("key", "value", "headers", "timestamp") for word in (f"--{name}", name)]
    command = ["produce", topic, str(copy), *columns, *options, "-b", cluster.bootstrap_servers]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    came = [(record.value, record.key, record.headers, record.timestamp) for record in cluster.messages(topic)]
    assert sorted(came, key=repr) == sorted(sent(0) + sent(1), key=repr)
