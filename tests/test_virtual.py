"""The client in virtual time: 300 seeds in each run. A failure names its seed, and how to replay it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.virtual.scenario import simulate

_SEEDS, _STRETCH = 300, 25
_TROUBLE = ("kill", "stop", "pause", "isolate", "move", "delete", "grow", "fail", "doubt", "lose", "slow", "throttle",
            "cut", "block", "double", "drop")  # fmt: skip
_REPLAYED = (3, 21, 87)


@pytest.mark.parametrize("first", range(0, _SEEDS, _STRETCH))
def test_producers_lose_repeat_reorder_nothing_and_go_on_after_every_trouble(first: int) -> None:
    done = sum((simulate(seed) for seed in range(first, first + _STRETCH)), start=Counter[str]())
    assert done["send"] > _STRETCH
    assert done["commit"] > _STRETCH
    assert all(done[trouble] > 0 for trouble in _TROUBLE), done


def test_a_seed_is_the_same_in_another_process() -> None:
    """Whatever the process has done before, and however it hashes."""
    for seed in _REPLAYED:
        replayed = subprocess.run(
            [sys.executable, "-m", "tests.virtual", "--seed", str(seed)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ast.literal_eval(replayed.stdout) == dict(simulate(seed))
