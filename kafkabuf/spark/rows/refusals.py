"""What a task does with the rows that Kafka refuses (`onRowError`): fail, skip them, or send dead letters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kafkabuf.arrow._columns import digest
from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import KafkaError
from kafkabuf.producer import KafkaProducer
from kafkabuf.spark.options.options import OnRowError, SinkOptions
from kafkabuf.spark.reports.report import CHECKSUMS
from kafkabuf.spark.rows.numbered import NumberedRows
from kafkabuf.spark.rows.rows import ROW_ERRORS, describe, reason, row_error, send_dead_letter

# Dead letters that may wait for their outcome.
MAX_OPEN_DEAD_LETTERS = 1_000


class _DeadLetter(NamedTuple):
    """A dead letter without an outcome, the description of its row, and why the row was refused."""

    future: RecordFuture
    row: str
    error: KafkaError


class Refusals:
    """The refused rows of one task attempt. `checksum` is that of all of them, modulo 2^64."""

    def __init__(self, options: SinkOptions, producer: Callable[[], KafkaProducer]) -> None:
        self._options = options
        self._producer = producer
        self._open_dead_letters: deque[_DeadLetter] = deque()
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
        assert options.dead_letter_topic is not None
        try:
            letter = send_dead_letter(self._producer(), options.dead_letter_topic, rows, place, error, options.topic)
        except ROW_ERRORS as refused:
            raise _undeliverable(describe(rows, place), error, refused) from None
        self._open_dead_letters.append(_DeadLetter(letter, describe(rows, place), error))
        self.dead_lettered += 1
        self._await_dead_letters(MAX_OPEN_DEAD_LETTERS)

    @property
    def count(self) -> int:
        """Rows that were refused."""
        return self.skipped + self.dead_lettered

    def finish(self) -> None:
        """Wait until every dead letter is acknowledged."""
        if self._open_dead_letters:
            self._producer().flush()
        self._await_dead_letters(0)

    def _await_dead_letters(self, allowed: int) -> None:
        """Wait for the outcome of the oldest dead letters, until no more than `allowed` wait for theirs."""
        while len(self._open_dead_letters) > allowed:
            letter = self._open_dead_letters.popleft()
            error = letter.future.exception()
            if error is not None:
                raise _undeliverable(letter.row, letter.error, error)


def _undeliverable(row: str, error: KafkaError, refused: KafkaError) -> KafkaError:
    return type(refused)(
        f"{row} cannot be sent: {reason(error)}. Its dead letter cannot be sent either: {reason(refused)}. Let "
        "'deadLetterTopic' accept such records, filter the row out, or set option 'onRowError' to 'skip'"
    )
