"""The processes of a kill test, found by the variable in their environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.spark.kills.job import ENVIRONMENT, Folder

_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


def processes_of(folder: Folder) -> Iterator[int]:
    """The process ids of all live processes that have the folder in their environment."""
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return (pid for pid in pids if f"{ENVIRONMENT}={folder.root}".encode() in _words(pid, "environ"))


def executors(folder: Folder) -> Iterator[int]:
    """The JVMs of the executors."""
    return (pid for pid in processes_of(folder) if _EXECUTOR in _words(pid, "cmdline"))


def jvm_above(pid: int) -> int | None:
    """The nearest ancestor of a process that is a JVM; None: there is none."""
    while pid > 1:
        status = Path(f"/proc/{pid}/stat").read_text()
        if "(java)" in status:
            return pid
        pid = int(status.rpartition(")")[2].split()[1])
    return None


def _words(pid: int, file: str) -> list[bytes]:
    """The process's environment or command; nothing where it has ended."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0")
    except OSError:
        return []
