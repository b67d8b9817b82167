"""One kill at each step of each guarantee. `make test-spark-kills` runs every kill, and kills among 2 million rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.kills.brokers import Broker
from tests.spark.kills.job import STEPS, Kill, Victim
from tests.spark.kills.run import Setting, at_each_step

# The victims at some steps. At each other step it is a Python worker, after which the query continues soonest.
VICTIMS = {
    "at_least_once": {"mid-produce": Victim.EXECUTOR, "after commit": Victim.DRIVER},
    "exactly_once": {"after marker": Victim.EXECUTOR, "during EndTxn": Victim.DRIVER},
    "atomic": {"mid-produce": Victim.EXECUTOR, "after EndTxn": Victim.DRIVER},
}
# What the sink makes of the rows. `python -m tests.spark.kills --value-format` has the other pairs.
FORMATS = {"exactly_once": "avro"}
BROKERS = {"at_least_once": "spark_cluster", "exactly_once": "kafka_4", "atomic": "kafka_3_9"}

pytest_plugins = ["tests.spark.fixtures"]


@pytest.mark.parametrize("guarantee", STEPS)
def test_guarantee_holds_when_a_process_is_killed_at_each_step(
    guarantee: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    broker: Broker = request.getfixturevalue(BROKERS[guarantee])
    plan = [
        Kill(batch, step, VICTIMS[guarantee].get(step, Victim.WORKER))
        for batch, step in enumerate(STEPS[guarantee], start=1)
    ]
    outcome = at_each_step(
        broker, tmp_path / "job", guarantee, plan, setting=Setting({"value_format": FORMATS.get(guarantee, "raw")})
    )
    assert not outcome.violations(), f"{outcome}\n{outcome.table()}"
    assert len(outcome.kills()) == len(plan)
