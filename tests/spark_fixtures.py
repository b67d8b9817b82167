"""One Spark session and one embedded cluster for every test that needs them: starting Spark takes many seconds.

The session is the demo's own, and nothing is registered in it: that Spark finds the format is part of each test.
"""

from __future__ import annotations

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
