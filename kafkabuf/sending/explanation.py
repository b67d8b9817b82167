"""Why records have no outcome yet, in words: the end of the text of every error that says so."""

from __future__ import annotations

import logging
from typing import Protocol

from kafkabuf.batches._batch import Batch
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.errors import KafkaError
from kafkabuf.metadata.metadata import Metadata

log = logging.getLogger("kafkabuf.producer")


class Connections(Protocol):
    """What is needed of the NetworkClient."""

    def last_error(self, node_id: int) -> KafkaError | None: ...
    def waits_for(self, node_id: int) -> str | None: ...


class Explanation:
    """The last thing that went wrong for a batch, and what to change. Any thread: it only looks, and never raises."""

    def __init__(self, accumulator: RecordAccumulator, metadata: Metadata, connections: Connections) -> None:
        self._accumulator = accumulator
        self._metadata = metadata
        self._connections = connections

    def __call__(self, batch: Batch | None = None) -> str:
        """Of the oldest batch, where none is given; "" where there is nothing to tell."""
        try:
            batch = batch or self._accumulator.oldest()
            reason = "" if batch is None else self._reason(batch)
        except Exception:  # it would hide what is to be explained
            log.exception("why a record is not acknowledged could not be told")
            return ""
        return f"; {reason}" if reason else ""

    def _reason(self, batch: Batch) -> str:
        queue = self._accumulator.queue_of(batch)
        name = f"{batch.topic}-{batch.partition}"
        state = self._accumulator.producer_state
        if batch.claimed and batch.whole is None and batch.parts is None:
            return f"a send_many() or send_arrow() that goes on still writes to the batch of {name}"
        if queue.leader < 0:
            info = self._metadata.snapshot.topics.get(batch.topic)
            known = self._metadata.circumstances(None if info is None else info.error)
            return f"no leader of {name} is known: see whether the brokers are up and bootstrap.servers is right{known}"
        refused = "" if queue.last_error is None else f"; the last attempt failed: {queue.last_error}"
        lost = self._connections.last_error(queue.leader)
        if lost is not None:
            return (
                f"there is no connection to its leader: {lost}: see whether the broker is up, the address that it "
                f"advertises can be reached from here, and security.protocol is that of its listener{refused}"
            )
        waits = self._connections.waits_for(queue.leader)
        if waits is not None:
            return f"{waits}{refused}"
        if state is not None and state.producer_id < 0:
            return f"no broker has given a producer id, which enable.idempotence needs{self._metadata.circumstances()}"
        if refused:
            return f"broker {queue.leader} leads {name}{refused}"
        if queue.in_flight:
            return f"broker {queue.leader}, which leads {name}, has not answered yet"
        linger = self._accumulator.linger
        if not batch.closed and self._accumulator.clock.monotonic() < batch.created + linger:
            linger_ms = round(linger * 1000)
            return f"its batch may wait for more records for linger.ms ({linger_ms} ms): flush() sends it at once"
        return f"{name} was not its turn yet: send more slowly, or raise delivery.timeout.ms"
