"""The state of the producers that write to a partition (Kafka's ProducerStateManager and ProducerAppendInfo).

It holds the epoch of each producer id, its last five batches, and the offset where its open transaction began. From
these follow duplicates, gaps in the sequence, producers of an older epoch, and the last stable offset.

As in Kafka 4.1, a producer without state may begin at any sequence, unless its transactions are of version 2. So the
broker never answers UNKNOWN_PRODUCER_ID. The state of a producer outlives the records that it came from. It expires
`producer.id.expiration.ms` after the newest timestamp of the producer's last batch, or after its last control record,
unless its transaction is open: a producer of old records expires at once. A check looks for expired producers now and
then (`LogManager`), and until then they count as known. The log owns the state, so every node that leads the partition
has it; a node that has started again has only the last batch of each producer. Thread: the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from kafkabuf.broker.records._batch import BatchInfo
from kafkabuf.broker.records._producer_entry import NO_EPOCH, AppendedBatch, ProducerEntry
from kafkabuf.broker.records.control import Marker
from kafkabuf.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceNumberError,
    TransactionCoordinatorFencedError,
)

_SEQUENCES = 2**31


def sequence_count(batch: AppendedBatch) -> int:
    return (batch.last_sequence - batch.base_sequence) % _SEQUENCES + 1


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """`first_offset` is that of the transaction's first record, `last_offset` that of its control record."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class _Verification:
    """Exists from the question to the coordinator about a transaction's first batch, until a batch is appended or the
    transaction ends: a later batch must not take the place of a refused batch. `version_2`: KIP-890, sequences begin at
    0."""

    epoch: int
    lowest_sequence: int
    version_2: bool


class ProducerStates:
    """Producers by id. The log calls `check` before each append of a client, and `append` or `end` after it."""

    __slots__ = ("_ended", "_entries", "_open", "_verifying", "aborted")

    def __init__(self, entries: dict[int, ProducerEntry] | None = None) -> None:
        self._entries = {} if entries is None else entries
        self._verifying: dict[int, _Verification] = {}
        # First offset of each open transaction, by producer id; in the order of the offsets.
        starts = ((producer_id, entry.transaction_start) for producer_id, entry in self._entries.items())
        open_starts = [(start, producer_id) for producer_id, start in starts if start is not None]
        self._open: dict[int, int] = {producer_id: start for start, producer_id in sorted(open_starts)}
        # Aborted transactions, in the order of their control records.
        self.aborted: list[AbortedTransaction] = []
        # (first offset, offset of the control record) of each ended transaction whose control record the high watermark
        # has not passed, in the order of the control records.
        self._ended: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, ProducerEntry]]:
        return iter(self._entries.items())

    @property
    def first_unstable_offset(self) -> int | None:
        """The start of the oldest transaction that is open, or whose control record is not replicated."""
        return min([*islice(self._open.values(), 1), *(first for first, _ in self._ended)], default=None)

    def first_open_offset(self, default: int) -> int:
        """The start of the oldest open transaction."""
        return next(iter(self._open.values()), default)

    def replicated(self, high_watermark: int) -> None:
        """Control records below the high watermark are replicated: their transactions are stable."""
        while self._ended and self._ended[0][1] < high_watermark:
            del self._ended[0]

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        entry = self._entries.get(producer_id)
        return entry is not None and entry.transaction_start is not None and entry.epoch == epoch

    def is_next(self, info: BatchInfo) -> bool:
        """Whether the batch follows the producer's last batch, without a transaction: then it is no duplicate and
        passes `check`."""
        entry = self._entries.get(info.producer_id)
        return entry is not None and entry.is_next(info) and info.producer_id not in self._verifying

    def duplicate(self, info: BatchInfo) -> AppendedBatch | None:
        """The stored batch that this batch repeats, if the state still has it."""
        entry = self._entries.get(info.producer_id)
        if entry is None or entry.epoch != info.producer_epoch:
            return None
        first, last = info.base_sequence, info.last_sequence
        for batch in entry.batches:
            if batch.base_sequence == first and batch.last_sequence == last:
                return batch
        return None

    def start_verification(self, info: BatchInfo, version_2: bool) -> None:
        """The leader is about to ask the coordinator whether the transaction of this batch is open."""
        verification = self._verifying.get(info.producer_id)
        if verification is None or info.producer_epoch > verification.epoch:
            self._verifying[info.producer_id] = _Verification(info.producer_epoch, info.base_sequence, version_2)
        elif info.producer_epoch == verification.epoch:
            verification.lowest_sequence = min(verification.lowest_sequence, info.base_sequence)

    def check(self, info: BatchInfo) -> None:
        """Raises InvalidProducerEpochError, OutOfOrderSequenceNumberError, or InvalidTxnStateError for a batch outside
        the producer's open transaction."""
        entry = self._entries.get(info.producer_id) or ProducerEntry()
        if info.producer_epoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"producer {info.producer_id} sent epoch {info.producer_epoch}, its present epoch is {entry.epoch}"
            )
        expected = self._expected_sequence(info, entry)
        if expected is not None:
            raise OutOfOrderSequenceNumberError(
                f"producer {info.producer_id}, epoch {info.producer_epoch}: the batch has sequence "
                f"{info.base_sequence}, {expected} is next"
            )
        if entry.transaction_start is not None and not info.transactional:
            raise InvalidTxnStateError(
                f"producer {info.producer_id} sent a batch without transaction, but its transaction is open since "
                f"offset {entry.transaction_start}"
            )

    def _expected_sequence(self, info: BatchInfo, entry: ProducerEntry) -> int | None:
        """The sequence that the batch should have; None if its sequence is right."""
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

    def append(self, info: BatchInfo, base_offset: int) -> None:
        """Notes a client's batch, which passed `check` and is in the log."""
        entry = self._entries.get(info.producer_id)
        if entry is None:
            entry = self._entries[info.producer_id] = ProducerEntry()
        entry.append(info, base_offset)
        if info.transactional:
            self._verifying.pop(info.producer_id, None)
            if entry.transaction_start is None:
                entry.transaction_start = self._open[info.producer_id] = base_offset

    def check_end(self, marker: Marker) -> None:
        """Raises InvalidProducerEpochError or TransactionCoordinatorFencedError if the control record is outdated."""
        entry = self._entries.get(marker.producer_id)
        if entry is None:
            return
        if marker.producer_epoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"the control record has epoch {marker.producer_epoch}, but producer {marker.producer_id} is in epoch "
                f"{entry.epoch}"
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"the control record has coordinator epoch {marker.coordinator_epoch}, but an earlier control record "
                f"had {entry.coordinator_epoch}"
            )

    def end(self, marker: Marker, offset: int, timestamp: int) -> AbortedTransaction | None:
        """Notes a control record, which passed `check_end` and is in the log at `offset`.

        A transaction without records changes only the epochs and times. Returns the transaction if it had records and
        was aborted.
        """
        producer_id = marker.producer_id
        entry = self._entries.setdefault(producer_id, ProducerEntry())
        entry.raise_epoch(marker.producer_epoch)
        entry.coordinator_epoch, entry.last_timestamp = marker.coordinator_epoch, timestamp
        self._verifying.pop(producer_id, None)
        start, entry.transaction_start = entry.transaction_start, None
        if start is None:
            return None
        del self._open[producer_id]
        self._ended.append((start, offset))
        if marker.committed:
            return None
        self.aborted.append(AbortedTransaction(producer_id, start, offset))
        return self.aborted[-1]

    def forget_aborted_before(self, log_start_offset: int) -> None:
        """Forgets the transactions whose records the log has dropped."""
        self.aborted = [transaction for transaction in self.aborted if transaction.last_offset >= log_start_offset]

    def forget_earlier_batches(self) -> None:
        """Leaves the last batch of each producer, as a snapshot does."""
        for entry in self._entries.values():
            entry.forget_earlier_batches()

    def expire(self, newest_ms: int) -> None:
        """Forgets every producer that has no open transaction, and whose last time is `newest_ms` or older."""
        expired = [producer_id for producer_id, entry in self._entries.items() if entry.has_expired(newest_ms)]
        for producer_id in expired:
            del self._entries[producer_id]
