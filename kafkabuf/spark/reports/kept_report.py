"""The reports of a Spark application: the process that commits writes files, the user's process reads them.

Spark commits in Python workers on the driver's host, which are children of the driver's JVM. The user's process is the
parent or a client of the same JVM, and commits by itself in map_in_arrow.py. Both find the files in the JVM's folder
(notes.py):

    reports/query-QUERY/BATCH.TIME.json    a micro-batch
    reports/write-WRITE/-1.TIME.json       a df.write, with its writeId

The number of files is bounded: the newest reports of a query or write stay, of the queries and writes that reported
last. The folder goes when the application has ended and another begins.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kafkabuf.append.offset_range import OffsetRange
from kafkabuf.spark.reports.report import WriteReport
from kafkabuf.spark.worker import notes

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

KEPT_REPORTS = 32
"""Reports of one query or write. Progress events come later than the reports, but by fewer micro-batches."""
KEPT_NAMES = 256
"""Queries and writes of one application."""

logger = logging.getLogger("kafkabuf.spark")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def keep(report: WriteReport) -> None:
    """Write a file, in the process that commits. Without a JVM nobody could read the file."""
    try:
        # The user's process may lie under another JVM than that of its session: an IDE, or a scheduler's agent.
        jvm = _jvm_of_session() or notes.jvm_above(os.getpid())
        application = None if jvm is None else _of_application(jvm)
        if application is not None:
            _write(report, application)
    except Exception as error:
        # The rows are committed: a full disk, or a JVM that ends now, must not fail their write.
        logger.warning("last_report() will miss a report, because its file cannot be written: %s", error)


def last_report(query: StreamingQuery | str | None = None, *, write_id: str | None = None) -> WriteReport | None:
    """What the newest write or micro-batch of this process's Spark application has sent; None before the first.

    Args:
        query: the newest micro-batch of this query, given by itself, by its id, or by its name while it is active.
        write_id: the `df.write` with this option `writeId`.

    Raises RuntimeError without a session, and in a session of Spark Connect, whose driver runs elsewhere and logs the
    reports. Raises ValueError for a name that no active query has.
    """
    if query is not None and write_id is not None:
        raise ValueError("a micro-batch has no writeId: give the query, or write_id")
    application = _of_session()
    if query is not None:
        files = _files(application / _of_query(_query_id(query)), "*.json")
    elif write_id is not None:
        files = _files(application / _of_write(write_id), "*.json")
    else:
        files = _files(application, "*/*.json")
    reports = map(_read, reversed(files))
    return next((report for report in reports if report is not None), None)


def reports_of(query_id: str, run_id: str, batch: int) -> list[WriteReport]:
    """What a micro-batch has sent, in the order of the commits. foreachBatch may have written several times.

    Raises what `last_report` raises.
    """
    folder = _of_session() / _of_query(query_id)
    reports = [_read(path) for path in _files(folder, f"{batch}.*.json")]
    return [report for report in reports if report is not None and report.run_id == run_id]


def is_dropped(query_id: str, batch: int) -> bool:
    """Whether a micro-batch is so old that its reports, if it had any, have been deleted."""
    kept = _files(_of_session() / _of_query(query_id), "*.json")
    return len(kept) >= KEPT_REPORTS and batch < min(int(path.name.split(".")[0]) for path in kept)


# ---- files -----------------------------------------------------------------------------------------------------------


def _of_application(jvm: int) -> Path | None:
    """The folder of an application's reports; None where it cannot be made."""
    folder = notes.folder_of(jvm)
    return None if folder is None else folder / "reports"


def _of_query(query_id: str) -> str:
    return f"query-{query_id}"


def _of_write(write_id: str | None) -> str:
    return f"write-{write_id or ''}"


def _write(report: WriteReport, application: Path) -> None:
    text = json.dumps(asdict(report))
    if report.query_id is not None:
        _add(application, _of_query(report.query_id), report.batch, text)
    if report.query_id is None or report.write_id is not None:
        _add(application, _of_write(report.write_id), report.batch, text)


def _add(application: Path, name: str, batch: int, text: str) -> None:
    folder = application / name
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(application.iterdir(), key=_modified)[:-KEPT_NAMES]:
            shutil.rmtree(old, ignore_errors=True)
    from kafkabuf.process._time import time_ns  # late: Spark's discovery loads no extension

    # The user's process finds whole files only.
    unfinished = folder / f"{os.getpid()}.unfinished"
    unfinished.write_text(text)
    unfinished.replace(folder / f"{batch}.{time_ns()}.json")
    for old in sorted(folder.glob("*.json"), key=_time)[:-KEPT_REPORTS]:
        old.unlink(missing_ok=True)


def _files(folder: Path, pattern: str) -> list[Path]:
    """The oldest first. No write has left a report under a name that no folder can have."""
    try:
        return sorted(folder.glob(pattern), key=_time)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return []
        raise


def _read(path: Path) -> WriteReport | None:
    """None where a worker has deleted the file meanwhile, or the file is damaged."""
    try:
        fields = json.loads(path.read_text())
        report = WriteReport(**{**fields, "ranges": ()})
        return replace(report, ranges=tuple(OffsetRange(*entry) for entry in fields["ranges"]))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        logger.debug("report %s is damaged, and is left out: %r", path, error)
        return None


def _time(path: Path) -> int:
    return int(path.name.split(".")[1])


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


# ---- the query and the JVM -------------------------------------------------------------------------------------------


def _query_id(query: StreamingQuery | str) -> str:
    if not isinstance(query, str):
        return str(getattr(query, "id", query))
    if _UUID.fullmatch(query):
        return query
    from pyspark.sql import SparkSession

    for active in SparkSession.active().streams.active:
        if active.name == query:
            return str(active.id)
    raise ValueError(
        f"no active query is called {query!r}: give the StreamingQuery, or its id, which also finds a query that has "
        "ended"
    )


def _of_session() -> Path:
    """The folder of the reports of this process's session."""
    jvm = _jvm_of_session()
    if jvm is None:
        raise RuntimeError("there is no classic Spark session in this process: the driver's log has the reports")
    application = _of_application(jvm)
    if application is None:
        raise RuntimeError("the reports have no folder on this host: the driver's log has them, and the reason")
    return application


def _jvm_of_session() -> int | None:
    """The pid of the JVM that this process's classic session has; None without such a session."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        return None
    return int(context._jvm.java.lang.ProcessHandle.current().pid())
