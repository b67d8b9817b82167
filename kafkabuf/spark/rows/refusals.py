"""What a task does with the rows that Kafka refuses (`onRowError`): fail, skip them, or send dead letters.

A dead letter that is too large, for the producer or for its topic, is sent again with fewer parts of its row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kafkabuf.arrow._columns import digest
from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import KafkaError, RecordTooLargeError
from kafkabuf.producer import KafkaProducer
from kafkabuf.spark.options.options import OnRowError, SinkOptions
from kafkabuf.spark.reports.report import CHECKSUMS
from kafkabuf.spark.rows.numbered import NumberedRows
from kafkabuf.spark.rows.rows import ROW_ERRORS, DeadLetter, dead_letter, describe, reason, row_error

# Dead letters that may wait for their outcome.
MAX_OPEN_DEAD_LETTERS = 1_000


class _OpenLetter(NamedTuple):
    """A dead letter without an outcome, the letter that replaces it if it is too large, and its row's description."""

    future: RecordFuture
    smaller: DeadLetter | None
    row: str
    error: KafkaError


class Refusals:
    """The refused rows of one task attempt. `checksum` is that of all of them, modulo 2^64."""

    def __init__(self, options: SinkOptions, producer: Callable[[], KafkaProducer]) -> None:
        self._options = options
        self._producer = producer
        self._open_dead_letters: deque[_OpenLetter] = deque()
        self.skipped = self.dead_lettered = self.checksum = 0

    def refuse(self, rows: NumberedRows, place: int, error: KafkaError) -> None:
        """Do with the row at this place what `onRowError` says. With `fail`, raises the error that names the row."""
        options = self._options
        if options.on_row_error is OnRowError.FAIL:
            raise row_error(rows, place, error, options.timestamp_column) from error
        self.checksum = (self.checksum + digest(rows.batch.slice(place, 1))) % CHECKSUMS
        if options.on_row_error is OnRowError.SKIP:
            self.skipped += 1
            return
        self._send(dead_letter(rows, place, error, options.topic), describe(rows, place), error)
        self.dead_lettered += 1
        while len(self._open_dead_letters) > MAX_OPEN_DEAD_LETTERS:
            self._await_dead_letter()

    @property
    def count(self) -> int:
        """Rows that were refused."""
        return self.skipped + self.dead_lettered

    def finish(self) -> None:
        """Wait until every dead letter is acknowledged."""
        while self._open_dead_letters:
            self._producer().flush()
            for _ in range(len(self._open_dead_letters)):
                self._await_dead_letter()

    def _await_dead_letter(self) -> None:
        """Wait for the outcome of the oldest dead letter."""
        letter = self._open_dead_letters.popleft()
        error = letter.future.exception()
        if isinstance(error, RecordTooLargeError) and letter.smaller is not None:
            self._send(letter.smaller, letter.row, letter.error)
        elif error is not None:
            raise _undeliverable(letter.row, letter.error, error)

    def _send(self, letter: DeadLetter, row: str, error: KafkaError) -> None:
        """Send the letter, or as much of it as the producer takes."""
        assert self._options.dead_letter_topic is not None
        smaller = letter.smaller()
        try:
            future = letter.send(self._producer(), self._options.dead_letter_topic)
        except RecordTooLargeError as refused:
            if smaller is None:
                raise _undeliverable(row, error, refused) from None
            self._send(smaller, row, error)
        except ROW_ERRORS as refused:
            raise _undeliverable(row, error, refused) from None
        else:
            self._open_dead_letters.append(_OpenLetter(future, smaller, row, error))


def _undeliverable(row: str, error: KafkaError, refused: KafkaError) -> KafkaError:
    return type(refused)(
        f"{row} cannot be sent: {reason(error)}. Its dead letter cannot be sent either: {reason(refused)}. Let "
        "'deadLetterTopic' accept such records, filter the row out, or set option 'onRowError' to 'skip'"
    )
