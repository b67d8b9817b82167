"""The batch writer: Spark's calls on one side, `ArrowSink` on the other."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from kafkabuf.spark.report import TaskReport, WriteReport
from kafkabuf.spark.sink import ArrowSink

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("kafkabuf.spark")


class BatchWriter(DataSourceArrowWriter):
    """One `df.write`. Made and asked to commit on the driver; `write` runs in a worker process, once per task attempt.

    At least once: a retried task sends its rows again, and what a failed job has sent stays in the topic.
    """

    def __init__(self, sink: ArrowSink) -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return self.sink.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        logger.info("%s", WriteReport.from_messages(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        done = [message for message in messages if message is not None]
        logger.warning(
            "the write failed: %d of %d tasks had sent all their rows, which stay in the topic",
            len(done),
            len(messages),
        )
