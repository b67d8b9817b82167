"""Runs a claim's cases in turn, each (or a group) in a process of its own, on a machine that has other work to do."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from click import ClickException
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.claim import Case, Claim, Job, Measurement
from rigs.real_kafka import create_topic

ROOT = Path(__file__).parent.parent
# No case takes half as long: a case that takes longer hangs.
TIMEOUT_S = 300.0
# A long comparison must fill neither the disk nor the page cache: a topic's limits, and how often a broker checks them.
TOPIC_LIMITS = {"retention.bytes": "300000000", "segment.bytes": "100000000", "file.delete.delay.ms": "0"}
BROKER_OPTIONS = {"log.retention.check.interval.ms": "2000"}

console = Console(stderr=True)


class CaseFailed(ClickException):
    """A case raised, hung or printed no figures. The message has its standard error."""


def alternate(
    claim: Claim, cases: Sequence[Case], rounds: int, job: Job, *, seconds: float = math.inf
) -> dict[str, list[Measurement]]:
    """Run every case once a round. Every other round runs backwards, so that a drift of the machine favours no case.

    The first round runs in any case. With a bound of `seconds` only the cases that decide a goal run in later rounds,
    and no round starts that would end after `seconds`, to judge by the rounds before.
    """
    results: dict[str, list[Measurement]] = {case.name: [] for case in cases}
    repeated = cases if math.isinf(seconds) else claim.decisive(cases)
    total = len(grouped(cases)) + (rounds - 1) * len(grouped(repeated))
    began, spent = time.monotonic(), 0.0  # `spent`: by the cases of `repeated` and those that share their process
    with _progress() as progress:
        task = progress.add_task(claim.name, total=total)
        for number in range(rounds):
            if number and time.monotonic() - began + spent / number > seconds:
                break
            present = repeated if number else cases
            for group in grouped(present if number % 2 == 0 else present[::-1]):
                names = "; ".join(case.name for case in group)
                progress.update(task, description=f"{claim.name}, round {number + 1} of {rounds}: {names}")
                started = time.monotonic()
                for case, figures in zip(group, run(claim, group, job), strict=True):
                    results[case.name].append(figures)
                took = time.monotonic() - started
                spent += took if any(case in repeated for case in group) else 0.0
                if not console.is_terminal:
                    console.print(f"{claim.name}, round {number + 1} of {rounds}: {names}, {took:.1f} s")
                progress.advance(task)
    return results


def grouped(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases of each process, in the order of the cases."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group or f"alone: {case.name}", []).append(case)
    return list(groups.values())


def run(claim: Claim, cases: Sequence[Case], job: Job) -> list[Measurement]:
    """Run cases once, in one process. Raises CaseFailed."""
    names = "; ".join(case.name for case in cases)
    command = [sys.executable, "-m", "bench.case", claim.name]
    for case in cases:
        command += [case.name, json.dumps({**asdict(job), "amount": max(round(job.amount * case.share), 1)})]
    timeout = TIMEOUT_S * len(cases)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise CaseFailed(f"{claim.name}, {names}: not done after {timeout:.0f} s\n{error.stderr!r}") from None
    if done.returncode:
        raise CaseFailed(f"{claim.name}, {names}: failed\n{done.stderr}")
    try:
        printed = [json.loads(line) for line in done.stdout.splitlines()[-len(cases) :]]
        found = [{name: float(figure) for name, figure in figures.items()} for figures in printed]
    except (AttributeError, ValueError):
        found = []
    if len(found) < len(cases):
        raise CaseFailed(f"{claim.name}, {names}: printed no figures\n{done.stdout}{done.stderr}")
    for case, figures in zip(cases, found, strict=True):
        if missing := [metric.name for metric in claim.metrics if metric.name not in figures]:
            raise CaseFailed(f"{claim.name}, {case.name}: measured no {', '.join(missing)}")
    return found


@contextmanager
def topic(bootstrap: str, limits: dict[str, str] = TOPIC_LIMITS, *, partitions: int = 1) -> Iterator[str]:
    """A new topic for the time of the `with`. If the broker does not delete the topic, it stays; the figures count."""
    name = f"kafkabuf-bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create_topic(admin, name, partitions, limits)
    try:
        yield name
    finally:
        try:
            admin.delete_topics([name])[name].result()
        except KafkaException as error:
            console.print(f"Topic {name} stays: {error.args[0].str()}", soft_wrap=True, highlight=False)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True)
