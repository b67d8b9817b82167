"""Which batches of a file the cluster has already: asked of the leaders and read from the logs, never guessed.

A process died and left batches in its file. `prove` decides of each batch whether the log has it, before the Sender
sends anything of its partition. The rules are in rules.py, and leaders.py has the requests. Each partition goes its own
way:

    ask -> by_memory -> wait until all that the leader has is committed -> read the log -> by_log
      ^                                  |                                    |
      +------- another leader -----------+------------------------------------+

**Liveness.** A retriable error, a refused login or a moved leader decides nothing: `prove` asks again with the client's
back-off, for as long as it takes, and other partitions do not wait for it. Only a lasting refusal to read ends with
UNPROVEN. `Cluster.pause` raises ClosedError to end the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from kafkabuf.errors import AuthenticationError, ClosedError, KafkaError, OffsetOutOfRangeError
from kafkabuf.process.producer_log import producer_log
from kafkabuf.spool.evidence import NONE, Answer, Outcome, Proof, SpooledPartition, Stretch, Verdict
from kafkabuf.spool.rules import (
    Tail,
    by_log,
    by_memory,
    find,
    first_offset,
    of_another_cluster,
    refused,
    unnumbered,
    was_made_again,
)
from kafkabuf.transactions.groups import TopicPartition

log = producer_log("kafkabuf.spool")

# After so many reads of a partition's log, each of up to a megabyte, it is the turn of the other partitions.
_READS_OF_A_TURN = 64


class Cluster(Protocol):
    """The cluster's side of the proof. Each call is one attempt, and raises the KafkaError that it met."""

    def ask(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Answer | KafkaError]:
        """What each partition's leader knows, or the retriable error that the attempt met."""

    def ends(self, partition: TopicPartition, answer: Answer) -> tuple[int, int]:
        """The high watermark, and an offset at or above the log's end. The leader must lead in the answer's epoch."""

    def read(self, partition: TopicPartition, topic_id: UUID | None, offset: int) -> Stretch:
        """Batches from the one that holds the offset, up to the high watermark; none if the log begins later.

        Raises OffsetOutOfRangeError for an offset behind the log's end.
        """

    def pause(self, failures: int) -> None:
        """Wait for the back-off after so many failures in a row. Raises ClosedError when the proof is to end."""


class _NotYetError(Exception):
    """The partition has to wait: a part of its log is not committed."""


@dataclass
class _Course:
    """How far the proof of one partition is."""

    partition: SpooledPartition
    answer: Answer | None = None
    verdicts: Sequence[Verdict | None] = ()
    restored: str = ""
    bound: int = NONE
    tail: Tail | None = None
    reading: bool = False  # the next turn goes on reading the log at once
    logged: set[str] = field(default_factory=set)

    def ask_again(self) -> None:
        """Another leader has another memory, and perhaps another end of the log. What was read stays read."""
        self.answer, self.bound = None, NONE

    def take(self, answer: Answer) -> Proof | None:
        """The proof, if the leader's memory suffices and nothing of it needs to be committed."""
        self.answer = answer
        if (proof := of_another_cluster(self.partition, answer)) is not None:
            return proof
        if self.tail is not None and (answer.topic_id is None or answer.topic_id != self.tail.topic_id):
            self.tail = None
        self.verdicts, self.restored = by_memory(self.partition, answer)
        made_again = was_made_again(self.partition, answer)
        decided = [verdict for verdict in self.verdicts if verdict is not None]
        if len(decided) < len(self.verdicts) or any(verdict.outcome is Outcome.THERE for verdict in decided):
            return None
        return Proof(self.partition, decided, self.restored, made_again)

    def go_on(self, cluster: Cluster) -> Proof | None:
        """One turn: sees whether the log is committed, and reads it where that is needed. None: it is not read up to
        its end yet. Raises KafkaError or _NotYetError."""
        assert self.answer is not None
        self.reading = False
        high_watermark, bound = cluster.ends(self.partition.place, self.answer)
        # A later bound covers more than the answer needs: the log may grow faster than followers fetch.
        self.bound = bound if self.bound == NONE else self.bound
        if high_watermark < min(self.bound, bound):
            raise _NotYetError("the leader's log is not committed up to its end yet")
        if None in self.verdicts:
            self.reading = self._read_log(cluster, self.answer, min(self.bound, bound))
        if self.reading:
            return None
        return by_log(self.partition, self.answer, self.verdicts, self.restored, self.tail or Tail(None, 0))

    def _read_log(self, cluster: Cluster, answer: Answer, bound: int) -> bool:
        """Returns whether there is more to read."""
        if self.tail is None:
            first = first_offset(self.partition, answer)
            self.tail = Tail(answer.topic_id, first if first <= bound else 0)
        tail = self.tail
        ids = {self.partition.producer_id, *(batch.producer_id for batch in self.partition.batches)} - {NONE}
        while tail.position < bound and not self._found_all(tail):
            if not tail.add(cluster.read(self.partition.place, answer.topic_id, tail.position), ids):
                raise _NotYetError("the leader does not give out its log up to the high watermark yet")
            if tail.reads % _READS_OF_A_TURN == 0:
                text = "%s: looked for batches of the buffer's file up to offset %d, the log ends at %d"
                log.info(text, self.partition, tail.position, bound)
                return True
        return False

    def _found_all(self, tail: Tail) -> bool:
        missing = zip(self.partition.batches, self.verdicts, strict=True)
        return all(verdict is not None or find(batch, tail.headers)[0] is not None for batch, verdict in missing)

    def say(self, why: object) -> None:
        """Logs why the partition waits, once for each kind of reason."""
        kind = type(why).__name__
        if kind not in self.logged:
            self.logged.add(kind)
            log.info("%s: it is not known yet which batches of the file the log has: %s", self.partition, why)


def prove(
    cluster: Cluster,
    partitions: Sequence[SpooledPartition],
    more: Callable[[], Sequence[SpooledPartition]] = lambda: (),
) -> Iterator[Proof]:
    """The proof of each partition as soon as it is found; partitions that the memory of a leader decides come first.

    Blocks in `next` until the cluster answers. Raises ClosedError when the `cluster` is stopped. `more` gives
    partitions that have joined meanwhile; it is asked until nothing is left to prove.
    """
    silent = [partition for partition in partitions if not _needs_cluster(partition)]
    yield from (Proof(partition, [unnumbered(partition) for _ in partition.batches]) for partition in silent)
    joined: Sequence[SpooledPartition] = [partition for partition in partitions if _needs_cluster(partition)]
    courses: list[_Course] = []
    failures = 0
    while courses or joined:
        courses += [_Course(partition) for partition in joined]
        proofs = list(_ask(cluster, courses))
        yield from proofs
        left = _without(courses, proofs)
        for course in left:
            proof = _go_on(cluster, course) if course.answer is not None else None
            if proof is not None:
                proofs.append(proof)
                yield proof
        courses = _without(courses, proofs)
        if courses and not any(course.reading for course in courses):
            cluster.pause(failures)
            failures = 0 if proofs else failures + 1
        joined = more()


def _needs_cluster(partition: SpooledPartition) -> bool:
    return partition.idempotent or any(batch.numbered for batch in partition.batches)


def _without(courses: Sequence[_Course], proofs: Sequence[Proof]) -> list[_Course]:
    done = {proof.partition.place for proof in proofs}
    return [course for course in courses if course.partition.place not in done]


def _ask(cluster: Cluster, courses: Sequence[_Course]) -> Iterator[Proof]:
    """Asks the leaders of the partitions that have no answer yet."""
    asking = [course for course in courses if course.answer is None]
    try:
        answers = cluster.ask([course.partition.place for course in asking]) if asking else {}
    except KafkaError as error:
        if not passes(error):
            raise
        answers = {course.partition.place: error for course in asking}
    for course in asking:
        answer = answers.get(course.partition.place)
        if answer is None or isinstance(answer, KafkaError):
            course.say(answer or "the leader's response leaves the partition out")
        elif (proof := course.take(answer)) is not None:
            yield proof


def _go_on(cluster: Cluster, course: _Course) -> Proof | None:
    try:
        return course.go_on(cluster)
    except ClosedError:
        raise
    except _NotYetError as wait:
        course.say(wait)
    except OffsetOutOfRangeError as error:  # the log was cut, which takes an unclean election, or a topic made again
        course.say(error)
        course.ask_again()
        course.tail = None
    except KafkaError as error:
        if not passes(error):
            return refused(course.partition, course.verdicts, course.restored, error)
        course.say(error)
        if error.invalid_metadata:
            course.ask_again()
    return None


def passes(error: KafkaError) -> bool:
    """Whether to ask again. A refused login says nothing of the log, and the Sender cannot send either."""
    return error.retriable or isinstance(error, AuthenticationError)
