"""The process above a kill test: starts the driver, again whenever that was killed, and ends what is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.spark.kills.job import ENVIRONMENT, Folder, Job, Kill, Victim

# Seconds without any event or micro-batch after which the query is taken to hang.
PATIENCE = 180.0
_POLL = 0.02
_ROOT = Path(__file__).parents[3]


class KillTestError(AssertionError):
    """The query did not do what it must. The message has the tail of its log."""


class Supervisor:
    """Runs one job to its end. A context manager: at its end no process of the test is left."""

    def __init__(self, folder: Folder, job: Job) -> None:
        self.folder = folder
        self.job = job
        self.starts = 0
        self._driver: subprocess.Popen[bytes] | None = None
        folder.make(job)
        _spark_home(folder.root / "home")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.end()

    def run(self, plan: Iterable[Kill], meanwhile: Sequence[Callable[[], None]] = ()) -> None:
        """Until every micro-batch is committed and every kill of the plan was made.

        What is to be done `meanwhile` is called again and again, also while no driver runs. It may raise.
        """
        for kill in plan:
            self.folder.arm(kill)
        while (status := self._drive(meanwhile)) != 0:
            if status != -signal.SIGKILL or self._driver_kills() != self.starts:
                raise KillTestError(f"the driver ended with status {status}, and nobody killed it\n{self.log_tail()}")
            _do(meanwhile)
        if left := self.folder.left():
            raise KillTestError(f"nobody came to these steps: {', '.join(left)}")

    def end(self) -> None:
        """Kill every process of the test: the driver, executors, their Python workers, and those left over."""
        while found := [pid for pid in _pids() if _is_of(pid, self.folder)]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._driver is not None:
                self._driver.wait()
            time.sleep(_POLL)

    def log_tail(self, lines: int = 60) -> str:
        """Of the newest driver, and the newest events."""
        log = self.folder.root / f"driver-{self.starts}.log"
        text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
        events = self.folder.events.read_text().splitlines()[-10:]
        return "\n".join([f"{log.name}:", *text, "events:", *events])

    # ---- one driver --------------------------------------------------------------------------------------------------

    def _drive(self, meanwhile: Sequence[Callable[[], None]]) -> int:
        """Its exit status."""
        self.starts += 1
        environment = {
            **os.environ,
            ENVIRONMENT: str(self.folder.root),
            "SPARK_LAUNCHER_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "SPARK_HOME": str(self.folder.root / "home"),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])),
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
        seen, since = "", time.monotonic()
        while (status := self._driver.poll()) is None:
            _do(meanwhile)
            if (found := self._progress()) != seen:
                seen, since = found, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                raise KillTestError(f"nothing has happened for {PATIENCE:.0f} s\n{self.log_tail()}")
            time.sleep(_POLL)
        return status

    def _progress(self) -> str:
        commits = self.folder.checkpoint / "commits"
        done = len(list(commits.iterdir())) if commits.exists() else 0
        return f"{self.folder.events.stat().st_size} {done}"

    def _driver_kills(self) -> int:
        return sum(event["victim"] in (Victim.DRIVER, Victim.ORPHAN) for event in self.folder.told("kill"))


def _do(things: Iterable[Callable[[], None]]) -> None:
    for one in things:
        one()


# ---- processes -------------------------------------------------------------------------------------------------------


def _pids() -> Iterator[int]:
    return (int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit())


def _is_of(pid: int, folder: Folder) -> bool:
    """Whether the process has our folder in its environment, and lives."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{ENVIRONMENT}={folder.root}".encode() in variables


def _spark_home(place: Path) -> None:
    """Spark's own files by links: executors of a local cluster leave theirs in the folder `work` beside these."""
    place.mkdir()
    for one in Path(pyspark.__file__).parent.iterdir():
        if one.name != "work":
            (place / one.name).symlink_to(one)
