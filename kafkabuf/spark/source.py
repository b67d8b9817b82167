"""The data source: Spark's planner calls it on the driver, before any task runs. So does map_in_arrow.py."""

from __future__ import annotations

import functools
import logging
from typing import NoReturn

from pyspark.sql.types import StructType

from kafkabuf.errors import ConfigError
from kafkabuf.spark.options import option_names
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.rows.schema import ignored_for_case, ignored_timestamp, left_out
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker.data_sources import DataSource
from kafkabuf.spark.writer import BatchWriter, StreamWriter

logger = logging.getLogger("kafkabuf.spark")
_READS_NOTHING = "format 'kafkabuf' only writes: read the topic with Spark's own format 'kafka'"


class KafkabufDataSource(DataSource):
    """`format("kafkabuf")`: rows become Kafka records; options and columns are those of Spark's own Kafka sink.

    Options: `kafka.bootstrap.servers` (required), any other producer setting as `kafka.<name>`, and `topic`, which
    takes precedence over the column `topic`. `deliveryGuarantee` is at_least_once, exactly_once (streams only) or
    atomic; exactly_once and atomic need a `sinkId`. `onRowError` is fail, skip or dead_letter. `valueFormat` and
    `keyFormat` encode columns of any type. See docs/spark.md.

    Columns: `value` (required) and `key`, string or binary; `topic`, string; `partition`, int; `headers`,
    array<struct<key: string, value: binary>>; and `timestamp`, timestamp, which Spark's sink lacks (`timestampColumn`
    names another column). The sink ignores other columns.
    """

    @classmethod
    def name(cls) -> str:
        return "kafkabuf"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Check the mode, the options and the schema. A ValueError or ConfigError says what to change."""
        if overwrite:
            raise ValueError(
                "mode 'overwrite' is not supported: Kafka only appends to a topic. Use .mode('append'); to start with "
                "an empty topic, create or truncate it with Kafka's own tools first"
            )
        options = SinkOptions.parse(self.options)
        if options.guarantee.needs_a_stream:
            raise ConfigError(
                f"deliveryGuarantee '{options.guarantee}' is for streams: it knows a repeated micro-batch by its "
                "number, and df.write has no number. Use 'atomic' for df.write"
            )
        return BatchWriter(self._sink(options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Check the options and the schema, once for each micro-batch.

        `overwrite` stands for output mode complete: each micro-batch appends the whole result, as in Spark's own sink.
        """
        options = SinkOptions.parse(self.options)
        if options.write_id is not None:
            raise ConfigError(
                "option 'writeId' is for df.write: the sink knows the micro-batches of a stream by their number. Leave "
                "the option out"
            )
        return StreamWriter(self._sink(options, schema))

    def schema(self) -> NoReturn:
        """Spark asks for it to read, and to create a table or a view whose columns are not named."""
        raise ConfigError(
            f"{_READS_NOTHING}. In SQL name the columns: CREATE TEMPORARY VIEW name (key STRING, value STRING) USING "
            "kafkabuf OPTIONS (...)"
        )

    def reader(self, schema: StructType) -> NoReturn:
        raise ConfigError(_READS_NOTHING)

    def _sink(self, options: SinkOptions, schema: StructType) -> ArrowSink:
        sink = ArrowSink.of(options, schema)
        options = sink.options
        if names := option_names.ignored(self.options):
            _warn_once(f"the sink ignores options of Spark's Kafka source: {', '.join(names)}")
        if text := ignored_timestamp(schema, options.timestamp_column):
            _warn_once(text)
        if text := ignored_for_case(schema, options.topic, options.formats):
            _warn_once(text)
        if text := left_out(schema, options.topic, options.timestamp_column, options.formats):
            _warn_once(text)
        return sink


@functools.lru_cache
def _warn_once(text: str) -> None:
    """Log a warning once in this Python worker: Spark makes a writer for each micro-batch."""
    logger.warning(text)
