"""Programs that gevent or eventlet has patched: all of ours is real there, and a wait stops no hub.

Each test runs a program in a process of its own, since nothing takes a patch back. The cluster is in this process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkabuf.broker import EmbeddedCluster

PATIENCE = 120.0
HERE = Path(__file__).parent
LIBRARIES = ("gevent", "eventlet")
EMBEDDED = """
import importlib, sys, warnings
warnings.simplefilter("ignore")
if sys.argv[1] == "gevent":
    importlib.import_module("gevent.monkey").patch_all()
else:
    importlib.import_module("eventlet").monkey_patch()
from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
with EmbeddedCluster(brokers=1) as cluster:
    cluster.create_topic("t")
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send("t", b"v").result(60)
    print(cluster.wait_for_messages("t", 1)[0].value)
"""

FORKS = """
import gevent.monkey
gevent.monkey.patch_all()
import gevent, os, sys
from kafkabuf import KafkaProducer
producer = KafkaProducer(bootstrap_servers=sys.argv[1])
producer.send("t", b"before").result(60)
def fork():
    child = os.fork()
    if child == 0:
        producer.send("t", b"child")
        producer.flush(60)
        gevent.spawn(lambda: producer.send("t", b"greenlet").result(60)).get()
        os._exit(7)
    print(os.waitpid(child, 0)[1] >> 8)
gevent.spawn(fork).get()
producer.send("t", b"after").result(60)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1, auto_create_topics=False) as cluster:
        cluster.create_topic("t", 2)
        yield cluster


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_wait_of_a_greenlet_stops_no_hub(cluster: EmbeddedCluster, library: str, when: str) -> None:
    pytest.importorskip(library)
    program = [sys.executable, str(HERE / "program.py"), library, when, cluster.bootstrap_servers]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE * 2)
    kept = "result flush report close many serializers admin lines memory metadata callbacks time-out end"
    assert (done.returncode, done.stdout.split()) == (0, kept.split()), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("library", LIBRARIES)
def test_embedded_cluster_works_in_a_patched_process(library: str) -> None:
    pytest.importorskip(library)
    program = [sys.executable, "-c", EMBEDDED, library]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout.strip()) == (0, "b'v'"), done.stderr


def test_greenlet_may_fork(cluster: EmbeddedCluster) -> None:
    pytest.importorskip("gevent")
    before = len(cluster.messages("t"))
    program = [sys.executable, "-c", FORKS, cluster.bootstrap_servers]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE * 2)
    assert (done.returncode, done.stdout.strip()) == (0, "7"), done.stderr
    assert len(cluster.messages("t")) == before + 4


def test_gevent_worker_of_gunicorn_sends_with_a_producer_of_before_the_fork_and_ends(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    pytest.importorskip("gevent")
    pytest.importorskip("gunicorn")
    before = len(cluster.messages("t"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    log = tmp_path / "log"
    command = [sys.executable, "-m", "gunicorn", "-c", "gunicorn_config.py", "--worker-class", "gevent"]
    command += ["--workers", "2", "--preload", "--bind", f"127.0.0.1:{port}", "--log-file", str(log)]
    command += ["--timeout", "100", "--graceful-timeout", "100", "--no-control-socket"]
    environment = {**os.environ, "SERVERS": cluster.bootstrap_servers}
    server = subprocess.Popen([*command, "server:app"], cwd=HERE, env=environment, stderr=subprocess.PIPE)
    offsets: list[str] = []
    try:
        offsets += [_answer(f"http://127.0.0.1:{port}/", server) for _ in range(4)]
        _await_lines(log, "worker takes signals", 2)
    finally:
        server.terminate()
        _, errors = server.communicate(timeout=PATIENCE)
    lines = log.read_text() + errors.decode()
    assert all(offset.isdigit() for offset in offsets), lines
    assert server.returncode == 0, lines
    assert "Traceback" not in lines
    # Each worker ends by itself. One that does not is killed by gunicorn, and says nothing.
    assert lines.count("Worker exiting") == 2, lines
    assert "Worker graceful timeout" not in lines
    assert len(cluster.messages("t")) == before + 4


def _await_lines(log: Path, text: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while log.read_text().count(text) < count:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.01)


def _answer(url: str, server: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                return bytes(response.read()).decode()
        except (urllib.error.URLError, ConnectionError):  # gunicorn does not listen yet
            if time.monotonic() > deadline or server.poll() is not None:
                raise
            time.sleep(0.05)
