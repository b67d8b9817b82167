"""A pytest plugin for kafka-python's own tests: their fixtures, on the broker that `--kafka-hosts` names.

`--kafkabuf` makes them of kafkabuf.compat.kafka_python's producer, in place of kafka-python's. Topics have two
partitions or more by default.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Any

import kafka
import pytest

from kafkabuf.compat import kafka_python as kafkabuf

Opened = Callable[..., AbstractContextManager[Any]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kafkabuf", action="store_true")
    parser.addoption("--kafka-hosts")
    parser.addoption("--kafka-release", default="4.1.2")


def pytest_configure(config: pytest.Config) -> None:
    # The tests read it when they are imported.
    os.environ["KAFKA_VERSION"] = config.getoption("--kafka-release")


@pytest.fixture
def client(request: pytest.FixtureRequest) -> dict[str, Any]:
    release = request.config.getoption("--kafka-release")
    return {
        "bootstrap_servers": request.config.getoption("--kafka-hosts"),
        "client_id": request.node.name,
        "api_version": tuple(map(int, release.split("."))),
    }


@pytest.fixture
def kafka_producer_factory(client: dict[str, Any], request: pytest.FixtureRequest) -> Opened:
    module: Any = kafkabuf if request.config.getoption("--kafkabuf") else kafka
    return lambda **settings: module.KafkaProducer(**client | settings)


@pytest.fixture
def kafka_consumer_factory(client: dict[str, Any]) -> Opened:
    def opened(topics: tuple[str, ...], **settings: Any) -> AbstractContextManager[Any]:
        consumer = kafka.KafkaConsumer(*topics, **client | {"heartbeat_interval_ms": 500} | settings)
        # kafka-python's consumer forgets topics that it subscribes to while its first metadata request is under way.
        consumer.topics()
        return closing(consumer)

    return opened


@pytest.fixture
def kafka_admin_client_factory(client: dict[str, Any]) -> Opened:
    return lambda: closing(kafka.KafkaAdminClient(**client))
