"""Spark's executors log in at MIT's KDC with a keytab, and write to Apache Kafka 4.1.2: `make test-kerberos`."""

from __future__ import annotations

from pathlib import Path

from rigs.kdc import REALM
from tests.real.kerberos_support import World
from tests.spark.driver import ROWS
from tests.spark.job import PARTITIONS, committed
from tests.spark.places import Place

pytest_plugins = ["tests.real.kerberos_fixtures"]


def test_executors_write_with_a_keytab(realm: World, tmp_path: Path) -> None:
    """Driver and executors are processes of their own: each Python worker logs in by itself."""
    options = {f"kafka.{name.replace('_', '.')}": str(value) for name, value in realm.settings("TLS").items()}
    realm.kafka.create_topic("spark-at_least_once", PARTITIONS)
    with Place(tmp_path / "place") as place:
        results = place.drive(["at_least_once"], options, prefix="spark", master="local-cluster[1,1,1024]")
    assert "error" not in results["at_least_once"], results["at_least_once"]["error"]
    assert committed(realm.kafka.bootstrap_servers, "spark-at_least_once").total() == ROWS
    issued = [line for line in realm.kdc.log().splitlines() if "AS_REQ" in line and "ISSUE" in line]
    assert sum(f"alice@{REALM}" in line for line in issued) >= 2, "driver and executor have not both logged in"
