"""The Sender's turn: expire, ask what is ready, drain it into Produce requests, poll, act on the answers."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from kafkabuf._accumulator import PartitionQueue
from kafkabuf._batch import Batch
from kafkabuf.accumulator import NEVER, RecordAccumulator
from kafkabuf.clock import Clock
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import (
    CorruptMessageError,
    KafkaError,
    UnsupportedVersionError,
    error_for_code,
)
from kafkabuf.metadata import Cluster, Metadata
from kafkabuf.network._io import Frame
from kafkabuf.network.client import Completion, NetworkClient, Request
from kafkabuf.protocol._produce import PRODUCE, VERSIONS_BY_MAGIC, build_request, parse_response

log = logging.getLogger("kafkabuf.producer")


@dataclass(frozen=True)
class ProduceRequest:
    """What a Produce request carried: the context of its Completion."""

    version: int
    batches: list[Batch]


class Sender:
    """Moves batches from the accumulator to the brokers (Kafka's Sender).

    One thread calls `run`, or a test calls `run_once`; all else may be called by any thread.
    """

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        metadata: Metadata,
        client: NetworkClient,
        clock: Clock,
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._metadata = metadata
        self._client = client
        self._clock = clock
        self._client_id = config.client_id.encode()
        self._ordered = config.max_in_flight_requests_per_connection == 1
        self._closing = False
        self._forced = False
        self.record_errors = 0
        self.record_retries = 0
        metadata.listeners.append(self._on_cluster)

    # ---- life --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until closed; then until everything has an outcome, or a forced close fails what is left."""
        try:
            while not self._closing or (not self._forced and self._accumulator.incomplete):
                self._turn_or_log()
        finally:
            self._end()

    def _turn_or_log(self) -> None:
        try:
            self.run_once()
        except Exception:
            log.exception("the Sender's turn failed; the next one goes on")
            # A turn that fails at once must not spin.
            pause = threading.Lock()
            pause.acquire()
            self._clock.wait(pause, self._config.retry_backoff_ms / 1000)

    def _end(self) -> None:
        self._accumulator.close()
        self._metadata.close()
        self._accumulator.abort()
        for completion in self._client.close():
            self._on_completion(completion)
        self._accumulator.release_scratch()

    def close(self, *, force: bool = False) -> None:
        """Finish what is queued, or with `force` fail it; `run` returns after that."""
        self._closing = True
        self._forced = self._forced or force
        self._client.wakeup()

    # ---- one turn ----------------------------------------------------------------------------------------------------

    def run_once(self, max_wait: float = NEVER) -> None:
        """One turn; waits in `poll` for at most `max_wait` seconds."""
        now = self._clock.monotonic()
        self._expire(now)
        ready = self._accumulator.ready(now)
        if ready.leaderless_topics:
            self._ask_for_leaders(ready.leaderless_topics)
        wait = min(max_wait, ready.next_check, self._accumulator.time_to_expiry(now))
        for node_id, queues in ready.queues_by_node.items():
            wait = min(wait, self._send_to(node_id, queues, now))
        for completion in self._client.poll(max(wait, 0.0)):
            self._on_completion(completion)

    def _expire(self, now: float) -> None:
        expired = self._accumulator.expire(now)
        if expired:
            self.record_errors += sum(batch.count for batch in expired)
            log.warning("%d batch(es) expired; the first: %s", len(expired), expired[0].error)

    def _ask_for_leaders(self, topics: set[str]) -> None:
        for topic in topics:
            self._metadata.add_topic(topic)
        self._metadata.request_update()

    def _send_to(self, node_id: int, queues: list[PartitionQueue], now: float) -> float:
        """Fill the node's in-flight table; the seconds after which the node should be tried again."""
        while self._client.ready(node_id):
            batches = self._accumulator.drain(queues, now)
            if not batches:
                return NEVER
            self._send(node_id, batches)
        return self._client.connection_delay(node_id)

    def _send(self, node_id: int, batches: list[Batch]) -> None:
        for topic in {batch.topic for batch in batches}:
            self._metadata.add_topic(topic)  # in use: keep it fresh
        try:
            version = self._client.api_version(node_id, PRODUCE, VERSIONS_BY_MAGIC[self._accumulator.magic])
        except UnsupportedVersionError as error:
            self._fail_unsupported(batches, error)
            return
        config = self._config

        def build(correlation_id: int) -> Frame:
            return build_request(
                version, correlation_id, self._client_id, config.acks, config.request_timeout_ms, batches
            )

        for batch in batches:
            self._count_in_flight(batch, 1)
        context = ProduceRequest(version, batches)
        self._client.send(node_id, Request(PRODUCE, version, build, context, expects_response=config.acks != 0))

    def _fail_unsupported(self, batches: list[Batch], error: UnsupportedVersionError) -> None:
        magic = self._accumulator.magic
        other = "set record.magic to 2 (or auto)" if magic == 1 else "set record.magic to 1 for brokers this old"
        text = f"the broker takes no records of magic {magic}: {other} ({error})"
        for batch in batches:
            self._fail(batch, UnsupportedVersionError(text))

    def _count_in_flight(self, batch: Batch, change: int) -> None:
        """Of a partition one batch at a time is sent with max.in.flight = 1, and until its leader has taken one.

        A leader that was just elected or has just refused a batch may refuse the next ones as well, or only some of
        them; with several in flight their records would change places.
        """
        queue = self._accumulator.queue_of(batch)
        queue.in_flight += change
        queue.muted = queue.in_flight > 0 and (self._ordered or not queue.proven)

    # ---- answers -----------------------------------------------------------------------------------------------------

    def _on_completion(self, completion: Completion) -> None:
        request = completion.request.context
        assert isinstance(request, ProduceRequest)
        for batch in request.batches:
            batch.end_read()
        self._settle(request, completion)
        for batch in request.batches:
            self._count_in_flight(batch, -1)

    def _settle(self, request: ProduceRequest, completion: Completion) -> None:
        if completion.error is not None:
            self._retry_or_fail_all(request.batches, completion.error)
        elif completion.response is None:  # acks=0: written is all that will be known
            for batch in request.batches:
                self._complete(batch, -1, -1)
        else:
            self._on_answer(request, completion.response)

    def _on_answer(self, request: ProduceRequest, response: bytes) -> None:
        try:
            answers = parse_response(request.version, response)
        except CorruptMessageError as error:
            self._retry_or_fail_all(request.batches, error)
            return
        for batch in request.batches:
            answer = answers.get((batch.topic, batch.partition))
            if answer is None:
                text = f"the broker's answer leaves out {batch.topic}-{batch.partition}"
                self._retry_or_fail(batch, CorruptMessageError(text))
            elif answer.error_code == 0:
                self._complete(batch, answer.base_offset, answer.log_append_time)
            else:
                self._retry_or_fail(batch, error_for_code(answer.error_code, answer.message))

    def _complete(self, batch: Batch, base_offset: int, log_append_time: int) -> None:
        self._accumulator.queue_of(batch).proven = True
        batch.complete(base_offset, log_append_time)

    def _retry_or_fail_all(self, batches: list[Batch], error: KafkaError) -> None:
        for batch in batches:
            self._retry_or_fail(batch, error)

    def _retry_or_fail(self, batch: Batch, error: KafkaError) -> None:
        self._accumulator.queue_of(batch).proven = False
        if batch.done:  # expired while in flight
            return
        if error.invalid_metadata:
            self._metadata.request_update()
        if not error.retriable or batch.attempts >= self._config.retries or self._forced:
            self._fail(batch, error)
            return
        self.record_retries += batch.count
        log.debug("%r is sent again: %s", batch, error)
        self._accumulator.requeue(batch, self._clock.monotonic())

    def _fail(self, batch: Batch, error: KafkaError) -> None:
        if batch.fail(error):
            self.record_errors += batch.count

    def _on_cluster(self, cluster: Cluster) -> None:
        """Thread: Sender. New partitions get queues, and every queue its leader of now."""
        for name in list(self._accumulator.topics):  # a copy: send() adds to it
            info = cluster.topics.get(name)
            if info is not None and info.partitions:
                self._accumulator.topic_queues(name, info.leaders)
