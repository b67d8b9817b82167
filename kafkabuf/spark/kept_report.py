"""The newest report of this Spark application, from the worker that commits to the user's own process.

Spark commits in a Python worker of the driver's host, a child of the JVM, which the user's process is the parent of (or
its client). Both find the file by the JVM's process id.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from kafkabuf.offset_range import OffsetRange
from kafkabuf.spark.report import WriteReport


def keep(report: WriteReport) -> None:
    """In the worker that commits. Without a JVM above it there is nobody to read it."""
    jvm = _jvm_above(os.getpid())
    if jvm is None:
        return
    place = _place(jvm)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = place.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(asdict(report)))
    fresh.replace(place)


def last_report() -> WriteReport | None:
    """What the newest write or micro-batch of this process's Spark application sent; None before the first.

    Raises RuntimeError where there is no session, or one of Spark Connect, whose driver is elsewhere: it is in the
    driver's log then.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        raise RuntimeError("there is no classic Spark session in this process: the driver's log has the reports")
    place = _place(int(context._jvm.java.lang.ProcessHandle.current().pid()))
    if not place.exists():
        return None
    found = json.loads(place.read_text())
    report = WriteReport(**{**found, "ranges": ()})
    return replace(report, ranges=tuple(OffsetRange(*entry) for entry in found["ranges"]))


def _place(jvm: int) -> Path:
    return Path(tempfile.gettempdir(), f"kafkabuf-{os.getuid()}", f"report-{jvm}.json")


def _jvm_above(pid: int) -> int | None:
    """The nearest ancestor that is a JVM."""
    while pid > 1:
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # The name stands in brackets, and may hold any character.
        name, rest = status[status.index("(") + 1 : status.rindex(")")], status[status.rindex(")") + 2 :]
        if name == "java":
            return pid
        pid = int(rest.split()[1])
    return None
