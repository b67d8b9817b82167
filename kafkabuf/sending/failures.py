"""Failures that nobody has looked at: counted by batch, and said once, with the first reason.

The user has looked when a future or a report of the batch was asked for its error, or when callbacks were given. Until
then the batch is here, and reports that by its `error_watcher`. So a record costs nothing, nor does a batch that is
delivered.
"""

from __future__ import annotations

import logging

from kafkabuf.batches._batch import Batch

log = logging.getLogger("kafkabuf.producer")

MOST_BATCHES = 10_000  # are held; of more than that only the records are counted


class Failures:
    """The failures of one producer since the last warning. Thread: the Sender's, but for `seen`."""

    def __init__(self) -> None:
        self._unseen: dict[Batch, int] = {}  # records without a callback; any thread takes a batch out, in one step
        self._beyond = 0  # records of batches that came after MOST_BATCHES

    def add(self, batch: Batch) -> bool:
        """A batch has failed, and its callbacks have not run yet. Whether somebody is still to look at it."""
        records = batch.count - batch.callbacks
        if records <= 0:
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
        """Warn of the failures that nobody has looked at, and forget them."""
        unseen, self._unseen = self._unseen, {}
        beyond, self._beyond = self._beyond, 0
        found = unseen.copy()
        if not found:
            return
        first = next(iter(found))
        log.warning(
            "%d records were not delivered, and nobody has asked why. The first, of %s-%d: %s: %s. Ask the future or "
            "the report that send() returned, or give it a callback",
            sum(found.values()) + beyond,
            first.topic,
            first.partition,
            type(first.error).__name__,
            first.error,
        )
