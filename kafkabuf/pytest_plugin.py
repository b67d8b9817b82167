"""pytest fixtures: `kafkabuf_cluster`, three nodes for the whole run, and `kafkabuf_broker`, one node for one test.

pytest loads this module wherever kafkabuf is installed, so the module imports kafkabuf only when a fixture is used.

The fixtures `kafkabuf_cluster_options` and `kafkabuf_broker_options` return the arguments of EmbeddedCluster. A
conftest.py or a test may override them. For `kafkabuf_broker` a marker may give the arguments:

    @pytest.mark.kafkabuf(default_partitions=3)
    def test_it(kafkabuf_broker): ...

A failed `assert cluster.messages(topic) == [...]` names the records that differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kafkabuf.broker import EmbeddedCluster

_MARKER = "kafkabuf(**options): arguments of EmbeddedCluster for the fixture kafkabuf_broker of this test"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explains why records are not those of a list; None for all other comparisons."""
    # While nothing has loaded this module, there are no Messages to compare.
    module = sys.modules.get("kafkabuf.broker.messages")
    if module is None or op != "==":
        return None
    for records, expected in ((left, right), (right, left)):
        if isinstance(records, module.Messages) and isinstance(expected, list | tuple):
            return ["the messages are not the expected ones", *records.differences(expected)]
    return None


@pytest.fixture(scope="session")
def kafkabuf_cluster_options() -> Mapping[str, Any]:
    """Arguments of the EmbeddedCluster of `kafkabuf_cluster`, besides `brokers=3`. Override it to set arguments."""
    return {}


@pytest.fixture(scope="session")
def kafkabuf_cluster(kafkabuf_cluster_options: Mapping[str, Any]) -> Iterator[EmbeddedCluster]:
    """An EmbeddedCluster of three nodes that all tests share: use your own topics, and remove injected faults."""
    from kafkabuf.broker import EmbeddedCluster

    with EmbeddedCluster(**{"brokers": 3, **kafkabuf_cluster_options}) as cluster:
        yield cluster


@pytest.fixture
def kafkabuf_broker_options(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """Arguments of the EmbeddedCluster of `kafkabuf_broker`: the options of the closest marker `kafkabuf`."""
    marker = request.node.get_closest_marker("kafkabuf")
    if marker is None:
        return {}
    if marker.args:
        pytest.fail(f"the marker kafkabuf takes keywords, such as brokers=3, found {marker.args!r}", pytrace=False)
    options: Mapping[str, Any] = marker.kwargs
    return options


@pytest.fixture
def kafkabuf_broker(kafkabuf_broker_options: Mapping[str, Any]) -> Iterator[EmbeddedCluster]:
    """An EmbeddedCluster of one node for this test alone."""
    from kafkabuf.broker import EmbeddedCluster

    with EmbeddedCluster(**kafkabuf_broker_options) as cluster:
        yield cluster
