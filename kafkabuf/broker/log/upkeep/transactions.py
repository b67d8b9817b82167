"""The transactions of a log, followed batch by batch in offset order (Kafka's CleanedTransactionMetadata).

The cleaner drops the records of aborted transactions. A control record stays as long as the log has a batch of its
transaction, so that consumers can tell what was aborted. Everything that the cleaner reads is below the last stable
offset: each transaction has ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkabuf.broker.records.control import read_marker
from kafkabuf.broker.records.producer_state import AbortedTransaction
from kafkabuf.broker.storage._stored import StoredBatch
from kafkabuf.broker.storage.batches import Head


class TransactionWalk:
    """`kept` are the aborted transactions that consumers still must know: batches of them were there."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        # By producer id; each with whether a batch was there.
        self._aborting: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committing: set[int] = set()
        self.kept: list[AbortedTransaction] = []

    def is_aborted(self, head: Head) -> bool:
        """Whether a client's batch is part of an aborted transaction."""
        self._begin(head.last_offset)
        if not head.info.transactional:
            return False
        producer_id = head.info.producer_id
        if producer_id in self._aborting:
            self._aborting[producer_id] = self._aborting[producer_id][0], True
            return True
        self._committing.add(producer_id)
        return False

    def is_over(self, head: Head, batch: StoredBatch) -> bool:
        """Whether the transaction of a control record has no batches any more."""
        self._begin(head.last_offset)
        marker = read_marker(batch.data)
        if marker is None:
            return True
        if marker.committed:
            present = marker.producer_id in self._committing
            self._committing.discard(marker.producer_id)
            return not present
        transaction, present = self._aborting.pop(marker.producer_id, (None, False))
        if transaction is not None and present:
            self.kept.append(transaction)
        return not present

    def _begin(self, offset: int) -> None:
        """Begins the aborted transactions up to `offset`."""
        while self._coming and self._coming[-1].first_offset <= offset:
            transaction = self._coming.pop()
            self._aborting.setdefault(transaction.producer_id, (transaction, False))
