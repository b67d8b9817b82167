"""Producers are killed in storms: the next one delivers what they had taken, once and in order.

A failure names its case, which `python -m tests.spool.kills --case SEED --times 20` runs again: the plan is the same,
and the moment of the kill within it is not.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from tests.effort import effort
from tests.spool.kills.killer import PATIENCE, Fault, Killer
from tests.spool.kills.plan import BATCH, TOPICS, Life, Plan
from tests.spool.kills.reader import Reader
from tests.spool.kills.runs import Done, run
from tests.spool.kills.trouble import EmbeddedTrouble

_KILLS = effort(800)


def test_next_producer_delivers_what_a_killed_one_took_once_and_in_order() -> None:
    total = Done()
    for done in run(_KILLS, seed=1, jobs=len(os.sched_getaffinity(0))):
        total += done
    print(total)
    assert not total.faults, "\n".join(total.faults)
    assert total.counts["kills"] >= _KILLS


class Forgetful(Killer):
    """Each process finds no file, and has the time to send."""

    longest_life = PATIENCE

    def start(self, plan: Plan, life: int, folder: Path) -> ForkServerProcess:
        (folder / "buffer").unlink(missing_ok=True)
        return super().start(plan, life, folder)


def test_records_that_the_next_process_does_not_find_are_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a case with a fault leaves its folder
    settings = {"buffer_memory": 256 * BATCH, "batch_size": BATCH, "buffer_sync": "process"}
    settings |= {"linger_ms": 60_000, "delivery_timeout_ms": 120_000}
    # It leaves records in the file whether the kill comes first or its own end.
    killed = Life("records", 20, "up", 0, 1, 300, False, 0.0, settings)
    lives = [killed, replace(killed, instant="", records=0)]
    plan = Plan(1, TOPICS, small=False, once=True, magic=2, now_ms=1_700_000_000_000, lives=lives)
    with EmbeddedTrouble() as trouble, Reader(trouble.bootstrap_servers) as reader:
        with pytest.raises(Fault, match="records that are RETURNED are there 0 times"):
            Forgetful(trouble, reader, multiprocessing.get_context("forkserver")).run(plan)
