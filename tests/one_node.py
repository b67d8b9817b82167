"""A cluster of one node for the tests of a module, and topics of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1) as running:
        yield running


@pytest.fixture(scope="module")
def new_topic(cluster: EmbeddedCluster) -> Callable[..., str]:
    """Creates a topic with the given settings of `create_topic`, under a new name, which it returns."""

    def create(**settings: Any) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        cluster.create_topic(name, **settings)
        return name

    return create
