"""For tests of splitting: a broker that takes batches up to a limit, and reads them with aiokafka."""

from __future__ import annotations

from aiokafka.record.memory_records import MemoryRecords

from kafkabuf.batches._batch import RecordFuture
from rigs.fake_client import Answer, Sent, encode_answer
from rigs.producer import Rig
from tests.wire.record_support import SampleRecord

TOO_LARGE = 10


def decoded(data: bytes) -> list[SampleRecord]:
    """The records. Checks that offsets count from 0, and that CRCs and the largest timestamp are right."""
    records: list[SampleRecord] = []
    batches = MemoryRecords(data)
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        for record in batch:
            assert record.offset == len(records)
            records.append(SampleRecord(record.timestamp, record.key, record.value, tuple(record.headers or ())))
    if data[16] == 2:
        assert int.from_bytes(data[35:43], "big") == max(record.timestamp for record in records)
    return records


class Topic:
    """A broker that takes batches of at most `limit` bytes, with its log of each partition."""

    def __init__(self, rig: Rig, limit: int) -> None:
        self.rig = rig
        self.limit = limit
        self.log: dict[int, list[SampleRecord]] = {}
        self.refused = 0

    def answer(self, sent: Sent) -> None:
        answers = {}
        for (topic, partition), data in sent.produced.records.items():
            log = self.log.setdefault(partition, [])
            if len(data) > self.limit:
                self.refused += 1
                answers[topic, partition] = Answer(TOO_LARGE)
            else:
                answers[topic, partition] = Answer(base_offset=len(log))
                log += decoded(data)
        self.rig.client.answer_with(sent, encode_answer(sent.request.version, sent.correlation_id, answers))

    def answer_under_way(self) -> None:
        for sent in list(self.rig.client.under_way):
            self.answer(sent)

    def serve(self) -> None:
        """Run turns until every batch has an outcome. The clock moves, so that back-offs end."""
        for _ in range(1000):
            self.rig.turn()
            self.answer_under_way()
            if not self.rig.accumulator.incomplete and not self.rig.client.under_way:
                self.rig.turn()
                return
            self.rig.clock.advance(0.001)
        raise AssertionError("the Sender does not come to an end")

    def values(self, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.log.get(partition, ())]


def offset_of(future: RecordFuture) -> int:
    return future.result(0).offset


def refuse(rig: Rig, sent: Sent) -> None:
    rig.client.answer(sent, TOO_LARGE)
    rig.turn()
