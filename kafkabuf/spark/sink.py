"""What a write is: its options and its columns. The driver makes an `ArrowSink`, and Spark pickles it to every task.

The guarantee of the write is chosen here, and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from kafkabuf.errors import (
    ConfigError,
    FatalTransactionError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    NetworkError,
    TimeoutError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.spark.options.options import Guarantee, SinkOptions, max_block_seconds
from kafkabuf.spark.options.record_formats import RecordFormats
from kafkabuf.spark.options.topic_formats import TopicFormats
from kafkabuf.spark.reports.report import TaskReport
from kafkabuf.spark.rows.schema import aligned_by, aligned_partitions, as_record, sink_columns, with_names_of
from kafkabuf.spark.worker import heap, whole_rows, worker_socket

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kafkabuf.spark.guarantees.delivery import Delivery

logger = logging.getLogger("kafkabuf.spark")
# The errors of a producer or driver once another has the transactional id, or once the coordinator has aborted. Those
# of them that are a PermissionError mean a missing right.
_TAKEN_OVER = (FatalTransactionError, InvalidProducerEpochError, InvalidTxnStateError)


@dataclass(frozen=True)
class ArrowSink:
    """Checked options, and the columns that make a record; the same for batches and streams."""

    options: SinkOptions
    columns: tuple[str, ...]
    formats: RecordFormats | TopicFormats | None = None
    """How tasks make keys and values of columns."""
    schema: StructType | None = field(default=None, repr=False)
    """The DataFrame's schema, until `with_formats` has compared it with the options of formats."""

    @classmethod
    def of(cls, options: SinkOptions, schema: StructType) -> Self:
        """The sink of a DataFrame with this schema. Raises what `sink_columns` raises."""
        heap.freeze()
        options = with_names_of(schema, options)
        columns = sink_columns(schema, options.topic, options.timestamp_column, options.formats)
        aligned = aligned_partitions(schema)
        if aligned is not None:
            if "key" in columns and aligned_by(schema) != options.key_rule:
                raise ConfigError(
                    "align() does not know how this write makes its keys, and has shuffled the rows by other keys: "
                    "give it the same options keyColumns, keyFormat and keySchema: align(df, partitions, options)"
                )
            options, columns = replace(options, aligned=aligned), (*columns, "partition")
        return cls(options, columns, schema=None if options.formats is None else schema)

    def with_formats(self) -> Self:
        """What the tasks get: their formats have schemas, and the settings of the Schema Registry are gone.

        The tasks keep these settings only where they must ask about the topics that rows name (topic_formats.py).
        Raises what `FormatOptions.resolved` raises.
        """
        options = self.options
        if options.formats is None or self.schema is None:
            return self
        timeout = max_block_seconds(dict(options.producer))
        formats: RecordFormats | TopicFormats
        if options.topic is None and options.formats.registry:
            formats = TopicFormats.resolved(options.formats, self.schema, options.listed_topics, timeout)
        else:
            formats = options.formats.resolved(self.schema, options.topic, timeout)
        made = ("headers",) if formats.has_headers and "headers" not in self.columns else ()
        return replace(
            self, options=replace(options, formats=None), columns=(*self.columns, *made), formats=formats, schema=None
        )

    def delivery(self) -> Delivery[Any]:
        """The guarantee of this write."""
        # Imported late: two of the three load the extensions, and Spark's discovery must not load them.
        match self.options.guarantee:
            case Guarantee.AT_LEAST_ONCE:
                from kafkabuf.spark.guarantees.at_least_once import AtLeastOnce

                return AtLeastOnce(self.options, self.columns)
            case Guarantee.EXACTLY_ONCE:
                from kafkabuf.spark.guarantees.exactly_once import ExactlyOnce

                return ExactlyOnce(self.options, self.columns)
            case Guarantee.ATOMIC:
                from kafkabuf.spark.guarantees.atomic import Atomic

                return Atomic(self.options, self.columns)

    def send(self, batches: Iterator[pa.RecordBatch], begun: Any = None) -> TaskReport:
        """Send every row and wait until all are acknowledged. The first error fails the task.

        `begun` is what `Delivery.begin` gave the driver.
        """
        heap.freeze()
        worker_socket.acknowledge()
        try:
            return self.delivery().send(self._placed(self._records(whole_rows.whole(batches))), begun)
        except KafkaError as error:
            raise explained(error, self.options) from None

    def _records(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        timestamp_column = self.options.timestamp_column
        if self.formats is None:
            return (as_record(batch, timestamp_column) for batch in batches)
        # Imported late: it loads an extension.
        from kafkabuf.spark.rows import encoded_rows

        return encoded_rows.encoded(batches, self.formats, timestamp_column)

    def _placed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self.options.aligned is None:
            return batches
        # Imported late: it loads an extension.
        from kafkabuf.spark.guarantees import preflight
        from kafkabuf.spark.rows import aligned_rows
        from kafkabuf.spark.worker.place import TaskAttempt

        preflight.check_in_task(self.options)
        return aligned_rows.with_partition(batches, self.options.aligned, TaskAttempt.current().partition)

    def commit(self, reports: Sequence[TaskReport], batch_id: int | None, begun: Any) -> None:
        """See `Delivery.commit`."""
        try:
            self.delivery().commit(reports, batch_id, begun)
        except KafkaError as error:
            raise explained(error, self.options) from None


def explained(error: KafkaError, options: SinkOptions) -> KafkaError:
    """The error with notes that say what to do, and without its traceback: Spark prints all of it to the user."""
    logger.debug("failed", exc_info=error)
    for note in _advice(error, options):
        error.add_note(note)
    return error.with_traceback(None)


def _advice(error: KafkaError, options: SinkOptions) -> Iterator[str]:
    if isinstance(error, UnknownTopicOrPartitionError):
        yield "Create the topic, or correct its name."
    elif (
        options.guarantee.is_transactional and isinstance(error, _TAKEN_OVER) and not isinstance(error, PermissionError)
    ):
        yield (
            f"Another writer has taken over sinkId '{options.sink_id}': a second query or write uses it, `kafkabuf "
            "spark abort` ended the transaction, or the transaction took longer than kafka.transaction.timeout.ms. No "
            "row of this attempt is visible. Give each query and write a sinkId of its own, and start this one again."
        )
    elif isinstance(error, TimeoutError | NetworkError):
        servers = dict(options.producer)["bootstrap.servers"]
        yield f"See that Kafka runs at {servers}, can be reached from here, and is not overloaded."
