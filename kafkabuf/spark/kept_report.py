"""The newest report of a Spark application: the Python worker that commits writes a file, the user's process reads it.

Spark commits in a Python worker on the driver's host, which is a child of the driver's JVM. The user's process is the
parent or a client of the same JVM. Both find the file by the process id of the JVM.
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
    """Write the file, in the worker that commits. Without a JVM above this process nobody could read it."""
    jvm = _jvm_above(os.getpid())
    if jvm is None:
        return
    path = _path(jvm)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(asdict(report)))
    unfinished.replace(path)


def last_report() -> WriteReport | None:
    """What the newest write or micro-batch of this process's Spark application has sent; None before the first.

    Raises RuntimeError without a session, and in a session of Spark Connect, whose driver runs elsewhere and logs the
    report.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        raise RuntimeError("there is no classic Spark session in this process: the driver's log has the reports")
    path = _path(int(context._jvm.java.lang.ProcessHandle.current().pid()))
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    report = WriteReport(**{**found, "ranges": ()})
    return replace(report, ranges=tuple(OffsetRange(*entry) for entry in found["ranges"]))


def _path(jvm: int) -> Path:
    return Path(tempfile.gettempdir(), f"kafkabuf-{os.getuid()}", f"report-{jvm}.json")


def _jvm_above(pid: int) -> int | None:
    """The nearest ancestor that is a JVM."""
    while pid > 1:
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # The name stands in parentheses, and may have any character, parentheses too.
        name, rest = status[status.index("(") + 1 : status.rindex(")")], status[status.rindex(")") + 2 :]
        if name == "java":
            return pid
        pid = int(rest.split()[1])
    return None
