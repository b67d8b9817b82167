"""What a partition knows of its producers: the embedded cluster answers as Kafka 4.1.2, step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker.records.producer_script import Script
from tests.broker.records.producer_stages import EmbeddedStage, answers, of_real_kafka, recorded
from tests.broker.records.producer_steps import PARTS


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_embedded_cluster_knows_of_producers_what_kafka_knows(part: Callable[[Script], None], tmp_path: Path) -> None:
    with EmbeddedStage(tmp_path) as stage:
        assert answers(stage, part) == recorded()[part.__name__]


def test_recorded_answers_are_those_of_kafka() -> None:
    assert of_real_kafka() == recorded()
