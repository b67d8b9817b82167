"""What a reader with read_committed sees of the job's rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kafkabuf.config import ProducerConfig
from kafkabuf.errors import TransactionalIdNotFoundError
from kafkabuf.metadata.admin import Admin
from kafkabuf.spark.marker import transactional_id_for
from tests.spark.kills.job import Job
from tests.spark.kills.supervisor import KillTestError

_PIECE = 10_000
# Seconds that a broker may take to write a transaction's markers, or to hand out what it has.
_PATIENCE = 60.0


class Reader:
    """Reads on from where it stood; `seen[n]` counts row n. A context manager."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.seen = np.zeros(job.batches * job.rows, np.int64)
        self._places = [TopicPartition(job.topic, number, 0) for number in range(job.partitions)]
        self._next = [0] * job.partitions
        settings: dict[str, str | int | float | bool] = {"bootstrap.servers": job.servers}
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
        self._consumer.assign(self._places)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._consumer.close()

    def last_stable_offsets(self) -> list[int]:
        return self._ends(IsolationLevel.READ_COMMITTED)

    def read_to(self, ends: Sequence[int]) -> None:
        """Read up to these offsets. KillTestError where that is not possible."""
        deadline = time.monotonic() + _PATIENCE
        while any(at < end for at, end in zip(self._next, ends, strict=True)):
            if time.monotonic() > deadline:
                raise KillTestError(f"the reader is held up at {self._next}, and should get to {list(ends)}")
            for message in self._consumer.consume(_PIECE, 0.1):
                partition, offset, key = message.partition(), message.offset(), message.key()
                assert partition is not None
                assert offset is not None
                error = message.error()
                if error is None:
                    assert key is not None
                    self.seen[int(key)] += 1
                    self._next[partition] = offset + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._next[partition] = max(self._next[partition], offset)
                else:
                    raise KillTestError(f"the reader: {error}")

    def read_all(self) -> None:
        """Read everything, which is possible once no transaction is open. KillTestError if one stays so."""
        deadline = time.monotonic() + _PATIENCE
        while (stable := self.last_stable_offsets()) != (ends := self._ends(IsolationLevel.READ_UNCOMMITTED)):
            if time.monotonic() > deadline:
                raise KillTestError(f"a transaction stays open: readers get to {stable}, rows are there up to {ends}")
            time.sleep(0.05)
        self.read_to(stable)

    def by_batch(self) -> np.ndarray:
        """`seen`, a line for each micro-batch."""
        return self.seen.reshape(self._job.batches, self._job.rows)

    def _ends(self, level: IsolationLevel) -> list[int]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = self._admin.list_offsets(
            {TopicPartition(place.topic, place.partition): latest for place in self._places},
            isolation_level=level,
            request_timeout=_PATIENCE,
        )
        found = {place.partition: future.result().offset for place, future in asked.items()}
        return [found[place.partition] for place in self._places]


class Watch:
    """Holds `atomic` to its word while it runs: each micro-batch is to be seen as a whole or not at all.

    A transaction's markers are written to one partition after the other, and a reader may come in between. So it looks
    only where the coordinator says before and after that nothing is being ended: what lies below the last stable
    offsets, fetched meanwhile, is then what all finished transactions wrote.
    """

    def __init__(self, reader: Reader, job: Job, every: float = 0.2) -> None:
        self._reader = reader
        self._every = every
        self._next = 0.0
        self.looks = 0
        """How often it could look."""
        self.partly: set[int] = set()
        """Micro-batches of which a part was to be seen: none, if all is well."""
        self._name = transactional_id_for(str(job.options()["sinkId"]))
        self._config = ProducerConfig.from_mapping({"bootstrap.servers": job.servers})
        self._admin = Admin(self._config)

    def close(self) -> None:
        self._admin.close()

    def __call__(self) -> None:
        if time.monotonic() < self._next:
            return
        before = self._state()
        ends = self._reader.last_stable_offsets()
        if before is not None and before == self._state():
            self._reader.read_to(ends)
            seen = self._reader.by_batch()
            self.partly |= set(np.flatnonzero(seen.any(axis=1) != seen.all(axis=1)).tolist())
            self.looks += 1
        self._next = time.monotonic() + self._every

    def _state(self) -> tuple[str, int, int] | None:
        """Of the transaction; None while it is being ended."""
        try:
            found = self._admin.transaction(self._name)
        except TransactionalIdNotFoundError:
            return ("", -1, -1)
        if found.state.startswith("Prepare"):
            return None
        return found.state, found.producer_id, found.producer_epoch
