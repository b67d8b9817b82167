"""A cluster of one node for the tests of a module, and topics of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1) as running:
        yield running


def new_topic(cluster: EmbeddedCluster, **settings: Any) -> str:
    """Create a topic with these settings of `create_topic`. Its name is new."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, **settings)
    return name
