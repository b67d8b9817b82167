"""The Sender: its life, and what it does when something went wrong. The turn itself is in _sender.pyx."""

from __future__ import annotations

import logging
import threading

from kafkabuf._batch import Batch
from kafkabuf._sender import SenderCore
from kafkabuf._split import split
from kafkabuf.accumulator import RecordAccumulator
from kafkabuf.clock import Clock
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import KafkaError, RecordTooLargeError, UnsupportedVersionError
from kafkabuf.metadata import Cluster, Metadata
from kafkabuf.network.client import NetworkClient

log = logging.getLogger("kafkabuf.producer")


class Sender(SenderCore):
    """Moves batches from the accumulator to the brokers (Kafka's Sender).

    One thread calls `run`, or a test calls `run_once`; all else may be called by any thread.
    """

    _accumulator: RecordAccumulator

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        metadata: Metadata,
        client: NetworkClient,
        clock: Clock,
    ) -> None:
        super().__init__(config, accumulator, metadata, client, clock)
        self._config = config
        self._closing = False
        self._forced = False
        self.record_errors = 0
        self.record_retries = 0
        self.batch_splits = 0
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
            self.on_completion(completion)
        self._accumulator.release_scratch()

    def close(self, *, force: bool = False) -> None:
        """Finish what is queued, or with `force` fail it; `run` returns after that."""
        self._closing = True
        self._forced = self._forced or force
        self._client.wakeup()

    # ---- what a turn finds amiss -------------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        expired = self._accumulator.expire(now)
        if expired:
            self.record_errors += sum(batch.count for batch in expired)
            log.warning("%d batch(es) expired; the first: %s", len(expired), expired[0].error)

    def _ask_for_leaders(self, topics: set[str]) -> None:
        for topic in topics:
            self._metadata.add_topic(topic)
        self._metadata.request_update()

    def _fail_unsupported(self, batches: list[Batch], error: UnsupportedVersionError) -> None:
        magic = self._accumulator.magic
        other = "set record.magic to 2 (or auto)" if magic == 1 else "set record.magic to 1 for brokers this old"
        text = f"the broker takes no records of magic {magic}: {other} ({error})"
        for batch in batches:
            self._fail(batch, UnsupportedVersionError(text))

    def _retry_or_fail_all(self, batches: list[Batch], error: KafkaError) -> None:
        for batch in batches:
            self._retry_or_fail(batch, error)

    def _retry_or_fail(self, batch: Batch, error: KafkaError) -> None:
        self._accumulator.queue_of(batch).proven = False
        if batch.done:  # expired while in flight
            return
        if error.invalid_metadata:
            self._metadata.request_update()
        if isinstance(error, RecordTooLargeError) and batch.count > 1 and not self._forced:
            self._split_or_fail(batch, error)
            return
        if not error.retriable or batch.attempts >= self._config.retries or self._forced:
            self._fail(batch, error)
            return
        self.record_retries += batch.count
        log.debug("%r is sent again: %s", batch, error)
        self._accumulator.requeue(batch, self._clock.monotonic())

    def _split_or_fail(self, batch: Batch, error: RecordTooLargeError) -> None:
        """A refusal for the size says nothing of the records: they go again in parts, whatever `retries` is."""
        try:
            log.debug("%r is split: %s", batch, error)
            split(self._accumulator, batch)
            self.batch_splits += 1
        except Exception:
            log.exception("%r could not be split; its records fail", batch)
            failed = self._accumulator.give_up(batch.whole or batch, error)
            self.record_errors += sum(part.count for part in failed)

    def _fail(self, batch: Batch, error: KafkaError) -> None:
        if batch.fail(error):
            self.record_errors += batch.count

    def _on_cluster(self, cluster: Cluster) -> None:
        """Thread: Sender. New partitions get queues, and every queue its leader of now."""
        for name in list(self._accumulator.topics):  # a copy: send() adds to it
            info = cluster.topics.get(name)
            if info is not None and info.partitions:
                self._accumulator.topic_queues(name, info.leaders)
