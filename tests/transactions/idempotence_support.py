"""For tests of idempotence: the numbers in a batch's header, and a Rig whose Sender numbers batches."""

from __future__ import annotations

import struct
from typing import Any

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import NetworkError
from kafkabuf.transactions.idempotence import ProducerState
from rigs.fake_client import Answer, Sent, encode_answer, read_records
from rigs.producer import TOPIC, Rig

NOT_LEADER = 6
OUT_OF_ORDER = 45
DUPLICATE = 46
INVALID_EPOCH = 47
UNKNOWN_PRODUCER = 59
LARGEST = 2**31 - 1


class IdempotentRig(Rig):
    @property
    def state(self) -> ProducerState:
        state = self.accumulator.producer_state
        assert isinstance(state, ProducerState)
        return state


def idempotent(**settings: Any) -> IdempotentRig:
    """A Rig that sends at once, under a producer id, and expires after ten seconds."""
    defaults = {
        "linger_ms": 0,
        "request_timeout_ms": 500,
        "delivery_timeout_ms": 10_000,
        "retry_backoff_ms": 100,
        "enable_idempotence": True,
    }
    return IdempotentRig(**(defaults | settings))


def numbers(sent: Sent, partition: int = 0) -> tuple[int, int, int]:
    """Producer id, epoch and first sequence number in the header of a batch that was sent."""
    producer_id, epoch, sequence = struct.unpack_from(">qhi", sent.produced.records[TOPIC, partition], 43)
    return producer_id, epoch, sequence


def of_epoch(rig: Rig, epoch: int, partition: int = 0) -> list[int]:
    """First numbers of all batches that were sent in an epoch, each once, in order."""
    sent = [
        numbers(request, partition) for request in rig.client.sent if (TOPIC, partition) in request.produced.records
    ]
    return sorted({sequence for _, batch_epoch, sequence in sent if batch_epoch == epoch})


def send_each(rig: Rig, count: int, partition: int = 0) -> list[RecordFuture]:
    """Send records one by one, each in a batch and a request of its own."""
    futures = []
    for number in range(count):
        futures.append(rig.send(b"%d" % number, partition))
        rig.turn()
    return futures


def refuse(rig: Rig, sent: Sent, *codes: int, **more: Any) -> None:
    """Give the broker's response and run a turn. The back-off of a retry is over after that."""
    rig.client.answer(sent, *codes, **more)
    rig.turn()
    rig.clock.advance(0.2)


accept = refuse  # a response without a code is a success


class SequencedPartition:
    """A partition whose leader checks numbers as Kafka does (ProducerAppendInfo, ProducerStateEntry)."""

    REMEMBERED = 5

    def __init__(self) -> None:
        self.log: list[bytes | None] = []
        self.epochs: dict[int, int] = {}  # producer id -> epoch
        self.recent: dict[int, list[tuple[int, int, int]]] = {}  # producer id -> first, last number, offset

    def append(self, data: bytes) -> Answer:
        producer_id, epoch, first = struct.unpack_from(">qhi", data, 43)
        values = [record.value for record in read_records(data)]
        last = (first + len(values) - 1) & LARGEST
        recent = self.recent.setdefault(producer_id, [])
        known = self.epochs.get(producer_id)
        if known is not None and epoch < known:
            return Answer(INVALID_EPOCH, -1)
        if known == epoch:
            for old_first, old_last, offset in recent:
                if (old_first, old_last) == (first, last):
                    return Answer(0, offset)
            if recent and first != (recent[-1][1] + 1) & LARGEST:
                return Answer(OUT_OF_ORDER, -1)
        elif known is not None and first != 0:
            return Answer(OUT_OF_ORDER, -1)
        if known != epoch:
            recent.clear()
        self.epochs[producer_id] = epoch
        recent.append((first, last, len(self.log)))
        del recent[: -self.REMEMBERED]
        self.log += values
        return Answer(0, len(self.log) - len(values))

    def forget(self) -> None:
        """Forget all producers, as after retention has deleted their records."""
        self.epochs.clear()
        self.recent.clear()


class SequencedBrokers:
    """The brokers of a Rig. Each partition has one log, which every leader uses."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.partitions: dict[int, SequencedPartition] = {}
        self.deleted: dict[int, list[SequencedPartition]] = {}
        self.leaders = {queue.partition: queue.leader for queue in rig.topic.queues}

    def log(self, partition: int = 0) -> list[bytes | None]:
        return self.partitions.setdefault(partition, SequencedPartition()).log

    def logs(self, partition: int) -> list[list[bytes | None]]:
        """The present log and the deleted logs."""
        return [self.log(partition), *(deleted.log for deleted in self.deleted.get(partition, []))]

    def make_again(self, partition: int) -> None:
        """The topic is deleted and made again, with the same leaders."""
        self.log(partition)
        self.deleted.setdefault(partition, []).append(self.partitions[partition])
        self.partitions[partition] = SequencedPartition()

    def partition_with(self, producer_id: int, epoch: int, last: int) -> SequencedPartition:
        """An empty partition that has taken the producer's numbers up to `last`."""
        partition = SequencedPartition()
        partition.epochs[producer_id] = epoch
        partition.recent[producer_id] = [(last, last, -1)]
        return partition

    def oldest(self, node_id: int) -> Sent | None:
        return next((sent for sent in self.rig.client.under_way if sent.node_id == node_id), None)

    def serve(self, sent: Sent, *, before: int = 0, after: int = 0) -> dict[tuple[str, int], Answer]:
        """Append and respond. With the code `before` refuse without an append, with `after` append and refuse."""
        answers = {}
        for (topic, partition), data in sent.produced.records.items():
            if before or self.leaders[partition] != sent.node_id:
                answers[topic, partition] = Answer(before or NOT_LEADER, -1)
                continue
            answer = self.partitions.setdefault(partition, SequencedPartition()).append(data)
            answers[topic, partition] = Answer(after, -1) if after and answer.error_code == 0 else answer
        return answers

    def answer(self, sent: Sent, **faults: int) -> None:
        answers = self.serve(sent, **faults)
        self.rig.client.answer_with(sent, encode_answer(sent.request.version, sent.correlation_id, answers))

    def disconnect(self, node_id: int, served: int) -> None:
        """The connection is lost after `served` of its requests were served, before any response was sent."""
        for sent in [sent for sent in self.rig.client.under_way if sent.node_id == node_id]:
            if served > 0 and sent.started:
                self.serve(sent)
                served -= 1
            self.rig.client.fail(sent, NetworkError("gone"))

    def lead(self, partition: int, node_id: int) -> None:
        self.leaders[partition] = node_id
        self.rig.lead(*self.leaders.values())

    def finish(self) -> None:
        """Serve all requests until every batch has an outcome."""
        for _ in range(500):
            self.rig.turn()
            for sent in list(self.rig.client.under_way):
                if sent.started and sent in self.rig.client.under_way:
                    self.answer(sent)
            if not self.rig.accumulator.incomplete and not self.rig.client.under_way:
                self.rig.turn()
                return
            self.rig.clock.advance(0.05)
        raise AssertionError("the Sender does not come to an end")
