"""Kill tests, in part: each step of each guarantee once. All of it, and 2 million rows: `make test-spark-kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.kills.job import STEPS, Kill, Victim
from tests.spark.kills.run import Broker, at_each_step

# Who is killed where; elsewhere it is a Python worker, after which the query goes on soonest.
OTHERS = {
    "at_least_once": {"mid-produce": Victim.EXECUTOR, "after commit": Victim.DRIVER},
    "exactly_once": {"after marker": Victim.EXECUTOR, "amid EndTxn": Victim.DRIVER},
    "atomic": {"mid-produce": Victim.EXECUTOR, "after EndTxn": Victim.DRIVER},
}
BROKERS = {"at_least_once": "spark_cluster", "exactly_once": "kafka_4", "atomic": "kafka_3_9"}

pytest_plugins = ["tests.spark.fixtures"]


@pytest.mark.parametrize("guarantee", STEPS)
def test_what_was_promised_holds_whoever_is_killed_at_whatever_step(
    guarantee: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    broker: Broker = request.getfixturevalue(BROKERS[guarantee])
    plan = [
        Kill(batch, step, OTHERS[guarantee].get(step, Victim.WORKER))
        for batch, step in enumerate(STEPS[guarantee], start=1)
    ]
    outcome = at_each_step(broker, tmp_path / "job", guarantee, plan)
    assert not outcome.wrongs(), f"{outcome}\n{outcome.table()}"
    assert len(outcome.kills()) == len(plan)
