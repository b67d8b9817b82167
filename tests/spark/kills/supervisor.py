"""The supervisor of a kill test: it starts the driver, restarts a killed driver, and ends all processes at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.spark.kills.job import ENVIRONMENT, Folder, Job, Kill, Victim
from tests.spark.kills.processes import processes_of

# The supervisor takes a query to hang after so many seconds without an event or a micro-batch.
PATIENCE = 180.0
_POLL = 0.02
_ROOT = Path(__file__).parents[3]


class KillTestError(AssertionError):
    """The query hangs, failed, or missed a step. The message may have the end of its log."""


class Supervisor:
    """Runs one job to its end. A context manager that ends every process of the test.

    `before` is a checkout of an earlier version of kafkabuf, with its extensions. If it is given, the first driver has
    that version, the second has this one, and so on.
    """

    def __init__(self, folder: Folder, job: Job, before: Path | None = None) -> None:
        self.folder = folder
        self.job = job
        self.starts = 0
        self._driver: subprocess.Popen[bytes] | None = None
        folder.make(job)
        _spark_home(folder.root / "home")
        self._before = None
        if before is not None:
            # The package alone: the tests are those of this version.
            self._before = folder.root / "before"
            self._before.mkdir()
            (self._before / "kafkabuf").symlink_to(before.resolve() / "kafkabuf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.end()

    def run(self, plan: Iterable[Kill], meanwhile: Sequence[Callable[[], None]] = ()) -> None:
        """Run until every micro-batch is committed. Every kill of the plan must have happened then.

        The functions in `meanwhile` are called repeatedly, also while no driver runs. They may raise.
        """
        for kill in plan:
            self.folder.arm(kill)
        while (status := self._drive(meanwhile)) != 0:
            if status != -signal.SIGKILL or self._driver_kills() != self.starts:
                raise KillTestError(f"the driver was not killed and ended with status {status}\n{self.log_tail()}")
            _call_all(meanwhile)
        if remaining := self.folder.remaining():
            raise KillTestError(f"no process reached these steps: {', '.join(remaining)}")

    def end(self) -> None:
        """Kill every process of the test: the driver, executors, their Python workers, and leftovers."""
        while pids := list(processes_of(self.folder)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._driver is not None:
                self._driver.wait()
            time.sleep(_POLL)

    def log_tail(self, lines: int = 60) -> str:
        """The last lines of the newest driver's log, and the newest events."""
        log = self.folder.root / f"driver-{self.starts}.log"
        text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
        events = self.folder.events.read_text().splitlines()[-10:]
        return "\n".join([f"{log.name}:", *text, "events:", *events])

    # ---- one driver --------------------------------------------------------------------------------------------------

    def _drive(self, meanwhile: Sequence[Callable[[], None]]) -> int:
        """Run a driver to its end. Returns its exit status."""
        self.starts += 1
        environment = {
            **os.environ,
            ENVIRONMENT: str(self.folder.root),
            "SPARK_LAUNCHER_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "SPARK_HOME": str(self.folder.root / "home"),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, [*self._packages(), os.environ.get("PYTHONPATH")])),
        }
        with (self.folder.root / f"driver-{self.starts}.log").open("wb") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.kills.driver"],
                cwd=self.folder.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        progress, since = "", time.monotonic()
        while (status := self._driver.poll()) is None:
            _call_all(meanwhile)
            if (now := self._progress()) != progress:
                progress, since = now, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                raise KillTestError(f"the query has made no progress for {PATIENCE:.0f} s\n{self.log_tail()}")
            time.sleep(_POLL)
        return status

    def _packages(self) -> list[str]:
        """The import path of the driver that starts now."""
        is_earlier = self._before is not None and self.starts % 2 == 1
        return [*([str(self._before)] if is_earlier else []), str(_ROOT)]

    def _progress(self) -> str:
        commits = self.folder.checkpoint / "commits"
        done = len(list(commits.iterdir())) if commits.exists() else 0
        return f"{self.folder.events.stat().st_size} {done}"

    def _driver_kills(self) -> int:
        return sum(event["victim"] in (Victim.DRIVER, Victim.ORPHAN) for event in self.folder.recorded("kill"))


def _call_all(functions: Iterable[Callable[[], None]]) -> None:
    for function in functions:
        function()


def _spark_home(home: Path) -> None:
    """Make a SPARK_HOME of links to Spark's files: executors of a local cluster write to the folder `work` in it."""
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
