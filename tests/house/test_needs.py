"""What a test needs is found from its code, and a test that starts a JVM without a marker fails."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kafkabuf._pool import BufferPool
from kafkabuf.broker.embedded import EmbeddedCluster
from rigs import jars, real_kafka
from rigs.jars import JarsUnavailableError
from rigs.real_kafka import RealKafka
from tests.needs import ABOVE_CORE, CORE, KAFKA, forbid_java

FIXTURES = {"newest": "kafka_4"}


def starts_a_server() -> None:
    RealKafka("4.1.2")


def calls_a_helper() -> None:
    starts_a_server()


def calls_through_a_module() -> None:
    jars.resolve_kafka("4.1.2")


def calls_within_a_function() -> Callable[[], None]:
    def later() -> None:
        calls_a_helper()

    return later


class Harness:
    def start(self) -> None:
        starts_a_server()


def uses_a_harness() -> None:
    Harness()


def names_a_fixture_in_a_table() -> str:
    return FIXTURES["newest"]


def annotates_a_server(kafka: RealKafka) -> None:
    assert kafka


def uses_no_more_than_a_text() -> None:
    real_kafka.logging("warn")


def uses_the_pool() -> None:
    BufferPool(1, 1)


def starts_a_cluster() -> None:
    EmbeddedCluster()


@pytest.mark.parametrize(
    "test",
    [
        starts_a_server,
        calls_a_helper,
        calls_through_a_module,
        calls_within_a_function,
        uses_a_harness,
        names_a_fixture_in_a_table,
    ],
)
def test_code_that_leads_to_a_jvm_is_found(test: object) -> None:
    assert KAFKA.leads_from(test)


@pytest.mark.parametrize("test", [annotates_a_server, uses_no_more_than_a_text, uses_the_pool, starts_a_cluster])
def test_code_that_leads_to_no_jvm_is_not_found(test: Callable[..., None]) -> None:
    assert not KAFKA.leads_from(test)


def test_core_is_code_that_leads_to_extensions_alone() -> None:
    assert CORE.leads_from(uses_the_pool)
    assert not ABOVE_CORE.leads_from(uses_the_pool)
    assert ABOVE_CORE.leads_from(starts_a_cluster)


def test_unmarked_test_finds_no_java() -> None:
    before = os.environ["JAVA_HOME"]
    with forbid_java(), pytest.raises(JarsUnavailableError, match="mark-it-kafka-or-spark"):
        getattr(jars, "java")()  # noqa: B009  by a way that needs.py does not see
    assert os.environ["JAVA_HOME"] == before


@pytest.fixture
def spark() -> None:
    """Stands for Spark's session."""


def test_test_of_the_session_is_known_by_its_fixture(spark: None, request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("session") is not None


def test_test_without_that_fixture_is_not_of_the_session(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("session") is None
