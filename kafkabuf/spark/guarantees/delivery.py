"""How the sink keeps a guarantee: one subclass of `Delivery` for each value of `deliveryGuarantee`, in its own file.

`ArrowSink.delivery` chooses the subclass. Spark, or map_in_arrow.py, then makes these calls, most of them in different
processes:

    begin    driver   before Spark makes the tasks; its result goes to every task
    send     task     once for each task attempt
    commit   driver   after every task has succeeded
    abort    driver   after a task or the commit has failed

Each process makes its own `Delivery`. So a `Delivery` keeps no state: the result of `begin` and the reports of the
tasks carry everything from one call to the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkabuf.spark.options.options import SinkOptions
    from kafkabuf.spark.reports.report import TaskReport

Begun = TypeVar("Begun")


class Delivery(ABC, Generic[Begun]):
    """One guarantee. `Begun` is the type of what the driver gives its tasks; Spark pickles it."""

    after_abort: ClassVar[str]
    """What holds for the rows that a failed write has sent, as the end of a sentence."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    @abstractmethod
    def begin(self, *, is_stream: bool) -> Begun:
        """Prepare a write, or a micro-batch of a stream. Raises KafkaError where no task could write."""

    @abstractmethod
    def send(self, batches: Iterator[pa.RecordBatch], begun: Begun) -> TaskReport:
        """Send every row and wait until the brokers have acknowledged all of them. The first error fails the task."""

    @abstractmethod
    def commit(self, reports: Sequence[TaskReport], batch_id: int | None, begun: Begun | None) -> None:
        """Finish the write. `batch_id` is the number of the micro-batch, None for `df.write`.

        `begun` is None where Spark has made the writer again: in streams.
        """

    @abstractmethod
    def abort(self, reports: Sequence[TaskReport | None], begun: Begun | None) -> None:
        """Take back what can be taken back. `reports` has None for each task that has not succeeded.

        `reports` is empty where the driver does not know how many tasks there were (map_in_arrow.py).
        `begun` is None where Spark has made the writer again: in streams.
        """
