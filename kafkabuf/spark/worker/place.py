"""The task attempt that runs here, and its micro-batch: Spark tells both to its Python workers by local properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from pyspark import TaskContext

from kafkabuf.errors import IllegalStateError

# Spark does not document these names: a test checks that they hold.
_BATCH_ID, _QUERY_ID, _RUN_ID = "streaming.sql.batchId", "sql.streaming.queryId", "spark.jobGroup.id"


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of a stream.

    A query keeps its `query_id` when it starts again from its checkpoint. It gets a new `run_id`.
    """

    number: int
    query_id: str
    run_id: str

    @classmethod
    def of_properties(cls, value_of: Callable[[str], str | None]) -> Self | None:
        """The micro-batch of a thread, by the thread's local properties in Spark; None outside of a stream."""
        number, query_id = value_of(_BATCH_ID), value_of(_QUERY_ID)
        if number is None or query_id is None:
            return None
        return cls(int(number), query_id, value_of(_RUN_ID) or "")


@dataclass(frozen=True)
class TaskAttempt:
    """One attempt of a task.

    Outside of a task `partition` and `attempt` are -1. Outside of a stream `micro_batch` is None.

    `attempt` counts the attempts of a task. It starts from 0 again where Spark runs the stage again. `attempt_id` and
    `stage` are unique in the Spark application.
    """

    partition: int
    attempt: int
    micro_batch: MicroBatch | None
    attempt_id: int = -1
    stage: int = -1

    @classmethod
    def current(cls) -> Self:
        """The attempt that this thread runs."""
        context = TaskContext.get()
        if context is None:
            return cls(-1, -1, None)
        micro_batch = MicroBatch.of_properties(context.getLocalProperty)
        return cls(
            context.partitionId(), context.attemptNumber(), micro_batch, context.taskAttemptId(), context.stageId()
        )

    @property
    def write(self) -> str:
        """The `df.write`, or the run of a query, that this task is part of."""
        return f"stage {self.stage}" if self.micro_batch is None else self.micro_batch.run_id

    def require_micro_batch(self) -> MicroBatch:
        """The micro-batch. Raises IllegalStateError where Spark has not told it."""
        if self.micro_batch is None:
            raise IllegalStateError(
                "Spark did not tell this task its micro-batch, so the task cannot write exactly once: use "
                "deliveryGuarantee 'at_least_once', and report the Spark version to kafkabuf"
            )
        return self.micro_batch
