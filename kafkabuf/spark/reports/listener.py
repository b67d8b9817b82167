"""What queries have sent, beside Spark's own progress: Spark lets a Python sink add nothing to a progress event.

A `StreamingQueryListener` gets an event after each micro-batch, in the user's process. `ReportListener` finds the
sink's report of the micro-batch (kept_report.py) and keeps totals, which prometheus.py shows.
"""

from __future__ import annotations

import copy
import logging
import threading  # noqa: TID251 (a real lock is compiled, and Spark's discovery of the sink loads no extension)
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from kafkabuf.spark.reports import kept_report
from kafkabuf.spark.reports.report import WriteReport

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

logger = logging.getLogger("kafkabuf.spark")

KEPT_ENDED_QUERIES = 100


@dataclass
class QueryTotals:
    """The sums over the reports of a query since the listener was added. `rows` and `bytes` are by topic.

    `name` is the query's name, or its id without one. `last_commit` is in seconds since 1970. `has_ended`: the query is
    not active; its totals stay until 100 queries have ended after it.
    """

    name: str
    rows: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    micro_batches: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    retries: int = 0
    wait_seconds: float = 0.0
    last_batch: int = -1
    last_commit: float = 0.0
    has_ended: bool = False

    def add(self, report: WriteReport) -> None:
        for entry in report.ranges:
            self.rows[entry.topic] += entry.rows
            self.bytes[entry.topic] += entry.bytes
        self.micro_batches += report.batch != self.last_batch
        self.skipped += report.skipped
        self.dead_lettered += report.dead_lettered
        self.retries += report.retries
        self.wait_seconds += report.wait_seconds
        self.last_batch, self.last_commit = report.batch, report.committed_at


class ReportListener(StreamingQueryListener):
    """Calls `on_report(progress, report)` after each micro-batch, and adds up the reports of each query.

    `spark.streams.addListener(ReportListener(...))` adds the listener. Spark calls it in a thread of its own, some
    moments after the commit. If `on_report` raises, Spark logs the error and the query goes on. A micro-batch that
    wrote nothing through this sink has no call, and one that wrote several times (foreachBatch) has several. Not over
    Spark Connect.
    """

    def __init__(self, on_report: Callable[[StreamingQueryProgress, WriteReport], Any] | None = None) -> None:
        self._on_report = on_report
        self._lock = threading.Lock()
        self._totals: dict[str, QueryTotals] = {}
        self._has_warned = False

    def totals(self) -> dict[str, QueryTotals]:
        """A copy of the totals, by query id."""
        with self._lock:
            return copy.deepcopy(self._totals)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """A query that starts again goes on with its totals."""
        query_id = str(event.id)
        with self._lock:
            totals = self._totals.setdefault(query_id, QueryTotals(event.name or query_id))
            totals.has_ended = False

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        query_id = str(progress.id)
        reports = kept_report.reports_of(query_id, str(progress.runId), progress.batchId)
        if not reports:
            self._warn_if_late(query_id, progress.batchId)
        for report in reports:
            with self._lock:
                totals = self._totals.setdefault(query_id, QueryTotals(progress.name or query_id))
                if report.committed_at <= totals.last_commit:
                    continue  # Spark has sent an event of this micro-batch before
                totals.add(report)
            if self._on_report is not None:
                self._on_report(progress, report)

    def _warn_if_late(self, query_id: str, batch: int) -> None:
        """Warn once: a query that is too fast for its listener is so in many micro-batches."""
        if self._has_warned or not kept_report.is_dropped(query_id, batch):
            return
        self._has_warned = True
        logger.warning(
            "the listener of query %s is more than %d micro-batches late: on_report gets no report of micro-batch %d, "
            "and the totals lack it. See that no listener is slow",
            query_id,
            kept_report.KEPT_REPORTS,
            batch,
        )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing: an idle query writes nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        query_id = str(event.id)
        with self._lock:
            totals = self._totals.pop(query_id, None)
            if totals is None:
                return
            totals.has_ended = True
            self._totals[query_id] = totals  # behind those that ended before
            ended = [query for query, each in self._totals.items() if each.has_ended]
            for oldest in ended[:-KEPT_ENDED_QUERIES]:
                del self._totals[oldest]
