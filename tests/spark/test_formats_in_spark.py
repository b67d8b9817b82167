"""Writes with valueFormat by Spark itself: plain DataFrames, SQL, streams and aligned frames. fastavro decodes them."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from kafkabuf.errors import ConfigError
from kafkabuf.partitioner import partition_for_key
from kafkabuf.spark import align, last_report, schema_for, verify
from tests.formats.registry.support import FakeRegistry, running
from tests.spark.job import PARTITIONS, Job
from tests.spark.options.test_formats import decoded, records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kafkabuf.broker import EmbeddedCluster

pytest_plugins = ["tests.spark.fixtures"]

AVRO = {"valueFormat": "avro"}
NUMBER = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": ["null", "long"]}]}


@pytest.fixture
def topic(spark_cluster: EmbeddedCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    spark_cluster.create_topic(name, partitions=PARTITIONS)
    return name


def write(frame: DataFrame, cluster: EmbeddedCluster, topic: str, **options: str) -> None:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic, "valueFormat": "avro", **options}
    frame.write.format("kafkabuf").options(**given).mode("append").save()


def flights(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(0, rows, 1, 3).selectExpr(
        "id", "if(id % 7 = 0, null, concat('C', id % 5)) as carrier", "timestamp_micros(id * 1000001) as at"
    )


def test_plain_frame_arrives_as_records(spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str) -> None:
    frame = flights(spark, 500)
    write(frame, spark_cluster, topic, keyColumns="carrier")
    report = last_report()
    assert report is not None
    assert verify(report, {"bootstrap.servers": spark_cluster.bootstrap_servers}).rows == 500
    schema = json.loads(schema_for(frame, AVRO))
    assert [isinstance(field["type"], list) for field in schema["fields"]] == [True, True, True], "all may be null"
    found = {}
    for message in records(spark_cluster, topic):
        row = decoded(schema, message.value())
        assert message.key() == (None if row["carrier"] is None else row["carrier"].encode())
        found[row["id"]] = (row["carrier"], int(row["at"].timestamp() * 1_000_000 + 0.5))
    expected = frame.selectExpr("id", "carrier", "unix_micros(at) as at").collect()
    assert found == {row.id: (row.carrier, row.at) for row in expected}


def test_value_has_the_schema_of_schema_for_whatever_spark_makes_of_the_plan(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str
) -> None:
    # Spark computes these before the write. What was nullable in the frame is not in the plan that writes.
    frame = spark.sql("select cast('5' as double) as number, array(cast('6' as int)) as many")
    write(frame, spark_cluster, topic)
    (message,) = records(spark_cluster, topic)
    assert decoded(json.loads(schema_for(frame, AVRO)), message.value()) == {"number": 5.0, "many": [6]}


def test_micro_batches_of_a_union_have_one_schema(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    class Both(Job):
        def frame(self) -> DataFrame:
            (self.folder / "other").mkdir(exist_ok=True)
            other = self.spark.readStream.text(str(self.folder / "other")).selectExpr("value as text", "null as source")
            return super().frame().selectExpr("value as text", "'files' as source").union(other)

    job = Both(spark, spark_cluster.bootstrap_servers, topic, tmp_path, "exactly_once", **AVRO)
    job.add_file(1)
    schema = json.loads(schema_for(job.frame(), AVRO))
    job.run()  # a micro-batch without the other side, which Spark leaves out of the plan
    (tmp_path / "other" / "a.txt").write_text("other\n")
    job.run()
    found = [decoded(schema, message.value()) for message in records(spark_cluster, topic)]
    assert sorted(found, key=str) == [{"text": "0-0", "source": "files"}, {"text": "other", "source": None}]


@pytest.mark.parametrize("zone", ["America/New_York", "GMT+8", "PST"])
def test_json_is_that_of_to_json(spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str, zone: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    frame = flights(session, 200).selectExpr(
        "*", "id / 7 as ratio", "binary(carrier) as bytes", "array(id, null) as ids", "map('a', id) as by_name",
        "cast(id as decimal(20, 3)) as price", "date_add(date'2024-02-27', int(id)) as day", "at as moment",
        "named_struct('x', carrier, 'y\"', at) as inner", "cast(at as timestamp_ntz) as local",
    )  # fmt: skip
    write(frame, spark_cluster, topic, valueFormat="json", keyColumns="carrier")
    expected = [row.text for row in frame.select(F.to_json(F.struct("*")).alias("text")).collect()]
    assert sorted(message.value().decode() for message in records(spark_cluster, topic)) == sorted(expected)


def test_json_has_maps_with_keys_of_void(spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str) -> None:
    frame = spark.sql("select map() as m, array(named_struct('m', map(), 'a', array())) as s, map('a', null) as n")
    write(frame, spark_cluster, topic, valueFormat="json")
    (message,) = records(spark_cluster, topic)
    assert message.value() == b'{"m":{},"s":[{"m":{},"a":[]}],"n":{"a":null}}'


@pytest.mark.parametrize("formats", [{}, {"keyColumns": "id", "keyFormat": "avro"}], ids=["no key", "encoded key"])
def test_aligned_frame_is_written_at_once(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str, formats: dict[str, str]
) -> None:
    options = {"topic": topic, "deliveryGuarantee": "atomic", "sinkId": topic, **formats}
    if formats and not hasattr(F, "arrow_udf"):
        with pytest.raises(ConfigError, match=r"PySpark 4\.0 cannot align rows by an encoded key"):
            align(flights(spark, 300), PARTITIONS, options)
        return
    frame = align(flights(spark, 300), PARTITIONS, options)
    write(frame, spark_cluster, topic, **{name: value for name, value in options.items() if name != "topic"})
    found = records(spark_cluster, topic)
    schema = json.loads(schema_for(frame, AVRO))
    assert sorted(decoded(schema, message.value())["id"] for message in found) == list(range(300))
    assert {message.partition() for message in found} == set(range(PARTITIONS))
    if formats:
        assert all(message.partition() == partition_for_key(message.key(), PARTITIONS) for message in found)


@pytest.mark.parametrize("guarantee", ["exactly_once", "atomic"])
def test_stream_skips_rows_that_cannot_be_encoded(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str, tmp_path: Path, guarantee: str
) -> None:
    small = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}

    class Numbers(Job):
        def frame(self) -> DataFrame:
            rows = super().frame()
            # Row 1 of each file is too large for Avro's int.
            number = F.expr("cast(split(value, '-')[1] as bigint) + if(value like '%-1', 1099511627776, 0)")
            return rows.select(F.struct(number.alias("n")).alias("value"), "key")

    options = {"valueFormat": "avro", "valueSchema": json.dumps(small), "onRowError": "skip"}
    job = Numbers(spark, spark_cluster.bootstrap_servers, topic, tmp_path, guarantee, **options)
    job.add_file(5)
    job.add_file(3)
    job.run()
    report = last_report()
    assert report is not None
    assert (report.batch, report.rows, report.skipped) == (1, 2, 1)
    job.forget_newest_commit()
    job.run()
    found = sorted(decoded(small, message.value())["n"] for message in records(spark_cluster, topic))
    assert found == [0, 0, 2, 2, 3, 4]


def test_sql_writes_records(spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str) -> None:
    spark.sql(
        f"CREATE TEMPORARY VIEW v_{topic[2:]} (id BIGINT, carrier STRING) USING kafkabuf OPTIONS "
        f"('kafka.bootstrap.servers' '{spark_cluster.bootstrap_servers}', topic '{topic}', valueFormat 'avro', "
        "keyColumns 'carrier')"
    )
    spark.sql(f"INSERT INTO v_{topic[2:]} SELECT * FROM VALUES (1, 'UA'), (NULL, NULL)")
    nullable: dict[str, Any] = {"type": "record", "name": "Row", "fields": [
        {"name": "id", "type": ["null", "long"]}, {"name": "carrier", "type": ["null", "string"]}]}  # fmt: skip
    found = [(message.key(), decoded(nullable, message.value())) for message in records(spark_cluster, topic)]
    assert sorted(found, key=lambda pair: pair[0] is None) == [
        (b"UA", {"id": 1, "carrier": "UA"}),
        (None, {"id": None, "carrier": None}),
    ]


def test_registry_names_the_schema_and_its_refusal_is_the_error_of_the_write(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str
) -> None:
    with running(FakeRegistry()) as registry:
        options = {"schema.registry.url": registry.url}
        write(spark.range(3), spark_cluster, topic, **options)
        (known,) = registry.subjects[f"{topic}-value"]
        registry.compatible = False
        with pytest.raises(Exception, match="Schema being registered is incompatible"):
            write(spark.range(3).selectExpr("string(id) as id"), spark_cluster, topic, **options)
    found = [message.value() for message in records(spark_cluster, topic)]
    assert all(value[:5] == b"\0" + known["id"].to_bytes(4, "big") for value in found)
    assert sorted(decoded(NUMBER, value, prefix=5)["id"] for value in found) == [0, 1, 2]


def test_column_that_does_not_fit_fails_before_any_task(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str
) -> None:
    with pytest.raises(Exception, match=r"column 'span' has the type duration\[us\]"):
        write(spark.sql("select interval '1' day as span"), spark_cluster, topic)
    assert records(spark_cluster, topic) == []
