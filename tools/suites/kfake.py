"""The tests that franz-go's fake broker has taken over from Apache Kafka's own clients' tests.

They make a cluster for each test. rigs/kfake/kfake.go, in place of the fake broker, asks the server here for it.
"""

from __future__ import annotations

import json
import shutil
import socketserver
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.peers import FOLDER
from tools.suites import ROOT, Clusters, States, Suite, Wanted, go
from tools.suites.kgo import MODULE
from tools.suites.kgo import VERSION as KGO

VERSION = "v0.0.0-20260918054303-01f206a7e32c"
# These answer requests in the place of the fake broker.
_LEFT_OUT = ("Test848FencedEpochRecovery", "Test848SessionTimeout")
_GO_MOD = f"""module kafkabuf/kfake_tests

go 1.26.0

require (
	{MODULE} {KGO}
	{MODULE}/pkg/kadm v1.18.0
	{MODULE}/pkg/kfake v0.0.0
	{MODULE}/pkg/kmsg v1.15.0
)

replace {MODULE}/pkg/kfake => ./kfake
"""


def run(clusters: Clusters, tests: Iterable[str] | None) -> States:
    folder = _own_module(go.module(f"{MODULE}/pkg/kfake", VERSION))
    test = go.compiled(folder, "./kafka_tests")
    with _server(clusters) as address:
        names = _names(folder) if tests is None else list(tests)
        return go.ended(test, folder, {"KAFKABUF_CLUSTERS": address}, [name for name in names if name not in _LEFT_OUT])


def _own_module(source: Path) -> Path:
    """A module of the tests and of our package kfake."""
    folder = FOLDER / "kfake_tests"
    shutil.copytree(source / "kafka_tests", folder / "kafka_tests", dirs_exist_ok=True)
    shutil.copytree(ROOT / "rigs" / "kfake", folder / "kfake", dirs_exist_ok=True)
    (folder / "go.mod").write_text(_GO_MOD)
    (folder / "kfake" / "go.mod").write_text(f"module {MODULE}/pkg/kfake\n\ngo 1.26.0\n")
    return folder


def _names(folder: Path) -> list[str]:
    lines = (line for file in sorted(folder.glob("kafka_tests/*_test.go")) for line in file.read_text().splitlines())
    return [line.removeprefix("func ").partition("(")[0] for line in lines if line.startswith("func Test")]


@contextmanager
def _server(clusters: Clusters) -> Iterator[str]:
    """Makes a cluster for each connection, one at a time, which lives until the connection ends."""
    one_at_a_time = threading.Lock()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked = json.loads(self.rfile.readline())
            with one_at_a_time, clusters(Wanted(asked["brokers"], asked["topics"], asked["configs"])) as addresses:
                self.wfile.write(json.dumps({"addresses": addresses.split(",")}).encode() + b"\n")
                self.rfile.read()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            serving.join()


SUITE = Suite("Kafka's own, from franz-go's kfake", run)
