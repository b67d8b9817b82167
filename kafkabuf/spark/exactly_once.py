"""`exactly_once`: each task of a micro-batch writes one transaction, which holds the rows and a marker (marker.py).

1. The driver checks that it reaches the brokers and that the topics exist (preflight.py).
2. The task initialises its transactional id. That fences every earlier attempt and ends the transaction that an earlier
   attempt left open. No earlier attempt can write a marker from then on.
3. The task reads the marker. So the marker says for good whether an earlier attempt has written these rows.
4. If so, the task sends nothing: it counts its rows and compares them with the marker.
5. Else the task sends its rows and the marker, and commits the transaction.
6. The driver has one part: on the first micro-batch after a restart it looks for markers of Spark partitions that the
   replay does not have. Without this check nobody would notice that their rows are in the topic twice.

The marker decides every crash. Attempts that run side by side (speculation) fence each other; the last attempt finds
the other's marker, or finds no marker and writes.

The guarantee holds for micro-batches whose tasks have the same rows in every replay. Spark promises that for sources
that it can replay, under plans whose partitions do not depend on the order of rows. Other rows in a replay are an
error, not a duplicate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from kafkabuf.config import ProducerConfig
from kafkabuf.errors import IllegalStateError
from kafkabuf.metadata.admin import Admin
from kafkabuf.producer import KafkaProducer
from kafkabuf.spark import preflight
from kafkabuf.spark.delivery import Delivery
from kafkabuf.spark.marker import Marker, read_marker, transactional_id_for
from kafkabuf.spark.place import TaskAttempt
from kafkabuf.spark.report import TaskReport
from kafkabuf.spark.task import Task, count_rows
from kafkabuf.spark.workers import close_after_failure, task_settings, transactional_producer


class ExactlyOnce(Delivery[None]):
    """See the protocol above. Only streams can have it: `df.write` has no number that tells a repetition."""

    after_abort = "readers with read_committed see no row twice"

    def begin(self, *, is_stream: bool) -> None:
        preflight.check(self.options, repeat=not is_stream)

    def send(self, batches: Iterator[pa.RecordBatch], begun: None) -> TaskReport:
        attempt = TaskAttempt.current()
        attempt.require_micro_batch()
        sink_id, _ = self.options.sink_id_and_marker_topic()
        name = transactional_id_for(sink_id, attempt.partition)
        producer = transactional_producer(task_settings(self.options), name)
        try:
            report = self._send(producer, name, batches, attempt)
        except BaseException:
            close_after_failure(producer)
            raise
        producer.close()
        return report

    def _send(
        self, producer: KafkaProducer, name: str, batches: Iterator[pa.RecordBatch], attempt: TaskAttempt
    ) -> TaskReport:
        micro_batch = attempt.require_micro_batch()
        _, marker_topic = self.options.sink_id_and_marker_topic()
        producer.init_transactions()
        with Admin(producer.config) as admin:
            marker = read_marker(admin, name, marker_topic)
        task = Task(lambda: producer, self.options, self.columns)
        first_of_run = marker is None or marker.micro_batch.run_id != micro_batch.run_id
        if marker is not None and marker.covers(micro_batch, name):
            _compare(marker, *count_rows(batches, self.columns), attempt)
            return task.report(attempt, already_written=True, first_of_run=first_of_run)
        producer.begin_transaction()
        task.send_all(batches)
        # A task without rows writes a marker too: the driver finds the last Spark partition by the first gap.
        written = Marker(micro_batch, *task.rows_and_checksum_given())
        producer.send_offsets_to_transaction({(marker_topic, 0): written.offset()}, name)
        producer.commit_transaction()
        return task.report(attempt, first_of_run=first_of_run)

    def commit(self, reports: Sequence[TaskReport], batch_id: int | None) -> None:
        """Raises IllegalStateError where an earlier attempt of the micro-batch had more Spark partitions."""
        if not any(report.first_of_run for report in reports):
            return
        sink_id, marker_topic = self.options.sink_id_and_marker_topic()
        number = len(reports)
        with Admin(ProducerConfig.from_mapping(dict(self.options.producer))) as admin:
            while (marker := read_marker(admin, transactional_id_for(sink_id, number), marker_topic)) is not None:
                if marker.micro_batch.number == batch_id:
                    raise IllegalStateError(
                        f"micro-batch {batch_id} was begun with a partition {number} and replayed with {len(reports)} "
                        "partitions: its rows are in the topic twice. exactly_once needs the same number of partitions "
                        "in every replay of a micro-batch"
                    )
                number += 1

    def abort(self, reports: Sequence[TaskReport], begun: None) -> None:
        """Nothing: each task ends its own transaction."""


def _compare(marker: Marker, rows: int, checksum: int, attempt: TaskAttempt) -> None:
    """Raises IllegalStateError where the replayed rows differ from the written rows."""
    if (rows, checksum) != (marker.rows, marker.checksum):
        raise IllegalStateError(
            f"partition {attempt.partition} of micro-batch {marker.micro_batch.number} was written with {marker.rows} "
            f"rows (checksum {marker.checksum:016x}), and is replayed with {rows} ({checksum:016x}): it was not "
            "written again. exactly_once needs a plan that gives the same rows to the same partition each time; use "
            "deliveryGuarantee 'atomic' for other plans"
        )
