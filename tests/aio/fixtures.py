"""The cluster of the tests of kafkabuf.aio. The tests pause its nodes and inject errors."""

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
    """One cluster for each test file; after each test the fixture removes faults and resumes the nodes."""
    yield whole_aio_cluster
    whole_aio_cluster.clear_faults()
    for node in whole_aio_cluster.nodes():
        whole_aio_cluster.resume_node(node)
