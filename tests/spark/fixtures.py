"""Fixtures of the Spark sink's tests. A start of Spark takes many seconds: all tests share one session and one cluster.

The session is the session of the demo. No fixture registers the format: each test also tests that Spark finds it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkabuf.broker import EmbeddedCluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from kafkabuf.cli.demo.spark import session

    with session("local[2]", tmp_path_factory.mktemp("spark")) as spark:
        yield spark


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[EmbeddedCluster]:
    from kafkabuf.broker import EmbeddedCluster

    with EmbeddedCluster(brokers=2, default_partitions=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def strict_cluster() -> Iterator[EmbeddedCluster]:
    """A cluster that creates no topic on its own. It has the topic "there"."""
    from kafkabuf.broker import EmbeddedCluster

    with EmbeddedCluster(brokers=1, auto_create_topics=False) as cluster:
        cluster.create_topic("there")
        yield cluster


@pytest.fixture
def unused_address() -> str:
    """An address at which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"
