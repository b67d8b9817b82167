"""Spark's own Kafka source in a process of its own: `python -m tests.spark.source_reader SERVERS TOPIC > records.json`.

A process has one Spark session, and jars must be named when it starts; the other tests' session is without these.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

from pyspark.sql import SparkSession

from rigs.jars import resolve_spark_kafka_jars


def main(servers: str, topic: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        settings = {
            "spark.jars": ",".join(resolve_spark_kafka_jars()),
            "spark.local.dir": scratch,
            "spark.sql.warehouse.dir": os.path.join(scratch, "warehouse"),
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        spark = SparkSession.builder.master("local[1]").config(map=dict(settings)).getOrCreate()
        try:
            source = spark.read.format("kafka").option("includeHeaders", "true").option("subscribe", topic)
            rows = source.option("kafka.bootstrap.servers", servers).load()
            # Spark's timestamps are microseconds, its JSON's in words: say milliseconds.
            wanted = rows.selectExpr(
                "partition", "offset", "unix_millis(timestamp) AS timestamp", "hex(key) AS key", "hex(value) AS value",
                "transform(headers, h -> struct(h.key AS key, hex(h.value) AS value)) AS headers",
            )  # fmt: skip
            json.dump([row.asDict(recursive=True) for row in wanted.collect()], sys.stdout)
        finally:
            spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
