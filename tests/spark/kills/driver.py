"""The driver of a kill test: `python -m tests.spark.kills.driver`. An environment variable names the folder.

The driver runs the query to the end of its input. It restarts a failed query from its checkpoint, and gives up after
five failures at the same micro-batch. Exit status 0 means that every micro-batch was committed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import kafkabuf
from kafkabuf.spark import align
from tests.spark.kills.job import Folder, Job
from tests.spark.kills.source import MortalDataSource

_ATTEMPTS = 5
_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"


def session(job: Job, folder: Folder) -> SparkSession:
    """A small session, with JVMs that start quickly. With "connect" its server is in the same JVM as the driver."""
    builder = SparkSession.builder.appName("kafkabuf kill test")
    builder = builder.remote(job.master) if job.via == "connect" else builder.master(job.master)
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
        # With atomic each second attempt fails, so more attempts are of no use.
        "spark.task.maxFailures": "4" if job.guarantee == "atomic" else "100",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.sql.shuffle.partitions": str(job.partitions),
        # A query of a second takes less time than its compilation.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(job.arrow_rows),
        # Each file becomes one task.
        "spark.sql.files.maxPartitionBytes": "128m",
        "spark.sql.files.openCostInBytes": "128m",
        **job.settings,
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def frame(spark: SparkSession, job: Job, folder: Folder) -> DataFrame:
    lines = spark.readStream.option("maxFilesPerTrigger", job.files).text(str(folder.input))
    key, text = F.col("value").alias("key"), F.rpad("value", job.size, "x")
    if job.value_format == "avro":
        rows = lines.select(key, F.col("value").cast("long").alias("number"), text.alias("text"))
    else:
        rows = lines.select(key, text.alias("value"))
    return align(rows, job.partitions) if job.guarantee == "atomic" else rows


def write(frame: DataFrame, batch_id: int) -> None:
    """What the function of foreach_batch() does."""
    from kafkabuf.spark import map_in_arrow  # an earlier version of kafkabuf lacks it

    options = {name.lower(): value for name, value in Folder.here().job().options().items()}
    map_in_arrow.run(frame, MortalDataSource(options).streamWriter(frame.schema, overwrite=False), batch_id)


def main() -> None:
    folder = Folder.here()
    job = folder.job()
    spark = session(job, folder)
    context: Any = SparkContext._active_spark_context  # a session of Spark Connect hides it
    jvm = int(context._jvm.java.lang.ProcessHandle.current().pid())
    (folder.root / "driver.json").write_text(json.dumps({"python": os.getpid(), "jvm": jvm}))
    if job.via != "foreach_batch":
        spark.dataSource.register(MortalDataSource)
    folder.record("driver", kafkabuf=kafkabuf.__file__)
    failed: Counter[int] = Counter()
    while True:
        writer = frame(spark, job, folder).writeStream
        if job.via != "foreach_batch":
            writer = writer.format(MortalDataSource.name()).options(**job.options())
        else:
            writer = writer.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(folder.checkpoint))
        folder.record("query")
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as error:
            folder.record("query failed", reason=str(error)[:2_000])
            failed[folder.newest_batch()] += 1
            if max(failed.values()) == _ATTEMPTS:
                raise
            continue
        folder.record("end")
        spark.stop()
        return


if __name__ == "__main__":
    main()
