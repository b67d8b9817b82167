"""Files of the data folder: opened without surprises, and written whole or not at all.

An OSError becomes a KafkaStorageError with advice. No function follows a symbolic link, and none waits for the other
end of a FIFO: a path in the data folder is a regular file or a folder, or it is refused. The data folder itself may be
a symbolic link.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from kafkabuf.errors import KafkaStorageError

log = logging.getLogger("kafkabuf.broker")

DELETED = "-delete"
STRAY = "-stray"
# The names of deleted and stray folders begin with this number of characters of the former name. The whole name, with
# an id, stays below the 255 characters that file systems allow.
_KEPT_CHARACTERS = 200
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


@contextmanager
def on_disk(verb: str, path: Path) -> Iterator[None]:
    """Raises a KafkaStorageError in place of an OSError."""
    try:
        yield
    except OSError as error:
        raise KafkaStorageError(
            f"cannot {verb} {path}: {error.strerror or error}; check the disk, and the file's owner and mode"
        ) from error


def kind(path: Path) -> str | None:
    """What lies at `path`: "a file", "a folder", "a symbolic link" ...; None if nothing does."""
    with on_disk("read", path):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return None
    return _KINDS.get(stat.S_IFMT(mode), "a device")


def is_folder(path: Path) -> bool:
    return kind(path) == "a folder"


def open_file(path: Path, flags: int) -> int:
    """Opens a regular file. Raises FileNotFoundError, and KafkaStorageError for everything else."""
    # O_NONBLOCK: to open a FIFO must not wait for a process at its other end.
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with on_disk("open", path):
            descriptor = os.open(path, flags, 0o644)
    except KafkaStorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None
        if (file_kind := kind(path)) not in (None, "a file"):
            raise _not_a_file(path, file_kind) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_file(path, kind(path))
    return descriptor


def _not_a_file(path: Path, file_kind: str | None) -> KafkaStorageError:
    return KafkaStorageError(f"{path} is {file_kind}, a regular file is needed: remove it")


def read_file(path: Path) -> bytes | None:
    """The bytes of a regular file; None if there is no file."""
    try:
        descriptor = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with on_disk("read", path), open(descriptor, "rb") as file:
        return file.read()


def create_file(path: Path) -> int:
    """Creates a file to append to. It takes the place of what lies there, but follows no link."""
    with on_disk("write", path), suppress(FileNotFoundError):
        path.unlink()
    with on_disk("write", path):
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    written = 0
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


def write_whole(path: Path, data: bytes) -> None:
    """Replaces the content of `path`. After a crash, `path` has its former content or all of `data`."""
    part = path.with_name(path.name + ".tmp")
    descriptor = create_file(part)
    try:
        with on_disk("write", path):
            write_all(descriptor, data)
            part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    finally:
        os.close(descriptor)


def append_whole(path: Path, data: bytes, size: int | None = None) -> None:
    """Appends to a file, all of `data` or nothing. `size`: the bytes of the file that count (None: all)."""
    descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        with on_disk("write", path):
            present = os.fstat(descriptor).st_size
            if size is not None and size < present:
                os.ftruncate(descriptor, size)
                present = size
            try:
                write_all(descriptor, data)
            except OSError:
                os.ftruncate(descriptor, present)
                raise
    finally:
        os.close(descriptor)


def truncate_file(path: Path, size: int) -> None:
    with on_disk("truncate", path):
        descriptor = open_file(path, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)


def sync_path(path: Path) -> None:
    """fsync of a file, or of a folder's entries. A missing path needs no fsync."""
    with on_disk("flush", path), suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ---- folders


def make_folder(folder: Path) -> bool:
    """Makes a folder, unless it is there. Returns whether it was made: then it is empty."""
    with on_disk("open", folder):
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.is_dir():
                raise
            return False
    return True


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, in the order of names; empty if there is no such folder."""
    with on_disk("read", folder):
        try:
            with os.scandir(folder) as listing:
                return sorted(listing, key=lambda entry: entry.name)
        except FileNotFoundError:
            return []


def set_aside(path: Path) -> Path:
    """Renames what no log uses, so that no data is lost. Returns the new path. A link itself is renamed."""
    return _rename(path, STRAY)


def mark_deleted(folder: Path) -> Path:
    """Renames a folder that is to be deleted, as Kafka does. A crash amid the deletion leaves a name that no log
    has."""
    return _rename(folder, DELETED)


def _rename(path: Path, suffix: str) -> Path:
    renamed = path.with_name(f"{path.name[:_KEPT_CHARACTERS]}.{uuid4().hex}{suffix}")
    with on_disk("rename", path):
        path.rename(renamed)
    return renamed


def remove_folder(folder: Path, files: Collection[str] = ()) -> None:
    """Removes a folder with its contents. Removes a link in it, never what the link names. `files` are names of files
    that it may have: a folder without others need not be listed, which takes longer than all the rest."""
    with on_disk("delete", folder):
        try:
            if files and is_folder(folder):
                for name in files:
                    with suppress(OSError):
                        os.unlink(f"{folder}/{name}")
            # An empty folder goes even where the process has no descriptor left to list it.
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            _remove_tree(folder)


def _remove_tree(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        # rmtree needs two descriptors, this needs one.
        for name in os.listdir(folder):
            (folder / name).unlink()
        folder.rmdir()
