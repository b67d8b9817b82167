"""producer.metrics(): the producer's counts under Java's names.

Rates, averages and maxima cover the last few time windows (`metrics.num.samples` of `metrics.sample.window.ms`). Groups
are those of Java and kafka-python: `producer-metrics`, `producer-topic-metrics.TOPIC`, `producer-node-metrics.node-N`.
Units are Java's: bytes, records, ms; ns where the name says so; seconds for metadata-age. An average without a value is
NaN. The producer counts per batch, request, poll and connection, never per record: record-size-avg is the average of
the batches' means, and record-size-max does not exist.

A producer with a file has a group more, which Java's has not, producer-file-metrics:

    waiting-records, waiting-bytes      in the file, without an outcome
    record-drop-rate, -total            records that made room for newer ones (kafkabuf.buffer.full=drop_oldest)
    send-refuse-rate, -total            calls that found no room in time, or at once (kafkabuf.buffer.full=refuse)
    recovered-record-total, -byte-total records that the file held when the producer opened it, and their bytes
    recovered-acknowledged-total        of these: the cluster had them already,
    recovered-delivered-total           this producer has delivered them,
    recovered-unproven-total            nobody can know whether the cluster had them: they are delivered or kept,
    recovered-kept-total                they stay in the file,
    recovered-failed-total              the user has purged them, or they made room for newer ones,
    recovered-pending                   they have no outcome yet
    recovered-uncommitted-total         records of a transaction that was not committed, and dropped
    recovered-damaged-total             damaged batches that are put aside
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kafkabuf._pool import BufferPool
from kafkabuf.backoff import uniform
from kafkabuf.clock import Clock
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.metrics.telemetry import Telemetry
from kafkabuf.network._metrics import NodeStats, ProducerStats, Stat, TopicStats
from kafkabuf.network.client import NetworkClient
from kafkabuf.process.producer_log import log_as, producer_log

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig

log = producer_log("kafkabuf.producer")

NAN = float("nan")
# The calls that KafkaProducer times; the metric is `name`-time-ns-total.
TIMED = ("metadata-wait", "flush", "txn-init", "txn-begin", "txn-send-offsets", "txn-commit", "txn-abort")
Values = dict[str, float]
Snapshot = dict[str, Values]


class Metrics:
    """The metrics of one producer. Any thread may use it. `file` gives the counts of its file.

    It holds no reference to the producer: a reporter that keeps the metrics must not keep the producer open.
    """

    def __init__(
        self,
        config: ProducerConfig,
        clock: Clock,
        pool: BufferPool,
        stats: ProducerStats,
        client: NetworkClient,
        metadata: Metadata,
        file: Callable[[], Values] | None = None,
    ) -> None:
        self._clock = clock
        self._pool = pool
        self._stats = stats
        self._client = client
        self._metadata = metadata
        self._file = file
        self._times: Counter[str] = Counter(dict.fromkeys(TIMED, 0))  # seconds
        self._started = clock.monotonic()
        self._client_id = config.client_id
        self._reporters = list(config.metric_reporters)
        pool.on_wait = lambda seconds: stats.waits.add(seconds, clock.monotonic())
        pool.on_failure = lambda: stats.exhausted.add(1, clock.monotonic())
        client.requests.stats = stats
        for reporter in self._reporters:
            getattr(reporter, "init", reporter)(self.snapshot)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the duration of the block to the total of `name`, one of TIMED. The block logs as the producer."""
        started = self._clock.monotonic()
        try:
            with log_as(self._client_id):
                yield
        finally:
            self._times[name] += self._clock.monotonic() - started  # type: ignore[assignment]

    def close(self) -> None:
        """Close the reporters, when the producer closes. A second call does nothing."""
        reporters, self._reporters = self._reporters, []
        for reporter in reporters:
            try:
                getattr(reporter, "close", lambda: None)()
            except Exception:
                log.exception("a metric reporter raised in close()")

    def snapshot(self) -> Snapshot:
        """The present values as {group: {name: value}}."""
        now = self._clock.monotonic()
        groups = {"producer-metrics": self._of_producer(now)}
        if self._file is not None:
            groups["producer-file-metrics"] = self._file() | self._of_full_file(now)
        for topic, stats in self._stats.topics.copy().items():
            groups[f"producer-topic-metrics.{topic}"] = _of_topic(stats, now)
        for node_id, node in self._stats.nodes.copy().items():
            groups[f"producer-node-metrics.node-{node_id}"] = _of_node(node, now)
        return groups

    def _of_producer(self, now: float) -> Values:
        stats = self._stats
        return {
            **_average_and_maximum("batch-size", stats.batch_size, now),
            "compression-rate-avg": _mean(stats.compression, now),
            **_average_and_maximum("record-queue-time", stats.queue_time, now),
            "record-size-avg": _mean(stats.record_size, now),
            "records-per-request-avg": _mean(stats.records, now),
            **_rate("record-send", stats.records, now),
            **_rate("record-retry", stats.retries, now),
            **_rate("record-error", stats.errors, now),
            **_rate("batch-split", stats.splits, now),
            **_average_and_maximum("request-latency", stats.latency, now),
            **_average_and_maximum("produce-throttle-time", stats.throttle, now),
            **_of_network(stats.requests, stats.responses, now),
            **_rate("network-io", stats.requests, now, stats.responses, counted=True),
            **_rate("select", stats.io_waits, now, counted=True),
            **_share("io-wait", stats.io_waits, now),
            **_share("io", stats.io_times, now),
            **self._of_connections(now),
            **self._of_memory(now),
            "metadata-age": now - max(self._metadata.updated_at, self._started),
            **{f"{name}-time-ns-total": seconds * 1e9 for name, seconds in self._times.copy().items()},
        }

    def _of_full_file(self, now: float) -> Values:
        return _rate("record-drop", self._stats.dropped, now) | _rate("send-refuse", self._stats.exhausted, now)

    def _of_connections(self, now: float) -> Values:
        nodes = list(self._client.requests.nodes.values())
        count = sum(node.connection is not None and node.connection.connected for node in nodes)
        return {
            "requests-in-flight": sum(len(node.in_flight) for node in nodes),
            "connection-count": count,
            **_rate("connection-creation", self._stats.opened, now),
            **_rate("connection-close", self._stats.closed, now),
        }

    def _of_memory(self, now: float) -> Values:
        pool = self._pool
        _, waited, _, seconds = self._stats.waits.recent(now)
        return {
            "buffer-total-bytes": pool.total,
            "buffer-available-bytes": pool.free_bytes,
            "waiting-threads": pool.waiting,
            "bufferpool-wait-ratio": waited / seconds,
            "bufferpool-wait-time-ns-total": pool.wait_time_total * 1e9,
            **_rate("buffer-exhausted", self._stats.exhausted, now),
        }


def telemetry_of(config: ProducerConfig, clock: Clock, client: NetworkClient, metrics: Metrics) -> Telemetry:
    """What pushes the metrics to brokers."""
    transactional_id = config.transactional_id
    labels = {} if transactional_id is None else {"transactional_id": transactional_id}
    return Telemetry(client.connections, clock, metrics.snapshot, labels, uniform)


def _of_topic(stats: TopicStats, now: float) -> Values:
    return {
        **_rate("record-send", stats.records, now),
        **_rate("byte", stats.bytes, now),
        "compression-rate": _mean(stats.compression, now),
        **_rate("record-retry", stats.retries, now),
        **_rate("record-error", stats.errors, now),
    }


def _of_node(stats: NodeStats, now: float) -> Values:
    return {
        **_of_network(stats.requests, stats.responses, now),
        **_average_and_maximum("request-latency", stats.latency, now),
    }


def _of_network(requests: Stat, responses: Stat, now: float) -> Values:
    return {
        **_rate("request", requests, now, counted=True),
        **_average_and_maximum("request-size", requests, now),
        **_rate("outgoing-byte", requests, now),
        **_rate("response", responses, now, counted=True),
        **_rate("incoming-byte", responses, now),
    }


def _mean(stat: Stat, now: float) -> float:
    count, total, _, _ = stat.recent(now)
    return total / count if count else NAN


def _average_and_maximum(name: str, stat: Stat, now: float) -> Values:
    count, _, largest, _ = stat.recent(now)
    return {f"{name}-avg": _mean(stat, now), f"{name}-max": largest if count else NAN}


def _share(name: str, stat: Stat, now: float) -> Values:
    """The share of the Sender's time that `stat` counts, in ns."""
    _, recent, _, seconds = stat.recent(now)
    return {
        f"{name}-time-ns-avg": _mean(stat, now),
        f"{name}-time-ns-total": stat.total,
        f"{name}-ratio": recent / 1e9 / seconds,
    }


def _rate(name: str, stat: Stat, now: float, *more: Stat, counted: bool = False) -> Values:
    """Rate and total of the sum of the values; with `counted`, of the number of values."""
    per_second = total = 0.0
    for each_stat in (stat, *more):
        count, recent, _, seconds = each_stat.recent(now)
        per_second += (count if counted else recent) / seconds
        total += each_stat.count if counted else each_stat.total
    return {f"{name}-rate": per_second, f"{name}-total": total}
