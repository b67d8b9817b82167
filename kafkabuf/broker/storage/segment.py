"""A segment: a file of batches named for its first offset, with its indexes, all in Kafka's format (LogSegment).

`append` writes a batch at once, into the system's cache. The batch survives the death of this process, and after
`flush` that of the machine. `become_inactive` writes the indexes.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from kafkabuf.broker.records.batch import ATTRIBUTES_AT, HEADER_SIZE, NO_TIMESTAMP, OVERHEAD
from kafkabuf.broker.records.message_set import CRC_END
from kafkabuf.broker.storage._stored import StoredBatch
from kafkabuf.broker.storage.batches import LOOKS, MALFORMED, Head, heads, read_head
from kafkabuf.broker.storage.disk import on_disk, open_file, sync_path
from kafkabuf.broker.storage.index import OFFSETS, TIMES, SparseIndex
from kafkabuf.broker.wire.crc import crc32c
from kafkabuf.errors import KafkaStorageError

log = logging.getLogger("kafkabuf.broker")

# The indexes have offsets relative to the segment's base offset, in 32 bits.
GREATEST_DELTA = 2**31 - 1
# Kafka's index.interval.bytes.
INDEX_INTERVAL = 4096
# The walk over headers reads this many bytes at a time.
_PIECE = 8192
_CRC = struct.Struct(">I")
_SIZE = struct.Struct(">i")
_SIZE_AT = 8
# The greatest offset that Kafka has a number for.
_GREATEST = 2**63 - 1
_OFFSET = re.compile("[0-9]{20}")


def file_name(offset: int) -> str:
    return f"{offset:020d}"


def is_offset(name: str) -> bool:
    """Whether `file_name` may have made the name."""
    return _OFFSET.fullmatch(name) is not None and int(name) <= _GREATEST


class Segment:
    """`newest` is the greatest timestamp, `size` the bytes of whole batches. `open` reads an existing file. `suffix`
    stands behind the names of the files, until `rename` changes it."""

    def __init__(self, folder: Path, base_offset: int, suffix: str = "") -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = 0
        self.newest = NO_TIMESTAMP
        self._suffix = suffix
        self.path = folder / f"{file_name(base_offset)}.log{suffix}"
        self.offsets = SparseIndex(self.beside(".index"), OFFSETS)
        self.times = SparseIndex(self.beside(".timeindex"), TIMES)
        # The greatest timestamp of a batch that is not empty, and the last offset of this batch.
        self._newest_record, self._newest_offset = NO_TIMESTAMP, base_offset
        # The position of the batch that was indexed last.
        self._indexed = 0
        with on_disk("open", self.path):
            self._file = open_file(self.path, os.O_RDWR | os.O_CREAT)

    def beside(self, kind: str) -> Path:
        """The file of another kind, such as ".index"."""
        return self.path.with_name(f"{file_name(self.base_offset)}{kind}{self._suffix}")

    def rename(self, suffix: str) -> None:
        """Renames the file. The caller has renamed the indexes."""
        renamed = self.path.with_name(f"{file_name(self.base_offset)}.log{suffix}")
        with on_disk("rename", self.path):
            self.path.replace(renamed)
        self.path, self._suffix = renamed, suffix
        self.offsets.path, self.times.path = self.beside(".index"), self.beside(".timeindex")

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of the first batch, or NO_TIMESTAMP."""
        return next((head.info.max_timestamp for _, head in self._walk(0, self.base_offset)), NO_TIMESTAMP)

    # ---- opening

    def open(self, following: int | None, recovery_point: int) -> None:
        """Checks the batches behind `recovery_point`, up to which the log is known to be on the disk, and cuts the file
        off at the first batch that is not whole. `following`: where the next segment begins; None for the last."""
        with on_disk("read", self.path):
            self.size = os.fstat(self._file).st_size
        loaded = self.offsets.load() and self.times.load()
        if loaded and self.size and (not self.times.keys or max(self.offsets.values, default=0) >= self.size):
            loaded = False
        if loaded and following is not None and following <= recovery_point:
            self.end_offset = following
            self._set_newest()
            return
        self.offsets.keep_keys(recovery_point - 1 - self.base_offset if loaded else -1)
        self._recover()
        if following is not None:
            self.become_inactive()

    def _set_newest(self) -> None:
        if len(self.times):
            self.newest = self._newest_record = self.times.keys[-1]
            self._newest_offset = self.base_offset + self.times.values[-1]

    def _recover(self) -> None:
        """Reads every batch from the last entry of the index on."""
        last, self._indexed = self.offsets.floor(2**31) or (0, 0)
        self.times.keep_values(last if self._indexed else -1)
        self._set_newest()
        self.size, self.end_offset = self._indexed, self.base_offset + last if self._indexed else self.base_offset
        with on_disk("read", self.path):
            length = os.fstat(self._file).st_size
            head = self._check(self.size, length)
            if head is None and self._indexed:
                # The index is wrong, or the batch that it names is missing.
                self.offsets.keep_keys(-1)
                self._recover()
                return
            while head is not None:
                self._index(self.size, head)
                self.size, self.end_offset = self.size + head.size, head.last_offset + 1
                head = self._check(self.size, length)
        if self.size < length:
            lost = length - self.size
            log.warning(
                "%s: the %d bytes from position %d on are not a whole batch and are cut off", self.path, lost, self.size
            )
            self._cut()

    def _check(self, position: int, length: int) -> Head | None:
        """The head of the batch at `position`; None unless the batch is whole and follows the batch before it."""
        try:
            head = read_head(os.pread(self._file, HEADER_SIZE, position), 0, self.end_offset)
        except MALFORMED:
            return None
        if not head.fits(length - position):
            return None
        data = memoryview(os.pread(self._file, head.size, position))
        at = ATTRIBUTES_AT - _CRC.size if head.info.magic == 2 else CRC_END - _CRC.size
        (expected,) = _CRC.unpack_from(data, at)
        actual = (crc32c if head.info.magic == 2 else zlib.crc32)(data[at + _CRC.size :])
        # For the batch that the index names, `end_offset` is its last offset. Every other batch begins there, or behind
        # a gap that the cleaner has made.
        follows = head.base_offset >= self.end_offset or head.last_offset == self.end_offset
        follows = follows and head.last_offset - self.base_offset <= GREATEST_DELTA and head.last_offset < _GREATEST
        return head if actual == expected and head.info.magic <= 2 and follows else None

    # ---- appending

    def append(self, batch: StoredBatch) -> None:
        try:
            with on_disk("write", self.path):
                written = 0
                while written < len(batch.data):
                    written += os.pwrite(self._file, memoryview(batch.data)[written:], self.size + written)
        except KafkaStorageError:
            self._cut()
            raise
        for at, head in heads(batch.data, batch.base_offset):
            self._index(self.size + at, head)
        self.size += len(batch.data)
        self.end_offset = batch.last_offset + 1

    def _cut(self) -> None:
        with on_disk("truncate", self.path):
            os.ftruncate(self._file, self.size)

    def _index(self, position: int, head: Head) -> None:
        self.newest = max(self.newest, head.info.max_timestamp)
        if head.info.max_timestamp > self._newest_record and not head.empty:
            self._newest_record, self._newest_offset = head.info.max_timestamp, head.last_offset
        if position - self._indexed > INDEX_INTERVAL:
            self.offsets.add(head.last_offset - self.base_offset, position)
            self._index_newest()
            self._indexed = position

    def _index_newest(self) -> None:
        if self._newest_record != NO_TIMESTAMP:
            self.times.add(self._newest_record, self._newest_offset - self.base_offset)

    # ---- reading

    def read(self, position: int, size: int) -> bytes:
        with on_disk("read", self.path):
            return os.pread(self._file, size, position)

    def batch_size(self, position: int) -> int:
        return int(_SIZE.unpack_from(self.read(position, OVERHEAD), _SIZE_AT)[0]) + OVERHEAD

    def find(self, offset: int) -> int:
        """The position of the batch that holds `offset`; `size` for a later offset, 0 for an earlier one."""
        if offset >= self.end_offset:
            return self.size
        if offset <= self.base_offset:
            return 0
        relative, position = self.offsets.floor(offset - self.base_offset) or (0, 0)
        return next(at for at, head in self._walk(position, self.base_offset + relative) if head.last_offset >= offset)

    def _walk(self, position: int, following: int) -> Iterator[tuple[int, Head]]:
        """(position, head) of every batch from `position` on."""
        piece, start = b"", position
        while position < self.size:
            if position + HEADER_SIZE > start + len(piece):
                piece, start = self.read(position, _PIECE), position
            try:
                head = read_head(piece, position - start, following)
            except MALFORMED:
                raise KafkaStorageError(f"{self.path} ends within the batch at position {position}") from None
            if head.size < OVERHEAD or head.last_offset >= _GREATEST:
                says = f"{head.size} bytes, up to offset {head.last_offset}"
                raise KafkaStorageError(f"{self.path}: the batch at position {position} says {says}")
            yield position, head
            position += head.size
            following = head.last_offset + 1

    def batches(self, offset: int) -> Iterator[StoredBatch]:
        """The batches from the batch that holds `offset`."""
        for position, head in self._walk(self.find(offset), max(offset, self.base_offset)):
            yield self._stored(position, head)

    def _stored(self, position: int, head: Head) -> StoredBatch:
        data = self.read(position, head.size)
        return StoredBatch(head.base_offset, head.last_offset, head.info.max_timestamp, head.leader_epoch, data)

    def at_or_after(self, timestamp: int, offset: int) -> tuple[StoredBatch | None, int]:
        """As that of Segments; `offset` is one of this segment."""
        # Every record up to this offset is older.
        older = self.times.floor(timestamp - 1)
        following = offset if older is None else max(offset, self.base_offset + older[1] + 1)
        for position, head in islice(self._walk(self.find(following), following), LOOKS):
            following = head.last_offset + 1
            if head.info.max_timestamp >= timestamp:
                return self._stored(position, head), following
        return None, following

    # ---- truncating, becoming inactive

    def truncate_to(self, offset: int) -> None:
        """Drops every batch with an offset of `offset` or more."""
        if offset >= self.end_offset:
            return
        position = self.find(offset)
        self.offsets.keep_keys(offset - 1 - self.base_offset)
        with on_disk("truncate", self.path):
            os.ftruncate(self._file, position)
        self.newest = self._newest_record = NO_TIMESTAMP
        self._newest_offset = self.base_offset
        self._recover()

    def become_inactive(self) -> None:
        """Completes the indexes and writes them to their files: the segment takes no more batches."""
        self._index_newest()
        self.offsets.save()
        self.times.save()

    def flush(self, indexes: bool) -> None:
        """Flushes the file. Opening the last segment needs no flushed indexes: it reads on where they end. Any thread
        may call this for an inactive segment."""
        for path in (self.path, self.offsets.path, self.times.path) if indexes else (self.path,):
            sync_path(path)

    def close(self) -> None:
        os.close(self._file)

    def delete(self) -> None:
        self.close()
        for kind in (".log", ".index", ".timeindex", ".txnindex"):
            with on_disk("delete", self.path):
                self.beside(kind).unlink(missing_ok=True)
