"""The file of a test, and a cluster of one node for the processes that open it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkabuf.broker import EmbeddedCluster


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "buffer"


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("t")
        yield cluster
