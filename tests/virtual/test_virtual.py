"""The client in virtual time: 300 seeds, or a share (tests/effort.py). A failure names its seed and the replay."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.effort import effort
from tests.virtual.scenario import simulate

_STRETCH = 75
_SEEDS = effort(4) * _STRETCH
_TROUBLE = ("kill", "stop", "pause", "isolate", "move", "delete", "grow", "fail", "doubt", "lose", "slow", "throttle",
            "cut", "block", "double", "drop", "refuse", "crash")  # fmt: skip
_REPLAYED = tuple(range(16))


@pytest.mark.parametrize("first", range(0, _SEEDS, _STRETCH))
def test_producers_lose_repeat_and_reorder_no_record_under_trouble(first: int) -> None:
    done = sum((simulate(seed) for seed in range(first, first + _STRETCH)), start=Counter[str]())
    assert done["send"] > _STRETCH
    assert done["commit"] > _STRETCH
    assert all(done[trouble] > 0 for trouble in _TROUBLE), done


def test_seed_gives_the_same_run_in_every_process() -> None:
    """Neither the seeds that the process ran before nor its hash seed matters."""
    forwards = _replayed(_REPLAYED, "1")
    backwards = _replayed(_REPLAYED[::-1], "2")
    assert forwards == backwards[::-1]


def _replayed(seeds: Sequence[int], hash_seed: str) -> list[str]:
    replayed = subprocess.run(
        [sys.executable, "-m", "tests.virtual", "--seed", *map(str, seeds)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return replayed.stdout.splitlines()
