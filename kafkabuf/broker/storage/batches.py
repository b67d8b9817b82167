"""Batches as they lie in a log, one after the other: their headers, and where each batch ends."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from kafkabuf.broker.records._batch import BatchInfo
from kafkabuf.broker.records.batch import (
    CONTROL,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAGIC_AT,
    NO_TIMESTAMP,
    OVERHEAD,
    TRANSACTIONAL,
    Data,
)
from kafkabuf.broker.records.config import LogConfig
from kafkabuf.broker.records.producer_state import AbortedTransaction, ProducerStates
from kafkabuf.broker.storage._stored import StoredBatch
from kafkabuf.clock import Clock
from kafkabuf.errors import CorruptMessageError

NO_LIMIT = 2**63 - 1
NO_EPOCH = -1
# A read returns no more buffers than this, so that a log of tiny batches does not become a response of a million
# pieces. The reader asks for the rest with its next request.
MOST_BUFFERS = 20_000
# The number of batches that a step of a lookup by timestamp looks at.
LOOKS = 200
_OFFSET_AND_SIZE = struct.Struct(">qi")
_INT64 = struct.Struct(">q")
_TIMESTAMP_AT = 18
# The shortest message of magic 0.
_SMALLEST = 14
# What read_head raises for malformed bytes.
MALFORMED = (struct.error, IndexError, OverflowError)


class Head(NamedTuple):
    """The header of a batch, or of one message of magic 0 or 1, which has no leader epoch. `size`: bytes in all.
    `empty`: the cleaner has left nothing but the header."""

    base_offset: int
    size: int
    leader_epoch: int
    control: bool
    info: BatchInfo
    empty: bool = False

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.info.count - 1

    def fits(self, room: int) -> bool:
        """Whether `size` and count are possible for a batch within `room` bytes."""
        smallest = HEADER_SIZE if self.info.magic >= 2 else OVERHEAD + _SMALLEST
        return smallest <= self.size <= room and self.info.count > 0


def read_head(data: Data, at: int, following: int) -> Head:
    """The head of the batch or message at `at`. `following`: the offset after the previous batch, which is the base
    offset for magic 0 and 1. Raises an error of MALFORMED where bytes are missing, and checks nothing else."""
    magic = data[at + MAGIC_AT]
    if magic < 2:
        last, size = _OFFSET_AND_SIZE.unpack_from(data, at)
        timestamp = _INT64.unpack_from(data, at + _TIMESTAMP_AT)[0] if magic else NO_TIMESTAMP
        return Head(following, size + OVERHEAD, NO_EPOCH, False, BatchInfo(last - following + 1, timestamp, magic))
    fields = HEADER.unpack_from(data, at)
    base, length, epoch, magic, _, attributes, last_delta, _, newest, producer_id, producer_epoch, sequence, n = fields
    info = BatchInfo(
        last_delta + 1,
        newest,
        magic,
        producer_id,
        producer_epoch,
        sequence,
        bool(attributes & TRANSACTIONAL),
        bool(attributes & LOG_APPEND_TIME),
    )
    return Head(base, length + OVERHEAD, epoch, bool(attributes & CONTROL), info, not n)


def heads(data: Data, following: int) -> Iterator[tuple[int, Head]]:
    """(place, head) of every batch in `data`. Raises CorruptMessageError unless the batches fill `data` exactly."""
    at = 0
    while at < len(data):
        try:
            head = read_head(data, at, following)
        except MALFORMED:
            raise CorruptMessageError(f"the last {len(data) - at} bytes are not a whole batch") from None
        if not head.fits(len(data) - at):
            raise CorruptMessageError(f"a batch says {head.size} bytes, {len(data) - at} are left")
        yield at, head
        at += head.size
        following = head.last_offset + 1


def whole_size(data: Data) -> int:
    """The bytes that the whole batches at the start of `data` take."""
    at = 0
    while at + OVERHEAD <= len(data):
        end = at + OVERHEAD + _OFFSET_AND_SIZE.unpack_from(data, at)[1]
        if not at < end <= len(data):
            break
        at = end
    return at


class ClosedSegment(NamedTuple):
    """A segment to which no batch comes any more. `newest` is its greatest timestamp, `first_timestamp` that of its
    first batch. Its last batch ends before `end_offset`, where the next segment begins."""

    base_offset: int
    end_offset: int
    size: int
    newest: int
    first_timestamp: int


class Replacement(Protocol):
    """The cleaned batches that are to take the place of neighbouring closed segments. The caller appends the last batch
    of these segments in any case, so that the next segment follows."""

    def append(self, batch: StoredBatch) -> None: ...

    def written(self) -> Future[None] | None:
        """The caller waits for this future between the last batch and `commit`; None: there is nothing to wait for."""

    def commit(self, aborted: Sequence[AbortedTransaction]) -> bool:
        """The batches take the place of the segments, at once or not at all, also if the process is killed. `aborted`
        are the transactions that these segments then still know. Returns False, and changes nothing, if the segments
        have changed meanwhile."""

    def abandon(self) -> None:
        """Drops the batches, unless they have taken their place."""


class Segments(Protocol):
    """The batches of a PartitionLog, in segments.

    Offsets rise from `start_offset`, where the first segment begins, to `end_offset`. They have gaps where the cleaner
    has dropped records. `size` is in bytes. A method that changes the storage raises KafkaStorageError if the change
    fails.
    """

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def recovery_point(self) -> int:
        """Batches below this offset survive a crash of the machine, as far as the storage can keep them."""

    def full(self, batch: StoredBatch, config: LogConfig, clock: Clock) -> bool:
        """Whether the caller must call `roll` before it appends `batch`."""

    def aged(self, config: LogConfig, now_ms: int) -> bool:
        """Whether the last segment has batches, and has reached the age at which it ends."""

    def roll(self, producers: ProducerStates) -> None:
        """Ends the last segment, which has batches, and begins another."""

    def closed(self) -> list[ClosedSegment]:
        """Every segment but the last."""

    def replace(self, segments: Sequence[ClosedSegment]) -> Replacement: ...
    def append(self, batch: StoredBatch) -> None: ...

    def read(self, offset: int, max_bytes: int, at_least_one: bool, limit: int) -> list[Data]:
        """Buffers of whole batches, from the batch that holds `offset` up to `limit`."""

    def available(self, offset: int, limit: int) -> int:
        """The bytes that repeated calls of `read` would return."""

    def batches(self, offset: int = 0) -> Iterator[StoredBatch]:
        """The batches from the batch that holds `offset`, or the first batch behind it, to the end."""

    def at_or_after(self, timestamp: int, offset: int) -> tuple[StoredBatch | None, int | None]:
        """The first batch from `offset` on whose greatest timestamp is at least `timestamp`, and the offset from which
        to look further, which is None at the end. Looks at a number of batches: None if none of them is that batch."""

    def newest_timestamp(self) -> int:
        """The greatest timestamp, or NO_TIMESTAMP."""

    def drop_old(self, size: int, timestamp: int, limit: int, producers: ProducerStates) -> bool:
        """Drops batches from the start: those that `size` bytes do not need, but never the last, and those that are
        older than `timestamp`. Drops nothing at or behind `limit`. Returns whether it has left some for the next
        call."""

    def drop_before(self, offset: int) -> bool:
        """Drops what lies wholly before `offset`. Returns whether it has left some for the next call."""

    def truncate_to(self, offset: int) -> None:
        """Drops every batch with an offset of `offset` or more."""

    def restart_at(self, offset: int) -> None:
        """Drops everything. The next batch begins at `offset`."""

    def producers(self, log_start_offset: int) -> tuple[int, ProducerStates | None]:
        """An offset and the state before it. The caller derives the rest from the batches from that offset on."""

    def add_aborted(self, aborted: AbortedTransaction, last_stable_offset: int) -> None: ...
    def epochs(self) -> list[tuple[int, int]]: ...
    def save_epochs(self, entries: list[tuple[int, int]]) -> None: ...
    def flush(self) -> None: ...
    def close(self, producers: ProducerStates) -> None: ...
    def delete(self) -> None: ...
