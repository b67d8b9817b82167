"""The proof's scripts against real Apache Kafka, one node of which forgets idle producers after a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rigs.real_kafka import KAFKA_4, TEST_JVM, RealKafka
from tests.spool import stage as scripts
from tests.spool.stage import DeadProcess, Stage
from tests.waiting import wait_until

# The second setting is internal: how often a broker looks for idle producers.
FORGETFUL = {"producer.id.expiration.ms": "1000", "producer.id.expiration.check.interval.ms": "200"}


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Stage]:
    with RealKafka(KAFKA_4, options=FORGETFUL, jvm_options=TEST_JVM) as kafka:
        yield stage_of(kafka)


def stage_of(kafka: RealKafka) -> Stage:
    return Stage(kafka.bootstrap_servers, lambda name, configs: kafka.create_topic(name, config=configs))


def forget(process: DeadProcess) -> None:
    """Waits until the broker has forgotten the process."""
    wait_until(lambda: process.producer_id not in process.known_ids())


SCRIPTS = [
    scripts.in_doubt_batches_are_divided_by_the_last_sequence,
    scripts.topic_made_again_is_read_from_its_start,
    scripts.restored_file_is_recognised,
    scripts.next_epoch_of_an_id_begins_at_0_without_a_word_to_the_coordinator,
    scripts.half_of_a_batch_under_its_numbers_is_unproven,
    scripts.last_of_a_busy_log_is_waited_for,
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_holds_on_kafka_4(script: Callable[[Stage], None], kafka_4: RealKafka) -> None:
    script(stage_of(kafka_4))


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_holds_on_kafka_3(script: Callable[[Stage], None], kafka_3_9: RealKafka) -> None:
    script(stage_of(kafka_3_9))


@pytest.mark.parametrize(
    "script", [scripts.compressed_and_large_batches_are_found_among_others, scripts.deleted_stretch_is_unproven]
)
def test_script_of_an_expired_id_holds(
    script: Callable[[Stage, Callable[[DeadProcess], None]], None], forgetful: Stage
) -> None:
    script(forgetful, forget)
