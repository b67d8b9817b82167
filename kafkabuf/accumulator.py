"""What the Sender asks of the queues: which batches may go now, which have waited too long, when to look again."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kafkabuf._accumulator import AccumulatorCore, PartitionQueue, TopicQueues
from kafkabuf._batch import Batch
from kafkabuf._pool import BufferPool
from kafkabuf.clock import Clock
from kafkabuf.compression import codec
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import ClosedError, KafkaError, TimeoutError
from kafkabuf.network.backoff import ExponentialBackoff

NEVER = float("inf")


@dataclass
class Ready:
    """Answer to `RecordAccumulator.ready`."""

    # Queues with a batch that may go now, by the node id of their leader.
    queues_by_node: dict[int, list[PartitionQueue]] = field(default_factory=dict)
    # Topics with such a batch for which no leader is known.
    leaderless_topics: set[str] = field(default_factory=set)
    # Seconds until another batch may become ready by time alone.
    next_check: float = NEVER


class RecordAccumulator(AccumulatorCore):
    """Batches per partition, and the rules of when one is sent (Kafka's RecordAccumulator).

    A batch goes when it is full or another one stands behind it, when it has lingered, when it is retried and its
    back-off is over, when a thread waits for memory, on flush and on close. The cost of a question grows with the
    partitions that hold a batch, not with those that exist.
    """

    def __init__(
        self, config: ProducerConfig, pool: BufferPool, clock: Clock, wakeup: Callable[[], None] = lambda: None
    ) -> None:
        magic = 2 if config.record_magic == "auto" else config.record_magic
        super().__init__(pool, clock, magic=magic, batch_size=config.batch_size, wakeup=wakeup)
        found = codec(
            config.compression_type,
            config.compression_gzip_level,
            config.compression_lz4_level,
            config.compression_zstd_level,
        )
        if found is not None:
            self.use_codec(found)
        self._linger = config.linger_ms / 1000
        self._delivery_timeout = config.delivery_timeout_ms / 1000
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._max_request_size = config.max_request_size
        self._flushes: set[object] = set()  # one token for each flush under way

    # ---- thread: any -------------------------------------------------------------------------------------------------

    def topic_queues(self, name: str, leaders: list[int]) -> TopicQueues:
        """The queues of a topic, made or grown to fit; `leaders` are node ids by partition, -1 where unknown."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics.setdefault(name, TopicQueues(name, len(leaders), secrets.randbits(64)))
        topic.grow(len(leaders))
        for queue, leader in zip(topic.queues, leaders, strict=False):
            queue.follow(leader)
        return topic

    def flush(self, timeout: float | None) -> None:
        """Send what is buffered without lingering and wait for every outcome. Raises TimeoutError."""
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        token = object()
        self._flushes.add(token)
        try:
            self.wakeup()
            for batch in list(self.incomplete):
                left = None if deadline is None else deadline - self.clock.monotonic()
                if not batch.wait(left, self.clock):
                    raise TimeoutError(f"flush: {len(self.incomplete)} batches not acknowledged within {timeout} s")
        finally:
            self._flushes.discard(token)

    # ---- thread: Sender ----------------------------------------------------------------------------------------------

    def ready(self, now: float) -> Ready:
        answer = Ready()
        exhausted = self.pool.waiting > 0
        for queue in list(self.active):  # a copy: send() adds to it while this loop runs
            wait = self._time_until_sendable(queue, now, exhausted)
            if wait > 0:
                answer.next_check = min(answer.next_check, wait)
            elif queue.leader < 0:
                answer.leaderless_topics.add(queue.topic)
            else:
                answer.queues_by_node.setdefault(queue.leader, []).append(queue)
        return answer

    def _time_until_sendable(self, queue: PartitionQueue, now: float, exhausted: bool) -> float:
        head = queue.head
        if head is None or queue.muted or head.claimed:
            return NEVER  # an event, not time, will change that
        if head.attempts:
            return max(head.retry_at - now, 0.0)
        if head.closed or len(queue.batches) > 1 or exhausted or self._flushes or self.closed:
            return 0.0
        return max(head.created + self._linger - now, 0.0)

    def drain(self, queues: Iterable[PartitionQueue], now: float) -> list[Batch]:
        """At most one batch of each queue, together at most max.request.size, unless the first alone is larger."""
        batches: list[Batch] = []
        size = 0
        exhausted = self.pool.waiting > 0
        for queue in queues:
            head = queue.head
            if head is None or self._time_until_sendable(queue, now, exhausted) > 0:
                continue
            if batches and size + head.size > self._max_request_size:
                break
            batch = self.drain_one(queue)
            if batch is None:  # claimed since it was asked after
                continue
            size += batch.size
            batches.append(batch)
        return batches

    def requeue(self, batch: Batch, now: float) -> None:
        """A batch that failed in a way that may pass: back to its place, to be sent after an exponential back-off."""
        batch.retry_at = now + self._backoff.delay(batch.attempts)
        batch.attempts += 1
        self.put_back(self.queue_of(batch), batch)

    def queue_of(self, batch: Batch) -> PartitionQueue:
        return self.topics[batch.topic].queues[batch.partition]

    def expire(self, now: float) -> list[Batch]:
        """Fail the batches whose delivery.timeout.ms is over, waiting or in flight, and return them."""
        expired = []
        while self.incomplete and now >= self._deadline(batch := next(iter(self.incomplete))):
            self.discard(batch)
            batch.fail(
                TimeoutError(
                    f"{batch.count} record(s) of {batch.topic}-{batch.partition} were not acknowledged within "
                    f"delivery.timeout.ms ({self._delivery_timeout * 1000:.0f} ms), {batch.attempts} attempts failed"
                )
            )
            expired.append(batch)
        return expired

    def _deadline(self, batch: Batch) -> float:
        return batch.created + self._delivery_timeout

    def time_to_expiry(self, now: float) -> float:
        """Seconds until the oldest batch expires."""
        return self._deadline(next(iter(self.incomplete))) - now if self.incomplete else NEVER

    def abort(self, error: KafkaError | None = None) -> None:
        """Fail everything that has no outcome yet (close without waiting)."""
        for batch in list(self.incomplete):
            self.discard(batch)
            batch.fail(error or ClosedError("the producer was closed before the record was acknowledged"))
