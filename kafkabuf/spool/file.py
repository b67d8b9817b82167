"""The file of a buffer that outlives its process: what lies where, who may open it, and its lock.

    header      a page: what the file is, for whom it was made, which process has it, and the note of a commit
                (commits.py)
    topics      StoredTopic, 1,024 entries
    partitions  StoredPartition, 16,384 entries
    batches     StoredBatch, an entry for each KiB of the arena, or for each slab if these are smaller; some for parts
    arena       buffer.memory bytes, as BufferPool cuts them
    split       StoredSplit
    scratch     where a codec or a split works, for the Sender and for the compression thread

Each part begins at a page. _stored.pxd has the entries, and the order in which they are written. The numbers are those
of the machine: the header says their order, and a file of another machine is refused.

All bytes of the file exist from the beginning (posix_fallocate). A full disk is an error when the file is made, and
never a SIGBUS in the middle of a send(). One process has the file at a time, under flock(2), until it closes it or
ends. The lock has a descriptor of its own, which a forked child closes: it would keep the lock of a parent that has
ended. The child has the memory, too, and objects that lie in it: it maps the file privately, so that none of its stores
reaches the file.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import stat
import struct
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self
from weakref import WeakSet

from kafkabuf.batches._stored import (
    FOR_PARTS,
    SIZE_OF_BATCH,
    SIZE_OF_PARTITION,
    SIZE_OF_SPLIT,
    SIZE_OF_TOPIC,
    StoredTables,
)
from kafkabuf.batches.codec import scratch_size
from kafkabuf.errors import ConfigError
from kafkabuf.spool._private import map_privately

MAGIC = b"kafkabuf spool\n\x00"
VERSION = 1
TOPICS, PARTITIONS = 1_024, 16_384
_PAGE = 4_096
BYTE_ORDER = 0x01020304
# magic, byte order, version, sizes of an entry of each table, bytes of the arena, bytes of a slab, CRC of all that
HEADER = struct.Struct("=16sIIIIIqqI")
_CRC = struct.Struct("=I")
OWNER = struct.Struct("=i64s")  # behind it: the process that has the file, and the boot of its machine
COMMIT_AT = 512  # behind that, up to the end of the page: the note of a commit
# Behind it: the producer id under which its process sends, the cluster that gave the id, and the CRC of both.
_IDENTITY = struct.Struct("=q256s")
_IDENTITY_AT = HEADER.size + OWNER.size
# File systems over a network: a lock or a mapping there does not hold for the other machines.
_REMOTE = frozenset("9p afs ceph cifs glusterfs lustre nfs nfs4 smb2 smb3 smbfs".split())


_files: WeakSet[SpoolFile] = WeakSet()


def _leave_to_the_parent() -> None:
    for file in list(_files):
        file.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_the_parent)


class Layout(NamedTuple):
    """Where the parts of a file lie, in bytes from its beginning."""

    total: int  # bytes of the arena
    slab_size: int

    @property
    def batches(self) -> int:
        return max(self.total // 1024, self.total // self.slab_size) + FOR_PARTS

    @property
    def topics_at(self) -> int:
        return _PAGE

    @property
    def partitions_at(self) -> int:
        return _page_after(self.topics_at + TOPICS * SIZE_OF_TOPIC)

    @property
    def batches_at(self) -> int:
        return _page_after(self.partitions_at + PARTITIONS * SIZE_OF_PARTITION)

    @property
    def arena_at(self) -> int:
        return _page_after(self.batches_at + self.batches * SIZE_OF_BATCH)

    @property
    def split_at(self) -> int:
        return _page_after(self.arena_at + self.total)

    @property
    def scratch_at(self) -> int:
        return _page_after(self.split_at + SIZE_OF_SPLIT)

    @property
    def size(self) -> int:
        return self.scratch_at + 2 * _page_after(scratch_size(self.slab_size))

    def header(self) -> bytes:
        sizes = SIZE_OF_TOPIC, SIZE_OF_PARTITION, SIZE_OF_BATCH
        header = HEADER.pack(MAGIC, BYTE_ORDER, VERSION, *sizes, self.total, self.slab_size, 0)[: -_CRC.size]
        return header + _CRC.pack(zlib.crc32(header))


def layout_in(header: bytes, *, otherwise: str, use: str) -> Layout:
    """The layout that a header names. The caller compares the header with `Layout.header()`: it may be damaged.

    Raises ValueError: why this kafkabuf does not read the file. `otherwise` is the advice for a foreign file, and `use`
    what the user wants to do with the file, and can do elsewhere.
    """
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        raise ValueError(f"is a file of another program: {otherwise}")
    _, byte_order, version, *sizes, total, slab_size, _ = HEADER.unpack(header)
    if byte_order != BYTE_ORDER:
        raise ValueError(f"was made on a machine with another byte order: {use} it there")
    if version != VERSION or sizes != [SIZE_OF_TOPIC, SIZE_OF_PARTITION, SIZE_OF_BATCH]:
        raise ValueError(
            f"has format {version}, and this kafkabuf reads format {VERSION}: {use} it with the kafkabuf that has made "
            "it"
        )
    if not 1 <= slab_size <= total:
        raise ValueError(f"is damaged: its header names {total} bytes in slabs of {slab_size}")
    return Layout(total, slab_size)


def identity_in(page: bytes) -> tuple[int, str]:
    """(producer id, cluster id) of a header's page; (-1, "") for none, or if a kill cut the note of them off."""
    stored = page[_IDENTITY_AT : _IDENTITY_AT + _IDENTITY.size + _CRC.size]
    identity = stored[: _IDENTITY.size]
    if not any(stored) or _CRC.unpack(stored[_IDENTITY.size :])[0] != zlib.crc32(identity):
        return -1, ""
    producer_id, cluster_id = _IDENTITY.unpack(identity)
    return producer_id, cluster_id.rstrip(b"\x00").decode("utf-8", "replace")


class SpoolFile:
    """An open file, which no other process has. `arena`, `tables` and the place of the `commit` lie in it.

    Raises ConfigError, which says what to do: for a path that others may change, a file that is no file of ours or
    holds records in another layout, a full disk, and a file that a living process has.
    """

    def __init__(self, path: str | os.PathLike[str], layout: Layout) -> None:
        self.path = Path(path).absolute()
        self.layout = layout
        _require_private_folder(self.path)
        self._descriptor = _opened(self.path)
        _files.add(self)
        try:
            _lock(self._descriptor, self.path)
            _require_ours(self._descriptor, self.path)
            if self._is_blank():
                self._make()
            elif (layout := self._layout_in_file()) != self.layout:
                self._require_empty(layout)
                self._make()
            self._map(self.layout)
        except BaseException:
            self.close()
            raise

    def _is_blank(self) -> bool:
        """Whether the file holds nothing: it is empty, or its maker was killed before the header was written."""
        return not any(os.pread(self._descriptor, HEADER.size, 0))

    def _make(self) -> None:
        os.ftruncate(self._descriptor, 0)
        try:
            if shutil.disk_usage(self.path.parent).free < self.layout.size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.posix_fallocate(self._descriptor, 0, self.layout.size)
        except OSError as error:
            os.ftruncate(self._descriptor, 0)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise ConfigError(
                f"kafkabuf.buffer.path: {self.path} needs {self.layout.size} bytes for a buffer.memory of "
                f"{self.layout.total}, and the disk has no room for them: {error.strerror}. Free disk space, or lower "
                "buffer.memory"
            ) from None
        os.pwrite(self._descriptor, self.layout.header(), 0)

    def _layout_in_file(self) -> Layout:
        header = os.pread(self._descriptor, HEADER.size, 0)
        path = f"kafkabuf.buffer.path: {self.path}"
        try:
            layout = layout_in(header, otherwise="name a file that does not exist yet", use="drain")
        except ValueError as error:
            raise ConfigError(f"{path} {error}") from None
        if header != layout.header():
            raise ConfigError(
                f"{path} has a damaged header: name another file, and keep this one to have its records read by hand"
            )
        if os.fstat(self._descriptor).st_size != layout.size:
            raise ConfigError(f"{path} is cut short: it has not the {layout.size} bytes that it was made with")
        return layout

    def _require_empty(self, layout: Layout) -> None:
        """A file of other settings may be made anew: it holds no records, and tells of no commit."""
        self._map(layout)
        if self.tables.live_count or self.commit[0]:
            held = f"{self.tables.live_count} batches" if self.tables.live_count else "the note of a commit"
            raise ConfigError(
                f"kafkabuf.buffer.path: {self.path} holds {held}, and was made with "
                f"buffer.memory={layout.total} and batch.size={layout.slab_size}, not {self.layout.total} and "
                f"{self.layout.slab_size}: open it with these settings, deliver them with `kafkabuf spool drain`, or "
                "name another file"
            )

    def _map(self, layout: Layout) -> None:
        mapped = self._opened_to_map()
        try:
            self._mapping = mmap.mmap(mapped, layout.size)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise ConfigError(
                f"kafkabuf.buffer.path: {self.path} needs {layout.size} bytes of this process's addresses, and the "
                f"system gives it no more: {error.strerror}. Raise its limit (`ulimit -v`), or lower buffer.memory"
            ) from None
        finally:
            os.close(mapped)
        self._mapping[HEADER.size : HEADER.size + OWNER.size] = OWNER.pack(os.getpid(), boot())
        self.producer_id, self.cluster_id = identity_in(self._mapping[:_PAGE])
        view = memoryview(self._mapping)
        self.commit = view[COMMIT_AT:_PAGE]
        self.arena = view[layout.arena_at : layout.arena_at + layout.total]
        self.tables = StoredTables(
            view[layout.topics_at : layout.topics_at + TOPICS * SIZE_OF_TOPIC],
            view[layout.partitions_at : layout.partitions_at + PARTITIONS * SIZE_OF_PARTITION],
            view[layout.batches_at : layout.batches_at + layout.batches * SIZE_OF_BATCH],
            view[layout.split_at : layout.split_at + SIZE_OF_SPLIT],
            self.arena,
            view[layout.scratch_at :],
            view,
        )

    def note_identity(self, producer_id: int, cluster_id: str) -> None:
        """From now on this process sends under the id, which this cluster has given. Nothing was sent under it yet."""
        identity = _IDENTITY.pack(producer_id, cluster_id.encode())
        self._mapping[_IDENTITY_AT : _IDENTITY_AT + _IDENTITY.size + _CRC.size] = identity + _CRC.pack(
            zlib.crc32(identity)
        )
        self.producer_id, self.cluster_id = identity_in(self._mapping[:_PAGE])

    def _opened_to_map(self) -> int:
        """Another descriptor of the file: a mapping keeps what it was made with open, and with that a lock."""
        opened = _opened(self.path)
        if not os.path.samestat(os.fstat(opened), os.fstat(self._descriptor)):
            os.close(opened)
            raise ConfigError(f"kafkabuf.buffer.path: somebody has replaced {self.path}: open it again")
        return opened

    def forget_pages(self) -> None:
        """Let go of the pages that were touched: this process holds no memory of the file until its next use."""
        self._mapping.madvise(mmap.MADV_DONTNEED)

    def sync(self) -> None:
        """Return once all that was stored before is on the disk; at once if the file is closed. Raises OSError.

        The system knows which pages of the mapping were written to: the size of the file does not matter.
        """
        if self._descriptor < 0:
            return
        if sys.platform == "linux":
            os.fdatasync(self._descriptor)  # other threads run meanwhile, unlike in msync() of Python's mmap
        else:
            self._mapping.flush()
            os.fsync(self._descriptor)

    def leave_to_parent(self) -> None:
        """In a forked child: what this process stores does not reach the file, and the lock is the parent's alone."""
        if self._descriptor >= 0 and hasattr(self, "_mapping"):
            with suppress(OSError, ConfigError):  # nobody can be told
                mapped = self._opened_to_map()
                try:
                    map_privately(self._mapping, mapped)
                finally:
                    os.close(mapped)
        self.close()

    def close(self) -> None:
        """Let go of the lock. The memory stays mapped while somebody has a view of it. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _page_after(at: int) -> int:
    return -(-at // _PAGE) * _PAGE


def boot() -> bytes:
    """Which boot of the machine this is; b"" where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""


def _require_private_folder(path: Path) -> None:
    """No other user can put a file or a link of his own into the place, and the file system keeps locks."""
    folder = path.parent
    try:
        status = folder.stat()
    except OSError as error:
        raise ConfigError(
            f"kafkabuf.buffer.path: {path}: there is no folder {folder} that this user may read ({error.strerror}): "
            "make it"
        ) from None
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"kafkabuf.buffer.path: other users may write to the folder {folder}, and could replace the file of "
            f"records: chmod go-w {folder}, or name a file in another folder"
        )
    kind = _file_system(folder)
    if kind in _REMOTE:
        raise ConfigError(
            f"kafkabuf.buffer.path: {folder} lies on a file system of the network ({kind}), where locks and mappings "
            "do not hold for other machines: name a file on a disk of this machine"
        )


def _file_system(folder: Path) -> str:
    """The type of the file system that a folder lies on, as mount(8) names it; "" where the system does not say."""
    number = os.stat(folder).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == device), "")


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError(f"kafkabuf.buffer.path: {path} cannot be opened: {reason}. Name another file") from None


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, OWNER.size, HEADER.size)
        holder = f"process {OWNER.unpack(owner)[0]}" if len(owner) == OWNER.size else "another process"
        raise ConfigError(
            f"kafkabuf.buffer.path: {holder} has {path} open: give each producer a file of its own, or close that one"
        ) from None


def _require_ours(descriptor: int, path: Path) -> None:
    """The file is a plain file of this user under one name, which is still the name of this file."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
        raise ConfigError(
            f"kafkabuf.buffer.path: {path} is no plain file of this user with one name: name a file that does not "
            "exist yet"
        )
    if status.st_mode & 0o077:
        os.fchmod(descriptor, 0o600)
