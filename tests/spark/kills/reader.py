"""Counts the rows of the job that a reader with read_committed sees."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import fastavro
import numpy as np
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kafkabuf.admin.admin import Admin
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import RetriableError, TransactionalIdNotFoundError
from kafkabuf.spark.reports.marker import transactional_id_for
from tests.spark.kills.job import VALUE_SCHEMA, Job
from tests.spark.kills.supervisor import KillTestError

_MESSAGES = 10_000  # of one call of consume()
# Seconds that a broker may take to write the control records of a transaction, or to return the records that it has.
_PATIENCE = 60.0
_REQUEST_SECONDS = 5.0


class Reader:
    """A context manager. Each read continues where the last one ended. `seen[n]` counts row n.

    `garbled` counts the records whose value is not that of their row.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.seen = np.zeros(job.batches * job.rows, np.int64)
        self.garbled = 0
        self._schema = fastavro.parse_schema(VALUE_SCHEMA)
        self._partitions = [TopicPartition(job.topic, number, 0) for number in range(job.partitions)]
        self._next = [0] * job.partitions
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": job.servers,
            "log_level": 0,  # librdkafka reports each connection to a node that is down
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
        }
        self._settings = settings
        self._admin = AdminClient(settings)
        self._consumer = Consumer(
            {
                **settings,
                "group.id": f"{job.topic}-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 20,
            }
        )
        self._consumer.assign(self._partitions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._consumer.close()

    def last_stable_offsets(self) -> list[int]:
        return self._ends(IsolationLevel.READ_COMMITTED)

    def read_to(self, ends: Sequence[int]) -> None:
        """Read up to these offsets. Raises KillTestError if that takes too long or the consumer fails."""
        deadline = time.monotonic() + _PATIENCE
        while any(at < end for at, end in zip(self._next, ends, strict=True)):
            if time.monotonic() > deadline:
                raise KillTestError(f"the reader is stuck at the offsets {self._next}; it should reach {list(ends)}")
            for message in self._consumer.consume(_MESSAGES, 0.1):
                partition, offset, key = message.partition(), message.offset(), message.key()
                assert partition is not None
                assert offset is not None
                error = message.error()
                if error is None:
                    assert key is not None
                    self.seen[int(key)] += 1
                    self.garbled += not self._is_whole(int(key), message.value())
                    self._next[partition] = offset + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._next[partition] = max(self._next[partition], offset)
                else:
                    raise KillTestError(f"the reader failed: {error}")

    def read_all(self) -> None:
        """Wait until no transaction is open and read all records. Raises KillTestError if a transaction stays open."""
        deadline = time.monotonic() + _PATIENCE
        while (stable := self.last_stable_offsets()) != (ends := self._ends(IsolationLevel.READ_UNCOMMITTED)):
            if time.monotonic() > deadline:
                raise KillTestError(f"a transaction stays open: readers get to {stable}, the logs end at {ends}")
            time.sleep(0.05)
        self.read_to(stable)

    def by_batch(self) -> np.ndarray:
        """`seen` as a matrix with a row for each micro-batch."""
        return self.seen.reshape(self._job.batches, self._job.rows)

    def _is_whole(self, number: int, value: str | bytes | None) -> bool:
        text = self._job.padded(number)
        if self._job.value_format != "avro":
            return value == text.encode()
        assert isinstance(value, bytes)
        stream = io.BytesIO(value)
        try:
            row = fastavro.schemaless_reader(stream, self._schema, None)
        except (ValueError, IndexError, EOFError):
            return False
        return row == {"number": number, "text": text} and not stream.read()

    def _ends(self, level: IsolationLevel) -> list[int]:
        """Where a node has died, asks again with a new client: the old one keeps old leaders and epochs."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return self._listed(level)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
                self._admin = AdminClient(self._settings)

    def _listed(self, level: IsolationLevel) -> list[int]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        futures = self._admin.list_offsets(
            {TopicPartition(partition.topic, partition.partition): latest for partition in self._partitions},
            isolation_level=level,
            request_timeout=_REQUEST_SECONDS,
        )
        offsets = {partition.partition: future.result().offset for partition, future in futures.items()}
        return [offsets[partition.partition] for partition in self._partitions]


class AtomicityCheck:
    """Checks `atomic` during a run: a reader sees either all rows of a micro-batch or no row of it.

    The coordinator writes the control records of a transaction to one partition after the other, and a reader may read
    in between. So the check asks the coordinator for the transaction's state, fetches the last stable offsets, and asks
    for the state again. It reads only if no transaction was ending and the state did not change. Then the records below
    these offsets are those of all finished transactions.
    """

    def __init__(self, reader: Reader, job: Job, interval: float = 0.2) -> None:
        self._reader = reader
        self._interval = interval
        self._next = 0.0
        self.checks = 0
        """How often the check could read."""
        self.partly_seen: set[int] = set()
        """Micro-batches of which the reader saw a part. A correct sink leaves this empty."""
        self._name = transactional_id_for(str(job.options()["sinkId"]))
        self._config = ProducerConfig.from_mapping({"bootstrap.servers": job.servers})
        self._admin = Admin(self._config)

    def close(self) -> None:
        self._admin.close()

    def __call__(self) -> None:
        if time.monotonic() < self._next:
            return
        try:
            before = self._state()
            ends = self._reader.last_stable_offsets()
            is_between = before is not None and before == self._state()
        except RetriableError:  # a node of the cluster has died: look again
            is_between = False
        if is_between:
            self._reader.read_to(ends)
            seen = self._reader.by_batch()
            self.partly_seen |= set(np.flatnonzero(seen.any(axis=1) != seen.all(axis=1)).tolist())
            self.checks += 1
        self._next = time.monotonic() + self._interval

    def _state(self) -> tuple[str, int, int] | None:
        """State, producer id and epoch of the transaction. None while the coordinator ends it."""
        try:
            transaction = self._admin.transaction(self._name)
        except TransactionalIdNotFoundError:
            return ("", -1, -1)
        if transaction.state.startswith("Prepare"):
            return None
        return transaction.state, transaction.producer_id, transaction.producer_epoch
