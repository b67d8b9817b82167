"""Files: an OSError becomes a KafkaStorageError with advice, and a file is written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kafkabuf.errors import KafkaStorageError


@contextmanager
def on_disk(verb: str, path: Path) -> Iterator[None]:
    """Raises a KafkaStorageError in place of an OSError."""
    try:
        yield
    except OSError as error:
        raise KafkaStorageError(
            f"cannot {verb} {path}: {error.strerror or error}; check the disk, and the file's owner and mode"
        ) from error


def write_whole(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Replaces the content of `path`. After a crash, `path` has its former content or all of `data`."""
    part = path.with_name(path.name + ".tmp")
    with on_disk("write", path):
        with part.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)


def sync_path(path: Path) -> None:
    """fsync of a file, or of a folder's entries. A missing path needs no fsync."""
    with on_disk("flush", path), suppress(FileNotFoundError):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
