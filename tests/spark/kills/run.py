"""The two kinds of run, and what came out of them."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tests.spark.kills.job import AT_RANDOM, STEPS, Folder, Job, Kill, Victim
from tests.spark.kills.reader import Reader, Watch
from tests.spark.kills.supervisor import Supervisor

# The micro-batches of a run with kills at random: more than kills, so that each has one of its own.
_RANDOM_BATCHES = 40
# When in its life a task dies: with 2 million rows it has six Arrow batches or more, and sends one in milliseconds.
_RANDOM_ARROW_BATCHES = 6
_RANDOM_DELAY = 0.03


class Broker(Protocol):
    """A cluster that is up: embedded or real."""

    @property
    def bootstrap_servers(self) -> str: ...

    def create_topic(self, name: str, partitions: int = 1) -> None: ...


@dataclass
class Outcome:
    """`seen[batch, row]`: how often a reader with read_committed saw it. `events`: what was told, see `Folder.tell`."""

    job: Job
    seen: np.ndarray
    events: list[dict[str, Any]]
    seconds: float
    looks: int = 0
    partly: set[int] = field(default_factory=set)

    def kills(self) -> list[dict[str, Any]]:
        return self._told("kill")

    def wrongs(self) -> list[str]:
        """What the guarantee does not allow: nothing, if it is kept."""
        missing, more = int((self.seen == 0).sum()), int((self.seen > 1).sum())
        found = [f"{missing} rows are missing"] if missing else []
        if more and self.job.guarantee != "at_least_once":
            found.append(f"{more} rows are there more than once")
        if self.partly:
            found.append(f"parts of micro-batches {sorted(self.partly)} were to be seen")
        if self.job.guarantee == "atomic" and not self.looks:
            found.append("nobody looked at whether parts were to be seen")
        return found

    def table(self) -> str:
        """A line for each kill: where, who, and what is there of the micro-batch's rows at the end."""
        lines = [f"{'batch':>5}  {'step':<15} {'killed':<22} {'then':<22} {'missing':>7} {'once':>7} {'more':>7}"]
        for kill in self.kills():
            seen = self.seen[kill["at"]]
            counts = (int((seen == 0).sum()), int((seen == 1).sum()), int((seen > 1).sum()))
            lines.append(
                f"{kill['at']:>5}  {kill['step']:<15} {kill['victim']:<22} {self._then(kill):<22} "
                f"{counts[0]:>7} {counts[1]:>7} {counts[2]:>7}"
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        again = int((self.seen > 1).sum())
        watched = f", {self.looks} looks at whole micro-batches" if self.looks else ""
        return (
            f"{self.seen.size} rows in {self.job.batches} micro-batches, {len(self.kills())} kills, "
            f"{len(self._told('query failed'))} failed queries, {len(self._told('driver'))} drivers; "
            f"{int((self.seen == 0).sum())} rows missing, {again} seen more than once{watched}; {self.seconds:.0f} s"
        )

    def _told(self, what: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["what"] == what]

    def _then(self, kill: dict[str, Any]) -> str:
        """What became of it, up to the next kill."""
        after = self.events[self.events.index(kill) + 1 :]
        for event in after:
            if event["what"] == "kill":
                break
            if event["what"] in ("query failed", "driver"):
                return {"query failed": "the query restarted", "driver": "the driver restarted"}[event["what"]]
        return "the task was retried"


def plan_for(guarantee: str) -> list[Kill]:
    """Every victim at every step, each in a micro-batch of its own, after a first one without a kill."""
    pairs = ((step, victim) for step, victims in STEPS[guarantee].items() for victim in victims)
    return [Kill(batch, step, victim) for batch, (step, victim) in enumerate(pairs, start=1)]


def at_each_step(
    broker: Broker, root: Path, guarantee: str, plan: Iterable[Kill], rows: int = 1_800, master: str = Job.master
) -> Outcome:
    """The kills of the plan; its micro-batches are small."""
    kills = list(plan)
    batches = max((kill.batch for kill in kills), default=0) + 2
    job = _job(broker, guarantee, batches=batches, rows=rows, master=master)
    return _run(job, root, kills)


def at_random(broker: Broker, root: Path, guarantee: str, rows: int, kills: int, seed: int) -> Outcome:
    """Many rows; `kills` tasks killed at some moment while they run."""
    chance = random.Random(seed)
    batches = max(_RANDOM_BATCHES, kills)
    job = _job(broker, guarantee, batches=batches, rows=rows // batches, files=4, size=100, arrow_rows=2_000)
    plan = [
        Kill(batch, AT_RANDOM, Victim.WORKER, chance.randrange(_RANDOM_ARROW_BATCHES), chance.uniform(0, _RANDOM_DELAY))
        for batch in sorted(chance.sample(range(batches), kills))
    ]
    return _run(job, root, plan)


def _job(broker: Broker, guarantee: str, **more: Any) -> Job:
    topic = f"kills-{guarantee.replace('_', '-')}-{uuid.uuid4().hex[:8]}"
    job = Job(broker.bootstrap_servers, topic, guarantee, **more)
    broker.create_topic(topic, partitions=job.partitions)
    return job


def _run(job: Job, root: Path, plan: list[Kill]) -> Outcome:
    began = time.monotonic()
    with Supervisor(Folder(root), job) as supervisor, Reader(job) as reader:
        with closing(Watch(reader, job)) if job.guarantee == "atomic" else nullcontext() as watch:
            supervisor.run(plan, [] if watch is None else [watch])
        reader.read_all()
        outcome = Outcome(job, reader.by_batch(), list(supervisor.folder.told()), time.monotonic() - began)
    if watch is not None:
        outcome.looks, outcome.partly = watch.looks, watch.partly
    return outcome
