"""Which part of which micro-batch a task writes: Spark tells its Python workers by local properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pyspark import TaskContext

from kafkabuf.errors import IllegalStateError

# Undocumented, and so held by a test.
_BATCH_ID, _QUERY_ID, _RUN_ID = "streaming.sql.batchId", "sql.streaming.queryId", "spark.jobGroup.id"


@dataclass(frozen=True)
class Batch:
    """A micro-batch. `query_id` stays when a query is started again from its checkpoint, `run_id` does not."""

    number: int
    query_id: str
    run_id: str


@dataclass(frozen=True)
class Place:
    """A task attempt: -1 outside of one. `batch` is None for what is no stream.

    `attempt` counts those of a task, but from 0 again where Spark runs the stage again; `attempt_id` is another for
    every attempt of the application.
    """

    partition: int
    attempt: int
    batch: Batch | None
    attempt_id: int = -1

    @classmethod
    def here(cls) -> Self:
        """The attempt that this thread runs."""
        context = TaskContext.get()
        if context is None:
            return cls(-1, -1, None)
        number = context.getLocalProperty(_BATCH_ID)
        query_id = context.getLocalProperty(_QUERY_ID)
        batch = None
        if number is not None and query_id is not None:
            batch = Batch(int(number), query_id, context.getLocalProperty(_RUN_ID) or "")
        return cls(context.partitionId(), context.attemptNumber(), batch, context.taskAttemptId())

    def stream_batch(self) -> Batch:
        """The micro-batch, in the tasks of a stream."""
        if self.batch is None:
            raise IllegalStateError(
                "Spark did not tell this task its micro-batch, without which nothing can be written exactly once: "
                "use deliveryGuarantee 'at_least_once', and tell us of the Spark version"
            )
        return self.batch
