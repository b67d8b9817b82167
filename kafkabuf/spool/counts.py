"""What a producer's file holds and has held, in numbers: the metrics of the group producer-file-metrics."""

from __future__ import annotations

import weakref

from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.spool.recovered import Recovered


class FileCounts:
    """The counts of one producer's file. Any thread may call it.

    It does not keep the accumulator, whose settings may lead to the producer: a reporter may keep the counts.
    """

    def __init__(self, recovered: Recovered, accumulator: RecordAccumulator) -> None:
        self._recovered = recovered
        self._accumulator = weakref.ref(accumulator)
        self._final: dict[str, float] | None = None  # the counts of `recovered`, once they change no more

    def __call__(self) -> dict[str, float]:
        accumulator = self._accumulator()
        batches = [] if accumulator is None else accumulator.incomplete_batches()
        return {
            "waiting-records": sum(batch.count for batch in batches),
            "waiting-bytes": sum(batch.size for batch in batches),
            **(self._final or self._of_recovered()),
        }

    def _of_recovered(self) -> dict[str, float]:
        """Of each recovered batch its outcome is asked for: there may be as many as the file has slabs."""
        recovered = self._recovered
        pending = recovered.pending
        counts: dict[str, float] = {
            "recovered-record-total": recovered.records.total(),
            "recovered-byte-total": recovered.bytes,
            "recovered-acknowledged-total": recovered.acknowledged.total(),
            "recovered-delivered-total": recovered.delivered.total(),
            "recovered-unproven-total": recovered.unproven.total(),
            "recovered-kept-total": recovered.kept.total(),
            "recovered-failed-total": recovered.failed.total(),
            "recovered-uncommitted-total": recovered.uncommitted.total(),
            "recovered-damaged-total": len(recovered.damaged),
            "recovered-pending": pending,
        }
        if not pending:
            self._final = counts
        return counts
