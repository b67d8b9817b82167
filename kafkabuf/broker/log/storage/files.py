"""The batches of a log in a folder like Kafka's: segments, producer snapshots, the checkpoint of leader epochs.

    00000000000000000000.log .index .timeindex .txnindex    00000000000000000123.snapshot    leader-epoch-checkpoint

Every batch below the recovery point was flushed; the log manager keeps its checkpoint. Opening reads the last segment
from its last index entry on, and every batch behind the recovery point. It cuts a segment off where a batch is not
whole, and drops the segments that then leave a gap. FileSegments takes a snapshot where a segment ends and when the log
is closed. Opening derives the later state of producers from the batches.
"""

from __future__ import annotations

import logging
import os
import shutil
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path

from kafkabuf.broker.log.batch import NO_TIMESTAMP, Data
from kafkabuf.broker.log.producer_state import AbortedTransaction, ProducerStates
from kafkabuf.broker.log.storage.batches import StoredBatch, whole_size
from kafkabuf.broker.log.storage.checkpoint import read_numbers, write_checkpoint
from kafkabuf.broker.log.storage.disk import on_disk, sync_path, write_whole
from kafkabuf.broker.log.storage.segment import Segment, file_name
from kafkabuf.broker.log.storage.snapshot import (
    ABORTED_SIZE,
    decode_aborted,
    decode_snapshot,
    encode_aborted,
    encode_snapshot,
)
from kafkabuf.clock import Clock
from kafkabuf.errors import CorruptMessageError, KafkaStorageError

log = logging.getLogger("kafkabuf.broker")

EPOCHS = "leader-epoch-checkpoint"
DELETED = "-delete"
_GREATEST_DELTA = 2**31 - 1
_LEFT_OVER = (".tmp", ".deleted", ".cleaned", ".swap")


class FileSegments:
    """There is always a last segment, and `append` writes to it. `flusher` flushes each full segment in its own thread;
    without a flusher only `flush` does."""

    def __init__(self, folder: Path, recovery_point: int, clock: Clock, flusher: Executor | None = None) -> None:
        self.folder = folder
        self._clock = clock
        self._flusher = flusher
        # Each flush in progress, and the recovery point after it.
        self._flushing: deque[tuple[Future[None], int]] = deque()
        with on_disk("open", folder):
            folder.mkdir(parents=True, exist_ok=True)
            names = os.listdir(folder)
            for name in names:
                if name.endswith(_LEFT_OVER):
                    (folder / name).unlink()
        bases = sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit())
        self._segments: list[Segment] = []
        self._open(bases or [0], recovery_point)
        self._recovery_point = min(recovery_point, self.end_offset)
        self._epochs = [entry for entry in read_numbers(folder / EPOCHS) if entry[1] <= self.end_offset]

    def _open(self, bases: list[int], recovery_point: int) -> None:
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            segment = self._new(base)
            if self._segments and base != self.end_offset:
                log.warning("%s is dropped: the segment before it has lost its last batches", segment.path)
                segment.delete()
                continue
            segment.open(following, recovery_point)
            self._segments.append(segment)

    def _new(self, base_offset: int) -> Segment:
        self._new_files = True
        return Segment(self.folder, base_offset)

    @property
    def start_offset(self) -> int:
        return self._segments[0].base_offset

    @property
    def end_offset(self) -> int:
        return self._segments[-1].end_offset

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def recovery_point(self) -> int:
        while self._flushing and self._flushing[0][0].done():
            future, offset = self._flushing.popleft()
            if (error := future.exception()) is not None:
                log.error("%s could not be flushed and stays in the system's cache: %s", self.folder, error)
                self._flushing.clear()
            else:
                self._recovery_point = max(self._recovery_point, offset)
        return self._recovery_point

    # ---- appending

    def full(self, batch: StoredBatch, segment_bytes: int) -> bool:
        last = self._segments[-1]
        too_far = batch.last_offset - last.base_offset > _GREATEST_DELTA
        return last.size > 0 and (too_far or last.size + len(batch.data) > segment_bytes)

    def roll(self, producers: ProducerStates) -> None:
        last = self._segments[-1]
        last.seal()
        self._take_snapshot(producers)
        self._segments.append(self._new(self.end_offset))
        if self._flusher is not None:
            self._flushing.append((self._flusher.submit(last.flush, indexes=True), self.end_offset))

    def append(self, batch: StoredBatch) -> None:
        self._segments[-1].append(batch)

    # ---- reading

    def _index(self, offset: int) -> int:
        """The index of the segment that holds `offset`, or would hold it."""
        return max(bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1, 0)

    def read(self, offset: int, max_bytes: int, at_least_one: bool, limit: int) -> list[Data]:
        """Reads one buffer from one segment."""
        if offset >= min(limit, self.end_offset):
            return []
        segment = self._segments[self._index(offset)]
        start = segment.find(offset)
        data = segment.read(start, max(min(max_bytes, segment.find(limit) - start), 0))
        size = whole_size(data)
        if not size and at_least_one:
            data = segment.read(start, segment.batch_size(start))
            size = len(data)
        return [memoryview(data)[:size]] if size else []

    def available(self, offset: int, limit: int) -> int:
        end = min(limit, self.end_offset)
        return self._position(end) - self._position(offset) if offset < end else 0

    def _position(self, offset: int) -> int:
        index = self._index(offset)
        return sum(segment.size for segment in self._segments[:index]) + self._segments[index].find(offset)

    def batches(self, offset: int = 0) -> Iterator[StoredBatch]:
        for segment in self._segments[self._index(offset) :]:
            yield from segment.batches(offset)

    def at_or_after(self, timestamp: int) -> Iterator[StoredBatch]:
        for segment in self._segments:
            yield from segment.at_or_after(timestamp)

    def newest_timestamp(self) -> int:
        return max(segment.newest for segment in self._segments)

    # ---- dropping

    def drop_old(self, size: int, timestamp: int, limit: int, producers: ProducerStates) -> None:
        kept = self.size
        while (first := self._segments[0]).size and first.end_offset <= limit:
            superfluous = len(self._segments) > 1 and kept - first.size >= size
            if not (superfluous or NO_TIMESTAMP < first.newest < timestamp):
                break
            if len(self._segments) == 1:
                self.roll(producers)
            kept -= first.size
            self._drop_first()

    def drop_before(self, offset: int) -> None:
        while len(self._segments) > 1 and self._segments[1].base_offset <= offset:
            self._drop_first()

    def _drop_first(self) -> None:
        self._segments.pop(0).delete()
        for offset, path in self._snapshots():
            if offset < self.start_offset:
                _delete(path)

    def truncate_to(self, offset: int) -> None:
        while len(self._segments) > 1 and self._segments[-1].base_offset >= offset:
            self._segments.pop().delete()
        self._segments[-1].truncate_to(offset)
        self._forget_behind(self.end_offset)

    def restart_at(self, offset: int) -> None:
        for segment in self._segments:
            segment.delete()
        self._segments = [self._new(offset)]
        self._forget_behind(-1)

    def _forget_behind(self, offset: int) -> None:
        self._flushing.clear()
        self._recovery_point = min(self._recovery_point, self.end_offset)
        for taken_at, path in self._snapshots():
            if taken_at > offset:
                _delete(path)

    # ---- producers

    def _snapshots(self) -> list[tuple[int, Path]]:
        """(offset, path) of each snapshot, the latest first."""
        paths = [path for path in self.folder.glob("*.snapshot") if path.stem.isdigit()]
        return sorted(((int(path.stem), path) for path in paths), reverse=True)

    def _take_snapshot(self, producers: ProducerStates) -> None:
        write_whole(self.folder / f"{file_name(self.end_offset)}.snapshot", encode_snapshot(producers))

    def producers(self) -> tuple[int, ProducerStates]:
        start, states = self._latest_snapshot()
        for segment in self._segments:
            path = segment.path.with_suffix(".txnindex")
            with on_disk("read", path):
                data = path.read_bytes() if path.exists() else b""
            aborted = decode_aborted(data)
            kept = bisect_left(aborted, start, key=lambda transaction: transaction.last_offset)
            states.aborted += aborted[:kept]
            # The log derives the others from the batches again.
            if len(data) > kept * ABORTED_SIZE:
                with on_disk("truncate", path):
                    os.truncate(path, kept * ABORTED_SIZE)
        return start, states

    def _latest_snapshot(self) -> tuple[int, ProducerStates]:
        for offset, path in self._snapshots():
            if self.start_offset <= offset <= self.end_offset:
                try:
                    with on_disk("read", path):
                        return offset, decode_snapshot(path.read_bytes(), self._clock.time_ms())
                except CorruptMessageError as error:
                    log.warning("%s is ignored: %s", path, error)
        return self.start_offset, ProducerStates()

    def add_aborted(self, aborted: AbortedTransaction, last_stable_offset: int) -> None:
        path = self._segments[self._index(aborted.last_offset)].path.with_suffix(".txnindex")
        with on_disk("write", path), path.open("ab") as file:
            file.write(encode_aborted(aborted, last_stable_offset))

    # ---- leader epochs

    def epochs(self) -> list[tuple[int, int]]:
        return self._epochs

    def save_epochs(self, entries: list[tuple[int, int]]) -> None:
        """Writes the checkpoint. If the disk refuses, the log derives the epochs from the batches when it is opened."""
        try:
            write_checkpoint(self.folder / EPOCHS, entries)
        except KafkaStorageError as error:
            log.error("%s", error)

    # ---- the end

    def flush(self) -> None:
        if self.recovery_point == self.end_offset:
            return
        for segment in self._segments[self._index(self.recovery_point) :]:
            segment.flush(indexes=segment is not self._segments[-1])
        if self._new_files:
            sync_path(self.folder)
            self._new_files = False
        self._recovery_point = self.end_offset

    def close(self, producers: ProducerStates) -> None:
        """Flushes everything, then closes the files."""
        if self.recovery_point < self.end_offset:
            self._segments[-1].seal()
            self._take_snapshot(producers)
            self.flush()
        for segment in self._segments:
            segment.close()

    def delete(self) -> None:
        """Deletes the folder. It is renamed first: a crash in between leaves a name that no log has."""
        for segment in self._segments:
            segment.close()
        renamed = self.folder.with_name(f"{self.folder.name}{DELETED}")
        with on_disk("delete", self.folder):
            self.folder.rename(renamed)
            shutil.rmtree(renamed)


def _delete(path: Path) -> None:
    with on_disk("delete", path):
        path.unlink(missing_ok=True)
