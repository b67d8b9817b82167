"""The bench of the buffer's file: its outboxes keep the promise that they are compared by, and no record is lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import brokers, claims, harness
from bench.claim import Job
from bench.measure import measure
from bench.spool import outage, outboxes, rates
from kafkabuf.broker import EmbeddedCluster
from rigs.jars import JarsUnavailableError

STORES = {
    "lines": outboxes.json_lines(sync=False),
    "synced": outboxes.json_lines(sync=True),
    "OFF": outboxes.sqlite("OFF"),
    "NORMAL": outboxes.sqlite("NORMAL"),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(verify_records=True) as running:
        yield running


@pytest.mark.parametrize("store", STORES)
def test_outbox_delivers_each_record_once_while_no_process_dies(store: str, cluster: EmbeddedCluster) -> None:
    with harness.topic(cluster.bootstrap_servers) as topic:
        figures = measure(outboxes.delivering(STORES[store]), Job(300, cluster.bootstrap_servers, topic))
        values = [message.value for message in cluster.messages(topic)]
    assert values == [outboxes.VALUE] * 306
    assert figures["records_per_s"] > 0


@pytest.mark.parametrize("store", STORES)
def test_record_of_an_outbox_survives_the_kill_of_its_process(store: str, tmp_path: Path) -> None:
    """The folder has all records, in the form in which `stored` reads them."""
    program = (
        "import os, signal, sys; from pathlib import Path; from tests.house.bench.test_spool import STORES\n"
        "with STORES[sys.argv[1]](Path(sys.argv[2])) as outbox:\n"
        "    for number in range(100): outbox.put(b'%d' % number)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, store, str(tmp_path)]
    assert subprocess.run(command, cwd=harness.ROOT, check=False).returncode == -9
    if store in ("lines", "synced"):
        with open(tmp_path / "lines", "rb") as lines:
            left = outboxes._JsonLines(-1, lines.fileno(), -1, False).stored()
    else:
        left = outboxes._Sqlite(tmp_path / "outbox", store, new=False).stored()
    assert left == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("case", [rates.FILE, rates.ARROW_FILE, rates.FILE_SMALL])
def test_case_with_a_file_loses_no_record_and_leaves_no_file(
    case: str, cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with harness.topic(cluster.bootstrap_servers) as topic:
        claims.load("spool").case(case).run(Job(300, cluster.bootstrap_servers, topic))
        assert len(list(cluster.messages(topic))) == 306
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", [outage.NONE, outage.SAME, outage.KILLED])
def test_outage_ends_with_each_record_at_the_broker(case: str) -> None:
    """The case itself fails where records are missing, or where the file did not hold them."""
    with brokers.broker() as address:
        figures = claims.load("spool-outage").case(case).run(Job(20_000, address))
    assert figures["records_per_s"] > 0
    assert 0 < figures["own_mib"] < figures["resident_mib"] <= figures["peak_mib"]


def test_stopped_broker_is_the_process_that_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert outage.listener(port) == os.getpid()
    with pytest.raises(RuntimeError, match=f"none of this machine listens at port {port}"):
        outage.listener(port)


def test_only_claims_of_the_file_fall_back_to_the_embedded_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(version: str) -> Path:
        raise JarsUnavailableError("no jars")

    monkeypatch.setattr(command, "resolve_kafka", missing)
    monkeypatch.setattr(command, "RealKafka", missing)
    assert {name for name in claims.MODULES if claims.load(name).embedded} == {"spool", "spool-latency", "spool-outage"}
    with command._kafka(True, None, embedded=True) as (address, version):
        assert address
        assert version == "none: the embedded cluster"
    with pytest.raises(TypeError), command._kafka(True, None):
        pass
