"""What a partition knows of one producer."""

from typing import NamedTuple, final

from kafkabuf.broker.records._batch import BatchInfo

EXPIRATION_MS: int
"""Kafka's producer.id.expiration.ms."""

NO_EPOCH: int
NO_SEQUENCE: int

class AppendedBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    max_timestamp: int

@final
class ProducerEntry:
    """`transaction_start` is the offset where the open transaction began, or None. `last_timestamp` is the records'
    time, `seen_ms` the broker's."""

    coordinator_epoch: int
    last_timestamp: int
    seen_ms: int
    transaction_start: int | None

    def __init__(
        self,
        epoch: int = -1,
        coordinator_epoch: int = -1,
        last_timestamp: int = -1,
        seen_ms: int = -1,
        transaction_start: int | None = None,
    ) -> None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def batches(self) -> list[AppendedBatch]:
        """The last five batches of `epoch`, the oldest first."""

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, or NO_SEQUENCE."""

    def remember(self, first_sequence: int, final_sequence: int, base_offset: int, max_timestamp: int) -> None:
        """Adds a batch, and forgets the oldest of more than five."""

    def forget_batches(self) -> None: ...
    def raise_epoch(self, epoch: int) -> None:
        """Forgets the batches of another epoch."""

    def is_next(self, info: BatchInfo, now_ms: int) -> bool:
        """Whether the batch follows the last batch, no transaction is open, and the producer was not silent for too
        long at `now_ms`."""

    def append(self, info: BatchInfo, base_offset: int, now_ms: int) -> None:
        """Notes a batch that is in the log."""

    def encode(self, producer_id: int, heads: bytearray, batches: bytearray) -> None:
        """Appends the two parts of the entry in a snapshot (storage/snapshot.py has the layout): to `heads` the state
        and the last batch, to `batches` the remembered batches."""
