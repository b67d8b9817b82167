"""Where a write's rows go: made on the driver, pickled to every task, the same for batches and streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkabuf.errors import KafkaError, NetworkError, TimeoutError, UnknownTopicOrPartitionError
from kafkabuf.spark.options import Guarantee, SinkOptions
from kafkabuf.spark.report import TaskReport

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkabuf.spark.atomic import SharedBatch

logger = logging.getLogger("kafkabuf.spark")


@dataclass(frozen=True)
class ArrowSink:
    """Checked options, and the columns that make a record."""

    options: SinkOptions
    columns: tuple[str, ...]

    def send(self, batches: Iterator[pa.RecordBatch], shared: SharedBatch | None = None) -> TaskReport:
        """Send every row and wait until all are acknowledged. Raises the first error, which fails the task.

        `shared` is the driver's transaction, where the guarantee is `atomic`.
        """
        try:
            return self._send(batches, shared)
        except KafkaError as error:
            raise told(error, self.options) from None

    def _send(self, batches: Iterator[pa.RecordBatch], shared: SharedBatch | None) -> TaskReport:
        # Loads the extensions: only where rows are sent, and before the first batch is asked for, while Spark makes it.
        if self.options.guarantee is Guarantee.AT_LEAST_ONCE:
            from kafkabuf.spark import at_least_once

            return at_least_once.send(batches, self.options, self.columns)
        if self.options.guarantee is Guarantee.EXACTLY_ONCE:
            from kafkabuf.spark import exactly_once

            return exactly_once.send(batches, self.options, self.columns)
        from kafkabuf.spark import atomic

        assert shared is not None
        return atomic.send(batches, self.options, self.columns, shared)


def told(error: KafkaError, options: SinkOptions) -> KafkaError:
    """The error, with an end that says what to do, and without our frames: Spark prints it whole, and to a user."""
    logger.debug("failed", exc_info=error)
    for note in _advice(error, options):
        error.add_note(note)
    return error.with_traceback(None)


def _advice(error: KafkaError, options: SinkOptions) -> Iterator[str]:
    if isinstance(error, UnknownTopicOrPartitionError):
        yield "Create the topic, or correct its name."
    elif isinstance(error, TimeoutError | NetworkError):
        servers = dict(options.producer)["bootstrap.servers"]
        yield f"See that Kafka runs at {servers}, can be reached from here, and is not overloaded."
