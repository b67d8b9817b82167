"""A stream from text files to a topic, which can be stopped, crash and be started again; and who reads the topic."""

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
    """One query, with `options` beside those that its guarantee needs."""

    def __init__(
        self, spark: SparkSession, servers: str, topic: str, folder: Path, guarantee: str, **options: str
    ) -> None:
        self.spark, self.servers, self.topic, self.folder = spark, servers, topic, folder
        self.guarantee = guarantee
        self.expected: Counter[bytes] = Counter()
        self.batches = 0
        self._options = options
        (folder / "in").mkdir(parents=True)

    def rows(self, count: int) -> None:
        """One file of input."""
        lines = [f"{self.batches}-{row}" for row in range(count)]
        place = self.folder / "in" / f"{self.batches}.txt"
        place.write_text("".join(f"{line}\n" for line in lines))
        os.utime(place, (1_700_000_000 + self.batches,) * 2)  # Spark takes the older first
        self.expected += Counter(line.encode() for line in lines)
        self.batches += 1

    def options(self) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self.servers, "topic": self.topic}
        if self.guarantee != "at_least_once":
            given["sinkId"] = self.topic
        return {**given, "deliveryGuarantee": self.guarantee, **self._options}

    def frame(self) -> DataFrame:
        rows = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "in"))
        frame = rows.select("value", rows.value.alias("key"))
        return align(frame, PARTITIONS) if self.guarantee == "atomic" else frame

    def run(self, **more: str) -> None:
        """All there is, in as many micro-batches as there are new files."""
        writer = self.frame().writeStream.format("kafkabuf").options(**self.options(), **more)
        place = str(self.folder / "checkpoint")
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()

    def forget_newest_commit(self) -> None:
        """What a driver leaves that dies between the sink's commit and Spark's own."""
        commits = self.folder / "checkpoint" / "commits"
        newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(newest)).unlink()
        (commits / f".{newest}.crc").unlink(missing_ok=True)

    def found(self) -> Counter[bytes]:
        return committed(self.servers, self.topic)


def committed(servers: str, topic: str, **settings: str) -> Counter[bytes]:
    """The values that a reader with read_committed sees; `settings` are the consumer's, with _ for dots."""
    given: dict[str, str | bool] = {
        "bootstrap.servers": servers,
        "group.id": "reader",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    consumer, ended = Consumer(given), 0
    found: Counter[bytes] = Counter()
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        while ended < PARTITIONS:
            message = consumer.poll(10.0)
            assert message is not None, "the reader is held up"
            value = message.value()
            if message.error() is not None:
                ended += 1
            elif value is not None:
                found[value] += 1
    finally:
        consumer.close()
    return found
