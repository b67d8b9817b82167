"""What real coordinators say of a commit that a kill cut off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rigs.real_kafka import RealKafka
from tests.spool.commit_scripts import SCRIPTS, V1, V2
from tests.spool.stage import Stage
from tests.spool.test_leaders_kafka import stage_of


@pytest.mark.parametrize("version", [V1, V2], ids=["V1", "V2"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_script_holds_on_kafka_4(script: Callable[[Stage, int], None], version: int, kafka_4: RealKafka) -> None:
    script(stage_of(kafka_4), version)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_holds_on_kafka_3(script: Callable[[Stage, int], None], kafka_3_9: RealKafka) -> None:
    script(stage_of(kafka_3_9), V1)
