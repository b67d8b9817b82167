"""What a user of Spark sees in the exception and on the terminal. The session writes its terminal's text to a file."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafkabuf.broker import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest_plugins = ["tests.spark.fixtures"]


@pytest.fixture
def terminal(spark: SparkSession) -> Callable[[str], str]:
    """A function that waits until the JVM and its Python workers print a pattern, and returns all that they printed."""
    path = Path(spark.conf.get("spark.local.dir") or "", "spark.log")
    begin = path.stat().st_size

    def wait_for(pattern: str) -> str:
        deadline = time.monotonic() + 60
        while True:
            text = path.read_bytes()[begin:].decode(errors="replace")
            if re.search(pattern, text):
                return text
            assert time.monotonic() < deadline, f"Spark did not print {pattern} within 60 s; it printed: {text[-2000:]}"
            time.sleep(0.05)

    return wait_for


def frame(spark: SparkSession) -> DataFrame:
    return spark.range(0, 4, 1, 2).selectExpr("string(id) as value")


def last_line(error: Exception) -> str:
    return str(error).strip().removesuffix("SQLSTATE: 38000").strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "columns", "advice"),
    [
        ({"topik": "t"}, ["value"], r"option 'topik' does not exist; did you mean 'topic'\?"),
        ({"topic": "missing"}, ["value"], r"option 'topic': topic 'missing' .* Create the topic, or correct its name$"),
        ({}, ["value", "'missing' as topic"], r"^Create the topic, or correct its name\.$"),
        ({"topic": "t", "kafka.bootstrap.servers": "down"}, ["value"], r"servers: 127.*See that Kafka runs there and"),
    ],
    ids=["misspelt option", "missing topic", "missing topic of a row", "brokers down"],
)
def test_last_line_of_the_error_says_what_to_do(
    spark: SparkSession,
    strict_cluster: EmbeddedCluster,
    unused_address: str,
    options: dict[str, str],
    columns: list[str],
    advice: str,
) -> None:
    all_options = {"kafka.bootstrap.servers": strict_cluster.bootstrap_servers, "kafka.max.block.ms": "1500", **options}
    if all_options["kafka.bootstrap.servers"] == "down":
        all_options["kafka.bootstrap.servers"] = unused_address
    writer = frame(spark).selectExpr(*columns).write.format("kafkabuf").options(**all_options).mode("append")
    with pytest.raises(Exception, match="kafkabuf") as caught:
        writer.save()
    assert re.search(advice, last_line(caught.value)), last_line(caught.value)
    assert len(str(caught.value).splitlines()) < 15, "the error is so long that a user must search it"


def test_stream_to_a_missing_topic_fails_with_advice(
    spark: SparkSession, strict_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("row\n")
    options = {
        "kafka.bootstrap.servers": strict_cluster.bootstrap_servers,
        "kafka.max.block.ms": "1500",
        "topic": "missing",
    }
    writer = spark.readStream.text(str(tmp_path / "in")).writeStream.format("kafkabuf").options(**options)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"option 'topic': topic 'missing' not present.*Create the topic"):
        query.awaitTermination()


def test_log_line_of_a_write_is_printed_on_the_terminal(
    spark: SparkSession, strict_cluster: EmbeddedCluster, terminal: Callable[[str], str]
) -> None:
    """Python drops log lines unless a handler is set up: kafkabuf sets one up where the user has none."""
    writer = frame(spark).write.format("kafkabuf").option("kafka.bootstrap.servers", strict_cluster.bootstrap_servers)
    writer = writer.option("topic", "there").mode("append")
    for kind in ("off", "batch", "tasks"):
        writer.option("logReport", kind).save()
    text = terminal(r"DEBUG kafkabuf\.spark: task 1, attempt 0: 2 rows[^\n]*\n(.*\n)*.*INFO kafkabuf\.spark: 4 rows")
    assert len(re.findall(r"\d\d:\d\d:\d\d INFO kafkabuf\.spark: 4 rows, \d+ bytes by 2 tasks", text)) == 2
    assert len(re.findall(r"DEBUG kafkabuf\.spark: task ", text)) == 2


def test_continuous_trigger_writes_nothing_and_prints_advice(
    spark: SparkSession, strict_cluster: EmbeddedCluster, terminal: Callable[[str], str], tmp_path: Path
) -> None:
    """Spark calls the sink after the first epoch, and continues after the error. Only the printed text warns a user."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).option("numPartitions", 1).load()
    before = strict_cluster.end_offsets("there")
    writer = rows.selectExpr("string(value) as value").writeStream.format("kafkabuf")
    writer = writer.option("kafka.bootstrap.servers", strict_cluster.bootstrap_servers).option("topic", "there")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(continuous="100 milliseconds").start()
    try:
        terminal(
            r"1 of 1 tasks reported nothing.*continuous trigger does this.*start it with \.trigger\(processingTime"
        )
        assert query.isActive
    finally:
        query.stop()
    assert strict_cluster.end_offsets("there") == before
    assert not [path for path in (tmp_path / "c" / "commits").iterdir() if path.name.isdigit()]
