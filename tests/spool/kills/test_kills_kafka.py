"""A few kills on three nodes of real Kafka; `python -m tests.spool.kills --real --kills 100` makes more."""

from __future__ import annotations

from itertools import count

from tests.effort import effort
from tests.spool.kills.real import RealTrouble
from tests.spool.kills.runs import run_cases

_KILLS = effort(40)


def test_next_producer_delivers_what_a_killed_one_took_on_real_kafka() -> None:
    done = run_cases(count(1_000), _KILLS, RealTrouble())
    print(done)
    assert not done.faults, "\n".join(done.faults)
    assert done.counts["kills"] >= _KILLS
