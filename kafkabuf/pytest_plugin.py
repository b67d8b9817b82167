"""pytest fixtures: `kafkabuf_cluster`, three nodes for the whole run, and `kafkabuf_broker`, a node for one test alone.

pytest loads this module wherever kafkabuf is installed, so it imports nothing of it before a fixture is used.

What EmbeddedCluster is given is up to the fixtures `kafkabuf_cluster_options` and `kafkabuf_broker_options`, which a
conftest.py or a test may define anew, and for `kafkabuf_broker` also to a marker:

    @pytest.mark.kafkabuf(default_partitions=3)
    def test_it(kafkabuf_broker): ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kafkabuf.broker import EmbeddedCluster

_MARKER = "kafkabuf(**options): what EmbeddedCluster is given for the fixture kafkabuf_broker of this test"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture(scope="session")
def kafkabuf_cluster_options() -> Mapping[str, Any]:
    """What `kafkabuf_cluster` gives to EmbeddedCluster besides `brokers=3`."""
    return {}


@pytest.fixture(scope="session")
def kafkabuf_cluster(kafkabuf_cluster_options: Mapping[str, Any]) -> Iterator[EmbeddedCluster]:
    """An EmbeddedCluster of three nodes, the same for all tests: use topics of your own, and leave no faults behind."""
    from kafkabuf.broker import EmbeddedCluster

    with EmbeddedCluster(**{"brokers": 3, **kafkabuf_cluster_options}) as cluster:
        yield cluster


@pytest.fixture
def kafkabuf_broker_options(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """What `kafkabuf_broker` gives to EmbeddedCluster: the options of the closest marker `kafkabuf`."""
    marker = request.node.get_closest_marker("kafkabuf")
    return {} if marker is None else marker.kwargs


@pytest.fixture
def kafkabuf_broker(kafkabuf_broker_options: Mapping[str, Any]) -> Iterator[EmbeddedCluster]:
    """An EmbeddedCluster of one node that this test has for itself."""
    from kafkabuf.broker import EmbeddedCluster

    with EmbeddedCluster(**kafkabuf_broker_options) as cluster:
        yield cluster
