"""What is damaged in a file is put aside, into a file of its own beside it: `<path>.damaged-<n>`.

    a line of JSON, which says where the bytes belong and what is wrong with them
    the bytes: of a batch as they lay in its memory, or of the end of a batch behind its whole records

The space in the buffer's file is free then. Nobody reads the file that was put aside but the user.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path

from kafkabuf.process.producer_log import producer_log

log = producer_log("kafkabuf.spool")


def put_aside(path: Path, facts: Mapping[str, object], data: bytes) -> Path:
    """Return once the bytes are on the disk, in a new file that only this user may read. Raises OSError."""
    line = json.dumps({**facts, "bytes": len(data)}).encode() + b"\n"
    descriptor, beside = _new_file(path)
    try:
        _write(descriptor, line + data)
        os.fsync(descriptor)
    except BaseException:
        os.unlink(beside)
        raise
    finally:
        os.close(descriptor)
    _sync_folder(path.parent)
    log.error("%s: %s: %d bytes are put aside in %s", path, facts.get("reason"), len(data), beside)
    return beside


def _new_file(path: Path) -> tuple[int, Path]:
    for number in itertools.count(1):
        beside = path.with_name(f"{path.name}.damaged-{number}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(beside, flags, 0o600), beside
        except FileExistsError:
            pass
    raise AssertionError("there are endless numbers")


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
