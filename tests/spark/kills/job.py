"""What the processes of a kill test share: a folder of files, and the plan of what is killed where."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

# Names the folder, in the environment of every process of the test: by it they are found, and ended.
ENVIRONMENT = "KAFKABUF_SPARK_KILLS"
DIGITS = 12


class Victim(StrEnum):
    """Who dies of SIGKILL. The process that reaches the step always dies but where it is said."""

    WORKER = "worker"  # the Python worker: an executor's, or the driver's host's
    EXECUTOR = "executor"  # the executor's JVM and the worker
    DRIVER = "driver"  # the driver's JVM, the user's program, its Python workers; tasks go on until they notice
    ORPHAN = "driver but its worker"  # the driver; its Python worker goes on with the step


_TASK = (Victim.WORKER, Victim.EXECUTOR, Victim.DRIVER)
_DRIVER = (Victim.WORKER, Victim.DRIVER)

STEPS: dict[str, dict[str, tuple[Victim, ...]]] = {
    "at_least_once": {
        "before produce": _TASK,
        "mid-produce": _TASK,
        "after produce": _TASK,
        "before commit": _DRIVER,
        "after commit": _DRIVER,
    },
    "exactly_once": {
        "before init": _TASK,
        "after init": _TASK,
        "before produce": _TASK,
        "mid-produce": _TASK,
        "before marker": _TASK,
        "after marker": _TASK,
        "amid EndTxn": _TASK,
        "after EndTxn": _TASK,
        "before commit": _DRIVER,
        "after commit": _DRIVER,
    },
    "atomic": {
        "before begin": _DRIVER,
        "after begin": _DRIVER,
        "before produce": _TASK,
        "mid-produce": _TASK,
        "after produce": _TASK,
        "before marker": (*_DRIVER, Victim.ORPHAN),
        "after marker": (*_DRIVER, Victim.ORPHAN),
        "amid EndTxn": _DRIVER,
        "after EndTxn": _DRIVER,
    },
}


AT_RANDOM = "at random"


class Kill(NamedTuple):
    """In micro-batch `batch`, whoever comes to `step` first lets `victim` die there, once.

    At the step `AT_RANDOM` that is `delay` seconds after the task was given its Arrow batch number `arrow_batch`.
    """

    batch: int
    step: str
    victim: Victim
    arrow_batch: int = 0
    delay: float = 0.0


@dataclass(frozen=True)
class Job:
    """A stream of `batches` micro-batches with `rows` rows each, read from `files` files, one task a file.

    Row n of the stream has the number n as its key, in `DIGITS` digits; its value is that, filled up to `size` bytes.
    """

    servers: str
    topic: str
    guarantee: str
    batches: int
    rows: int
    partitions: int = 3
    files: int = 3
    size: int = 40
    arrow_rows: int = 100
    master: str = "local-cluster[2,1,1024]"

    def options(self) -> dict[str, str]:
        given = {
            "kafka.bootstrap.servers": self.servers,
            "topic": self.topic,
            "deliveryGuarantee": self.guarantee,
        }
        return given if self.guarantee == "at_least_once" else {**given, "sinkId": self.topic}


class Folder:
    """The files of one test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.armed, self.fired = root / "armed", root / "fired"
        self.input, self.checkpoint, self.events = root / "in", root / "checkpoint", root / "events"

    @classmethod
    def here(cls) -> Self:
        """That of the test which this process belongs to."""
        return cls(Path(os.environ[ENVIRONMENT]))

    def make(self, job: Job) -> None:
        self.root.mkdir(parents=True)
        for place in (self.armed, self.fired, self.input):
            place.mkdir()
        self.events.touch()
        (self.root / "job.json").write_text(json.dumps(asdict(job)))
        each = -(-job.rows // job.files)
        for batch in range(job.batches):
            for number in range(job.files):
                first = batch * job.rows + number * each
                rows = range(first, min(first + each, (batch + 1) * job.rows))
                place = self.input / f"{batch:04}-{number}.txt"
                place.write_text("".join(f"{row:0{DIGITS}}\n" for row in rows))
                # Spark takes the older first.
                os.utime(place, (1_700_000_000 + batch * job.files + number,) * 2)

    def job(self) -> Job:
        return Job(**json.loads((self.root / "job.json").read_text()))

    # ---- kills -------------------------------------------------------------------------------------------------------

    def arm(self, kill: Kill) -> None:
        (self.armed / f"{kill.batch}.{kill.step}").write_text(json.dumps(kill))

    def claim(self, batch: int, step: str) -> Kill | None:
        """What is to be done here. Only one process is told so, once: renaming a file is atomic."""
        name = f"{batch}.{step}"
        try:
            (self.armed / name).rename(self.fired / name)
        except FileNotFoundError:
            return None
        _, _, victim, *more = json.loads((self.fired / name).read_text())
        return Kill(batch, step, Victim(victim), *more)

    def left(self) -> list[str]:
        """Kills that did not happen."""
        return sorted(place.name for place in self.armed.iterdir())

    # ---- what happened -----------------------------------------------------------------------------------------------

    def newest_batch(self) -> int:
        """The micro-batch that is being written, or was last; -1 before the first."""
        place = self.checkpoint / "offsets"
        return (
            max((int(one.name) for one in place.iterdir() if one.name.isdigit()), default=-1) if place.exists() else -1
        )

    def tell(self, what: str, **more: Any) -> None:
        """Add to the record of events. One write, so that those of several processes do not mix."""
        line = json.dumps({"time": time.time(), "what": what, "batch": self.newest_batch(), **more})
        with self.events.open("a") as record:
            record.write(line + "\n")

    def told(self, what: str | None = None) -> Iterator[dict[str, Any]]:
        for line in self.events.read_text().splitlines():
            event: dict[str, Any] = json.loads(line)
            if what in (None, event["what"]):
                yield event
