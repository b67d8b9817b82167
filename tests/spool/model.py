"""A model of a partition's leader and of the process that writes to it, with what Kafka does to numbers and logs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from kafkabuf.admin.admin import ActiveProducer
from kafkabuf.errors import KafkaError, OffsetOutOfRangeError, UnknownTopicIdError
from kafkabuf.spool.evidence import Answer, SpooledBatch, SpooledPartition, Stretch
from kafkabuf.spool.headers import BatchHeader
from kafkabuf.transactions.groups import TopicPartition

LARGEST = 0x7FFFFFFF
PLACE = ("t", 0)
REMEMBERED = 5  # batches that a leader knows of each producer


def uuid(number: int) -> UUID:
    return UUID(int=number)


@dataclass
class Memory:
    """What the leader knows of one producer id: its epoch and its last batches."""

    epoch: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # first and last sequence, largest timestamp


@dataclass
class ModelLog:
    """A partition as its leader has it. `ever` has the numbers of all batches that were appended to it."""

    topic_id: UUID = field(default_factory=lambda: uuid(1))
    end: int = 0
    start: int = 0
    high_watermark: int = 0
    headers: list[tuple[int, BatchHeader]] = field(default_factory=list)
    memory: dict[int, Memory] = field(default_factory=dict)
    ever: list[int] = field(default_factory=list)

    def append(self, batch: SpooledBatch) -> str:
        """As Kafka does since 2.5: an unknown id may begin with any sequence, and a new epoch with 0."""
        known = self.memory.get(batch.producer_id)
        if known is not None and known.epoch > batch.epoch:
            return "fenced"
        if known is not None and known.epoch == batch.epoch and known.batches:
            if any((first, last) == (batch.base_sequence, batch.last_sequence) for first, last, _ in known.batches):
                return "duplicate"
            if batch.base_sequence != (known.batches[-1][1] + 1) & LARGEST:
                return "out of order"
        elif known is not None and batch.base_sequence:
            return "out of order"
        if known is None or known.epoch < batch.epoch:
            known = self.memory[batch.producer_id] = Memory(batch.epoch)
        known.batches = [
            *known.batches[1 - REMEMBERED :],
            (batch.base_sequence, batch.last_sequence, batch.largest_timestamp),
        ]
        self._store(batch.number, batch)
        return "appended"

    def append_others(self, records: int) -> None:
        """A batch of another producer, which has no id."""
        self._store(-1, SpooledBatch(-1, -1, -1, -1, records, 0))

    def _store(self, number: int, batch: SpooledBatch) -> None:
        header = BatchHeader(
            *(self.end, batch.count, batch.producer_id, batch.epoch, batch.base_sequence),
            *(batch.largest_timestamp, batch.base_timestamp),
        )
        self.headers.append((number, header))
        self.end += batch.count
        if number >= 0:
            self.ever.append(number)

    def offset_of(self, number: int) -> int:
        return next(header.base_offset for known, header in self.headers if known == number)

    def delete_up_to(self, offset: int) -> None:
        self.start = max(self.start, offset)
        self.headers = [(number, header) for number, header in self.headers if header.last_offset >= self.start]

    def remove(self, index: int) -> None:
        """Compaction removes a batch as a whole."""
        del self.headers[index]

    @property
    def whole(self) -> bool:
        return self.start == 0 and sum(header.count for _, header in self.headers) == self.end


@dataclass
class Process:
    """A producer with its file. Its batches go as the Sender lets them: batches/_sequences.pxd."""

    log: ModelLog
    producer_id: int = 7
    epoch: int = 0
    next_sequence: int = 0
    last_acked: int = -1
    last_acked_offset: int = -1
    batches: list[SpooledBatch] = field(default_factory=list)
    made: int = 0

    def add(self, count: int) -> None:
        """A batch is full. Its number names its records for good."""
        self.batches.append(SpooledBatch(self.made, -1, -1, -1, count, 1_000 + self.made))
        self.made += 1

    def send(self, going: int, arriving: int, acknowledged: int) -> None:
        """Batches go; of these some arrive, and the process learns of some that arrived."""
        proven = self.producer_id in self.log.memory and self.log.memory[self.producer_id].epoch == self.epoch
        going = min(going if proven else 1, len(self.batches))
        for place in range(going):
            if not self.batches[place].numbered:
                self.batches[place] = replace(
                    self.batches[place],
                    producer_id=self.producer_id,
                    epoch=self.epoch,
                    base_sequence=self.next_sequence,
                )
                self.next_sequence = (self.next_sequence + self.batches[place].count) & LARGEST
        arriving = min(arriving, going)
        for batch in self.batches[:arriving]:
            assert self.log.append(batch) in ("appended", "duplicate")
        for batch in self.batches[: min(acknowledged, arriving)]:
            self.last_acked = batch.last_sequence
            self.last_acked_offset = self.log.offset_of(batch.number) + batch.count - 1
        del self.batches[: min(acknowledged, arriving)]

    def raise_epoch(self) -> None:
        if not any(batch.numbered for batch in self.batches):
            self.epoch += 1
            self.next_sequence, self.last_acked = 0, -1

    def file(self) -> SpooledPartition:
        """The file as a kill leaves it, or as a copy of the volume has it."""
        return SpooledPartition(
            *("t", self.log.topic_id, 0, self.producer_id, self.epoch),
            *(self.last_acked, self.last_acked_offset, self.next_sequence, tuple(self.batches)),
        )


@dataclass
class ModelCluster:
    """`log` as the proof sees it. `trouble` may raise an error before each call. Followers fetch during a pause."""

    log: ModelLog
    describes: KafkaError | None = None  # the lasting error of DescribeProducers
    reads: KafkaError | None = None  # the lasting error of Fetch
    trouble: Callable[[str], None] = lambda call: None
    batches_of_a_read: int = 2
    pauses: int = 0
    calls: list[str] = field(default_factory=list)
    cluster_id: str = ""

    def ask(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Answer | KafkaError]:
        self._begin("ask")
        known = {
            number: ActiveProducer(number, memory.epoch, memory.batches[-1][1], -1, memory.batches[-1][2])
            for number, memory in self.log.memory.items()
        }
        return dict.fromkeys(partitions, Answer(self.log.topic_id, 3, self.describes or known, self.cluster_id))

    def ends(self, partition: TopicPartition, answer: Answer) -> tuple[int, int]:
        self._begin("ends")
        self._check(answer.topic_id)
        return self.log.high_watermark, self.log.end + 3 * (self.log.high_watermark < self.log.end)

    def read(self, partition: TopicPartition, topic_id: UUID | None, offset: int) -> Stretch:
        self._begin("read")
        self._check(topic_id)
        if offset > self.log.end:
            raise OffsetOutOfRangeError("behind the end")
        if offset < self.log.start:
            return Stretch(self.log.start, self.log.start, ())
        committed = [h for _, h in self.log.headers if offset <= h.last_offset < self.log.high_watermark]
        return Stretch(self.log.start, self.log.high_watermark, committed[: self.batches_of_a_read])

    def pause(self, failures: int) -> None:
        self.pauses += 1
        assert self.pauses < 1_000, "the proof does not end"
        self.log.high_watermark = min(self.log.high_watermark + 3, self.log.end)

    def _begin(self, call: str) -> None:
        self.calls.append(call)
        self.trouble(call)

    def _check(self, topic_id: UUID | None) -> None:
        if self.reads is not None:
            raise self.reads
        if topic_id != self.log.topic_id:
            raise UnknownTopicIdError("the topic was made again")


def numbered(number: int, base: int, count: int = 5, *, producer_id: int = 7, epoch: int = 0) -> SpooledBatch:
    return SpooledBatch(number, producer_id, epoch, base, count, 1_000 + number)


def spooled(batches: Sequence[SpooledBatch], **values: object) -> SpooledPartition:
    """A partition of which sequences 0 to 9 were acknowledged at offsets 0 to 9, and 10 to 29 given."""
    partition = SpooledPartition("t", uuid(1), 0, 7, 0, 9, 9, 30, tuple(batches))
    return replace(partition, **values)  # type: ignore[arg-type]
