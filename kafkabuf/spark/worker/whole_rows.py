"""Tells whether a Python worker has got all rows of its task.

The JVM may fail in the middle of a task's rows: a step before the sink raises an error, Spark kills the attempt, or the
JVM itself is killed. Then the JVM only closes the connection. It closes it between two Arrow batches as a rule, and
Arrow takes that for the end of the rows. A task that committed now would commit a part of its rows.

Behind the last row the JVM writes a mark, which PySpark's worker reads when the task has ended. So a task looks at the
next bytes and leaves them there: the mark's, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.serializers import SpecialLengths

from kafkabuf.errors import IllegalStateError
from kafkabuf.spark.worker.worker_socket import task_input

if TYPE_CHECKING:
    import pyarrow as pa

_END = SpecialLengths.END_OF_STREAM.to_bytes(4, "big", signed=True)


def whole(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches. Raises IllegalStateError behind the last one if it is not the task's last."""
    yield from batches
    if has_ended() is False:
        raise IllegalStateError(
            "Spark has ended this task in the middle of its rows, so the task does not commit them: an earlier step of "
            "the task failed, or Spark or the cluster ended it. Spark's own error says why"
        )


def has_ended() -> bool | None:
    """Whether the rows have ended with the mark, once Arrow has ended. None: this worker is not like PySpark's own."""
    infile = task_input()
    if infile is None:
        return True if TaskContext.get() is None else None  # outside of a task no JVM sends the rows
    if not hasattr(infile, "peek"):
        return None
    following = bytes(infile.peek(len(_END))[: len(_END)])  # fewer bytes where the mark is still on its way
    return following != b"" and _END.startswith(following)
