"""What the processes of a kill test share: a folder of files, and the plan of the kills."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

# The environment variable that names the folder. Every process of the test has it, so the supervisor finds them all.
ENVIRONMENT = "KAFKABUF_SPARK_KILLS"
DIGITS = 12
# The sink derives this one: the columns of a text file are nullable.
VALUE_SCHEMA = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "number", "type": ["null", "long"]}, {"name": "text", "type": ["null", "string"]}],
}


class Victim(StrEnum):
    """The processes that SIGKILL ends.

    The process that reaches the step is among them if the victim is WORKER or EXECUTOR, or DRIVER and the step is the
    driver's.
    """

    WORKER = "worker"  # the Python worker, of an executor or of the driver
    EXECUTOR = "executor"  # the executor's JVM and the worker
    EXECUTORS = "every executor"  # the JVMs of all executors; their workers continue until they notice
    JVM = "executor but its worker"  # the executor's JVM alone: the worker continues with the rows that it has got
    DRIVER = "driver"  # the driver's JVM, the user's program and its Python workers; tasks continue until they notice
    ORPHAN = "driver but its worker"  # the driver; its Python worker continues with the step
    NOBODY = "nobody"  # the task waits, so Spark runs a second attempt beside it and then kills one of them


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
        "before take-over": _TASK,
        "after take-over": _TASK,
        "before produce": _TASK,
        "mid-produce": _TASK,
        "before marker": _TASK,
        "after marker": _TASK,
        "during EndTxn": _TASK,
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
        "during EndTxn": _DRIVER,
        "after EndTxn": _DRIVER,
    },
}


AT_RANDOM = "at random"


class Kill(NamedTuple):
    """The first process that reaches `step` of micro-batch `batch` kills `victim`, once.

    At the step `AT_RANDOM` it kills `delay` seconds after its task has got the Arrow batch number `arrow_batch`, or
    waits so long there if the victim is NOBODY.
    """

    batch: int
    step: str
    victim: Victim
    arrow_batch: int = 0
    delay: float = 0.0


@dataclass(frozen=True)
class Job:
    """A stream of `batches` micro-batches with `rows` rows each, read from `files` files. Each file is a task.

    The key of row n is the number n in `DIGITS` digits. Its value is the key, padded to `size` bytes. With
    `value_format` "avro" the value is a record of the number and of this text: `VALUE_SCHEMA`. `via` is "format", for
    the data source, "connect", for the data source in a session of Spark Connect, or "foreach_batch". `settings` are
    more settings of Spark's.
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
    value_format: str = "raw"
    via: str = "format"
    settings: dict[str, str] = field(default_factory=dict)

    def padded(self, number: int) -> str:
        """The text of a row."""
        return f"{number:0{DIGITS}}".ljust(self.size, "x")

    def options(self) -> dict[str, str]:
        options = {
            "kafka.bootstrap.servers": self.servers,
            "topic": self.topic,
            "deliveryGuarantee": self.guarantee,
            "valueFormat": self.value_format,
        }
        return options if self.guarantee == "at_least_once" else {**options, "sinkId": self.topic}


class Folder:
    """The folder of one test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.armed, self.fired = root / "armed", root / "fired"
        self.input, self.checkpoint, self.events = root / "in", root / "checkpoint", root / "events"

    @classmethod
    def here(cls) -> Self:
        """The folder of the test to which this process belongs."""
        return cls(Path(os.environ[ENVIRONMENT]))

    def make(self, job: Job) -> None:
        self.root.mkdir(parents=True)
        for folder in (self.armed, self.fired, self.input):
            folder.mkdir()
        self.events.touch()
        (self.root / "job.json").write_text(json.dumps(asdict(job)))
        rows_per_file = -(-job.rows // job.files)
        for batch in range(job.batches):
            for number in range(job.files):
                first = batch * job.rows + number * rows_per_file
                rows = range(first, min(first + rows_per_file, (batch + 1) * job.rows))
                path = self.input / f"{batch:04}-{number}.txt"
                path.write_text("".join(f"{row:0{DIGITS}}\n" for row in rows))
                # Spark reads the oldest file first.
                os.utime(path, (1_700_000_000 + batch * job.files + number,) * 2)

    def job(self) -> Job:
        return Job(**json.loads((self.root / "job.json").read_text()))

    # ---- kills -------------------------------------------------------------------------------------------------------

    def arm(self, kill: Kill) -> None:
        (self.armed / f"{kill.batch}.{kill.step}").write_text(json.dumps(kill))

    def claim(self, batch: int, step: str) -> Kill | None:
        """The kill that is planned here. Only one process gets it, because the rename of a file is atomic."""
        name = f"{batch}.{step}"
        try:
            (self.armed / name).rename(self.fired / name)
        except FileNotFoundError:
            return None
        _, _, victim, *more = json.loads((self.fired / name).read_text())
        return Kill(batch, step, Victim(victim), *more)

    def remaining(self) -> list[str]:
        """Kills that did not happen."""
        return sorted(path.name for path in self.armed.iterdir())

    # ---- events ------------------------------------------------------------------------------------------------------

    def newest_batch(self) -> int:
        """The micro-batch that the query is writing or wrote last; -1 before the first."""
        offsets = self.checkpoint / "offsets"
        if not offsets.exists():
            return -1
        return max((int(path.name) for path in offsets.iterdir() if path.name.isdigit()), default=-1)

    def record(self, event: str, **details: Any) -> None:
        """Append an event. One write a line keeps the lines of several processes apart."""
        line = json.dumps({"time": time.time(), "event": event, "batch": self.newest_batch(), **details})
        with self.events.open("a") as file:
            file.write(line + "\n")

    def recorded(self, kind: str | None = None) -> Iterator[dict[str, Any]]:
        """The events of a kind, or all events."""
        for line in self.events.read_text().splitlines():
            event: dict[str, Any] = json.loads(line)
            if kind in (None, event["event"]):
                yield event
