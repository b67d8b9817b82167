"""The embedded cluster that the tests of the faces share, and producers of compat.confluent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.compat.confluent import Producer
from tests.compat import TOPIC
from tests.compat.reports import dead_address


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(default_partitions=4) as running:
        running.create_topic(TOPIC, 4)
        yield running


@pytest.fixture
def new(cluster: EmbeddedCluster) -> Iterator[Callable[..., Producer]]:
    opened: list[Producer] = []

    def open_(**settings: Any) -> Producer:
        named = {name.replace("__", "."): value for name, value in settings.items()}
        opened.append(Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 1} | named))
        return opened[-1]

    yield open_
    cluster.clear_faults()
    for producer in opened:
        producer._producer.close(0)


@pytest.fixture
def alone() -> Iterator[Callable[..., Producer]]:
    """Producers whose broker does not answer."""
    opened: list[Producer] = []

    def open_(settings: dict[str, Any] | None = None) -> Producer:
        opened.append(Producer({"bootstrap.servers": dead_address()} | (settings or {})))
        return opened[-1]

    yield open_
    for producer in opened:
        producer._producer.close(0)
