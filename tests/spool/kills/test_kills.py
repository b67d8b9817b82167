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
from tests.spool.kills import killer
from tests.spool.kills.killer import Fault, Killer
from tests.spool.kills.plan import Life, Plan, drawn
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
    """Each process finds no file."""

    def start(self, plan: Plan, life: int, folder: Path) -> ForkServerProcess:
        (folder / "buffer").unlink(missing_ok=True)
        return super().start(plan, life, folder)


def test_records_that_the_next_process_does_not_find_are_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a case with a fault leaves its folder
    monkeypatch.setattr(killer, "_LONGEST_LIFE", killer.PATIENCE)  # on a busy machine too it sends before it is killed
    settings = drawn(1, 0).lives[-1].settings | {"linger_ms": 60_000, "delivery_timeout_ms": 120_000}
    # It ends by itself, however slow the machine is, and leaves records in the file.
    first = Life("", 0, "up", 0, 1, 300, False, 0.0, settings)
    plan = replace(drawn(1, 1_700_000_000_000), once=True, lives=[first, replace(first, records=0)])
    with EmbeddedTrouble() as trouble, Reader(trouble.bootstrap_servers) as reader:
        with pytest.raises(Fault, match="records that are RETURNED are there 0 times"):
            Forgetful(trouble, reader, multiprocessing.get_context("forkserver")).run(plan)
