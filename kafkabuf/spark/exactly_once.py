"""`exactly_once`: each task and micro-batch a transaction, which holds the rows and a marker that says so.

A task initialises its transactional id, which fences every earlier attempt and ends what it left open, and only then
reads the marker. So the marker tells for good whether these rows have been written: then the task only counts them, and
compares; else it writes them and the marker, and commits. A crash anywhere is decided by the marker. Attempts that run
side by side (speculation) fence each other; the survivor finds the other's marker or none.

It takes a micro-batch whose tasks have the same rows whenever it is replayed, which Spark gives for sources that can be
replayed and plans whose partitions do not depend on the order of rows. What differs is an error, not a duplicate.

The driver has no part in it but one: after a restart it looks whether the first micro-batch was begun with more
partitions than it has now, of which nobody would hear otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from kafkabuf.errors import IllegalStateError
from kafkabuf.metadata.admin import Admin
from kafkabuf.producer import KafkaProducer
from kafkabuf.spark.marker import Marker, identity, read
from kafkabuf.spark.options import SinkOptions
from kafkabuf.spark.place import Batch, Place
from kafkabuf.spark.report import TaskReport
from kafkabuf.spark.task import Task, count
from kafkabuf.spark.workers import give_up, sized, transactional

Batches = Iterator[pa.RecordBatch]


def send(batches: Batches, options: SinkOptions, columns: tuple[str, ...]) -> TaskReport:
    """See `ArrowSink.send`."""
    place = Place.here()
    batch = place.stream_batch()
    name = identity(options.marks()[0], place.partition)
    producer = transactional(sized(options), name)
    try:
        report = _send(producer, name, batches, options, columns, place, batch)
    except BaseException:
        give_up(producer)
        raise
    producer.close()
    return report


def _send(
    producer: KafkaProducer,
    name: str,
    batches: Batches,
    options: SinkOptions,
    columns: tuple[str, ...],
    place: Place,
    batch: Batch,
) -> TaskReport:
    _, marker_topic = options.marks()
    producer.init_transactions()
    with Admin(producer.config) as admin:
        marker = read(admin, name, marker_topic)
    task = Task(lambda: producer, options, columns)
    first_of_run = marker is None or marker.batch.run_id != batch.run_id
    if marker is not None and marker.covers(batch, name):
        compare(marker, *count(batches, columns), place)
        return task.report(place, already_written=True, first_of_run=first_of_run)
    producer.begin_transaction()
    task.send_all(batches)
    # Also where there are no rows: without gaps the driver finds the last partition there was (`check_width`).
    done = Marker(batch, *task.asked_to_send())
    producer.send_offsets_to_transaction({(marker_topic, 0): done.offset()}, name)
    producer.commit_transaction()
    return task.report(place, first_of_run=first_of_run)


def compare(marker: Marker, rows: int, checksum: int, place: Place) -> None:
    """Raises IllegalStateError where what is replayed is not what was written."""
    if (rows, checksum) != (marker.rows, marker.checksum):
        raise IllegalStateError(
            f"partition {place.partition} of micro-batch {marker.batch.number} was written with {marker.rows} rows "
            f"(checksum {marker.checksum:016x}), and is replayed with {rows} ({checksum:016x}): it was not written "
            "again. exactly_once needs a plan that gives the same rows to the same partition each time; use "
            "deliveryGuarantee 'atomic' for others"
        )


def check_width(options: SinkOptions, reports: Sequence[TaskReport], batch: int) -> None:
    """On the driver. Raises IllegalStateError where partitions that are no more have been written in this batch."""
    sink_id, marker_topic = options.marks()
    if not any(report.first_of_run for report in reports):
        return
    from kafkabuf.config import ProducerConfig

    number = len(reports)
    with Admin(ProducerConfig.from_mapping(dict(options.producer))) as admin:
        while (marker := read(admin, identity(sink_id, number), marker_topic)) is not None:
            if marker.batch.number == batch:
                raise IllegalStateError(
                    f"micro-batch {batch} was begun with a partition {number} and replayed with {len(reports)} "
                    "partitions: its rows are in the topic twice. exactly_once needs as many partitions as before "
                    "wherever a batch is replayed"
                )
            number += 1
