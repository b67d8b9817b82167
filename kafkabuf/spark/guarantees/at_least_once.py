"""`at_least_once`: each task sends its rows with the idempotent producer, as Spark's own sink does.

1. The driver checks that it reaches the brokers and that the topics exist (preflight.py). It reads the limits of the
   topic, by which the tasks judge their rows (limits.py).
2. Each task sends its rows. The task ends after the brokers have acknowledged all of them.
3. Commit and abort do nothing: readers see each row as soon as a task has sent the row.

Spark runs a failed task again, and the new attempt sends all rows of the task again. So readers may see rows twice.

This file loads no extension until a row is sent: the driver commits without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kafkabuf.spark.guarantees.delivery import Delivery
from kafkabuf.spark.reports.report import TaskReport
from kafkabuf.spark.worker.place import TaskAttempt

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkabuf.producer import KafkaProducer
    from kafkabuf.spark.worker.limits import TopicLimits


class AtLeastOnce(Delivery["TopicLimits | None"]):
    """See the protocol above."""

    after_abort = "which stay in the topic"

    def begin(self, *, is_stream: bool) -> TopicLimits | None:
        from kafkabuf.spark.guarantees import preflight

        preflight.check(self.options, repeat=not is_stream)
        return preflight.read_limits(self.options) if self.options.driver_check else None

    def send(self, batches: Iterator[pa.RecordBatch], begun: TopicLimits | None) -> TaskReport:
        from kafkabuf.spark.rows.task import Task
        from kafkabuf.spark.worker import workers

        with ExitStack() as lent:

            def open_producer() -> KafkaProducer:
                return lent.enter_context(workers.lent(workers.task_settings(self.options, begun)))

            task = Task(open_producer, self.options, self.columns, begun)
            task.send_all(batches)
            return task.report(TaskAttempt.current())

    def commit(self, reports: Sequence[TaskReport], batch_id: int | None, begun: TopicLimits | None) -> None:
        """Nothing: the tasks have sent their rows."""

    def abort(self, reports: Sequence[TaskReport | None], begun: TopicLimits | None) -> None:
        """Nothing: no broker deletes a row."""
