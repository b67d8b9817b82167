"""The rare steps on all queues: make, flush, expire, abort. _drain.pyx decides which batches may go now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING
from uuid import UUID

from kafkabuf import backoff
from kafkabuf._pool import BufferPool
from kafkabuf.batches._accumulator import TopicQueues
from kafkabuf.batches._batch import Batch
from kafkabuf.batches._drain import DrainCore
from kafkabuf.batches._sequences import SequenceCore
from kafkabuf.batches._stored import StoredTables
from kafkabuf.batches.compression_thread import CompressionThread
from kafkabuf.clock import Clock
from kafkabuf.errors import ClosedError, KafkaError, TimeoutError

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig


class RecordAccumulator(DrainCore):
    """The batches of each partition, and the rules that say when a batch is sent (Kafka's RecordAccumulator)."""

    def __init__(
        self,
        config: ProducerConfig,
        pool: BufferPool,
        clock: Clock,
        wakeup: Callable[[], None] = lambda: None,
        *,
        producer_state: SequenceCore | None = None,
        tables: StoredTables | None = None,
    ) -> None:
        """With the `tables` of a file, batches outlive the process; `spool.recover` queues what the file holds."""
        super().__init__(
            pool,
            clock,
            magic=2 if config.record_magic == "auto" else config.record_magic,
            batch_size=config.batch_size,
            wakeup=wakeup,
            availability_timeout=config.partitioner_availability_timeout_ms / 1000,
            linger=config.linger_ms / 1000,
            delivery_timeout=_until_expiry(config),
            max_request_size=config.max_request_size,
            producer_state=producer_state,
        )
        if tables is not None:
            self.use_tables(tables)
        if config.compression_type != "none":
            # Imported late: it loads cramjam.
            from kafkabuf.batches.compression import codec

            levels = config.compression_gzip_level, config.compression_lz4_level, config.compression_zstd_level
            self.use_codec(codec(config.compression_type, *levels), 2 if config.compression_thread_enable else 1)
        self.on_acknowledged = config.on_acknowledged
        self.transactional = config.transactional_id is not None
        self.idempotent = config.enable_idempotence
        self.refuses_when_full = config.buffer_full == "refuse"
        self.since_send = config.buffer_expire == "since_send"
        self._compression_thread: CompressionThread | None = None
        self._adaptive = config.partitioner_adaptive_partitioning_enable
        self._delivery_timeout_ms = config.delivery_timeout_ms

    # ---- thread: any -------------------------------------------------------------------------------------------------

    def made_topic(
        self, name: str, leaders: Sequence[int], epochs: Iterable[int] = (), topic_id: UUID | None = None
    ) -> TopicQueues:
        """The queues of a topic. Makes the queues if the topic has no queues yet.

        `leaders` are node ids by partition, `epochs` are the epochs of these leaders; -1: unknown.
        """
        topic = self.topics.get(name)
        if topic is None:
            seed = backoff.generator.getrandbits(64)
            topic = TopicQueues(
                name, len(leaders), seed, self.batch_size, self._adaptive, self.slow_nodes, self.near_nodes
            )
            self.follow(topic, *_by_partition(leaders, epochs), topic_id)
            topic = self.topics.setdefault(name, topic)
            self._note(topic)
        return topic

    def _note(self, topic: TopicQueues) -> None:
        if self.tables is not None:
            self.tables.note_topic(topic.name, topic.partitions, topic.topic_id)

    def flush(self, timeout: float | None) -> None:
        """Send all buffered records without lingering, and wait until each has an outcome. Raises TimeoutError."""
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        token = object()
        try:
            self.flushes.add(token)
            self.wakeup()
            for batch in self.incomplete_batches():
                seconds_left = None if deadline is None else deadline - self.clock.monotonic()
                if not batch.wait(seconds_left, self.clock):
                    text = f"flush(): {len(self.incomplete)} batches not acknowledged within {timeout} s"
                    raise TimeoutError(text + batch.why_pending())
        finally:
            self.flushes.discard(token)

    # ---- thread: Sender ----------------------------------------------------------------------------------------------

    def start_compression_thread(self, name: str) -> None:
        """Start the thread that compresses beside the Sender, if compression.thread.enable says so."""
        if self.scratches > 1:
            self._compression_thread = CompressionThread.started(self.compress_ahead, name)
            self.wake_compression = None if self._compression_thread is None else self._compression_thread.wake

    def release_scratch(self) -> None:
        """Give the scratch back to the pool, once the compression thread has ended."""
        if self._compression_thread is not None:
            self.wake_compression = None
            self._compression_thread.stop()
        super().release_scratch()

    def topic_queues(
        self, name: str, leaders: Sequence[int], epochs: Iterable[int] = (), topic_id: UUID | None = None
    ) -> TopicQueues:
        """As `made_topic`; existing queues take over the new leaders, epochs and topic id as well."""
        topic = self.made_topic(name, leaders, epochs, topic_id)
        self.follow(topic, *_by_partition(leaders, epochs), topic_id)
        self._note(topic)
        return topic

    def expire(self, now: float) -> list[Batch]:
        """Fail the batches whose delivery.timeout.ms is over, in a queue or in flight, and return them."""
        expired: list[Batch] = []
        while (batch := self.oldest()) is not None and self.time_to_expiry(now) <= 0:
            expired += self.give_up(batch, self._expired(batch))
        return expired

    def _expired(self, batch: Batch) -> TimeoutError:
        pending = [part for part in batch.parts or [batch] if not part.done]
        attempts = max((part.attempts for part in pending), default=0)
        return TimeoutError(
            f"{sum(part.count for part in pending)} record(s) of {batch.topic}-{batch.partition} were not acknowledged "
            f"within delivery.timeout.ms ({self._delivery_timeout_ms} ms)"
            f"{f', {attempts} attempts failed' if attempts else ''}{batch.why_pending()}"
        )

    def abort(self, error: KafkaError | None = None) -> list[Batch]:
        """Fail all batches that have no outcome yet, and return those that failed. What lies in a file stays there."""
        failed = []
        for batch in self.incomplete_batches():
            self.leave_behind(batch)
            failed += self.give_up(batch, error or _closed(batch))
        return failed

    def drop_unsent(self, error: KafkaError) -> list[Batch]:
        """Fail the batches that no broker can have seen, and return those that failed."""
        waiting = self.waiting_batches()
        return [failed for batch in waiting if batch.base_sequence < 0 for failed in self.give_up(batch, error)]

    def give_up(self, batch: Batch, error: KafkaError) -> list[Batch]:
        """Fail a batch, or the parts of a split batch that have no outcome yet, and return those that failed."""
        return [part for part in batch.parts or [batch] if self.fail(part, error)]


def _until_expiry(config: ProducerConfig) -> float:
    """Seconds from a batch's first record on."""
    never = config.buffer_path is not None and config.buffer_expire == "never"
    return float("inf") if never else config.delivery_timeout_ms / 1000


def _closed(batch: Batch) -> ClosedError:
    if batch.left:
        return ClosedError(
            "the producer was closed before the record was acknowledged: the record stays in the file of "
            "kafkabuf.buffer.path, and the next producer that opens it delivers the record"
        )
    why = batch.why_pending()
    return ClosedError(
        "the producer was closed before the record was acknowledged" + (why or ": give close() more time, or no limit")
    )


def _by_partition(leaders: Sequence[int], epochs: Iterable[int]) -> tuple[list[int], list[int]]:
    return list(leaders), list(islice(chain(epochs, repeat(-1)), len(leaders)))
