"""The commit that a kill may cut off: a note of it in the file, and what the coordinator says became of it.

EndTxn goes once each batch of the transaction has its acknowledgement, so the file has no record of the transaction any
more. What the file has is the note, which lies in the header's page:

    outcome     one byte, stored behind all below; 0: there is no note
    the rest    transactional id, producer id and epoch, the kind of the transaction, its records, and a checksum

The Sender notes a commit before EndTxn goes, and its end behind the response. The next transaction takes the note back:
until then a process that opens the file can say what became of the commit, whoever was killed meanwhile. Of a commit
that was under way the next process asks the coordinator. It asks before init_transactions(), which would end whatever
is open, and leave no trace of how the transaction ended.

| the coordinator says (DescribeTransactions)                    | the commit                                          |
|----------------------------------------------------------------|-----------------------------------------------------|
| PrepareCommit, CompleteCommit; the epoch that a commit leaves  | is committed                                        |
| PrepareAbort, CompleteAbort; the epoch that an abort leaves    | is aborted                                          |
| PrepareAbort, CompleteAbort; a higher epoch, begun before      | is aborted: transaction.timeout.ms was over         |
| Ongoing, the epoch of the transaction                          | is not decided: this process aborts the transaction |
| anything else, or a refusal                                    | is unknown                                          |

Ongoing alone decides nothing: EndTxn of the dead process may still be in a socket. The abort decides, because the
coordinator takes one of both. Then the process asks again.

A transaction of version 2 (KIP-890) leaves the next epoch, one of version 1 its own. init_transactions() of another
process raises the epoch, too, and so does the coordinator where it aborts by itself, once or twice. Where these could
be confused, the coordinator's time of the beginning tells: it is not behind the note.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kafkabuf.errors import (
    ClosedError,
    ConfigError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
    TimeoutError,
    TransactionalIdNotFoundError,
)
from kafkabuf.process.producer_log import producer_log
from kafkabuf.spool.evidence import LARGEST_SEQUENCE
from kafkabuf.spool.proof import passes
from kafkabuf.transactions.result import Result

if TYPE_CHECKING:
    from kafkabuf.admin.admin import TransactionDescription
    from kafkabuf.batches._accumulator import PartitionQueue
    from kafkabuf.batches.accumulator import RecordAccumulator
    from kafkabuf.clock import Clock
    from kafkabuf.transactions.groups import TopicPartition

log = producer_log("kafkabuf.producer")


class CommitOutcome(StrEnum):
    """What became of a commit."""

    UNDER_WAY = "under way"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass
class Commit:
    """The commit that the process before had begun last. `records` counts those of its transaction, in all partitions.

    `outcome` is UNDER_WAY until the coordinator has answered. `reason` says why it is UNKNOWN.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_v2: bool  # the kind of the transaction (KIP-890)
    at_ms: int  # the time of day at which EndTxn was about to go
    records: int
    outcome: CommitOutcome = CommitOutcome.UNDER_WAY
    reason: str = ""

    def __str__(self) -> str:
        because = f" ({self.reason})" if self.reason else ""
        return (
            f"the commit of {self.records} records of {self.transactional_id!r} that the process before had begun: "
            f"{self.outcome}{because}"
        )


# ---- the note --------------------------------------------------------------------------------------------------------

# outcome, kind, epoch, bytes of the id, checksum of all but the outcome, producer id, time of day, records
_NOTE = struct.Struct("=B?hHxxIqqq")
_CHECKSUM = struct.Struct("=I")
_CHECKSUM_AT = 8
_NO_NOTE = 0
_BYTES = {CommitOutcome.UNDER_WAY: 1, CommitOutcome.COMMITTED: 2, CommitOutcome.ABORTED: 3}
_OUTCOMES = {byte: outcome for outcome, byte in _BYTES.items()}


class CommitNote:
    """The note in its place in the file. A kill between two stores leaves the note before, no note, or the new one."""

    def __init__(self, place: memoryview) -> None:
        self._place = place

    @property
    def longest_id(self) -> int:
        """Bytes of the longest transactional id that the note takes."""
        return len(self._place) - _NOTE.size

    @property
    def outcome(self) -> CommitOutcome | None:
        """None: there is no note."""
        return _OUTCOMES.get(self._place[0])

    @outcome.setter
    def outcome(self, outcome: CommitOutcome | None) -> None:
        self._place[0] = _NO_NOTE if outcome is None else _BYTES[outcome]

    def write(self, commit: Commit) -> None:
        name = commit.transactional_id.encode()
        fields = commit.is_v2, commit.producer_epoch, len(name)
        more = commit.producer_id, commit.at_ms, commit.records
        note = bytearray(_NOTE.pack(_NO_NOTE, *fields, 0, *more) + name)
        _CHECKSUM.pack_into(note, _CHECKSUM_AT, zlib.crc32(note))
        self.outcome = None
        self._place[1 : len(note)] = note[1:]
        self.outcome = commit.outcome

    def read(self) -> Commit | None:
        """The commit that was begun last; UNKNOWN if the note is damaged."""
        byte, is_v2, epoch, size, checksum, producer_id, at_ms, records = _NOTE.unpack_from(self._place)
        if byte == _NO_NOTE:
            return None
        note = bytearray(self._place[: _NOTE.size + size])
        note[0] = _NO_NOTE
        _CHECKSUM.pack_into(note, _CHECKSUM_AT, 0)
        if byte not in _OUTCOMES or checksum != zlib.crc32(note):
            return Commit("", -1, -1, False, -1, 0, CommitOutcome.UNKNOWN, "its note in the file is damaged")
        return Commit(note[_NOTE.size :].decode(), producer_id, epoch, is_v2, at_ms, records, _OUTCOMES[byte])


# ---- what the coordinator says ---------------------------------------------------------------------------------------


class Coordinators(Protocol):
    """What `ask` needs of a cluster. Each call makes one attempt, and raises KafkaError."""

    def transaction(self, transactional_id: str) -> TransactionDescription: ...
    def abort(self, commit: Commit) -> None: ...
    def pause(self, failures: int) -> None: ...


Fate = tuple[CommitOutcome, str]  # with the reason of UNKNOWN

_ENDS = {
    "PrepareCommit": CommitOutcome.COMMITTED,
    "CompleteCommit": CommitOutcome.COMMITTED,
    "PrepareAbort": CommitOutcome.ABORTED,
    "CompleteAbort": CommitOutcome.ABORTED,
}
_MOST_RISES = 2  # of the epoch, where the coordinator aborts by itself
# The transaction ended between the question and the abort.
_ENDED = (InvalidTxnStateError, ProducerFencedError, InvalidProducerEpochError, InvalidProducerIdMappingError)


def fate(commit: Commit, described: TransactionDescription) -> Fate | None:
    """What became of the commit; None while the transaction is open."""
    rise = described.producer_epoch - commit.producer_epoch
    outcome = _ENDS.get(described.state)
    if described.producer_id == commit.producer_id:
        if rise == 0 and described.state == "Ongoing":
            return None
        if outcome is not None and rise == int(commit.is_v2):
            return outcome, ""
        timed_out = 0 < rise <= _MOST_RISES and described.started_ms <= commit.at_ms
        if outcome is CommitOutcome.ABORTED and timed_out:
            return outcome, ""
    now = f"it is {described.state} now, with producer id {described.producer_id} and epoch {described.producer_epoch}"
    return CommitOutcome.UNKNOWN, f"another producer has used the transactional id since: {now}"


def ask(cluster: Coordinators, commit: Commit) -> Fate:
    """What became of a commit. An error that passes decides nothing: the call lasts as long as it takes.

    Raises ClosedError, which `cluster` raises to end it.
    """
    failures = 0
    while True:
        try:
            if (answer := fate(commit, cluster.transaction(commit.transactional_id))) is not None:
                return answer
            cluster.abort(commit)
        except ClosedError:
            raise
        except TransactionalIdNotFoundError:
            return CommitOutcome.UNKNOWN, "the coordinator has forgotten the transactional id"
        except KafkaError as error:
            if not passes(error) and not isinstance(error, _ENDED):
                return CommitOutcome.UNKNOWN, str(error)
        cluster.pause(failures)
        failures += 1


# ---- the producer's side ---------------------------------------------------------------------------------------------


class Commits:
    """The notes of one producer: `TransactionManager.commits`. `recovered` is the commit of the process before."""

    def __init__(self, note: CommitNote, clock: Clock) -> None:
        self._note = note
        self._clock = clock
        self._accumulator: RecordAccumulator | None = None
        # The id, epoch and next sequence of each partition at the end of its last transaction.
        self._numbers: dict[TopicPartition, tuple[int, int, int]] = {}
        self._answer = Result("DescribeTransactions")
        self.recovered: Commit | None = None

    def require_room(self, transactional_id: str | None) -> None:
        """Raise ConfigError if a note cannot take the id."""
        if (size := len((transactional_id or "").encode())) > self._note.longest_id:
            raise ConfigError(
                f"transactional.id has {size} bytes, and a file of kafkabuf.buffer.path takes {self._note.longest_id}: "
                "choose a shorter one"
            )

    def recover(self, accumulator: RecordAccumulator) -> None:
        """Read the note of the process before."""
        self._accumulator = accumulator
        self.recovered = self._note.read()
        if self.recovered is not None and not self.must_ask:
            self._say(self.recovered)
        if not self.must_ask:
            self._answer.end()

    @property
    def must_ask(self) -> bool:
        """Whether the coordinator has to say what became of the commit."""
        return self.recovered is not None and self.recovered.outcome is CommitOutcome.UNDER_WAY

    def errand(self, cluster: Coordinators) -> Callable[[], None]:
        """Ask the coordinator. Returns what the Sender, which owns the file, has to do with the answer."""
        assert self.recovered is not None
        return partial(self._settle, self.recovered, *ask(cluster, self.recovered))

    def _settle(self, commit: Commit, outcome: CommitOutcome, reason: str) -> None:
        if self.must_ask:
            commit.outcome, commit.reason = outcome, reason
            if outcome in _BYTES:
                self._note.outcome = outcome
            self._say(commit)
        self._answer.end()

    @staticmethod
    def _say(commit: Commit) -> None:
        say = log.info if commit.outcome is CommitOutcome.COMMITTED else log.warning
        say("%s", commit)

    def stop(self) -> None:
        """The producer ends: wait for no answer."""
        self._answer.end()

    def close(self) -> None:
        """The producer has ended in peace. What is known of its last commit, its user knows."""
        if self._accumulator is not None and self._note.outcome is not CommitOutcome.UNDER_WAY:
            self._note.outcome = None

    # ---- for TransactionManager

    def await_answer(self, timeout: float) -> None:
        """Wait until it is known what became of the commit of the process before. Raises TimeoutError."""
        if not self._answer.wait(timeout, self._clock):
            raise TimeoutError(
                f"init_transactions() waits for the coordinator's answer about {self.recovered}. There was none within "
                f"{timeout:g} s: call it again"
            )

    def begin(self) -> None:
        """The next transaction begins. Nobody asks for the last one any more."""
        self._note.outcome = None

    def under_way(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[TopicPartition],
        *,
        is_v2: bool,
    ) -> None:
        """EndTxn is about to go. A second call changes nothing."""
        if self._note.outcome is None:
            records = sum(self._records(place, producer_id, epoch) for place in partitions)
            self._note.write(Commit(transactional_id, producer_id, epoch, is_v2, self._clock.time_ms(), records))

    def ended(self, partitions: Collection[TopicPartition], *, committed: bool) -> None:
        """The coordinator has ended a transaction. A second call changes nothing."""
        for place in partitions:
            if (queue := self._queue(place)) is not None:
                self._numbers[place] = queue.producer_id, queue.producer_epoch, queue.next_sequence
        if self._note.outcome is CommitOutcome.UNDER_WAY:
            self._note.outcome = CommitOutcome.COMMITTED if committed else CommitOutcome.ABORTED

    def _records(self, place: TopicPartition, producer_id: int, epoch: int) -> int:
        """Records of the transaction in one partition: as many as it has numbers."""
        queue = self._queue(place)
        if queue is None or (queue.producer_id, queue.producer_epoch) != (producer_id, epoch):
            return 0
        *known, first = self._numbers.get(place, (-1, -1, 0))
        return (queue.next_sequence - (first if known == [producer_id, epoch] else 0)) & LARGEST_SEQUENCE

    def _queue(self, place: TopicPartition) -> PartitionQueue | None:
        assert self._accumulator is not None
        topic = self._accumulator.topics.get(place[0])
        return None if topic is None else topic.queues[place[1]]
