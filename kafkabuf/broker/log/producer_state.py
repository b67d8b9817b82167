"""What a partition knows of the producers that write to it (Kafka's ProducerStateManager and ProducerAppendInfo).

Per producer id: the epoch, the last five batches, and where its open transaction began. From these follow duplicates,
gaps in the sequence, producers of an epoch gone by, and the last stable offset.

As today's Kafka (4.1): a producer of which nothing is known may begin at any sequence, unless its transactions are of
version 2, so UNKNOWN_PRODUCER_ID is never answered; what is known outlives the records it came from and goes when the
producer has been silent for `EXPIRATION_MS` and has no open transaction. Belongs to the log, so that whatever node
leads the partition knows it; thread: the event loop.

Deviation: silence is measured by the broker's clock, not by the time stamps of the producer's records, and not only
every ten minutes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from kafkabuf.broker.log.batch import BatchInfo
from kafkabuf.broker.log.control import Marker
from kafkabuf.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceNumberError,
    TransactionCoordinatorFencedError,
)

# Kafka's producer.id.expiration.ms.
EXPIRATION_MS = 86_400_000
NO_EPOCH = -1
NO_SEQUENCE = -1
_REMEMBERED = 5
_SEQUENCES = 2**31


def last_sequence(info: BatchInfo) -> int:
    """Behind the greatest sequence comes 0."""
    return (info.base_sequence + info.count - 1) % _SEQUENCES


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    base_sequence: int
    last_sequence: int
    base_offset: int
    max_timestamp: int


def sequence_count(batch: AppendedBatch) -> int:
    return (batch.last_sequence - batch.base_sequence) % _SEQUENCES + 1


@dataclass(slots=True)
class ProducerEntry:
    """`batches` are of `epoch`, the oldest first. `transaction_start` is an offset, None when none is open.
    `last_timestamp` is that of the records, `seen_ms` the broker's."""

    epoch: int = NO_EPOCH
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    seen_ms: int = -1
    transaction_start: int | None = None
    batches: deque[AppendedBatch] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def raise_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """Offsets of its first record and of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class _Verification:
    """Kept from when the coordinator is asked about a transaction's first batch until one is appended or it ends: what
    follows a batch that was refused must not take its place. `version_2`: KIP-890, sequences begin at 0."""

    epoch: int
    lowest_sequence: int
    version_2: bool


class ProducerStates:
    """Producers by id. `check` before each append of a client, `append` or `end` after it."""

    def __init__(self, entries: dict[int, ProducerEntry] | None = None) -> None:
        self._entries = entries or {}
        self._verifying: dict[int, _Verification] = {}
        # First offset of each open transaction, by producer id; in the order of the offsets.
        started = ((producer_id, entry.transaction_start) for producer_id, entry in self._entries.items())
        found = [(start, producer_id) for producer_id, start in started if start is not None]
        self._open: dict[int, int] = {producer_id: start for start, producer_id in sorted(found)}
        # In the order of their markers.
        self.aborted: list[AbortedTransaction] = []
        # (first offset, offset of the marker) of transactions that have ended, in the order of their markers, until
        # the high watermark has passed these.
        self._ended: deque[tuple[int, int]] = deque()

    def __iter__(self) -> Iterator[tuple[int, ProducerEntry]]:
        return iter(self._entries.items())

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction began that is open, or whose marker is not replicated."""
        return min([*islice(self._open.values(), 1), *(first for first, _ in self._ended)], default=None)

    def first_open_offset(self, default: int) -> int:
        """Where the oldest open transaction began."""
        return next(iter(self._open.values()), default)

    def replicated(self, high_watermark: int) -> None:
        """Markers below it are safe."""
        while self._ended and self._ended[0][1] < high_watermark:
            self._ended.popleft()

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        entry = self._entries.get(producer_id)
        return entry is not None and entry.transaction_start is not None and entry.epoch == epoch

    def duplicate(self, info: BatchInfo) -> AppendedBatch | None:
        """What this very batch became when it came before, if that is remembered."""
        entry = self._entries.get(info.producer_id)
        if entry is None or entry.epoch != info.producer_epoch:
            return None
        wanted = info.base_sequence, last_sequence(info)
        return next((one for one in entry.batches if (one.base_sequence, one.last_sequence) == wanted), None)

    def start_verification(self, info: BatchInfo, version_2: bool) -> None:
        """The coordinator is about to be asked whether the transaction of this batch is open."""
        found = self._verifying.get(info.producer_id)
        if found is None or info.producer_epoch > found.epoch:
            self._verifying[info.producer_id] = _Verification(info.producer_epoch, info.base_sequence, version_2)
        elif info.producer_epoch == found.epoch:
            found.lowest_sequence = min(found.lowest_sequence, info.base_sequence)

    def check(self, info: BatchInfo, now_ms: int) -> None:
        """InvalidProducerEpochError, OutOfOrderSequenceNumberError, or InvalidTxnStateError for a plain batch within a
        transaction."""
        self._expire(info.producer_id, now_ms)
        entry = self._entries.get(info.producer_id) or ProducerEntry()
        if info.producer_epoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"producer {info.producer_id} sent epoch {info.producer_epoch}, it is in {entry.epoch} by now"
            )
        expected = self._expected_sequence(info, entry)
        if expected is not None:
            raise OutOfOrderSequenceNumberError(
                f"producer {info.producer_id}, epoch {info.producer_epoch}: sequence {info.base_sequence} came, "
                f"{expected} is next"
            )
        if entry.transaction_start is not None and not info.transactional:
            raise InvalidTxnStateError(
                f"a plain batch of producer {info.producer_id}, whose transaction is open since offset "
                f"{entry.transaction_start}"
            )

    def _expected_sequence(self, info: BatchInfo, entry: ProducerEntry) -> int | None:
        """The sequence that should have come; None if this one will do."""
        sequence, verification = info.base_sequence, self._verifying.get(info.producer_id)
        if verification is not None:
            if verification.version_2 and entry.epoch == NO_EPOCH and sequence != 0:
                return 0
            if sequence > verification.lowest_sequence:
                return verification.lowest_sequence
        if entry.epoch == NO_EPOCH:
            return None
        following = 0 if info.producer_epoch != entry.epoch else (entry.last_sequence + 1) % _SEQUENCES
        return None if sequence == following else following

    def append(self, info: BatchInfo, base_offset: int, now_ms: int) -> None:
        """A batch of a client that passed `check` is in the log."""
        entry = self._entries.setdefault(info.producer_id, ProducerEntry())
        entry.raise_epoch(info.producer_epoch)
        entry.batches.append(AppendedBatch(info.base_sequence, last_sequence(info), base_offset, info.max_timestamp))
        entry.last_timestamp, entry.seen_ms = info.max_timestamp, now_ms
        if info.transactional:
            self._verifying.pop(info.producer_id, None)
            if entry.transaction_start is None:
                entry.transaction_start = self._open[info.producer_id] = base_offset

    def check_end(self, marker: Marker) -> None:
        """InvalidProducerEpochError or TransactionCoordinatorFencedError for a marker of an epoch gone by."""
        entry = self._entries.get(marker.producer_id)
        if entry is None:
            return
        if marker.producer_epoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"a marker of epoch {marker.producer_epoch}, producer {marker.producer_id} is in {entry.epoch}"
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"a marker of coordinator epoch {marker.coordinator_epoch}, one of {entry.coordinator_epoch} was here"
            )

    def end(self, marker: Marker, offset: int, timestamp: int, now_ms: int) -> AbortedTransaction | None:
        """A marker that passed `check_end` is in the log at `offset`. A transaction without records leaves no trace
        but the epoch."""
        producer_id = marker.producer_id
        entry = self._entries.setdefault(producer_id, ProducerEntry())
        entry.raise_epoch(marker.producer_epoch)
        entry.coordinator_epoch, entry.last_timestamp, entry.seen_ms = marker.coordinator_epoch, timestamp, now_ms
        self._verifying.pop(producer_id, None)
        began, entry.transaction_start = entry.transaction_start, None
        if began is None:
            return None
        del self._open[producer_id]
        self._ended.append((began, offset))
        if marker.committed:
            return None
        self.aborted.append(AbortedTransaction(producer_id, began, offset))
        return self.aborted[-1]

    def forget_aborted_before(self, log_start_offset: int) -> None:
        """Their records have gone."""
        self.aborted = [one for one in self.aborted if one.last_offset >= log_start_offset]

    def _expire(self, producer_id: int, now_ms: int) -> None:
        """Forgets who has been silent for too long: this producer, and all others whenever a new one comes."""
        for one in [producer_id] if producer_id in self._entries else list(self._entries):
            entry = self._entries[one]
            if entry.transaction_start is None and now_ms - entry.seen_ms >= EXPIRATION_MS:
                del self._entries[one]
