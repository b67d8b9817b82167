"""What a partition knows of one producer."""

from typing import NamedTuple, final

from kafkabuf.broker.records._batch import BatchInfo

NO_EPOCH: int
NO_SEQUENCE: int

class AppendedBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    max_timestamp: int

@final
class ProducerEntry:
    """`transaction_start` is the offset where the open transaction began, or None. `last_timestamp` is the newest
    timestamp of the last batch, or the time of the control record behind it."""

    coordinator_epoch: int
    last_timestamp: int
    transaction_start: int | None

    def __init__(
        self,
        epoch: int = -1,
        coordinator_epoch: int = -1,
        last_timestamp: int = -1,
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

    def raise_epoch(self, epoch: int) -> None:
        """Forgets the batches of another epoch."""

    def forget_earlier_batches(self) -> None:
        """Leaves what a snapshot has: the last batch, with the last time of the producer."""

    def is_next(self, info: BatchInfo) -> bool:
        """Whether the batch follows the last batch, and no transaction is open."""

    def has_expired(self, newest_ms: int) -> bool:
        """Whether no transaction is open, and the last time is `newest_ms` or older."""

    def append(self, info: BatchInfo, base_offset: int) -> None:
        """Notes a batch that is in the log."""

    def encode(self, producer_id: int, out: bytearray) -> None:
        """Appends the entry as a snapshot has it (storage/snapshot.py has the layout): the state and the last batch."""
