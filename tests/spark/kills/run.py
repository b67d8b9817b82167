"""The two kinds of run: kills at each step, and kills at random. Their outcome says whether the guarantee held."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.spark.kills.brokers import Broker, NodeKiller, Nodes
from tests.spark.kills.job import AT_RANDOM, STEPS, Folder, Job, Kill, Victim
from tests.spark.kills.reader import AtomicityCheck, Reader
from tests.spark.kills.supervisor import Supervisor

# The micro-batches of a run with random kills. There are more than kills, so each kill has its own micro-batch.
_RANDOM_BATCHES = 40
# A random kill chooses an Arrow batch and a delay after it in seconds. With 2 million rows a task has at least six
# Arrow batches, and it sends each in milliseconds.
_RANDOM_ARROW_BATCHES = 6
_RANDOM_DELAY = 0.03
# Seconds that a task waits where the victim is nobody: the least and the most.
_RANDOM_WAIT = (1.0, 5.0)


@dataclass(frozen=True)
class Setting:
    """What the runs of one command share: fields of `Job`, and what dies beside the processes of Spark.

    `before` is a checkout of an earlier version of kafkabuf: every other driver has that version. `node_kills` nodes of
    the cluster are killed while the query runs.
    """

    job: dict[str, Any] = field(default_factory=dict)
    before: Path | None = None
    nodes: Nodes | None = None
    node_kills: int = 0


PLAIN = Setting()


@dataclass
class Outcome:
    """The result of a run.

    `seen[batch, row]` says how often a reader with read_committed saw the row. `events` are those of `Folder.record`.
    """

    job: Job
    seen: np.ndarray
    events: list[dict[str, Any]]
    seconds: float
    checks: int = 0
    partly_seen: set[int] = field(default_factory=set)
    garbled: int = 0
    node_kills: int = 0

    def kills(self) -> list[dict[str, Any]]:
        return self._recorded("kill")

    def violations(self) -> list[str]:
        """Where the run broke the guarantee."""
        missing, repeated = int((self.seen == 0).sum()), int((self.seen > 1).sum())
        violations = [f"{missing} rows are missing"] if missing else []
        if repeated and self.job.guarantee != "at_least_once":
            violations.append(f"the reader saw {repeated} rows more than once")
        if self.garbled:
            violations.append(f"{self.garbled} records have another value than their row")
        if self.partly_seen:
            violations.append(f"the reader saw only parts of the micro-batches {sorted(self.partly_seen)}")
        if self.job.guarantee == "atomic" and not self.checks:
            violations.append("the reader never checked whether micro-batches are visible as a whole")
        return violations

    def table(self) -> str:
        """A line for each kill: its step, its victim, and how often the reader saw the rows of its micro-batch."""
        lines = [f"{'batch':>5}  {'step':<16} {'killed':<22} {'then':<22} {'missing':>7} {'once':>7} {'more':>7}"]
        for kill in self.kills():
            seen = self.seen[kill["at"]]
            counts = (int((seen == 0).sum()), int((seen == 1).sum()), int((seen > 1).sum()))
            lines.append(
                f"{kill['at']:>5}  {kill['step']:<16} {kill['victim']:<22} {self._then(kill):<22} "
                f"{counts[0]:>7} {counts[1]:>7} {counts[2]:>7}"
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        repeated = int((self.seen > 1).sum())
        checked = f", {self.checks} checks for whole micro-batches" if self.checks else ""
        return (
            f"{self.seen.size} rows in {self.job.batches} micro-batches, {len(self.kills())} kills, "
            f"{len(self._recorded('query failed'))} failed queries, {len(self._recorded('driver'))} drivers; "
            f"{self.node_kills} nodes of Kafka killed; "
            f"{int((self.seen == 0).sum())} rows missing, {repeated} seen more than once{checked}; {self.seconds:.0f} s"
        )

    def _recorded(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def _then(self, kill: dict[str, Any]) -> str:
        """What happened after the kill and before the next one."""
        after = self.events[self.events.index(kill) + 1 :]
        for event in after:
            if event["event"] == "kill":
                break
            if event["event"] == "query failed":
                return "the query restarted"
            if event["event"] == "driver":
                return "the driver restarted"
        return "the task was retried"


def plan_for(guarantee: str, via: str = Job.via, victims: Sequence[Victim] = ()) -> list[Kill]:
    """Every victim at every step, each in its own micro-batch. The first micro-batch has no kill.

    `victims` take the place of those in `STEPS`. In foreach_batch() the driver commits in the user's process, not in a
    Python worker.
    """
    pairs = (
        (step, victim)
        for step, usual in STEPS[guarantee].items()
        for victim in (victims or (usual if via != "foreach_batch" or Victim.EXECUTOR in usual else (Victim.DRIVER,)))
    )
    return [Kill(batch, step, victim) for batch, (step, victim) in enumerate(pairs, start=1)]


def at_each_step(
    broker: Broker,
    root: Path,
    guarantee: str,
    plan: Iterable[Kill],
    rows: int = 1_800,
    setting: Setting = PLAIN,
) -> Outcome:
    """Run the kills of the plan on small micro-batches."""
    kills = list(plan)
    batches = max((kill.batch for kill in kills), default=0) + 2
    return _run(_job(broker, guarantee, batches=batches, rows=rows, **setting.job), root, kills, setting)


def at_random(
    broker: Broker,
    root: Path,
    guarantee: str,
    rows: int,
    kills: int,
    seed: int,
    victims: Sequence[Victim] = (),
    setting: Setting = PLAIN,
) -> Outcome:
    """Run many rows and kill `kills` tasks, or other `victims`, at random moments."""
    rng = random.Random(seed)
    batches = max(_RANDOM_BATCHES, kills)
    job = _job(
        broker, guarantee, batches=batches, rows=rows // batches, files=4, size=100, arrow_rows=2_000, **setting.job
    )
    plan = [
        Kill(
            batch,
            AT_RANDOM,
            victim := rng.choice(victims or [Victim.WORKER]),
            rng.randrange(_RANDOM_ARROW_BATCHES),
            rng.uniform(*_RANDOM_WAIT) if victim is Victim.NOBODY else rng.uniform(0, _RANDOM_DELAY),
        )
        for batch in sorted(rng.sample(range(batches), kills))
    ]
    return _run(job, root, plan, setting)


def _job(broker: Broker, guarantee: str, **fields: Any) -> Job:
    topic = f"kills-{guarantee.replace('_', '-')}-{uuid.uuid4().hex[:8]}"
    job = Job(broker.bootstrap_servers, topic, guarantee, **fields)
    broker.create_topic(topic, partitions=job.partitions)
    return job


def _run(job: Job, root: Path, plan: list[Kill], setting: Setting) -> Outcome:
    began = time.monotonic()
    check, killer = None, None
    meanwhile: list[Callable[[], None]] = []
    with Supervisor(Folder(root), job, setting.before) as supervisor, Reader(job) as reader:
        with ExitStack() as stack:
            if setting.nodes is not None:
                killer = stack.enter_context(NodeKiller(setting.nodes, setting.node_kills, seed=len(plan)))
            if job.guarantee == "atomic":
                check = stack.enter_context(closing(AtomicityCheck(reader, job)))
                meanwhile.append(check)
            supervisor.run(plan, meanwhile)
        reader.read_all()
        outcome = Outcome(job, reader.by_batch(), list(supervisor.folder.recorded()), time.monotonic() - began)
        outcome.garbled = reader.garbled
    if check is not None:
        outcome.checks, outcome.partly_seen = check.checks, check.partly_seen
    if killer is not None:
        outcome.node_kills = killer.kills
    return outcome
