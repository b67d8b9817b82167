"""Failures that the user has not seen: counted by batch, and logged in one warning with the first reason.

The user sees a failure by asking a future or a report of the batch for its error, or by a callback. Until then
`Failures` holds the batch, which calls `seen` as its `error_watcher`. This costs nothing for a delivered batch.
"""

from __future__ import annotations

from kafkabuf.batches._batch import Batch
from kafkabuf.process.producer_log import producer_log

log = producer_log("kafkabuf.producer")

MOST_BATCHES = 10_000  # held at a time; of further batches only the records are counted


class Failures:
    """The failures of one producer since the last warning. Thread: Sender, except for `seen`."""

    def __init__(self) -> None:
        self._unseen: dict[Batch, int] = {}  # number of records without a callback; any thread may remove a batch
        self._beyond = 0  # records of batches that came after MOST_BATCHES

    def add(self, batch: Batch) -> bool:
        """A batch has failed, and its callbacks have not run yet. Returns whether a record of it has no callback."""
        records = batch.unwatched
        if records == 0:
            return False
        if len(self._unseen) < MOST_BATCHES:
            self._unseen[batch] = records
            batch.error_watcher = self
        else:
            self._beyond += records
        return True

    def seen(self, batch: Batch) -> None:
        """Any thread: the user has read the error."""
        self._unseen.pop(batch, None)

    def tell(self) -> None:
        """Warn of the failures that the user has not seen, and forget them."""
        unseen, self._unseen = self._unseen, {}
        beyond, self._beyond = self._beyond, 0
        records_by_batch = unseen.copy()
        if not records_by_batch:
            return
        first = next(iter(records_by_batch))
        log.warning(
            "%d records were not delivered, and their errors were not read. The first, of %s-%d: %s: %s. Read the "
            "error of the future or report that send() returned, or give send() a callback",
            sum(records_by_batch.values()) + beyond,
            first.topic,
            first.partition,
            type(first.error).__name__,
            first.error,
        )
