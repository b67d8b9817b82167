"""Reads a file without a change to it, also while a process has it open.

The layout is what the file's header says. The file is mapped privately: what recovery mends there stays in this
process. A process that has the file goes on meanwhile. So each batch is read by itself: its entry is copied, its
records are read, and if the entry in the file is another one then, the batch is read again. What a reader gets is true
of each batch at one moment, and not of all batches at the same moment.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import UUID

from kafkabuf._pool import BufferPool
from kafkabuf.batches._stored import (
    SIZE_OF_BATCH,
    SIZE_OF_PARTITION,
    SIZE_OF_SPLIT,
    SIZE_OF_TOPIC,
    StoredTables,
)
from kafkabuf.errors import ConfigError
from kafkabuf.spool._entries import DamagedError, mend, partition_of
from kafkabuf.spool._reading import (
    NO_RESERVE,
    facts_of,
    is_behind,
    is_shadowed,
    is_unchanged,
    live_entries_in,
    numbers_of,
    occupy,
    partition_at,
    places_of_split,
    records_of,
    vacate,
)
from kafkabuf.spool.commits import CommitNote
from kafkabuf.spool.file import COMMIT_AT, HEADER, OWNER, PARTITIONS, TOPICS, Layout, boot, identity_in, layout_in

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_PIECE = 16_384  # entries that are looked through at a time
_TRIES = 1_000  # a batch changes a few times in its life


class UnreadableError(ConfigError):
    """The path has no file that can be read: the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class HeldTopic:
    """A topic that the file remembers. `topic_id` is None where the brokers are too old to name it."""

    topic: str
    partitions: int
    topic_id: UUID | None


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """What the file remembers of a partition's log: -1 if nothing was acknowledged yet."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_acknowledged_sequence: int
    last_acknowledged_offset: int


@dataclass(frozen=True, slots=True)
class HeldBatch:
    """A batch that is whole. Without numbers it has -1 for each."""

    place: int
    number: int
    topic: str
    partition: int
    records: int
    nbytes: int
    opened_ms: int  # time of day
    magic: int
    compression: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    idempotent: bool  # it is not sent before it has numbers
    transactional: bool
    data: bytes  # the batch as a log has it, with offsets from 0; b"" unless asked for

    @property
    def may_be_in_cluster(self) -> bool:
        return self.base_sequence >= 0 or not self.idempotent


@dataclass(frozen=True, slots=True)
class DamagedBatch:
    """An entry that cannot be what a producer has written."""

    place: int
    reason: str


class SpoolReader:
    """A file as it is read: `batches` gives what the file held when it was opened here.

    `owner` is the last process that has opened the file to send (0: none), and `holder` the process that has it open
    now. `cluster_id` is the cluster for which the records are, "" if the file knows none, and `commit` the commit that
    the owner has begun last. `nbytes` are about the bytes of all records.

    Raises UnreadableError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._descriptor = _opened(self.path)
        try:
            self.layout = _layout_of(self._descriptor, self.path)
            self.owner, owners_boot = OWNER.unpack(os.pread(self._descriptor, OWNER.size, HEADER.size))
            self.of_this_boot = owners_boot.rstrip(b"\0") == boot()
            self.holder = _holder(self._descriptor, self.owner)
            page = self._header_page()
            _, self.cluster_id = identity_in(page)
            self.commit = CommitNote(memoryview(page)[COMMIT_AT:]).read()
            self._map()
            self._split, self._halves = b"", dict[int, bytes]()
            self._see_split()
            self._live = sorted(self._live_entries())
            self.nbytes = sum(min(max(position, 0), self.layout.total) for _, _, _, position in self._live)
            # Behind the batches: the tables have the partitions of all of them.
            self._read_tables()
        except BaseException:
            self.close()
            raise

    def _header_page(self) -> bytes:
        """The page between two stores: the process that has the file may be about to note a commit."""
        page, seen = os.pread(self._descriptor, self.layout.topics_at, 0), b""
        for _ in range(_TRIES):
            if page == seen:
                break
            page, seen = os.pread(self._descriptor, self.layout.topics_at, 0), page
        return page

    def _live_entries(self) -> Iterator[tuple[int, int, int, int]]:
        for first in range(0, self.layout.batches, _PIECE):
            count = min(_PIECE, self.layout.batches - first)
            at = self.layout.batches_at + first * SIZE_OF_BATCH
            entries = live_entries_in(os.pread(self._descriptor, count * SIZE_OF_BATCH, at), first)
            yield from (entry for entry in entries if entry[2] not in self._halves)
        for place, half in self._halves.items():
            yield from live_entries_in(half, place)

    def _read_tables(self) -> None:
        topics = os.pread(self._descriptor, TOPICS * SIZE_OF_TOPIC, self.layout.topics_at)
        partitions = os.pread(self._descriptor, PARTITIONS * SIZE_OF_PARTITION, self.layout.partitions_at)
        self._entry = bytearray(SIZE_OF_BATCH)  # the batch that is read at present
        no_split = bytearray(SIZE_OF_SPLIT)
        self._tables = StoredTables(
            bytearray(topics), bytearray(partitions), self._entry, no_split, self._arena, self._scratch
        )

    def _see_split(self) -> None:
        """A batch may be in the middle of its split (_stored.pxd): then carry the split out here, and read the halves.

        The process that splits the batch may be killed there, or be about to go on.
        """
        split = os.pread(self._descriptor, SIZE_OF_SPLIT, self.layout.split_at)
        if split == self._split:
            return
        if self._halves:
            self._forget_changes()
        places = [place for place in places_of_split(split) if 0 <= place < self.layout.batches]
        if places:
            self._carry_out_split()
        self._split, self._halves = split, {place: self._mapped_entry(place) for place in places}

    def _carry_out_split(self) -> None:
        """Tables over this process's own copy of the file do that when they are made."""
        at, split_at = self.layout.batches_at, self.layout.split_at
        view = memoryview(self._mapping)
        batches = view[at : at + self.layout.batches * SIZE_OF_BATCH]
        split = view[split_at : split_at + SIZE_OF_SPLIT]
        StoredTables(bytearray(), bytearray(), batches, split, self._arena, self._scratch)

    def _mapped_entry(self, place: int) -> bytes:
        at = self.layout.batches_at + place * SIZE_OF_BATCH
        return self._mapping[at : at + SIZE_OF_BATCH]

    def _forget_changes(self) -> None:
        """What was changed here lies in pages of this process's own, which do not follow the file any more."""
        self._mapping.madvise(mmap.MADV_DONTNEED)

    def _map(self) -> None:
        try:
            self._mapping = mmap.mmap(
                self._descriptor,
                self.layout.size,
                flags=mmap.MAP_PRIVATE | NO_RESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
        except OSError as error:
            raise UnreadableError(f"{self.path} cannot be mapped into memory: {error.strerror}") from None
        layout, mapped = self.layout, memoryview(self._mapping)
        self._arena = mapped[layout.arena_at : layout.arena_at + layout.total]
        self._scratch = mapped[layout.scratch_at :]
        try:
            # Its runs are free until `_claimed` takes them.
            self._pool = BufferPool(*self.layout, memory=self._arena)
        except (ConfigError, MemoryError) as error:
            raise UnreadableError(f"{self.path} cannot be read: {error}") from None
        self._claims: dict[int, bytes] = {}  # the entries whose runs are taken, by place
        self._ahead: dict[tuple[str, int], bytes] = {}  # the entry that was read last of a partition

    def __len__(self) -> int:
        """How many batches the file held, the damaged ones included."""
        return len(self._live)

    def topics(self) -> list[HeldTopic]:
        return [HeldTopic(*noted) for noted in self._tables.noted_topics()]

    def partitions(self) -> list[HeldPartition]:
        entries = (partition_at(self._tables, place) for place in range(PARTITIONS))
        return sorted(
            (HeldPartition(*entry) for entry in entries if entry), key=lambda held: (held.topic, held.partition)
        )

    # ---- batches

    def batches(self, *, with_data: bool = False) -> Iterator[HeldBatch | DamagedBatch]:
        """The batches in the order in which they were opened, without those that have ended since, or are empty.

        The batches that recovery would leave as damaged come as DamagedBatch.
        """
        self._vacate([*self._claims])
        self._ahead.clear()
        for number, _, place, _ in self._live:
            batch = self._settled(place, number, with_data)
            if batch is not None:
                yield batch

    def _settled(self, place: int, number: int, with_data: bool) -> HeldBatch | DamagedBatch | None:
        """The batch as it was at one moment."""
        batch: HeldBatch | DamagedBatch | None
        for _ in range(_TRIES):
            self._see_split()
            split, before = self._split, self._entry_at(place)
            if [live[0] for live in live_entries_in(before, place)] != [number]:
                return None
            self._entry[:] = before
            shadowed = is_shadowed(self._tables, 0)
            try:
                batch = self._read(place, number, with_data)
            except DamagedError as error:
                batch = DamagedBatch(place, str(error))
            if shadowed and not self._halves:  # `mend` has copied records
                self._forget_changes()
            self._see_split()
            if self._split == split and is_unchanged(before, self._entry_at(place)):
                return self._claimed(before, batch)
        return DamagedBatch(place, "its process changes it faster than it can be read")

    def _entry_at(self, place: int) -> bytes:
        if place in self._halves:
            return self._halves[place]
        return os.pread(self._descriptor, SIZE_OF_BATCH, self.layout.batches_at + place * SIZE_OF_BATCH)

    def _read(self, place: int, number: int, with_data: bool) -> HeldBatch | None:
        """The batch of the copied entry; None if it has no record yet. Raises DamagedError."""
        count = mend(self._tables, self._pool, 0)
        topic, partition = partition_of(self._tables, 0)
        if count == 0:
            return None
        magic, codec, nbytes, opened_ms, idempotent, transactional = facts_of(self._tables, 0)
        data = records_of(self._tables, 0) if with_data else b""
        producer_id, epoch, sequence = numbers_of(self._tables, 0)
        return HeldBatch(
            place, number, topic, partition, count, nbytes, opened_ms, magic, CODECS[codec], producer_id, epoch,
            sequence, idempotent, transactional, data,
        )  # fmt: skip

    def _claimed(self, entry: bytes, batch: HeldBatch | DamagedBatch | None) -> HeldBatch | DamagedBatch | None:
        """The batch, or, where another batch has its memory, the damage."""
        if not isinstance(batch, HeldBatch) or batch.transactional:  # recovery drops these, whatever their memory has
            return batch
        ahead = self._ahead.get((batch.topic, batch.partition))
        self._ahead[batch.topic, batch.partition] = entry
        if ahead is not None and is_behind(ahead, entry):
            return batch
        if not occupy(self._tables, self._pool, 0):
            if self.holder is not None:  # a batch that was read before may have ended, and left its memory to this one
                ended = [place for place, was in self._claims.items() if not is_unchanged(was, self._entry_at(place))]
                self._vacate(ended)
            if not occupy(self._tables, self._pool, 0):
                return DamagedBatch(batch.place, "its memory belongs to another batch, too")
        self._claims[batch.place] = entry
        return batch

    def _vacate(self, places: list[int]) -> None:
        for place in places:
            vacate(self._pool, self._claims.pop(place))

    # ---- the end

    def close(self) -> None:
        """A second call does nothing. The memory stays mapped while somebody reads batches."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened(path: Path) -> int:
    """Opened to read. A named pipe does not wait for its writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "no plain file"
        raise UnreadableError(f"{path} is {kind}: name the file of kafkabuf.buffer.path")
    return descriptor


def _layout_of(descriptor: int, path: Path) -> Layout:
    """What the header says, if this kafkabuf reads such files, and if the file has as many bytes as it says."""
    header = os.pread(descriptor, HEADER.size, 0)
    if not any(header):
        raise UnreadableError(f"{path} is empty: no producer has written to it")
    try:
        layout = layout_in(header, otherwise="name the file of kafkabuf.buffer.path", use="read")
    except ValueError as error:
        raise UnreadableError(f"{path} {error}") from None
    size = os.fstat(descriptor).st_size
    if header != layout.header():
        raise UnreadableError(f"{path} is damaged: the checksum of its header is wrong")
    if size < layout.size:
        raise UnreadableError(f"{path} is cut short: it has {size} bytes of the {layout.size} that its header names")
    if size > layout.size:
        raise UnreadableError(f"{path} is damaged: it has {size} bytes, and its header names {layout.size}")
    return layout


def _holder(descriptor: int, owner: int) -> int | None:
    """The process that has the lock of the file. It is asked without the lock: a producer may want it just now."""
    status = os.fstat(descriptor)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    try:
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return _holder_by_lock(descriptor, owner)
    for lock in locks:
        match lock.split():
            case [_, "FLOCK", _, _, pid, inode, *_] if inode.endswith(f":{status.st_ino}"):
                # Where the file's device has two numbers (overlays, subvolumes), the process is the one of the header.
                if inode.startswith(f"{device}:") or int(pid) == owner:
                    return int(pid)
    return None


def _holder_by_lock(descriptor: int, owner: int) -> int | None:
    """As `_holder`, on systems that list no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            raise
        return owner
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return None
