"""The proof against a model of Kafka, over random histories of a producer, its file and the log.

The model knows what the log ever had. A batch that it had is never called absent, a batch that it never had is never
called there, and doubt remains only where a stretch is gone, may not be read, or belongs to a file that is older than
the cluster. Then the batches are sent as the verdicts say, while requests of the dead process arrive late: the log has
each batch once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from kafkabuf.errors import (
    FencedLeaderEpochError,
    KafkaError,
    NetworkError,
    RequestTimedOutError,
    TopicAuthorizationError,
    UnsupportedVersionError,
)
from kafkabuf.spool.evidence import Outcome, Proof, SpooledBatch, SpooledPartition
from kafkabuf.spool.proof import prove
from tests.effort import effort
from tests.spool.model import LARGEST, ModelCluster, ModelLog, Process, uuid

PASSING = (NetworkError, FencedLeaderEpochError, RequestTimedOutError)
NEW_ID = 8  # the id under which batches with new numbers go


class History:
    """One run of everything, drawn by Hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        first = self._int(0, 1) and LARGEST - self._int(0, 40)  # sequences may be about to wrap
        self.process = Process(ModelLog(), next_sequence=first, last_acked=first - 1)
        self.restored = False

    def _int(self, lowest: int, highest: int) -> int:
        return self._data.draw(st.integers(lowest, highest))

    @property
    def log(self) -> ModelLog:
        return self.process.log

    def live(self, steps: int) -> None:
        for _ in range(steps):
            match self._int(0, 9):
                case 0 | 1 | 2:
                    self.process.add(self._int(1, 6))
                case 3 | 4 | 5 | 6:
                    self.process.send(self._int(1, 5), self._int(0, 5), self._int(0, 5))
                case 7:
                    self.log.append_others(self._int(1, 4))
                case 8:
                    self.process.raise_epoch()
                case 9 if not any(batch.numbered for batch in self.process.batches):
                    self.log.memory.pop(self.process.producer_id, None)  # idle for a day

    def die(self) -> None:
        """Most often batches are in flight, and of some that arrived the process does not learn."""
        for _ in range(self._int(0, 4)):
            self.process.add(self._int(1, 6))
        self.process.send(self._int(0, 5), self._int(0, 5), self._int(0, 2))

    def copy_and_live_on(self) -> SpooledPartition:
        """A copy of the file, which is older than the cluster if the process goes on to send. As another life would, it
        takes new numbers for what was not numbered."""
        copy = self.process.file()
        sent = len(self.log.ever), self.process.next_sequence, self.process.epoch
        self.live(self._int(0, 6))
        self.restored = sent != (len(self.log.ever), self.process.next_sequence, self.process.epoch)
        return copy

    def go_by(self) -> None:
        """What happens to the log while no process runs."""
        for _ in range(self._int(0, 3)):
            match self._int(0, 4):
                case 0:
                    self.log.append_others(self._int(1, 9))
                case 1:
                    self.log.memory.pop(self.process.producer_id, None)
                case 2:
                    self.log.delete_up_to(self._int(0, self.log.end))
                case 3 if self.log.headers:
                    self.log.remove(self._int(0, len(self.log.headers) - 1))
                case 4:
                    self.process.log = ModelLog(topic_id=uuid(self.log.topic_id.int + 1))

    def cluster(self) -> ModelCluster:
        failures = self._data.draw(st.lists(st.sampled_from(PASSING), max_size=4))

        def fail(call: str) -> None:
            if failures and self._int(0, 1):
                raise failures.pop()("it passes")

        refusals: list[KafkaError | None] = [None, None, UnsupportedVersionError("old"), TopicAuthorizationError("no")]
        describes = self._data.draw(st.sampled_from(refusals))
        reads = describes if isinstance(describes, TopicAuthorizationError) else None
        self.log.high_watermark = self._int(max(self.log.start, self.log.end - 12), self.log.end)
        return ModelCluster(self.log, describes, reads, fail, self._int(1, 3))


@settings(max_examples=effort(2_000))
@given(st.data())
def test_no_verdict_is_wrong_and_each_batch_is_in_the_log_once(data: st.DataObject) -> None:
    history = History(data)
    history.live(data.draw(st.integers(2, 14)))
    history.die()
    file = history.copy_and_live_on() if data.draw(st.integers(0, 3)) == 0 else history.process.file()
    late = [batch for batch in file.batches if batch.numbered and batch.number not in history.log.ever]
    history.go_by()
    cluster = history.cluster()
    (proof,) = prove(cluster, [file])
    check(history, cluster, proof)
    if not history.restored:
        deliver(history.log, proof, late, lambda: data.draw(st.booleans()))


def check(history: History, cluster: ModelCluster, proof: Proof) -> None:
    log = history.log
    for batch, verdict in zip(proof.partition.batches, proof.verdicts, strict=True):
        event(f"{verdict.outcome.value}{' of a copy' * history.restored}")
        # The proof does not read the log for a batch without numbers: it takes a copy for the newest file there.
        silent = cluster.describes is not None or history.process.producer_id not in log.memory
        unseen = history.restored and not batch.numbered and silent
        match verdict.outcome:
            case Outcome.THERE:
                assert batch.number in log.ever
                if verdict.base_offset >= 0:
                    assert verdict.base_offset == log.offset_of(batch.number)
                    assert verdict.base_offset + batch.count <= log.high_watermark
            case Outcome.ABSENT | Outcome.FORGOTTEN:
                assert batch.number not in log.ever or unseen
            case Outcome.UNPROVEN:
                assert verdict.reason
                assert not log.whole or cluster.reads is not None or history.restored


def deliver(log: ModelLog, proof: Proof, late: list[SpooledBatch], arrives: Callable[[], bool]) -> None:
    """Sends what the proof calls absent, as the Sender does. A request of the dead process may come between."""
    assert not proof.restored
    next_sequence = 0
    doubtful = set()
    for batch, verdict in zip(proof.partition.batches, proof.verdicts, strict=True):
        if late and arrives():
            log.append(late.pop(0))
        if verdict.outcome is Outcome.THERE:
            continue
        if verdict.outcome is Outcome.UNPROVEN:
            doubtful.add(batch.number)
        numbers = batch.numbered and verdict.own_numbers and verdict.outcome is not Outcome.UNPROVEN
        response = log.append(batch) if numbers else "out of order"
        # A late request for a later batch may be the first that a topic sees which was made again.
        assert response in ("appended", "duplicate") or not numbers or proof.made_again
        if response == "out of order":
            log.append(replace(batch, producer_id=NEW_ID, epoch=0, base_sequence=next_sequence))
            next_sequence += batch.count
    while late:
        log.append(late.pop(0))
    times = Counter(log.ever)
    for batch in proof.partition.batches:
        assert times[batch.number] == 1 or batch.number in doubtful
