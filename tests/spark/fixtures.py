"""What tests of the Spark sink share. Starting Spark takes many seconds: one session and one cluster serve them all.

The session is the demo's own, and nothing is registered in it: that Spark finds the format is part of each test.
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
    from kafkabuf.cli.demo_spark import session

    with session("local[2]", tmp_path_factory.mktemp("spark")) as spark:
        yield spark


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[EmbeddedCluster]:
    from kafkabuf.broker import EmbeddedCluster

    with EmbeddedCluster(brokers=2, default_partitions=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bare() -> Iterator[EmbeddedCluster]:
    """A cluster where topics are there when they have been created, as "there" is."""
    from kafkabuf.broker import EmbeddedCluster

    with EmbeddedCluster(brokers=1, auto_create_topics=False) as cluster:
        cluster.create_topic("there")
        yield cluster


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"
