"""The data source: what Spark's planner calls, on the driver, before any task runs."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.types import StructType

from kafkabuf.errors import ConfigError
from kafkabuf.spark.options import Guarantee, SinkOptions
from kafkabuf.spark.schema import sink_columns
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.writer import BatchWriter, StreamWriter


class KafkabufDataSource(DataSource):
    """`format("kafkabuf")`: rows become Kafka records; options and columns are those of Spark's own Kafka sink.

    Options: `kafka.bootstrap.servers` (required), any other producer setting as `kafka.<name>`, and `topic`, which
    takes precedence over the column of that name. `deliveryGuarantee` is at_least_once, exactly_once (streams) or
    atomic, the latter two with a `sinkId`; `onRowError` is fail, skip or dead_letter. See docs/spark.md.

    Columns: `value` (required) and `key`, string or binary; `topic`, string; `partition`, int; `headers`,
    array<struct<key: string, value: binary>>; and `timestamp`, timestamp, which Spark's sink lacks. Others are ignored.
    """

    @classmethod
    def name(cls) -> str:
        return "kafkabuf"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Check the mode, the options and the schema. Raises ValueError or ConfigError saying what to change."""
        if overwrite:
            raise ValueError(
                "mode 'overwrite' cannot be had: a topic is only ever appended to. Use .mode('append'); to start "
                "with an empty topic, create or truncate it with Kafka's own tools first"
            )
        options = SinkOptions.parse(self.options)
        if options.guarantee is Guarantee.EXACTLY_ONCE:
            raise ConfigError(
                "deliveryGuarantee 'exactly_once' is for streams, whose batches have numbers by which a repetition is "
                "known: use 'atomic' for df.write"
            )
        return BatchWriter(ArrowSink(options, sink_columns(schema, options.topic)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Check the options and the schema, once for each micro-batch. `overwrite` is output mode complete: each
        micro-batch appends the whole result, as Spark's own sink does."""
        options = SinkOptions.parse(self.options)
        return StreamWriter(ArrowSink(options, sink_columns(schema, options.topic)))
