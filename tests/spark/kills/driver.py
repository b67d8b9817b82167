"""The driver of a kill test: `python -m tests.spark.kills.driver`, with the folder in its environment.

It runs the query to the end of its input. A query that fails is started again from its checkpoint, but not for ever at
the same micro-batch; exit status 0 says that all were committed.
"""

from __future__ import annotations

import json
import os
from collections import Counter

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafkabuf.spark import align
from tests.spark.kills.job import Folder, Job
from tests.spark.kills.source import MortalDataSource

_ATTEMPTS = 5
_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"


def session(job: Job, folder: Folder) -> SparkSession:
    """Small, and with JVMs that start quickly."""
    builder = SparkSession.builder.master(job.master).appName("kafkabuf kill test")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": _JVM,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": _JVM,
        "spark.local.dir": str(folder.root / "scratch"),
        "spark.sql.warehouse.dir": str(folder.root / "warehouse"),
        # With atomic a second attempt fails whatever it does.
        "spark.task.maxFailures": "4" if job.guarantee == "atomic" else "100",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.sql.shuffle.partitions": str(job.partitions),
        # Compiling what runs for a second takes longer.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(job.arrow_rows),
        # Each file is a task.
        "spark.sql.files.maxPartitionBytes": "128m",
        "spark.sql.files.openCostInBytes": "128m",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def frame(spark: SparkSession, job: Job, folder: Folder) -> DataFrame:
    lines = spark.readStream.option("maxFilesPerTrigger", job.files).text(str(folder.input))
    rows = lines.select(F.col("value").alias("key"), F.rpad("value", job.size, "x").alias("value"))
    return align(rows, job.partitions) if job.guarantee == "atomic" else rows


def main() -> None:
    folder = Folder.here()
    job = folder.job()
    spark = session(job, folder)
    context = spark.sparkContext
    assert context._jvm is not None
    jvm = int(context._jvm.java.lang.ProcessHandle.current().pid())
    (folder.root / "driver.json").write_text(json.dumps({"python": os.getpid(), "jvm": jvm}))
    spark.dataSource.register(MortalDataSource)
    folder.tell("driver")
    failed: Counter[int] = Counter()
    while True:
        writer = frame(spark, job, folder).writeStream.format(MortalDataSource.name()).options(**job.options())
        writer = writer.option("checkpointLocation", str(folder.checkpoint))
        folder.tell("query")
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as error:
            folder.tell("query failed", reason=str(error)[:2_000])
            failed[folder.newest_batch()] += 1
            if max(failed.values()) == _ATTEMPTS:
                raise
            continue
        folder.tell("end")
        spark.stop()
        return


if __name__ == "__main__":
    main()
