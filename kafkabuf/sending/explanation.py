"""Why records have no outcome yet: the end of the text of every error that reports a missing outcome."""

from __future__ import annotations

from kafkabuf.batches._batch import Batch
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.network.client import NetworkClient
from kafkabuf.process.producer_log import producer_log

log = producer_log("kafkabuf.producer")


class Explanation:
    """Why a batch has no outcome yet, and what the user can change. Any thread may call it. It never raises."""

    def __init__(self, accumulator: RecordAccumulator, metadata: Metadata, connections: NetworkClient) -> None:
        self._accumulator = accumulator
        self._metadata = metadata
        self._connections = connections

    def __call__(self, batch: Batch | None = None) -> str:
        """The reason for `batch`, by default the oldest batch; "" if no reason is known."""
        try:
            batch = batch or self._accumulator.oldest()
            reason = "" if batch is None else self._reason(batch)
        except Exception:  # an error here would hide the error that the text belongs to
            log.exception("the reason why a record has no outcome could not be found")
            return ""
        return f"; {reason}" if reason else ""

    def _reason(self, batch: Batch) -> str:
        queue = self._accumulator.queue_of(batch)
        name = f"{batch.topic}-{batch.partition}"
        state = self._accumulator.producer_state
        if batch.claimed and not batch.closed and batch.whole is None and batch.parts is None:
            return f"a send_many() or send_arrow() still writes to the batch of {name}"
        if queue.leader < 0:
            info = self._metadata.snapshot.topics.get(batch.topic)
            known = self._metadata.circumstances(None if info is None else info.error)
            return f"no leader of {name} is known: check that the brokers are up and bootstrap.servers is right{known}"
        refused = "" if queue.last_error is None else f"; the last attempt failed: {queue.last_error}"
        lost = self._connections.last_error(queue.leader)
        if lost is not None:
            settings = ", that the address that it advertises can be reached from here, and that security.protocol is"
            settings = "" if self._connections.has_answered(queue.leader) else f"{settings} that of its listener"
            return f"there is no connection to its leader: {lost}: check that the broker is up{settings}{refused}"
        waits = self._connections.waits_for(queue.leader)
        if waits is not None:
            return f"{waits}{refused}"
        if state is not None and state.producer_id < 0:
            return f"no broker has given a producer id, which enable.idempotence needs{self._metadata.circumstances()}"
        if refused:
            return f"broker {queue.leader} leads {name}{refused}"
        if queue.in_flight:
            return f"broker {queue.leader}, which leads {name}, has not responded yet"
        if queue.muted:  # with nothing in flight
            return f"the cluster has not said yet which of the recovered records of {name} it has (see the log at INFO)"
        linger = self._accumulator.linger
        if not batch.closed and self._accumulator.clock.monotonic() < batch.created + linger:
            linger_ms = round(linger * 1000)
            return f"its batch may wait for more records for linger.ms ({linger_ms} ms): flush() sends it at once"
        return f"the Sender has not come to {name} yet: send more slowly, or raise delivery.timeout.ms"
