"""The sink under test: kafkabuf's sink, with `faults` in the processes that write or commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kafkabuf.spark import KafkabufDataSource
from kafkabuf.spark.writer import StreamWriter

if TYPE_CHECKING:  # an earlier version of kafkabuf has not all of these names
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kafkabuf.spark import WriteReport
    from kafkabuf.spark.reports.report import RefusedRow, TaskReport
    from kafkabuf.spark.worker.data_sources import WriterCommitMessage


class MortalWriter(StreamWriter):
    def begin(self) -> None:
        # Imported late: faults loads the extensions, which not every process that imports this module may load.
        from tests.spark.kills import faults

        faults.install()
        super().begin()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport | RefusedRow:
        from tests.spark.kills import faults

        faults.install()
        return super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        from tests.spark.kills import faults

        faults.install()  # an earlier version of kafkabuf does not call `finish`
        super().commit(messages, batchId)

    def finish(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> WriteReport:
        from tests.spark.kills import faults

        faults.install()
        faults.at("before commit")
        report = super().finish(messages, batch_id)
        faults.at("after commit")
        return report


class MortalDataSource(KafkabufDataSource):
    @classmethod
    def name(cls) -> str:
        return "kafkabuf_mortal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return MortalWriter(super().streamWriter(schema, overwrite).sink)
