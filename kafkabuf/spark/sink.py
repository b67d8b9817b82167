"""Where a write's rows go: made on the driver, pickled to every task, the same for batches and streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkabuf.spark.options import SinkOptions
from kafkabuf.spark.report import TaskReport

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ArrowSink:
    """Checked options, and the columns that make a record."""

    options: SinkOptions
    columns: tuple[str, ...]

    def send(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Send every row and wait until all are acknowledged. Raises the first error, which fails the task."""
        # Loads the extensions: only where rows are sent, and before the first batch is asked for, while Spark makes it.
        from kafkabuf.spark import task

        return task.send(batches, self.options, self.columns)
