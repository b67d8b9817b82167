"""The batches of a log in a folder like Kafka's: segments, producer snapshots, the checkpoint of leader epochs.

    00000000000000000000.log .index .timeindex .txnindex    00000000000000000123.snapshot    leader-epoch-checkpoint

Every batch below the recovery point was flushed; the log manager keeps its checkpoint. Opening reads the last segment
from its last index entry on, and every batch behind the recovery point. It cuts a segment off where a batch is not
whole, and drops the segments that then leave a gap. A new log is a folder with an empty .log, and nothing is looked for
in it: a request may make thousands. The epoch file comes with the first batch of an epoch. Batches are written at once,
and flushed when a segment ends, at a clean shutdown, and where flush.messages asks for it. FileSegments takes a
snapshot where a segment ends and when the log is closed. Opening derives the later state of producers from the batches.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from itertools import groupby, islice, pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

from kafkabuf.broker.records.batch import NO_TIMESTAMP, Data
from kafkabuf.broker.records.config import LogConfig
from kafkabuf.broker.records.producer_state import AbortedTransaction, ProducerStates
from kafkabuf.broker.storage._stored import StoredBatch
from kafkabuf.broker.storage.batches import LOOKS, ClosedSegment, whole_size
from kafkabuf.broker.storage.checkpoint import read_numbers, write_checkpoint
from kafkabuf.broker.storage.disk import (
    append_whole,
    entries,
    make_folder,
    mark_deleted,
    on_disk,
    read_file,
    remove_folder,
    set_aside,
    sync_path,
    truncate_file,
    write_whole,
)
from kafkabuf.broker.storage.rolling import Age
from kafkabuf.broker.storage.segment import GREATEST_DELTA, Segment, file_name, is_offset
from kafkabuf.broker.storage.snapshot import (
    ABORTED_SIZE,
    decode_aborted,
    decode_snapshot,
    encode_aborted,
    encode_snapshot,
    sum_of,
)
from kafkabuf.broker.storage.swap import CleanedSegment, finish_swaps
from kafkabuf.clock import Clock
from kafkabuf.errors import CorruptMessageError, KafkaStorageError

log = logging.getLogger("kafkabuf.broker")

EPOCHS = "leader-epoch-checkpoint"
# A read brings no more than this into memory, and looks at the header of each batch in it.
_MOST_BYTES = 8 * 1024 * 1024
# A drop deletes the files of at most this number of segments. The next drop goes on.
_MOST_DROPPED = 10
_LEFT_OVER = (".tmp", ".deleted", ".cleaned", ".swap")
_OURS = (*_LEFT_OVER, ".log", ".index", ".timeindex", ".txnindex", ".snapshot", EPOCHS)


class _TransactionIndex(NamedTuple):
    """What a .txnindex has, and its size in bytes. A damaged index counts as empty."""

    aborted: list[AbortedTransaction]
    size: int
    damaged: bool = False

    def before(self, offset: int) -> int:
        """How many of the transactions ended before `offset`."""
        return bisect_left(self.aborted, offset, key=lambda transaction: transaction.last_offset)


class FileSegments:
    """There is always a last segment, and `append` writes to it. `flusher` flushes each full segment in its own thread;
    without a flusher only `flush` does."""

    def __init__(self, folder: Path, recovery_point: int, clock: Clock, flusher: Executor | None = None) -> None:
        self.folder = folder
        self._clock = clock
        self._flusher = flusher
        # Each flush in progress, and the recovery point after it.
        self._flushing: deque[tuple[Future[None], int]] = deque()
        # Entries of the transaction index that the disk has refused.
        self._unwritten: deque[tuple[Path, bytes]] = deque()
        self._segments: list[Segment] = []
        self._age = Age()
        # Counts the truncations of the log.
        self._truncations = 0
        # Epochs that are not written yet.
        self._late_epochs: list[tuple[int, int]] | None = None
        # Nothing is read from an empty folder: a request may make thousands.
        self._empty = make_folder(folder)
        self._recovery_point, self._epochs = 0, list[tuple[int, int]]()
        try:
            if self._empty:
                self._segments.append(self._new(0))
            else:
                self._read(recovery_point)
        except BaseException:
            self.close_files()
            raise

    def _read(self, recovery_point: int) -> None:
        """Takes over what the folder has."""
        with on_disk("open", self.folder):
            finish_swaps(self.folder)
        recovery_point = max(recovery_point, 0)  # a checkpoint may hold any number
        self._open(self._tidy() or [0], recovery_point)
        self._recovery_point = min(recovery_point, self.end_offset)
        if recovery_point > self.end_offset:
            log.warning(
                "%s ends at offset %d, and its recovery point was %d: the batches between them are gone",
                self.folder, self.end_offset, recovery_point,
            )  # fmt: skip
        self._epochs = [entry for entry in read_numbers(self.folder / EPOCHS) if entry[1] <= self.end_offset]

    def _tidy(self) -> list[int]:
        """Deletes what a crash has left, and sets aside what has the name of a file of ours but is no file. Returns the
        base offsets of the segments."""
        bases = []
        for entry in entries(self.folder):
            path = Path(entry.path)
            if entry.name.endswith(_OURS) and not entry.is_file(follow_symlinks=False):
                log.warning("%s is not a regular file: it is kept as %s", path, set_aside(path).name)
            elif entry.name.endswith(_LEFT_OVER):
                _delete(path)
            elif path.suffix == ".log" and is_offset(path.stem):
                bases.append(int(path.stem))
        return bases

    def _open(self, bases: list[int], recovery_point: int) -> None:
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            follows = not self._segments or base == self.end_offset
            segment = self._new(base)
            self._segments.append(segment)
            if not follows:
                log.warning("%s is dropped: the segment before it has lost its last batches", segment.path)
                self._segments.pop().delete()
                continue
            segment.open(following, recovery_point)

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

    def full(self, batch: StoredBatch, config: LogConfig, clock: Clock) -> bool:
        last, now_ms = self._segments[-1], clock.time_ms()
        if not last.size:
            self._age = Age(batch.max_timestamp, now_ms)
            return False
        if last.size + len(batch.data) > config.segment_bytes or self._aged(config, now_ms, batch.max_timestamp):
            return True
        return batch.last_offset - last.base_offset > GREATEST_DELTA

    def aged(self, config: LogConfig, now_ms: int) -> bool:
        return self._segments[-1].size > 0 and self._aged(config, now_ms)

    def _aged(self, config: LogConfig, now_ms: int, timestamp: int = NO_TIMESTAMP) -> bool:
        if not self._age.known:
            # The segment is that of an earlier run, or was not the last until the log was truncated.
            self._age = Age(self._segments[-1].first_timestamp, now_ms)
        return self._age.over(config, now_ms, timestamp)

    def roll(self, producers: ProducerStates) -> None:
        last = self._segments[-1]
        last.become_inactive()
        self._take_snapshot(producers)
        self._segments.append(self._new(self.end_offset))
        self._age = Age()
        if self._flusher is not None:
            self._flushing.append((self._flusher.submit(last.flush, indexes=True), self.end_offset))

    def append(self, batch: StoredBatch) -> None:
        if self._late_epochs is not None:
            self._write_epochs(self._late_epochs)
        self._segments[-1].append(batch)

    # ---- cleaning

    def closed(self) -> list[ClosedSegment]:
        return [
            ClosedSegment(segment.base_offset, following.base_offset, segment.size, segment.newest, first)
            for segment, following in pairwise(self._segments)
            for first in (segment.first_timestamp,)
        ]

    def replace(self, segments: Sequence[ClosedSegment]) -> CleanedSegment:
        bases = {segment.base_offset for segment in segments}
        replaced = [segment for segment in self._segments[:-1] if segment.base_offset in bases]
        truncations = self._truncations
        return CleanedSegment(
            self.folder,
            replaced,
            lambda cleaned: truncations == self._truncations and self._put_in_place(replaced, cleaned),
            self._flusher,
        )

    def _put_in_place(self, replaced: list[Segment], cleaned: Segment) -> bool:
        """Replaces the segments, unless one of them has changed places meanwhile. Returns whether it did."""
        first = self._index(replaced[0].base_offset)
        if self._segments[:-1][first : first + len(replaced)] != replaced:
            return False
        self._forget_indexes({segment.base_offset for segment in replaced})
        self._segments[first : first + len(replaced)] = [cleaned]
        merged = {segment.base_offset for segment in replaced[1:]}
        for offset, path in self._snapshots():
            if offset in merged:
                _delete(path)
        return True

    def _forget_indexes(self, bases: set[int]) -> None:
        """The cleaner is about to take entries out of these transaction indexes, which is no damage: the latest
        snapshot says no more what they have."""
        for _, path in self._snapshots()[:1]:
            with suppress(CorruptMessageError):
                states, sums = decode_snapshot(read_file(path) or b"")
                if not bases.isdisjoint(sums):
                    kept = {base: known for base, known in sums.items() if base not in bases}
                    write_whole(path, encode_snapshot(states, kept))

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
        data = segment.read(start, max(min(max_bytes, _MOST_BYTES, segment.find(limit) - start), 0))
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

    def at_or_after(self, timestamp: int, offset: int) -> tuple[StoredBatch | None, int | None]:
        first = self._index(offset)
        for segment in self._segments[first : first + LOOKS]:
            offset = max(offset, segment.base_offset)
            if offset < segment.end_offset and segment.newest >= timestamp:
                return segment.at_or_after(timestamp, offset)
            offset = segment.end_offset
        return None, offset if offset < self.end_offset else None

    def newest_timestamp(self) -> int:
        return max(segment.newest for segment in self._segments)

    # ---- dropping

    def drop_old(self, size: int, timestamp: int, limit: int, producers: ProducerStates) -> bool:
        kept, count = self.size, 0
        for segment in islice(self._segments, _MOST_DROPPED):
            superfluous = count + 1 < len(self._segments) and kept - segment.size >= size
            old = NO_TIMESTAMP < segment.newest < timestamp
            if not segment.size or segment.end_offset > limit or not (superfluous or old):
                break
            kept -= segment.size
            count += 1
        if count == len(self._segments):
            self.roll(producers)
        return self._drop_first(count)

    def drop_before(self, offset: int) -> bool:
        following = islice(self._segments, 1, _MOST_DROPPED + 1)
        return self._drop_first(sum(1 for _ in takewhile(lambda segment: segment.base_offset <= offset, following)))

    def _drop_first(self, count: int) -> bool:
        """Returns whether there may be more to drop. Files that the disk does not delete stay. The checkpoint of log
        starts hides their records after a restart."""
        dropped, more = self._segments[:count], count == _MOST_DROPPED
        del self._segments[:count]
        try:
            for segment in dropped:
                segment.delete()
                _delete(self._snapshot_at(segment.base_offset))
            # A snapshot that was taken when the log was closed may lie within a segment.
            for offset, path in self._snapshots() if dropped and not more else ():
                if offset < self.start_offset:
                    _delete(path)
        except KafkaStorageError as error:
            log.error("%s", error)
        return more

    def truncate_to(self, offset: int) -> None:
        while len(self._segments) > 1 and self._segments[-1].base_offset >= offset:
            self._segments.pop().delete()
        self._segments[-1].truncate_to(offset)
        self._age = Age()
        self._forget_behind(self.end_offset)

    def restart_at(self, offset: int) -> None:
        for segment in self._segments:
            segment.delete()
        self._segments = [self._new(offset)]
        self._forget_behind(-1)

    def _forget_behind(self, offset: int) -> None:
        self._truncations += 1
        self._flushing.clear()
        self._recovery_point = min(self._recovery_point, self.end_offset)
        for taken_at, path in self._snapshots():
            if taken_at > offset:
                _delete(path)

    # ---- producers

    def _snapshots(self) -> list[tuple[int, Path]]:
        """(offset, path) of each snapshot, the latest first."""
        paths = [path for path in self.folder.glob("*.snapshot") if is_offset(path.stem)]
        return sorted(((int(path.stem), path) for path in paths), reverse=True)

    def _take_snapshot(self, producers: ProducerStates) -> None:
        """Opening trusts the transaction index up to the snapshot: the index comes first."""
        self._write_aborted()
        indexes = groupby(
            producers.aborted, lambda aborted: self._segments[self._index(aborted.last_offset)].base_offset
        )
        sums = {base: sum_of([*entries]) for base, entries in indexes}
        write_whole(self._snapshot_at(self.end_offset), encode_snapshot(producers, sums))

    def _snapshot_at(self, offset: int) -> Path:
        return self.folder / f"{file_name(offset)}.snapshot"

    def producers(self, log_start_offset: int) -> tuple[int, ProducerStates]:
        if self._empty:
            self._empty = False
            return self.start_offset, ProducerStates()
        self._unwritten.clear()
        indexes = self._transaction_indexes()
        start, states = self._latest_snapshot(indexes, max(self.start_offset, log_start_offset))
        for segment in self._segments:
            index = indexes[segment.base_offset]
            kept = index.before(start)
            states.aborted += index.aborted[:kept]
            # The log derives the others from the batches again.
            if index.size > kept * ABORTED_SIZE:
                truncate_file(segment.beside(".txnindex"), kept * ABORTED_SIZE)
        return start, states

    def _transaction_indexes(self) -> dict[int, _TransactionIndex]:
        """The transaction index of each segment, by the segment's base offset."""
        indexes = {}
        for segment in self._segments:
            path, base = segment.beside(".txnindex"), segment.base_offset
            data = read_file(path) or b""
            try:
                indexes[base] = _TransactionIndex(decode_aborted(data, base), len(data))
            except CorruptMessageError as error:
                log.warning("%s is made anew from the batches: %s", path, error)
                indexes[base] = _TransactionIndex([], len(data), damaged=True)
        return indexes

    def _latest_snapshot(self, indexes: dict[int, _TransactionIndex], start_offset: int) -> tuple[int, ProducerStates]:
        """The latest snapshot that lies before every damaged transaction index: from there on the log derives the
        aborted transactions from the batches again. A snapshot of a log without records counts for nothing, as in
        Kafka: the producers of a log that was emptied are unknown after a restart."""
        latest = min((base for base, index in indexes.items() if index.damaged), default=self.end_offset)
        for offset, path in self._snapshots():
            if start_offset < offset <= latest:
                try:
                    states, sums = decode_snapshot(read_file(path) or b"")
                except CorruptMessageError as error:
                    log.warning("%s is ignored: %s", path, error)
                    continue
                changed = [
                    base
                    for base, known in sums.items()
                    if base in indexes and sum_of(indexes[base].aborted[: indexes[base].before(offset)]) != known
                ]
                if not changed:
                    return offset, states
                latest = min(changed)
                log.warning(
                    "The transaction index at offset %d has lost or changed entries: it is made anew from the batches",
                    latest,
                )
        return start_offset, ProducerStates()

    def add_aborted(self, aborted: AbortedTransaction, last_stable_offset: int) -> None:
        """The control record is in the log already: an entry that the disk refuses waits for the next one, and no
        snapshot is taken before."""
        path = self._segments[self._index(aborted.last_offset)].beside(".txnindex")
        self._unwritten.append((path, encode_aborted(aborted, last_stable_offset)))
        try:
            self._write_aborted()
        except KafkaStorageError as error:
            log.error("%s", error)

    def _write_aborted(self) -> None:
        while self._unwritten:
            append_whole(*self._unwritten[0])
            self._unwritten.popleft()

    # ---- leader epochs

    def epochs(self) -> list[tuple[int, int]]:
        return self._epochs

    def save_epochs(self, entries: list[tuple[int, int]]) -> None:
        """Writes the checkpoint. An epoch without a batch waits for its first: without one, the next epoch takes its
        place. So a partition that nobody writes to has no such file."""
        self._late_epochs = entries if entries and entries[-1][1] >= self.end_offset else None
        if self._late_epochs is None:
            self._write_epochs(entries)

    def _write_epochs(self, entries: list[tuple[int, int]]) -> None:
        """If the disk refuses, the log derives the epochs from the batches when it is opened."""
        self._late_epochs = None
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
        try:
            if self.recovery_point < self.end_offset:
                self._segments[-1].become_inactive()
                self._take_snapshot(producers)
                self.flush()
        finally:
            self.close_files()

    def close_files(self) -> None:
        for segment in self._segments:
            segment.close()

    def delete(self) -> None:
        """Deletes the folder. It is renamed first: a crash in between leaves a name that no log has."""
        self.close_files()
        logs = [segment.path.name for segment in self._segments]
        remove_folder(mark_deleted(self.folder), (*logs, EPOCHS))


def _delete(path: Path) -> None:
    with on_disk("delete", path):
        path.unlink(missing_ok=True)
