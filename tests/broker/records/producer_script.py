"""A script of raw requests about what a partition knows of its producers, for any cluster of three nodes.

The steps are in producer_steps.py. A batch has the producer id that its step chooses; the script renames the ids of
transactional producers, which the cluster chooses, in the order in which they appear. The times that steps choose count
from an hour before the script began, and are noted so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient, batch

TRANSACTIONAL = 0x10
INVALID_RECORD = 87
PATIENCE = 120.0
SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
# The coordinator or the leader is not there yet, or is still busy with the previous transaction.
_TRANSIENT = (3, 5, 6, 7, 13, 14, 15, 16, 19, 41, 51)
_TOPIC_EXISTS = 36
# Ids that no cluster gives away begin here. The script notes them from 0 on.
_OWN = 9_000_000_000
Producer = tuple[int, int]


def own(number: int, epoch: int) -> Producer:
    """A producer whose id the step chooses."""
    return _OWN + number, epoch


class Stage(Protocol):
    """A cluster of three nodes whose ids count from 1. Each node checks every few moments which ids have expired."""

    def address(self, node_id: int) -> str: ...
    def now_ms(self) -> int: ...
    def pause(self) -> None:
        """Lets a moment of the cluster's time pass."""

    def restart(self, node_id: int) -> None:
        """Stops the node in order, and starts it with its data."""

    def kill(self, node_id: int) -> None:
        """Kills the node, and starts it with its data."""

    def bounce(self, node_id: int) -> None:
        """Stops the node in order, so that other nodes lead, and starts it with its data."""

    def move_leader(self, topic: str) -> None:
        """Makes another node the leader of partition 0."""


@dataclass
class Script:
    """`answers`: what each step has noted, by the name of the step."""

    stage: Stage
    name: str
    answers: dict[str, Any] = field(default_factory=dict)
    _clients: dict[str, RawClient] = field(default_factory=dict)
    _ids: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.origin = self.stage.now_ms() - HOUR

    def note(self, step: str, answer: Any) -> None:
        assert step not in self.answers, f"two steps are called {step}"
        self.answers[step] = answer

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE:.0f} s"
            self.stage.pause()

    def close(self) -> None:
        for client in self._clients.values():
            client.socket.close()
        self._clients.clear()

    # ---- requests

    def ask(self, node_id: int, api_key: int, version: int, **values: Any) -> Any:
        address = self.stage.address(node_id)
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = RawClient(address, timeout=PATIENCE / 3)
        try:
            return client.ask(api_key, version, **values)
        except BaseException:
            self._clients.pop(address).socket.close()
            raise

    def patiently(self, code: Callable[[Any], int], node_id: int, api_key: int, version: int, **values: Any) -> Any:
        """Repeats the request while `code(answer)` is a transient error."""
        answers: list[Any] = []

        def answered() -> bool:
            answers[:] = [self.ask(node_id, api_key, version, **values)]
            return int(code(answers[0])) not in _TRANSIENT

        self.until(answered, f"an answer to API {api_key}")
        return answers[0]

    def topic(self, suffix: str) -> str:
        return f"{self.name}-{suffix}"

    def create(self, suffix: str, nodes: Sequence[Sequence[int]], **configs: str) -> None:
        """Makes a topic. `nodes`: the replicas of each partition, its leader first. Returns when the leaders lead."""
        settings = {"min.insync.replicas": "1", **{name.replace("_", "."): value for name, value in configs.items()}}
        wanted = {
            "name": self.topic(suffix),
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": index, "broker_ids": list(ids)} for index, ids in enumerate(nodes)],
            "configs": [{"name": name, "value": value} for name, value in settings.items()],
        }
        self.until(lambda: self._created(wanted), f"topic {suffix}")
        for index in range(len(nodes)):
            self.until(lambda index=index: self.leads(suffix, index), f"a leader of {suffix}-{index}")  # type: ignore[misc]

    def _created(self, wanted: dict[str, Any]) -> bool:
        """Kafka does not answer while its controllers elect another, which a busy machine makes them do."""
        try:
            answer = self.ask(1, messages.CREATE_TOPICS, 5, topics=[wanted], timeout=10_000, validate_only=False)
        except TimeoutError:
            return False
        code = int(answer.topics[0].error_code)
        assert code in (0, *_TRANSIENT, _TOPIC_EXISTS), answer
        return code in (0, _TOPIC_EXISTS)

    def leads(self, suffix: str, partition: int) -> bool:
        leader = self.leader(suffix, partition)
        if leader < 0:
            return False
        asked = [{"name": self.topic(suffix), "partitions": [{"partition_index": partition, "timestamp": -1}]}]
        answer = self.ask(leader, messages.LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=asked)
        return int(answer.topics[0].partitions[0].error_code) == 0

    def delete(self, suffix: str) -> None:
        """Deletes a topic. Returns when no node describes it any more."""
        name = self.topic(suffix)
        self.ask(1, messages.DELETE_TOPICS, 5, topic_names=[name], timeout=30_000)
        for node_id in (1, 2, 3):
            self.until(lambda node=node_id: self._topic_code(node, name) == 3, f"the end of {name}")  # type: ignore[misc]

    def _topic_code(self, node_id: int, name: str) -> int:
        answer = self.ask(node_id, messages.METADATA, 8, topics=[{"name": name}], allow_auto_topic_creation=False)
        return int(answer.topics[0].error_code)

    def leader(self, suffix: str, partition: int = 0, asked: int = 1) -> int:
        """The node that leads the partition; -1 while there is none."""
        wanted = [{"name": self.topic(suffix)}]
        answer = self.ask(asked, messages.METADATA, 8, topics=wanted, allow_auto_topic_creation=False)
        found = [each.leader_id for each in answer.topics[0].partitions if each.partition_index == partition]
        return int(found[0]) if found else -1

    def elect(self, suffix: str, node_id: int) -> None:
        """Waits until a node leads partition 0 that is the first of its replicas."""
        asked = [{"topic": self.topic(suffix), "partitions": [0]}]

        def leads() -> bool:
            self.ask(node_id, messages.ELECT_LEADERS, 1, election_type=0, topic_partitions=asked, timeout=30_000)
            return self.leader(suffix) == node_id and self.leads(suffix, 0)

        self.until(leads, f"node {node_id} at the head of {suffix}")

    def send(
        self,
        step: str | None,
        suffix: str,
        producer: Producer,
        sequence: int,
        *,
        partition: int = 0,
        at: Sequence[int] = (0,),
        transactional_id: str | None = None,
        version: int = 11,
        key: bytes | None = None,
    ) -> int:
        """Sends a batch with a record for each of the times `at`, and notes the response."""
        records = self.records(producer, sequence, at=at, transactional=transactional_id is not None, key=key)
        data = [{"name": self.topic(suffix), "partition_data": [{"index": partition, "records": records}]}]
        answer = self.patiently(
            lambda answer: answer.responses[0].partition_responses[0].error_code,
            self.leader(suffix, partition),
            messages.PRODUCE,
            version,
            transactional_id=transactional_id,
            acks=-1,
            timeout=30_000,
            topic_data=data,
        )
        result = self.result(answer.responses[0].partition_responses[0])
        if step is None:
            assert result[0] == 0, result
        else:
            self.note(step, result)
        return int(result[1])

    def records(
        self,
        producer: Producer,
        sequence: int,
        *,
        at: Sequence[int] = (0,),
        transactional: bool = False,
        key: bytes | None = None,
    ) -> bytes:
        return batch(
            [b"v"] * len(at),
            keys=[key] * len(at),
            timestamps=[self.origin + moment for moment in at],
            attributes=TRANSACTIONAL if transactional else 0,
            producer=(*producer, sequence),
        )

    def result(self, partition: Any) -> tuple[int, int, Any, int]:
        """(error code, base offset, append time, log start offset)"""
        when = partition.log_append_time
        milliseconds = -1 if when is None else round(when.timestamp() * 1000)
        # Of a malformed batch the embedded node may say another log start.
        start = -1 if int(partition.error_code) == INVALID_RECORD else partition.log_start_offset
        return int(partition.error_code), partition.base_offset, self.time(milliseconds), start

    def time(self, milliseconds: int) -> int | str | None:
        """A time as it is noted: that of a step's choice is exact, the broker's own is not."""
        since = milliseconds - self.origin
        if milliseconds == -1:
            return None
        return "the broker's" if HOUR <= since < HOUR + HOUR // 3 else since

    def describe(self, step: str, suffix: str, partition: int = 0, *, node: int | None = None) -> None:
        self.note(step, self.described(suffix, partition, node=node))

    def described(self, suffix: str, partition: int = 0, *, node: int | None = None) -> list[Any]:
        """[error code, then a tuple for each producer]"""
        topics = [{"name": self.topic(suffix), "partition_indexes": [partition]}]
        asked = self.leader(suffix, partition) if node is None else node
        answer = self.ask(asked, messages.DESCRIBE_PRODUCERS, 0, topics=topics)
        return self.producers(answer.topics[0].partitions[0])

    def producers(self, partition: Any) -> list[Any]:
        producers = [
            (
                self.id(each.producer_id),
                each.producer_epoch,
                each.last_sequence,
                self.time(each.last_timestamp),
                # Kafka's own coordinators count their epochs by the moves of an internal topic.
                each.coordinator_epoch if each.producer_id >= _OWN else min(each.coordinator_epoch, 0),
                each.current_txn_start_offset,
            )
            for each in partition.active_producers
        ]
        return [int(partition.error_code), *sorted(producers, key=str)]

    def id(self, producer_id: int) -> str | int:
        if producer_id >= _OWN:
            return producer_id - _OWN
        return self._ids.setdefault(producer_id, f"producer {len(self._ids) + 1}")

    def until_gone(self, suffix: str, partition: int, producer: Producer) -> None:
        """Waits until the leader has forgotten the producer."""
        self.until(
            lambda: all(each[0] != self.id(producer[0]) for each in self.described(suffix, partition)[1:]),
            f"the end of producer {producer[0]}",
        )

    def fetch(self, suffix: str) -> Any:
        """The response to a Fetch of partition 0 from offset 0."""
        asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        values = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20}
        topics = [{"topic": self.topic(suffix), "partitions": [asked]}]
        answer = self.ask(self.leader(suffix), messages.FETCH, 12, topics=topics, **values)
        return answer.responses[0].partitions[0]

    def delete_records(self, suffix: str, offset: int, partition: int = 0) -> None:
        asked = {"name": self.topic(suffix), "partitions": [{"partition_index": partition, "offset": offset}]}
        answer = self.ask(self.leader(suffix, partition), messages.DELETE_RECORDS, 1, topics=[asked], timeout=30_000)
        assert int(answer.topics[0].partitions[0].error_code) == 0, answer

    def configure(self, step: str | None, name: str, value: str | None) -> None:
        """Sets a dynamic setting of all nodes; None removes it. Returns when the nodes follow it."""
        config = {"name": name, "config_operation": 0 if value is not None else 1, "value": value}
        resource = {"resource_type": 4, "resource_name": "", "configs": [config]}
        answer = self.ask(1, messages.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
        if step is not None:
            self.note(step, int(answer.responses[0].error_code))
            return
        assert int(answer.responses[0].error_code) == 0, answer
        for node_id in (1, 2, 3):
            self.until(lambda node=node_id: self._setting(node, name)[1] == (5 if value is None else 3), name)  # type: ignore[misc]

    def _setting(self, node_id: int, name: str) -> tuple[str, int]:
        resource = {"resource_type": 4, "resource_name": str(node_id), "configuration_keys": [name]}
        answer = self.ask(node_id, messages.DESCRIBE_CONFIGS, 4, resources=[resource])
        (entry,) = answer.results[0].configs
        return entry.value, int(entry.config_source)

    # ---- transactions

    def coordinator(self, transactional_id: str) -> int:
        answer = self.patiently(
            lambda answer: answer.error_code, 1, messages.FIND_COORDINATOR, 3, key=transactional_id, key_type=1
        )
        return int(answer.node_id)

    def init(self, transactional_id: str) -> Producer:
        answer = self.patiently(
            lambda answer: answer.error_code,
            self.coordinator(transactional_id),
            messages.INIT_PRODUCER_ID,
            4,
            transactional_id=transactional_id,
            transaction_timeout=600_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert int(answer.error_code) == 0, answer
        self.id(answer.producer_id)
        return answer.producer_id, answer.producer_epoch

    def add(self, transactional_id: str, producer: Producer, suffix: str, partition: int) -> None:
        """Adds the partition to the transaction, as producers did before KIP-890."""
        answer = self.patiently(
            lambda one: one.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
            self.coordinator(transactional_id),
            messages.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[{"name": self.topic(suffix), "partitions": [partition]}],
        )
        assert not answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code, answer

    def end(self, transactional_id: str, producer: Producer, committed: bool, *, version: int = 5) -> Producer:
        """Ends the transaction. Returns the producer with its next epoch."""
        answer = self.patiently(
            lambda answer: answer.error_code,
            self.coordinator(transactional_id),
            messages.END_TXN,
            version,
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=committed,
        )
        assert int(answer.error_code) == 0, answer
        return (answer.producer_id, answer.producer_epoch) if version >= 5 else producer

    def marker_written(self, suffix: str, partition: int, offset: int) -> None:
        """Waits until the last stable offset reaches `offset`: the control records before it are written."""

        def reached() -> bool:
            asked = [{"name": self.topic(suffix), "partitions": [{"partition_index": partition, "timestamp": -1}]}]
            leader = self.leader(suffix, partition)
            answer = self.ask(leader, messages.LIST_OFFSETS, 5, replica_id=-1, isolation_level=1, topics=asked)
            return bool(answer.topics[0].partitions[0].offset >= offset)

        self.until(reached, f"last stable offset {offset} of {suffix}-{partition}")

    def write_marker(
        self, suffix: str, producer: Producer, coordinator_epoch: int, *, committed: bool, partition: int = 0
    ) -> None:
        """A control record that an administrator writes."""
        marker = {
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "coordinator_epoch": coordinator_epoch,
            "transaction_result": committed,
            "topics": [{"name": self.topic(suffix), "partition_indexes": [partition]}],
        }
        answer = self.ask(self.leader(suffix, partition), messages.WRITE_TXN_MARKERS, 1, markers=[marker])
        assert int(answer.markers[0].topics[0].partitions[0].error_code) == 0, answer
