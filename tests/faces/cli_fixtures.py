"""A cluster of one node for the tests of a command, and topics of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from kafkabuf.broker import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name)
    return name
