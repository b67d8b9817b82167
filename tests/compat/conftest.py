"""The embedded cluster that the tests of the faces share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkabuf.broker import EmbeddedCluster
from tests.compat import TOPIC


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(default_partitions=4) as running:
        running.create_topic(TOPIC, 4)
        yield running
