"""The command line: the demo detects faults, reports what is missing, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import kafka
import pyarrow as pa
import pytest
from click import ClickException
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient, ConfigResource
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessages
from google.protobuf.wrappers_pb2 import UInt64Value
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner import murmur2
from pyspark.sql import functions as F

from kafkabuf.cli import main
from kafkabuf.cli.demo import formats as demo_formats
from kafkabuf.cli.demo import spark as demo_spark
from kafkabuf.cli.demo.verify import Record, Tally, Topic, avro_row, digest, partition_of, protobuf_row
from kafkabuf.formats import Protobuf
from tests.formats.avro.support import written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkabuf.broker import EmbeddedCluster
    from rigs.real_kafka import RealKafka

pytest_plugins = ["tests.spark.fixtures"]

PARTITIONS = 4
SECOND_TASK = 1 << 33


def sent() -> list[Record]:
    """The records of a faultless write: the rows of two tasks, in each partition in the order of the task."""
    records: list[Record] = []
    for row in [*range(20), *range(SECOND_TASK, SECOND_TASK + 20)]:
        key = b"k%d" % (row % 5)
        records.append(Record(partition_of(key, PARTITIONS), len(records), key, b'{"row":%d}' % row, 1000 + row, row))
    return records


def problems(records: list[Record]) -> list[str]:
    wanted, found = Tally(PARTITIONS), Tally(PARTITIONS)
    for record in sent():
        wanted.add(record)
    for record in records:
        found.add(record)
    return found.compare(wanted.rows, wanted.bytes, wanted.checksum)


# ---- the checks: each fault is found ---------------------------------------------------------------------------------


def test_faultless_records_pass_in_any_order_of_tasks_and_partitions() -> None:
    assert problems(sent()) == []
    assert problems(sorted(sent(), key=lambda record: (record.partition, record.row))) == []
    assert problems(sent()[20:] + sent()[:20]) == []


def change(index: int, **fields: object) -> Callable[[list[Record]], list[Record]]:
    return lambda records: [r._replace(**fields) if n == index else r for n, r in enumerate(records)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda records: records[:-1], "40 rows were sent, 39 were read back"),
        (lambda records: records + records[-1:], "comes after row"),
        (
            lambda records: [*records[:2], records[7], *records[3:7], records[2], *records[8:]],
            "comes after row",
        ),
        (change(3, value=b'{"row":4}'), "the checksum of what was sent"),
        (change(3, value=None), "the checksum of what was sent"),
        (change(3, timestamp=1002), "the checksum of what was sent"),
        (change(3, partition=(sent()[3].partition + 1) % PARTITIONS), "key b'k3' belongs to partition"),
        (change(3, row=-1), "carries no row number"),
    ],
    ids=["lost", "twice", "out of order", "value", "value lost", "timestamp", "partition", "row"],
)
def test_tampered_records_are_found(tamper: Callable[[list[Record]], list[Record]], message: str) -> None:
    assert any(message in problem for problem in problems(tamper(sent())))


def test_swapped_keys_of_one_partition_are_found() -> None:
    records = [record._replace(partition=0) for record in sent()]
    swapped = list(records)
    swapped[0], swapped[1] = records[0]._replace(key=records[1].key), records[1]._replace(key=records[0].key)
    tallies = [Tally(1), Tally(1)]
    for tally, those in zip(tallies, (records, swapped), strict=True):
        for record in those:
            tally.add(record)
    assert tallies[0].checksum != tallies[1].checksum


def test_a_thousand_faults_make_a_short_report() -> None:
    assert len(problems([record._replace(row=0) for record in sent() * 50])) < 15


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_partition_of_a_key_is_javas(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


@given(st.binary(max_size=4), st.binary(max_size=4))
def test_digest_knows_where_the_key_ends(key: bytes, value: bytes) -> None:
    assert digest(key, value + b"x", 1) != digest(key + value, b"x", 1) or not value
    assert digest(None, value, None) != digest(b"", value, None)


# ---- the demo with Spark ---------------------------------------------------------------------------------------------


def test_spark_and_python_compute_the_same_checksum(spark: SparkSession) -> None:
    frame = spark.sql("select 'grüße' as k, 'v' as v union all select null, 'w' union all select '', ''")
    records = demo_spark.to_records(frame.withColumn("t", F.timestamp_millis(F.lit(-5))), "k", "t")
    found = Tally(1)
    for n, row in enumerate(records.collect()):
        key = None if row.key is None else row.key.encode()
        found.add(Record(0, n, key, row.value.encode(), -5, int(row.value.split(":")[1].split(",")[0])))
    assert demo_spark.expected(records) == (found.rows, found.bytes, found.checksum)


def invoke(spark: SparkSession, *arguments: str) -> Result:
    """Run the command in this process: it uses the Spark session of the tests and must leave it running."""
    result = CliRunner().invoke(main, ["demo", *arguments])
    assert spark.range(1).count() == 1
    return result


def test_demo_verifies_the_records_that_it_wrote(spark: SparkSession) -> None:
    result = invoke(spark, "--rows", "5000", "--partitions", "5", "--brokers", "2")
    assert result.exit_code == 0, result.output
    assert "5,000 from flights.csv" in result.output
    assert "kafkabuf-demo-1, 5 partitions on 2 embedded brokers" in result.output
    assert re.search(r"verified +yes: count, order, partitions, checksum", result.output)


@pytest.mark.parametrize("format", ["avro", "protobuf"])
def test_demo_verifies_records_that_the_sink_has_encoded(spark: SparkSession, format: str) -> None:
    result = invoke(spark, "--rows", "3000", "--format", format, "--brokers", "1")
    assert result.exit_code == 0, result.output
    assert re.search(r"verified +yes: count, order, partitions, checksum", result.output)


@given(st.integers(0, 2**63 - 1))
def test_number_of_a_row_is_read_from_avro(number: int) -> None:
    encoded = written("long", number)
    assert avro_row(encoded + b"rest") == number
    assert avro_row(encoded[:-1]) == avro_row(written("long", -number - 1)) == avro_row(b"\xff" * 11) == -1


@given(st.integers(0, 2**63 - 1))
def test_number_of_a_row_is_read_from_protobuf(number: int) -> None:
    encoded = UInt64Value(value=number).SerializeToString() or b"\b\0"
    assert protobuf_row(encoded + b"rest") == number
    assert protobuf_row(encoded[:-1]) == protobuf_row(b"\x10\0") == protobuf_row(b"") == -1


def test_demo_s_message_has_the_values_of_each_column(spark: SparkSession) -> None:
    frame = spark.sql(
        "select 0L as _row, true as b, 7 as i, 0.5D as d, 'x' as s, X'01' as raw, date'2024-06-10' as day, "
        "timestamp'2024-06-10 01:02:03.5' as at, array(struct(1 as a)) as items, cast(null as string) as missing"
    )
    kind = frame.schema
    descriptors = FileDescriptorSet.FromString(demo_formats.descriptor_set(kind))
    message = GetMessages(descriptors.file)["Row"]
    rows = pa.Table.from_batches(frame.toArrow().to_batches())
    made = message.FromString(Protobuf.from_descriptor_set(descriptors.SerializeToString(), "Row").encode(rows)[0])
    assert (made._row, made.b, made.i, made.d, made.s, made.raw) == (0, True, 7, 0.5, "x", b"\x01")
    assert (made.day.year, made.day.month, made.day.day, made.at.nanos) == (2024, 6, 10, 500_000_000)
    assert [item.a for item in made.items] == [1]
    assert made.HasField("_row")
    assert not made.HasField("missing")


@pytest.mark.parametrize(
    ("column", "message"), [("1.5BD as n", "column 'n' is of type decimal"), ("1 as `a b`", "column 'a b'")]
)
def test_demo_names_the_column_that_protobuf_cannot_have(spark: SparkSession, column: str, message: str) -> None:
    with pytest.raises(ClickException, match=message):
        demo_formats.descriptor_set(spark.sql(f"select {column}").schema)


def test_demo_fails_if_a_byte_was_changed_on_the_way(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Topic.records

    def tampered(self: Topic, end: dict[int, int], timestamps: bool) -> Iterator[Record]:
        for n, record in enumerate(read(self, end, timestamps)):
            assert record.value is not None
            yield record._replace(value=record.value[:-1] + b" ") if n == 100 else record

    monkeypatch.setattr(Topic, "records", tampered)
    result = invoke(spark, "--rows", "500")
    assert result.exit_code == 1
    assert re.search(r"verified +no", result.output)
    assert "the checksum of what was sent" in result.output


def test_demo_writes_the_users_file_to_the_users_topic(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": 1, "who": "a", "at": "2020-01-01T00:00:00Z"}\n{"id": 2, "at": "2020-01-02T00:00:00Z"}\n')
    arguments = ["--input", str(source), "--key", "who", "--timestamp", "at", "--topic", "the.users"]
    for _ in range(2):  # the second time it exists, with records that are not this run's
        result = invoke(spark, *arguments, "--bootstrap-servers", spark_cluster.bootstrap_servers)
        assert result.exit_code == 0, result.output
        assert "2 from in.jsonl" in result.output
    consumer = kafka.KafkaConsumer(
        "the.users",
        bootstrap_servers=spark_cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=2000,
    )
    found = sorted((record.key, record.value, record.timestamp) for record in consumer if record.key)
    consumer.close()
    assert found == [(b"a", b'{"_row":0,"at":"2020-01-01T00:00:00Z","id":1,"who":"a"}', 1577836800000)] * 2


def test_demo_on_real_kafka_loses_no_record_to_its_age(spark: SparkSession, kafka_4: RealKafka) -> None:
    result = invoke(spark, "--rows", "3000", "--topic", "aged", "--bootstrap-servers", kafka_4.bootstrap_servers)
    assert result.exit_code == 0, result.output
    assert re.search(r"verified +yes", result.output)
    place = ConfigResource(ConfigResource.Type.TOPIC, "aged")
    admin = AdminClient({"bootstrap.servers": kafka_4.bootstrap_servers})
    assert (
        admin.describe_configs([place])[place].result(10)["retention.ms"].value == "-1"
    )  # Kafka looks for outdated segments every five minutes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--key", "nobody"], "--key nobody: the input's columns are id, at"),
        (["--timestamp", "at"], "--timestamp: 1 of 2 rows have no timestamp, or text that is no timestamp"),
        (["--timestamp", "id"], "--timestamp id is of type bigint; allowed: timestamp, date"),
    ],
)
def test_unusable_column_of_the_input_is_named(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path, arguments: list[str], message: str
) -> None:
    source = tmp_path / "in.parquet"
    spark.sql("select 1L as id, '2020-01-01' as at union all select 2L, 'x'").write.parquet(str(source))
    result = invoke(spark, "--input", str(source), "--bootstrap-servers", spark_cluster.bootstrap_servers, *arguments)
    assert result.exit_code == 1
    assert message in result.output
    consumer = kafka.KafkaConsumer(bootstrap_servers=spark_cluster.bootstrap_servers)
    assert not [name for name in consumer.topics() if name.startswith("kafkabuf-demo")]  # it failed before making one
    consumer.close()


def test_flights_have_the_types_that_spark_infers(spark: SparkSession, tmp_path: Path) -> None:
    lines = demo_spark.flights(tmp_path).read_text().splitlines(keepends=True)
    some = tmp_path / "some.csv"
    some.write_text("".join([lines[0], *lines[1::200]]))
    known = demo_spark.read_flights(spark, some)
    inferred = spark.read.options(header=True, inferSchema=True, nullValue="NA").csv(some.as_uri())
    assert known.schema == inferred.schema
    assert known.collect() == inferred.collect()
    assert known.where("dep_time is null").count() > 0


def test_file_of_an_unknown_kind_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ClickException, match=r"in\.xls: the suffix must be \.csv, "):
        demo_spark.read(spark, tmp_path / "in.xls")


# ---- missing requirements --------------------------------------------------------------------------------------------


def test_missing_java_is_reported_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClickException, match=r"Java 17 or newer: there is no java on the PATH; install"):
        demo_spark.check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ClickException, match=r"JAVA_HOME is .*, which has no bin/java"):
        demo_spark.check_java()


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_292"])
def test_old_java_is_reported_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!{sys.executable}\nimport sys\nprint('openjdk version \"{version}\"', file=sys.stderr)\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ClickException, match=f'Java 17 or newer: .*openjdk version "{version}"; install one'):
        demo_spark.check_java()


def test_cluster_that_does_not_answer_is_reported_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkabuf.cli.demo.verify.REQUEST_TIMEOUT_S", 1.0)
    monkeypatch.setattr(demo_spark, "session", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    result = CliRunner().invoke(main, ["demo", "--bootstrap-servers", address])
    assert result.exit_code == 1
    assert f"no broker answered at {address} within 1 s" in result.output


# ---- kafkabuf broker -------------------------------------------------------------------------------------------------


def test_broker_serves_until_a_signal_stops_it() -> None:
    command = [sys.executable, "-m", "kafkabuf", "broker", "--brokers", "2", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            servers = process.stdout.readline().strip().removeprefix("bootstrap.servers=")
            assert servers.count(":") == 2
            topic = Topic(servers, "t", 3)
            assert topic.start == {0: 0, 1: 0, 2: 0}
            topic.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_ports_beyond_the_last_are_refused() -> None:
    result = CliRunner().invoke(main, ["broker", "--brokers", "3", "--port", "65534"])
    assert result.exit_code == 2
    assert "3 brokers from port 65534 on go beyond 65535" in result.output


@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "kafkabuf", "demo", "--rows", "100"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            while not list(tmp_path.glob("kafkabuf-demo-*/spark.log")):
                assert process.poll() is None
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.1)
            if number == signal.SIGINT:
                os.killpg(process.pid, number)  # as a terminal does: every process of the job gets it
            else:
                process.send_signal(number)
            output = process.communicate(timeout=180)[0]
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert "Traceback" not in output
    assert list(tmp_path.glob("kafkabuf-demo-*")) == []
