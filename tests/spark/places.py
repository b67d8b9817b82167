"""Clusters of Spark for the tests: processes on free loopback ports. They end with the `with` block.

A driver runs as a process too (tests/spark/driver.py), because a process has one Spark session, and the process of the
tests has its own. All these processes inherit a variable of the environment. `close` finds leftover processes by it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from tests.spark.versions import import_path

_MARK = "KAFKABUF_TEST_PLACE"
_DRIVER_FILES = ("job.json", "results.json")
_START_SECONDS = 90.0
_DRIVE_SECONDS = 400.0  # a busy machine takes several times as long as an idle one
_STOP_SECONDS = 20.0
# The JVMs live for a short time: they should start quickly rather than run fast.
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


class PlaceError(RuntimeError):
    """A process of Spark did not start, or a driver failed. The message has the end of its log."""


class Place:
    """One folder, and the Spark processes that run in it. `packages` is a folder with another PySpark (versions.py)."""

    def __init__(self, folder: Path, packages: Path | None = None) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.home = folder / "spark"
        self.settings = {
            **_SETTINGS,
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        self.environment = {
            **os.environ,
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "768m",
            "JAVA_TOOL_OPTIONS": _JVM,
            "PYTHONPATH": import_path(packages),
            _MARK: self.mark,
        }
        self._running: list[subprocess.Popen[bytes]] = []
        self._link_spark(packages / "pyspark" if packages else Path(pyspark.__file__).parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # ---- starting processes ------------------------------------------------------------------------------------------

    def standalone(self, workers: int = 2) -> str:
        """Start a master and its workers, each with one core. Returns the master's URL."""
        address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = ["spark-class", "org.apache.spark.deploy.master.Master", *address]
        url = self._start("master", master, r"Starting Spark master at (spark://\S+)")
        worker = ["spark-class", "org.apache.spark.deploy.worker.Worker", *address, "--cores", "1", "--memory", "1g"]
        for number in range(workers):
            work_dir = ["--work-dir", str(self.folder / f"work-{number}")]
            self._start(
                f"worker-{number}", [*worker, *work_dir, url], "Successfully registered with master", wait=False
            )
        for number in range(workers):
            self._await(f"worker-{number}", "Successfully registered with master")
        return url

    def connect(self, master: str, **overrides: str) -> str:
        """Start a server of Spark Connect, which is a driver at `master`. Returns its URL."""
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        settings = {
            **self.settings,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            **overrides,
        }
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        command = ["spark-submit", "--master", master, *options, *server]
        return "sc://" + self._start("connect", command, r"Spark Connect server started at: (127\.0\.0\.1:\d+)")

    def drive(
        self,
        steps: Sequence[str],
        options: dict[str, str],
        *,
        prefix: str,
        python: str = sys.executable,
        settings: dict[str, str] | None = None,
        **where: str,
    ) -> dict[str, dict[str, Any]]:
        """Run the steps in a driver, a process of `python`, at `master` or `remote`.

        Returns the result of each step: {"returned": ...} or {"error": traceback}.
        """
        folder = self.folder / f"driver-{prefix}"
        folder.mkdir()
        # A client of Connect configures only its session.
        driver_settings = {**({} if "remote" in where else self.settings), **(settings or {})}
        job = {"steps": steps, "options": options, "prefix": prefix, "settings": driver_settings, **where}
        (folder / "job.json").write_text(json.dumps(job))
        log = self.folder / f"driver-{prefix}.log"
        process = self._spawn(log, [python, "-m", "tests.spark.driver", str(folder)])
        try:
            status = process.wait(_DRIVE_SECONDS)
        except subprocess.TimeoutExpired:
            raise PlaceError(
                f"the driver did not end within {_DRIVE_SECONDS:.0f} s; the end of its log:\n{_tail(log)}"
            ) from None
        results = folder / "results.json"
        if status != 0 or not results.exists():
            raise PlaceError(f"the driver ended with status {status}; the end of its log:\n{_tail(log)}")
        return json.loads(results.read_text())  # type: ignore[no-any-return]

    def log_events(self) -> dict[str, str]:
        """Settings that make a driver write what its UI would show to a text file."""
        events = self.folder / "events"
        events.mkdir()
        return {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": str(events),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }

    # ---- processes ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the processes that were started here, and wait until they and their children have ended."""
        for process in reversed(self._running):
            process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        while left := self._left():
            if time.monotonic() > deadline:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                raise PlaceError(f"processes were left behind: {', '.join(left.values())}")
            time.sleep(0.05)

    def logs(self) -> dict[Path, str]:
        """The text of every file that Spark wrote, by path: logs, work folders, event logs, checkpoints."""
        paths = (path for path in self.folder.rglob("*") if path.is_file() and path.name not in _DRIVER_FILES)
        return {path: path.read_bytes().decode(errors="replace") for path in paths}

    def _link_spark(self, home: Path) -> None:
        """Make a SPARK_HOME of links to pyspark's folders: local-cluster writes the logs of its executors there."""
        self.home.mkdir(parents=True)
        for name in ("bin", "jars", "python"):
            (self.home / name).symlink_to(home / name)

    def _start(self, name: str, command: list[str], ready: str, *, wait: bool = True) -> str:
        """Start a daemon of Spark. Wait until `ready` matches its log, and return the first group of the match."""
        self._spawn(self.folder / f"{name}.log", [str(self.home / "bin" / command[0]), *command[1:]])
        return self._await(name, ready) if wait else ""

    def _spawn(self, log: Path, command: list[str]) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._running.append(process)
        return process

    def _await(self, name: str, ready: str) -> str:
        log = self.folder / f"{name}.log"
        deadline = time.monotonic() + _START_SECONDS
        while (match := re.search(ready, log.read_text(errors="replace"))) is None:
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._running):
                raise PlaceError(f"{name} did not start; the end of its log:\n{_tail(log)}")
            time.sleep(0.05)
        return match[1] if match.groups() else match[0]

    def _left(self) -> dict[int, str]:
        """The command lines of the processes with our mark, by pid."""
        wanted = f"{_MARK}={self.mark}".encode()
        left = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (process / "environ").read_bytes().split(b"\0"):
                    left[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
            except OSError:
                pass  # the process has ended, or belongs to another user
        return left


def _tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
