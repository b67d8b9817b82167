"""The data source: Spark's planner calls it on the driver, before any task runs."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.types import StructType

from kafkabuf.errors import ConfigError
from kafkabuf.spark.options import SinkOptions
from kafkabuf.spark.schema import sink_columns
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.writer import BatchWriter, StreamWriter


class KafkabufDataSource(DataSource):
    """`format("kafkabuf")`: rows become Kafka records; options and columns are those of Spark's own Kafka sink.

    Options: `kafka.bootstrap.servers` (required), any other producer setting as `kafka.<name>`, and `topic`, which
    takes precedence over the column `topic`. `deliveryGuarantee` is at_least_once, exactly_once (streams only) or
    atomic; exactly_once and atomic need a `sinkId`. `onRowError` is fail, skip or dead_letter. See docs/spark.md.

    Columns: `value` (required) and `key`, string or binary; `topic`, string; `partition`, int; `headers`,
    array<struct<key: string, value: binary>>; and `timestamp`, timestamp, which Spark's sink lacks. The sink ignores
    other columns.
    """

    @classmethod
    def name(cls) -> str:
        return "kafkabuf"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
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
        return BatchWriter(ArrowSink(options, sink_columns(schema, options.topic)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Check the options and the schema, once for each micro-batch.

        `overwrite` stands for output mode complete: each micro-batch appends the whole result, as in Spark's own sink.
        """
        options = SinkOptions.parse(self.options)
        if options.write_id is not None:
            raise ConfigError(
                "option 'writeId' is for df.write: the sink knows the micro-batches of a stream by their number. Leave "
                "the option out"
            )
        return StreamWriter(ArrowSink(options, sink_columns(schema, options.topic)))
