"""The outcomes of bulk appends for an event loop. Those of records are in _futures.pyx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from kafkabuf.aio._futures import AIORecordFuture, BatchEnds
from kafkabuf.append.offset_range import OffsetRange
from kafkabuf.errors import KafkaError
from kafkabuf.shown import also_unfinished

if TYPE_CHECKING:
    from kafkabuf.append.report import BulkReport, BulkResult, Failure, OnErrors

__all__ = ["AIOBulkReport", "AIORecordFuture"]


class AIOBulkReport:
    """The pending result of send_arrow() or send_many(): a BulkReport whose waiting methods are coroutines."""

    def __init__(self, report: BulkReport, ends: BatchEnds) -> None:
        self.report = report
        self._ends = ends

    @classmethod
    def yet_to_come(cls) -> Self:
        """A report whose fields are set later."""
        report = cls.__new__(cls)
        vars(report).update(report=None, _ends=None)
        return report

    @property
    def rows(self) -> int:
        return self.report.rows

    @property
    def too_large(self) -> tuple[Failure, ...]:
        """As BulkReport.too_large; known without waiting."""
        return self.report.too_large

    def done(self) -> bool:
        """Whether every row has an outcome."""
        return self.report.done()

    async def wait(self) -> None:
        """Wait until every row has an outcome."""
        for portion in self.report.portions:
            while not portion.batch.announced:
                await self._ends.wait_for(portion.batch)

    async def result(self, *, errors: OnErrors = "raise") -> BulkResult:
        """As BulkReport.result: raises the first failure, or returns every outcome with `errors="return"`."""
        await self.wait()
        return self.report.result(0, errors=errors)

    async def exception(self) -> KafkaError | None:
        """As BulkReport.exception."""
        await self.wait()
        return self.report.exception(0)

    async def failures(self) -> tuple[Failure, ...]:
        """As BulkReport.failures."""
        await self.wait()
        return self.report.failures(0)

    async def ranges(self) -> tuple[OffsetRange, ...]:
        """As BulkReport.ranges."""
        await self.wait()
        return self.report.ranges(0)

    @also_unfinished
    def __repr__(self) -> str:
        return f"AIO{self.report!r}"
