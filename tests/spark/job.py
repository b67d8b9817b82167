"""A stream from text files to a topic, which a test can stop, crash and start again; and a reader of the topic."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from kafkabuf.spark import align

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3


class Job:
    """One query. `options` come on top of the options that its guarantee needs.

    While `fails`, the step before the sink fails behind the first 25,000 rows of each file.
    """

    fails = False

    def __init__(
        self, spark: SparkSession, servers: str, topic: str, folder: Path, guarantee: str, **options: str
    ) -> None:
        self.spark, self.servers, self.topic, self.folder = spark, servers, topic, folder
        self.guarantee = guarantee
        self.expected: Counter[bytes] = Counter()
        self.files = 0
        self._options = options
        (folder / "in").mkdir(parents=True)

    def add_file(self, rows: int) -> None:
        """Add one file of input. It becomes one micro-batch."""
        lines = [f"{self.files}-{row}" for row in range(rows)]
        path = self.folder / "in" / f"{self.files}.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        os.utime(path, (1_700_000_000 + self.files,) * 2)  # Spark reads the oldest file first
        self.expected += Counter(line.encode() for line in lines)
        self.files += 1

    def options(self) -> dict[str, str]:
        options = {"kafka.bootstrap.servers": self.servers, "topic": self.topic}
        if self.guarantee != "at_least_once":
            options["sinkId"] = self.topic
        return {**options, "deliveryGuarantee": self.guarantee, **self._options}

    def frame(self) -> DataFrame:
        rows = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "in"))
        value = "if(value like '%-25000', raise_error('a step has failed'), value) as value" if self.fails else "value"
        frame = rows.selectExpr(value, "value as key")
        return align(frame, PARTITIONS) if self.guarantee == "atomic" else frame

    def run(self, **overrides: str) -> None:
        """Write all new files, one micro-batch for each file."""
        writer = self.frame().writeStream.format("kafkabuf").options(**self.options(), **overrides)
        checkpoint = str(self.folder / "checkpoint")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()

    def forget_newest_commit(self) -> None:
        """Leave the checkpoint as a driver does that dies after the sink's commit and before Spark's own commit."""
        commits = self.folder / "checkpoint" / "commits"
        newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(newest)).unlink()
        (commits / f".{newest}.crc").unlink(missing_ok=True)

    def committed(self) -> Counter[bytes]:
        return committed(self.servers, self.topic)


def committed(servers: str, topic: str, **settings: str) -> Counter[bytes]:
    """The values that a reader with read_committed sees. `settings` are consumer settings with _ in place of dots."""
    return Counter(value for _, value in placed(servers, topic, **settings))


def placed(servers: str, topic: str, **settings: str) -> list[tuple[int, bytes]]:
    """As `committed`, each value with its partition."""
    config: dict[str, str | bool] = {
        "bootstrap.servers": servers,
        "group.id": "reader",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    consumer, ended = Consumer(config), 0
    values: list[tuple[int, bytes]] = []
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        while ended < PARTITIONS:
            message = consumer.poll(10.0)
            assert message is not None, "the reader got no message for 10 s: an open transaction may block it"
            value, partition = message.value(), message.partition()
            if message.error() is not None:
                ended += 1
            elif value is not None and partition is not None:
                values.append((partition, value))
    finally:
        consumer.close()
    return values
