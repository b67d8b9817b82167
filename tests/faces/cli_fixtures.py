"""A cluster of one node for the tests of a command, and topics of it."""

from __future__ import annotations

import pytest

from kafkabuf.broker import EmbeddedCluster
from tests.one_node import new_topic

pytest_plugins = ["tests.one_node"]


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    return new_topic(cluster)
