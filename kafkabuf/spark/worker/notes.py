"""Small files that the Python workers of one JVM leave for each other: Spark gives them no other common memory.

A worker is a child of its JVM, the driver's or an executor's. Each JVM has a folder, which only this user can read. A
note may be missing at any time (another host, a full disk, a folder that is not ours): then a worker asks the cluster
instead. So no failure here fails a write.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import tempfile
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

logger = logging.getLogger("kafkabuf.spark")
_PROC = Path("/proc")


def put(name: str, note: dict[str, Any]) -> None:
    """Leave a note under a name, in place of an earlier note."""
    folder = folder_of(os.getpid())
    if folder is None:
        return
    unfinished = folder / f"{name}.{os.getpid()}.new"
    try:
        unfinished.write_text(json.dumps(note))
        unfinished.replace(folder / name)
    except OSError as error:
        logger.debug("no note %s: %s", name, error)


def take(name: str) -> dict[str, Any] | None:
    """The note under a name, which is gone then. If several workers take it at the same time, only one gets it."""
    folder = folder_of(os.getpid())
    if folder is None:
        return None
    taken = folder / f"{name}.{os.getpid()}.taken"
    try:
        (folder / name).rename(taken)
        note = json.loads(taken.read_text())
        taken.unlink()
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def find(name: str) -> dict[str, Any] | None:
    """The note under a name, which stays there."""
    folder = folder_of(os.getpid())
    try:
        note = None if folder is None else json.loads((folder / name).read_text())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


@cache
def folder_of(pid: int) -> Path | None:
    """The folder of the JVM that a process is, or lies under; of the process itself where there is no JVM.

    None where the folder cannot be made.
    """
    try:
        root = Path(tempfile.gettempdir(), f"kafkabuf-{os.getuid()}")
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
        # Another user may have made it, to read the notes or to leave false notes.
        if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
            logger.warning("%s does not belong to this user alone: the sink leaves no notes there", root)
            return None
        owner = jvm_above(pid) or pid
        folder = root / f"{owner}-{_started(owner)}"
        if not folder.exists():
            _remove_folders_of_ended_processes(root)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        logger.debug("no folder for notes: %s", error)
        return None
    return folder


def _remove_folders_of_ended_processes(root: Path) -> None:
    for folder in root.iterdir():
        pid, dash, started = folder.name.partition("-")
        if dash and pid.isdigit() and started.isdigit() and _started(int(pid)) != started:
            shutil.rmtree(folder, ignore_errors=True)


def jvm_above(pid: int) -> int | None:
    """The nearest ancestor of a process that is a JVM."""
    while pid > 1:
        name, parent, _ = _status(pid)
        if name == "java":
            return pid
        pid = parent
    return None


def _started(pid: int) -> str:
    """A number for the time at which a process started; "0": unknown. A later process may get its pid."""
    return _status(pid)[2]


def _status(pid: int) -> tuple[str, int, str]:
    """The name of a process, its parent's pid, and a number for its start; "", 0 and "0" where they are unknown."""
    with suppress(OSError, ValueError):
        return _by_proc(pid) if _PROC.exists() else _by_ps(pid)
    return "", 0, "0"


def _by_proc(pid: int) -> tuple[str, int, str]:
    status = (_PROC / str(pid) / "stat").read_text(errors="replace")
    # The name stands in parentheses, and may have any character, parentheses too.
    fields = status[status.rindex(")") + 2 :].split()
    return status[status.index("(") + 1 : status.rindex(")")], int(fields[1]), fields[19]  # in ticks of the kernel


def _by_ps(pid: int) -> tuple[str, int, str]:
    """For macOS, which has no /proc. Raises ValueError where ps knows no such process."""
    import subprocess  # late: on Linux no task needs it

    command = ["ps", "-o", "ppid=,lstart=,comm=", "-p", str(pid)]
    # In another language or zone the same start would be another text.
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    parent, *start, path = text.split(maxsplit=6)
    return os.path.basename(path.strip()), int(parent), str(zlib.crc32(" ".join(start).encode()))
