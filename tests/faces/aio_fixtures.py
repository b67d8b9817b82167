"""The cluster of the tests of kafkabuf.aio, which make it stop answering and refuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkabuf.broker import EmbeddedCluster


@pytest.fixture(scope="module")
def whole_aio_cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(default_partitions=3) as running:
        yield running


@pytest.fixture
def aio_cluster(whole_aio_cluster: EmbeddedCluster) -> Iterator[EmbeddedCluster]:
    """One for each test file; what a test did to it is taken back."""
    yield whole_aio_cluster
    whole_aio_cluster.clear_faults()
    for node in whole_aio_cluster.nodes():
        whole_aio_cluster.resume_node(node)
