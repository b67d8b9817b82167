"""The sink writes under the oldest PySpark that it supports and under the newest.

`make test-spark-versions` runs more of the tests under both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkabuf.broker import EmbeddedCluster
from tests.spark.job import PARTITIONS, committed
from tests.spark.places import Place
from tests.spark.test_clusters import EXPECTED
from tests.spark.versions import NEWEST, OLDEST, packages

STEPS = ("registered", "from_a_thread", "atomic", "exactly_once_stream")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2) as cluster:
        yield cluster


@pytest.mark.parametrize("lock", [OLDEST, NEWEST], ids=["oldest", "newest"])
def test_oldest_and_newest_pyspark_write_each_row_once(lock: Path, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    for step in STEPS:
        cluster.create_topic(f"{lock.stem}-{step}", partitions=PARTITIONS)
    with Place(tmp_path, packages=packages(lock)) as place:
        options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
        results = place.drive(STEPS, options, prefix=lock.stem, master="local[2]")
    for step in STEPS:
        assert "error" not in results[step], results[step]["error"]
        assert committed(cluster.bootstrap_servers, f"{lock.stem}-{step}") == EXPECTED[step], step
