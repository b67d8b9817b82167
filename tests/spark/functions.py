"""Steps of a driver (driver.py) that call `kafkabuf.spark.write` and `foreach_batch`, under any PySpark from 3.4 on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from google.protobuf import descriptor_pb2
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import kafkabuf.spark
from tests.spark.job import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.spark.driver import StepContext

ROWS = 20
_COLUMNS = "string(id) as text", "if(id % 3 = 0, null, id) as number", "timestamp_micros(id * 1000001) as at"
_SERVERS = "kafka.bootstrap.servers"


def value_kinds(context: StepContext) -> dict[str, Any]:
    """Write each kind of value, with the kind as key. Returns what a reader needs to check them."""
    rows = context.spark.range(0, ROWS, 1, 4)
    table = rows.selectExpr(*_COLUMNS)
    texts = rows.selectExpr(
        "'text' as key",
        "if(id = 1, null, string(id)) as value",
        "int(id % 3) as partition",
        "array(named_struct('key', 'h', 'value', binary(string(id)))) as headers",
        "timestamp_millis(1700000000000 + id) as timestamp",
    )
    with ThreadPoolExecutor(1) as threads:  # any thread may write
        reports = {"text": threads.submit(_write, context, texts).result()}
    reports["bytes"] = _write(context, rows.selectExpr("'bytes' as key", "encode(string(id), 'utf-16le') as value"))
    for kind in ("json", "avro"):
        reports[kind] = _write(context, _with_key(table, kind), valueFormat=kind)
    descriptors = {"valueMessage": "p.Number", "valueDescriptors": _descriptors(context)}
    numbers = _with_key(table.select("number"), "protobuf")
    reports["protobuf"] = _write(context, numbers, valueFormat="protobuf", **descriptors)
    last = kafkabuf.spark.last_report()
    assert last == reports["protobuf"]
    kafkabuf.spark.verify(last, {"bootstrap.servers": context.options[_SERVERS]})
    return {
        "reports": {kind: (report.tasks, report.rows) for kind, report in reports.items()},
        "schema": kafkabuf.spark.schema_for(table, {"valueFormat": "avro"}),
        "json": [row.text for row in table.select(F.to_json(F.struct("*")).alias("text")).collect()],
    }


def refused_row(context: StepContext) -> dict[str, Any]:
    """Write a row that is too large under each policy, with the policy as key."""
    rows = context.spark.range(0, ROWS, 1, 1).selectExpr("if(id = 7, repeat('x', 900), string(id)) as value")
    limit = {"kafka.max.request.size": "500"}
    reports = {}
    for policy, more in (("skip", {}), ("dead_letter", {"deadLetterTopic": f"{context.topic}-dead"})):
        report = _write(context, _with_key(rows, policy), onRowError=policy, **limit, **more)
        reports[policy] = (report.rows, report.skipped, report.dead_lettered)
    try:
        _write(context, _with_key(rows, "fail"), onRowError="fail", **limit)
    except Exception as error:
        return {"reports": reports, "error": f"{type(error).__name__}: {error}"}
    raise AssertionError("the row was written")


def exactly_once_functions(context: StepContext) -> list[str]:
    """A query whose task is killed, which starts again, and starts again without its newest commit."""
    return _run_killed_and_replayed(context, "exactly_once")


def atomic_functions(context: StepContext) -> list[str]:
    return _run_killed_and_replayed(context, "atomic")


def cut_off_rows(context: StepContext) -> int:
    """A query whose first run fails in the middle of a task's rows. Returns how many of them a reader saw then."""
    job = FunctionJob(context.spark, context.options[_SERVERS], context.topic, context.folder, "exactly_once")
    job.add_file(30_000)
    job.fails = True
    assert "a step has failed" in _error_of(job.run)
    seen = sum(job.committed().values())
    job.fails = False
    job.run()
    return seen


def no_partitions(context: StepContext) -> tuple[int, int]:
    """A frame without partitions. Returns its number of tasks and rows."""
    empty = context.spark.createDataFrame(context.spark.sparkContext.emptyRDD(), "value string")
    report = _write(context, empty)
    return report.tasks, report.rows


def refusals(context: StepContext) -> list[str]:
    """What cannot be held, and what the errors say."""
    frame = context.rows()
    stream = context.spark.readStream.format("rate").load()
    exactly_once = {**context.options, "topic": context.topic, "deliveryGuarantee": "exactly_once", "sinkId": "s"}
    attempts: list[Callable[[], Any]] = [
        lambda: kafkabuf.spark.write(frame, exactly_once),
        lambda: kafkabuf.spark.foreach_batch(exactly_once)(frame, 0),  # no query calls it
        lambda: kafkabuf.spark.write(stream, exactly_once),
        lambda: kafkabuf.spark.write(frame, exactly_once, deliveryGuarantee="at_least_once", tpoic="t"),
    ]
    return [_error_of(attempt) for attempt in attempts]


def registration(context: StepContext) -> str:
    """What register() says where PySpark has no data sources."""
    return _error_of(lambda: kafkabuf.spark.register(context.spark))


FUNCTIONS = (
    *(
        value_kinds,
        refused_row,
        exactly_once_functions,
        atomic_functions,
        cut_off_rows,
        no_partitions,
        refusals,
        registration,
    ),
)


class FunctionJob(Job):
    """A job that writes in foreachBatch. The task of partition 0 is killed in its first attempt at micro-batch 1."""

    is_killed = False

    def run(self, **overrides: str) -> None:
        write = kafkabuf.spark.foreach_batch(self.options(), **overrides)

        def write_or_die(frame: DataFrame, batch_id: int) -> None:
            if batch_id == 1 and not self.is_killed:
                self.is_killed = True
                frame = frame.mapInArrow(_dying, frame.schema)
            write(frame, batch_id)

        writer = self.frame().writeStream.foreachBatch(write_or_die)
        checkpoint = str(self.folder / "checkpoint")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()


def _run_killed_and_replayed(context: StepContext, guarantee: str) -> list[str]:
    """Returns the texts of the reports, the newest last."""
    spark = context.spark
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    servers = context.options[_SERVERS]
    job = FunctionJob(session, servers, context.topic, context.folder, guarantee, **context.options)
    job.add_file(30)
    job.add_file(50)
    _error_of(job.run)
    assert job.is_killed
    reports = []
    for rows in (0, 20):
        if rows:
            # As if the driver had died after the sink's commit and before Spark's.
            job.forget_newest_commit()
            job.add_file(rows)
        _run_to_the_end(job)
        reports.append(str(kafkabuf.spark.last_report()))
    return reports


def _run_to_the_end(job: Job) -> None:
    """Run a query, and start it again where it fails: Spark may close the socket of a worker behind the killed task."""
    for _ in range(4):
        try:
            job.run()
            return
        except StreamingQueryException:
            continue
    job.run()


def _dying(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Kill this Python worker behind the first rows."""
    for number, batch in enumerate(batches):
        if number:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


def _write(context: StepContext, frame: DataFrame, **options: str) -> kafkabuf.spark.WriteReport:
    report = kafkabuf.spark.write(frame, context.options, topic=context.topic, **options)
    assert report is not None
    return report


def _with_key(frame: DataFrame, key: str) -> DataFrame:
    return frame.withColumn("key", F.lit(key))


def _descriptors(context: StepContext) -> str:
    """The path of a file with the message p.Number."""
    number = descriptor_pb2.FieldDescriptorProto(
        name="number", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL", json_name="number"
    )
    message = descriptor_pb2.DescriptorProto(name="Number", field=[number])
    file = descriptor_pb2.FileDescriptorProto(name="n.proto", package="p", syntax="proto3", message_type=[message])
    path = context.folder / "descriptors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return str(path)


def _error_of(attempt: Callable[[], Any]) -> str:
    """The error's text. Raises AssertionError where the attempt succeeds."""
    try:
        attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it did not fail")
