"""A script of raw requests about producers and transactions, for any broker: it notes the responses field by field.

The steps are in steps.py. The script renames producer ids in the order in which they appear, so that a test
can compare the responses of two brokers. It repeats a request that meets a transaction whose markers are still being
written.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient, batch

TRANSACTIONAL = 0x10
CONCURRENT_TRANSACTIONS = 51
_TRANSIENT = (14, 15, 16, CONCURRENT_TRANSACTIONS)


@dataclass
class Script:
    """`answers`: the noted response of each step, by the name of the step."""

    client: RawClient
    topic: str
    name: str
    answers: dict[str, Any] = field(default_factory=dict)
    _ids: dict[int, str] = field(default_factory=dict)

    def wait_for_coordinators(self) -> None:
        """Asks for both coordinators: the first request makes Kafka create the topics with their state."""
        for key_type in (0, 1):
            self.patiently(messages.FIND_COORDINATOR, 3, lambda one: one.error_code, key=self.name, key_type=key_type)

    def note(self, step: str, answer: Any) -> None:
        assert step not in self.answers, f"two steps are called {step}"
        self.answers[step] = answer

    def id(self, producer_id: int) -> str | int:
        return producer_id if producer_id < 0 else self._ids.setdefault(producer_id, f"producer {len(self._ids) + 1}")

    def patiently(self, api_key: int, version: int, code: Any, **values: Any) -> Any:
        """Repeats the request while `code(answer)` is a transient error."""
        for _ in range(200):
            answer = self.client.ask(api_key, version, **values)
            if int(code(answer)) not in _TRANSIENT:
                break
            time.sleep(0.02)
        return answer

    # ---- requests; each notes the fields that matter

    def init(
        self,
        step: str,
        transactional_id: str | None,
        *,
        version: int = 4,
        known: tuple[int, int] = (-1, -1),
        timeout: int = 60_000,
        patient: bool = True,
    ) -> tuple[int, int]:
        values = {
            "transactional_id": transactional_id,
            "transaction_timeout": timeout,
            "producer_id": known[0],
            "producer_epoch": known[1],
        }
        if patient:
            answer = self.patiently(messages.INIT_PRODUCER_ID, version, lambda one: one.error_code, **values)
        else:
            answer = self.client.ask(messages.INIT_PRODUCER_ID, version, **values)
        self.note(step, (int(answer.error_code), self.id(answer.producer_id), answer.producer_epoch))
        return answer.producer_id, answer.producer_epoch

    def add(self, step: str, transactional_id: str, producer: tuple[int, int], *partitions: int, **more: Any) -> None:
        topic = more.get("topic", self.topic)
        answer = self.patiently(
            messages.ADD_PARTITIONS_TO_TXN,
            more.get("version", 3),
            lambda one: one.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[{"name": topic, "partitions": list(partitions)}],
        )
        results = answer.results_by_topic_v3_and_below[0].results_by_partition
        self.note(step, sorted((one.partition_index, int(one.partition_error_code)) for one in results))

    def produce(
        self,
        step: str,
        transactional_id: str | None,
        producer: tuple[int, int],
        sequence: int,
        *,
        partition: int = 0,
        count: int = 1,
        version: int = 11,
        transactional: bool = True,
        wait: bool = True,
    ) -> int:
        records = batch(
            [b"%d" % number for number in range(count)],
            attributes=TRANSACTIONAL if transactional else 0,
            producer=(*producer, sequence),
        )
        data = [{"name": self.topic, "partition_data": [{"index": partition, "records": records}]}]
        for _ in range(200):
            answer = self.client.ask(
                messages.PRODUCE, version, transactional_id=transactional_id, acks=-1, timeout=1000, topic_data=data
            )
            one = answer.responses[0].partition_responses[0]
            # NOT_ENOUGH_REPLICAS: the coordinator is still busy with the previous transaction.
            if int(one.error_code) != 19 or not wait:
                break
            time.sleep(0.02)
        when = None if one.log_append_time is None else one.log_append_time.isoformat()
        self.note(step, (int(one.error_code), one.base_offset, when, one.log_start_offset))
        return int(one.error_code)

    def end(
        self, step: str, transactional_id: str, producer: tuple[int, int], committed: bool, *, version: int = 4
    ) -> tuple[int, int]:
        answer = self.patiently(
            messages.END_TXN,
            version,
            lambda one: one.error_code,
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=committed,
        )
        if version < 5:
            self.note(step, int(answer.error_code))
            return producer
        self.note(step, (int(answer.error_code), self.id(answer.producer_id), answer.producer_epoch))
        return answer.producer_id, answer.producer_epoch

    def add_offsets(
        self, step: str, transactional_id: str, producer: tuple[int, int], group: str, *, version: int = 3
    ) -> None:
        answer = self.patiently(
            messages.ADD_OFFSETS_TO_TXN,
            version,
            lambda one: one.error_code,
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id=group,
        )
        self.note(step, int(answer.error_code))

    def commit_offsets(
        self,
        step: str,
        transactional_id: str,
        producer: tuple[int, int],
        group: str,
        offset: int,
        *,
        version: int = 3,
        topic: str | None = None,
        **member: Any,
    ) -> None:
        answer = self.patiently(
            messages.TXN_OFFSET_COMMIT,
            version,
            lambda one: one.topics[0].partitions[0].error_code,
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer[0],
            producer_epoch=producer[1],
            topics=[
                {
                    "name": topic or self.topic,
                    "partitions": [
                        {"partition_index": 0, "committed_offset": offset, "committed_metadata": "note"},
                    ],
                }
            ],
            **member,
        )
        self.note(step, int(answer.topics[0].partitions[0].error_code))

    def offset(self, step: str, group: str, *, stable: bool) -> None:
        for _ in range(200):
            answer = self.client.ask(
                messages.OFFSET_FETCH,
                7,
                group_id=group,
                topics=[{"name": self.topic, "partition_indexes": [0]}],
                require_stable=stable,
            )
            one = answer.topics[0].partitions[0]
            if int(one.error_code) not in _TRANSIENT:
                break
            time.sleep(0.02)
        found = (int(answer.error_code), int(one.error_code), one.committed_offset, one.metadata)
        self.note(step, found)

    def write_marker(
        self, step: str, producer: tuple[int, int], coordinator_epoch: int, *, committed: bool, partition: int
    ) -> None:
        marker = {
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "coordinator_epoch": coordinator_epoch,
            "transaction_result": committed,
            "topics": [{"name": self.topic, "partition_indexes": [partition]}],
        }
        answer = self.client.ask(messages.WRITE_TXN_MARKERS, 1, markers=[marker])
        (one,) = answer.markers[0].topics[0].partitions
        self.note(step, (self.id(answer.markers[0].producer_id), one.partition_index, int(one.error_code)))

    def stable_offset(self, expected: int, partition: int = 0) -> None:
        """Waits until the last stable offset reaches `expected`: the markers before it are written."""
        self._reached(expected, partition, lambda one: one.last_stable_offset)

    def high_watermark(self, expected: int, partition: int = 0) -> None:
        self._reached(expected, partition, lambda one: one.high_watermark)

    def _reached(self, expected: int, partition: int, offset_of: Any) -> None:
        for _ in range(250):
            if offset_of(self.client.fetch(self.topic, 0, partition=partition)) >= expected:
                return
            time.sleep(0.02)
        raise AssertionError(f"partition {partition} never reaches offset {expected}")

    def fetch(self, step: str, offset: int, *, partition: int = 0, committed: bool = True) -> None:
        """Notes every batch from `offset` on, which a broker may send in several responses. Kafka looks aborted
        transactions up by position, so a response may name some that began behind its batches."""
        first = self.client.fetch(self.topic, offset, partition=partition, isolation_level=int(committed))
        aborted: list[tuple[str | int, int]] = []
        batches: list[tuple[int, int, int, int, int]] = []
        one = first
        while one.records:
            found = [
                (self.id(each.producer_id), each.first_offset)
                for each in one.aborted_transactions or ()
                if each.first_offset < one.last_stable_offset
            ]
            aborted += [each for each in found if each not in aborted]
            batches += heads(bytes(one.records))
            offset = batches[-1][0] + batches[-1][4] + 1
            one = self.client.fetch(self.topic, offset, partition=partition, isolation_level=int(committed))
        self.note(
            step,
            {
                "error": int(first.error_code),
                "high watermark": first.high_watermark,
                "last stable offset": first.last_stable_offset,
                "log start": first.log_start_offset,
                "aborted": None if first.aborted_transactions is None else aborted,
                "batches": batches,
            },
        )

    def list_offset(self, step: str, timestamp: int, *, committed: bool, partition: int = 0) -> None:
        topics = [{"name": self.topic, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}]
        answer = self.client.ask(messages.LIST_OFFSETS, 5, replica_id=-1, isolation_level=int(committed), topics=topics)
        one = answer.topics[0].partitions[0]
        self.note(step, (int(one.error_code), one.offset))


def heads(records: bytes) -> list[tuple[int, int, int, int, int]]:
    """(base offset, attributes, producer epoch, base sequence, last offset delta) of each batch."""
    found = []
    while len(records) >= 61:
        size = int.from_bytes(records[8:12], "big") + 12
        epoch, sequence = (
            int.from_bytes(records[51:53], "big", signed=True),
            int.from_bytes(records[53:57], "big", signed=True),
        )
        found.append(
            (
                int.from_bytes(records[:8], "big"),
                int.from_bytes(records[21:23], "big"),
                epoch,
                sequence,
                int.from_bytes(records[23:27], "big"),
            )
        )
        records = records[size:]
    return found
