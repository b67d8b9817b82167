"""The sink under test: kafkabuf's sink, with `faults` in the processes that write or commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kafkabuf.spark import KafkabufDataSource
from kafkabuf.spark.reports.report import RefusedRow, TaskReport
from kafkabuf.spark.writer import StreamWriter


class MortalWriter(StreamWriter):
    def __getstate__(self) -> dict[str, Any]:
        # Imported late: faults loads the extensions, which not every process that imports this module may load.
        from tests.spark.kills import faults

        faults.install()
        return super().__getstate__()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport | RefusedRow:
        from tests.spark.kills import faults

        faults.install()
        return super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        from tests.spark.kills import faults

        faults.install()
        faults.at("before commit")
        super().commit(messages, batchId)
        faults.at("after commit")


class MortalDataSource(KafkabufDataSource):
    @classmethod
    def name(cls) -> str:
        return "kafkabuf_mortal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        writer = super().streamWriter(schema, overwrite)
        assert isinstance(writer, StreamWriter)
        return MortalWriter(writer.sink)
