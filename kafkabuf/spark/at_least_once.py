"""`at_least_once`: the idempotent producer, everything acknowledged before the task ends. As Spark's own sink."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from kafkabuf.producer import KafkaProducer
from kafkabuf.spark import workers
from kafkabuf.spark.options import SinkOptions
from kafkabuf.spark.place import Place
from kafkabuf.spark.report import TaskReport
from kafkabuf.spark.task import Task


def send(batches: Iterator[pa.RecordBatch], options: SinkOptions, columns: tuple[str, ...]) -> TaskReport:
    """See `ArrowSink.send`."""
    settings = options.producer

    def opened() -> KafkaProducer:
        nonlocal settings
        settings = workers.sized(options)
        return workers.producer_for(settings)

    task = Task(opened, options, columns)
    try:
        task.send_all(batches)
    except BaseException:
        # A retry in this process must not find this attempt's unsent rows in the buffer.
        workers.discard(settings)
        raise
    return task.report(Place.here())
