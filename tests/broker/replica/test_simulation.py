"""The simulation of replication: 200 seeds, or the share of them that tests/effort.py says."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.broker.replica.simulation import simulate
from tests.effort import effort


@pytest.mark.parametrize("first", range(0, effort(200), 25))
def test_replication_keeps_every_acknowledged_record_once_in_order(first: int) -> None:
    """A failure names its seed, and how to replay it."""
    done = sum((simulate(seed) for seed in range(first, first + 25)), start=Counter[str]())
    assert done["acknowledged"] > 1_000
    assert all(done[trouble] > 50 for trouble in ("kill", "stop", "pause", "isolate", "lag", "move", "mend"))


def test_simulation_of_a_seed_is_repeatable() -> None:
    assert simulate(7, 200) == simulate(7, 200)
