"""The queues as a whole: made, flushed, expired, retried, aborted. Which batches may go now is _drain.pyx's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, repeat
from uuid import UUID

from kafkabuf import backoff
from kafkabuf._pool import BufferPool
from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.batches._accumulator import TopicQueues
from kafkabuf.batches._batch import Batch
from kafkabuf.batches._drain import DrainCore
from kafkabuf.batches._sequences import SequenceCore
from kafkabuf.batches.compression import codec
from kafkabuf.clock import Clock
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import ClosedError, KafkaError, TimeoutError


class RecordAccumulator(DrainCore):
    """Batches per partition, and the rules of when one is sent (Kafka's RecordAccumulator)."""

    def __init__(
        self,
        config: ProducerConfig,
        pool: BufferPool,
        clock: Clock,
        wakeup: Callable[[], None] = lambda: None,
        *,
        producer_state: SequenceCore | None = None,
    ) -> None:
        super().__init__(
            pool,
            clock,
            magic=2 if config.record_magic == "auto" else config.record_magic,
            batch_size=config.batch_size,
            wakeup=wakeup,
            availability_timeout=config.partitioner_availability_timeout_ms / 1000,
            linger=config.linger_ms / 1000,
            delivery_timeout=config.delivery_timeout_ms / 1000,
            max_request_size=config.max_request_size,
            producer_state=producer_state,
        )
        found = codec(
            config.compression_type,
            config.compression_gzip_level,
            config.compression_lz4_level,
            config.compression_zstd_level,
        )
        if found is not None:
            self.use_codec(found)
        self._adaptive = config.partitioner_adaptive_partitioning_enable
        self._delivery_timeout_ms = config.delivery_timeout_ms
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)

    # ---- thread: any -------------------------------------------------------------------------------------------------

    def made_topic(
        self, name: str, leaders: Sequence[int], epochs: Iterable[int] = (), topic_id: UUID | None = None
    ) -> TopicQueues:
        """The queues of a topic, made if there are none yet; `leaders` are node ids by partition, -1 where unknown.

        `epochs` are theirs, -1 where unknown.
        """
        topic = self.topics.get(name)
        if topic is None:
            seed = backoff.generator.getrandbits(64)
            topic = TopicQueues(name, len(leaders), seed, self.batch_size, self._adaptive, self.slow_nodes)
            topic.follow(*_by_partition(leaders, epochs), topic_id)
            topic = self.topics.setdefault(name, topic)
        return topic

    def flush(self, timeout: float | None) -> None:
        """Send what is buffered without lingering and wait for every outcome. Raises TimeoutError."""
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        token = object()
        self.flushes.add(token)
        try:
            self.wakeup()
            for batch in list(self.incomplete):
                left = None if deadline is None else deadline - self.clock.monotonic()
                if not batch.wait(left, self.clock):
                    text = f"flush: {len(self.incomplete)} batches not acknowledged within {timeout} s"
                    raise TimeoutError(text + batch.why_pending())
        finally:
            self.flushes.discard(token)

    # ---- thread: Sender ----------------------------------------------------------------------------------------------

    def topic_queues(
        self, name: str, leaders: Sequence[int], epochs: Iterable[int] = (), topic_id: UUID | None = None
    ) -> TopicQueues:
        """As `made_topic`, and queues that are there already follow what is new."""
        topic = self.made_topic(name, leaders, epochs, topic_id)
        topic.follow(*_by_partition(leaders, epochs), topic_id)
        return topic

    def requeue(self, batch: Batch, now: float, *, soon: bool = False) -> None:
        """A batch that failed in a way that may pass: back to its place, to be sent after an exponential back-off.

        That grows only once where it is to be sent `soon`.
        """
        batch.retry_at = now + self._backoff.delay(min(batch.attempts, 1) if soon else batch.attempts)
        batch.attempts += 1
        self.put_back(self.queue_of(batch), batch)

    def expire(self, now: float) -> list[Batch]:
        """Fail the batches whose delivery.timeout.ms is over, waiting or in flight, and return them."""
        expired: list[Batch] = []
        while (batch := self.oldest()) is not None and self.time_to_expiry(now) <= 0:
            expired += self.give_up(batch, self._expired(batch))
        return expired

    def _expired(self, batch: Batch) -> TimeoutError:
        left = [part for part in batch.parts or [batch] if not part.done]
        attempts = max((part.attempts for part in left), default=0)
        return TimeoutError(
            f"{sum(part.count for part in left)} record(s) of {batch.topic}-{batch.partition} were not acknowledged "
            f"within delivery.timeout.ms ({self._delivery_timeout_ms} ms)"
            f"{f', {attempts} attempts failed' if attempts else ''}{batch.why_pending()}"
        )

    def abort(self, error: KafkaError | None = None) -> list[Batch]:
        """Fail everything that has no outcome yet (close without waiting); what failed."""
        failed = []
        for batch in list(self.incomplete):
            failed += self.give_up(batch, error or _closed(batch))
        return failed

    def drop_unsent(self, error: KafkaError) -> list[Batch]:
        """Fail the batches that no broker can have seen; what failed."""
        waiting = [batch for queue in list(self.active) for batch in list(queue.batches)]
        return [failed for batch in waiting if batch.base_sequence < 0 for failed in self.give_up(batch, error)]

    def give_up(self, batch: Batch, error: KafkaError) -> list[Batch]:
        """Fail a batch wherever it is, or what is left of one that was split; what failed."""
        return [part for part in batch.parts or [batch] if self.fail(part, error)]


def _closed(batch: Batch) -> ClosedError:
    why = batch.why_pending()
    return ClosedError(
        "the producer was closed before the record was acknowledged" + (why or ": give close() more time, or no limit")
    )


def _by_partition(leaders: Sequence[int], epochs: Iterable[int]) -> tuple[list[int], list[int]]:
    return list(leaders), list(islice(chain(epochs, repeat(-1)), len(leaders)))
