"""producer.metrics(): which values it has, over which time, and their names."""

from __future__ import annotations

import gc
import math
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.metrics import CallbackOptions
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum
from prometheus_client import CollectorRegistry, generate_latest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import BufferExhaustedError, TimeoutError
from kafkabuf.metrics.labels import labelled
from kafkabuf.metrics.opentelemetry import _observations, observe
from kafkabuf.metrics.prometheus import ProducerCollector
from kafkabuf.network._io import Poller
from kafkabuf.network._metrics import Stat
from kafkabuf.protocol.messages import PRODUCE
from rigs.producer import PATIENCE, only_request, quick_rig

# The names of Kafka 4.1 that dashboards for Java's producer use: those of the group producer-metrics, without
# record-size-max (it would cost time for every record), authentication, and deprecated names; then those of a topic and
# of a node.
OF_PRODUCER = """
batch-size-avg batch-size-max compression-rate-avg record-queue-time-avg record-queue-time-max record-size-avg
records-per-request-avg record-send-rate record-send-total record-retry-rate record-retry-total record-error-rate
record-error-total batch-split-rate batch-split-total request-latency-avg request-latency-max produce-throttle-time-avg
produce-throttle-time-max request-rate request-total request-size-avg request-size-max outgoing-byte-rate
outgoing-byte-total incoming-byte-rate incoming-byte-total response-rate response-total network-io-rate
network-io-total requests-in-flight connection-count connection-creation-rate connection-creation-total
connection-close-rate connection-close-total select-rate select-total io-wait-time-ns-avg io-wait-time-ns-total
io-wait-ratio io-time-ns-avg io-time-ns-total io-ratio buffer-total-bytes buffer-available-bytes buffer-exhausted-rate
buffer-exhausted-total waiting-threads bufferpool-wait-ratio bufferpool-wait-time-ns-total metadata-age
flush-time-ns-total metadata-wait-time-ns-total txn-init-time-ns-total txn-begin-time-ns-total
txn-send-offsets-time-ns-total txn-commit-time-ns-total txn-abort-time-ns-total
""".split()
OF_TOPIC = """
record-send-rate record-send-total byte-rate byte-total compression-rate record-retry-rate record-retry-total
record-error-rate record-error-total
""".split()
OF_NODE = """
request-rate request-total request-size-avg request-size-max outgoing-byte-rate outgoing-byte-total response-rate
response-total incoming-byte-rate incoming-byte-total request-latency-avg request-latency-max
""".split()


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running


@pytest.fixture
def producer(cluster: EmbeddedCluster) -> Iterator[KafkaProducer]:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=1000, client_id="me") as opened:
        yield opened


# Kafka: testSenderMetricsTemplates
def test_metrics_have_javas_names(producer: KafkaProducer) -> None:
    producer.send("named", b"v").result(PATIENCE)
    found = producer.metrics()
    expected = {"producer-metrics": OF_PRODUCER, "producer-topic-metrics.named": OF_TOPIC}
    nodes = {group for group in found if group.startswith("producer-node-metrics.node-")}
    assert nodes
    expected |= dict.fromkeys(nodes, OF_NODE)
    assert {group: sorted(names) for group, names in found.items()} == {
        group: sorted(names) for group, names in expected.items()
    }


def test_producer_topic_and_node_count_the_same_records(producer: KafkaProducer) -> None:
    for _ in range(10):
        producer.send("counted", bytes(100))
    producer.flush(PATIENCE)
    found = producer.metrics()
    metrics = found["producer-metrics"]
    assert metrics["record-send-total"] == found["producer-topic-metrics.counted"]["record-send-total"] == 10
    assert metrics["records-per-request-avg"] == 10
    assert 1000 < metrics["batch-size-max"] == found["producer-topic-metrics.counted"]["byte-total"] < 1300
    assert 0 < metrics["request-latency-avg"] <= metrics["request-latency-max"]
    assert metrics["compression-rate-avg"] == 1
    assert metrics["connection-count"] >= 1
    assert metrics["requests-in-flight"] == metrics["waiting-threads"] == metrics["record-error-total"] == 0
    assert metrics["outgoing-byte-total"] > metrics["batch-size-max"]
    assert metrics["incoming-byte-total"] > 0
    assert metrics["flush-time-ns-total"] > 0
    node = found["producer-node-metrics.node-1"]
    assert 1 <= node["request-total"] == node["response-total"] <= metrics["request-total"]


def test_failed_and_retried_records_are_counted_by_topic_too(cluster: EmbeddedCluster) -> None:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=1000, retry_backoff_ms=1) as producer:
        producer.partitions_for("trouble")
        cluster.fail_next(PRODUCE, 7, topic="trouble")  # REQUEST_TIMED_OUT: it may go again
        cluster.fail_next(PRODUCE, 29, topic="trouble")  # TOPIC_AUTHORIZATION_FAILED: it may not
        for _ in range(3):
            producer.send("trouble", b"v")
        producer.flush(PATIENCE)
    for group in ("producer-metrics", "producer-topic-metrics.trouble"):
        values = producer.metrics()[group]
        assert (values["record-retry-total"], values["record-error-total"]) == (3, 3), group


def test_compression_rate_is_compressed_over_plain_bytes(cluster: EmbeddedCluster) -> None:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, compression_type="gzip") as producer:
        producer.send("small", bytes(5000)).result(PATIENCE)
        assert 0 < producer.metrics()["producer-metrics"]["compression-rate-avg"] < 0.2


def test_queue_time_is_the_time_that_a_batch_waited() -> None:
    rig = quick_rig(linger_ms=50)
    rig.send()
    rig.clock.advance(0.05)
    only_request(rig)
    assert rig.sender.stats.queue_time.recent(rig.clock.monotonic())[2] == pytest.approx(50)


def test_connections_created_are_those_open_and_those_closed() -> None:
    with EmbeddedCluster() as cluster:
        settings: dict[str, Any] = {"reconnect_backoff_ms": 1, "retry_backoff_ms": 1}
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings)
        producer.send("ended", b"v").result(PATIENCE)
        values = producer.metrics()["producer-metrics"]
        assert values["connection-creation-total"] == values["connection-count"] + values["connection-close-total"]
        cluster.drop_next(PRODUCE)
        producer.send("ended", b"v").result(PATIENCE)
        values = producer.metrics()["producer-metrics"]
        assert values["connection-close-total"] >= 1
        assert values["connection-creation-total"] == values["connection-count"] + values["connection-close-total"]
        producer.close()
        values = producer.metrics()["producer-metrics"]
        assert values["connection-count"] == 0
        assert values["connection-close-total"] == values["connection-creation-total"] >= 2
        assert values["connection-close-rate"] > 0


def test_connection_that_failed_does_not_count_as_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with KafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", max_block_ms=50) as producer:
        with pytest.raises(TimeoutError):
            producer.partitions_for("none")
    assert producer.metrics()["producer-metrics"]["connection-close-total"] == 0


def test_poll_times_are_those_of_the_last_poll() -> None:
    poller = Poller()
    poller.poll(0.005)
    assert poller.waited_ns >= 5_000_000 > poller.worked_ns > 0
    poller.poll(0)
    assert 0 < poller.waited_ns < 5_000_000


def test_io_and_io_wait_are_at_most_the_whole_time(cluster: EmbeddedCluster) -> None:
    began = time.monotonic_ns()
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send("polled", b"v").result(PATIENCE)
    values = producer.metrics()["producer-metrics"]
    assert 0 < values["io-wait-time-ns-total"] + values["io-time-ns-total"] < time.monotonic_ns() - began
    assert values["io-time-ns-avg"] == pytest.approx(values["io-time-ns-total"] / values["select-total"])
    assert 0 < values["io-ratio"] < 1
    assert 0 < values["io-wait-ratio"] < 1
    assert values["select-rate"] > 0


def test_sends_without_memory_are_counted(cluster: EmbeddedCluster) -> None:
    refused: list[Any] = []
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, buffer_memory=1 << 20) as producer:

        def again(metadata: Any, error: Any) -> None:
            with all_memory_of(producer):
                try:
                    producer.send("exhausted", b"v")
                except BufferExhaustedError as error:
                    refused.append(error)

        def all_memory_of(producer: KafkaProducer) -> Any:
            return producer.pool.allocate(producer.pool.total, 0)

        producer.partitions_for("exhausted")
        with all_memory_of(producer):
            for _ in range(2):
                with pytest.raises(BufferExhaustedError):
                    producer.pool.allocate(1, 0)
        assert producer.metrics()["producer-metrics"]["buffer-exhausted-total"] == 2
        producer.send("exhausted", b"v", callback=again).result(PATIENCE)
        producer.flush(PATIENCE)
        values = producer.metrics()["producer-metrics"]
    assert len(refused) == 1
    assert values["buffer-exhausted-total"] == 3
    assert values["buffer-exhausted-rate"] > 0


def test_stat_covers_exactly_the_last_windows() -> None:
    stat = Stat(2, 30.0)
    assert stat.recent(1000.0)[:3] == (0, 0, 0)
    stat.add(5, 1000.0)
    stat.add(1, 1029.0)
    assert stat.recent(1029.0) == (2, 6, 5, 59.0)  # the window before counts as over
    stat.add(3, 1031.0)  # a new window
    assert stat.recent(1031.0) == (3, 9, 5, 31.0 + 0.0)
    assert stat.recent(1060.0)[:3] == (1, 3, 3)  # the first is two windows old
    stat.add(2, 1100.0)
    assert stat.recent(1100.0)[:3] == (1, 2, 2)
    assert stat.recent(2000.0)[:3] == (0, 0, 0)
    assert (stat.total, stat.count) == (11, 4)


def test_average_of_nothing_is_nan(producer: KafkaProducer) -> None:
    values = producer.metrics()["producer-metrics"]
    assert math.isnan(values["batch-size-avg"])
    assert values["record-send-rate"] == 0


class Reporter:
    closed = 0

    def init(self, metrics: Callable[[], Any]) -> None:
        self.metrics = metrics

    def close(self) -> None:
        self.closed += 1


def test_reporter_is_closed_once_and_does_not_keep_its_producer_alive(cluster: EmbeddedCluster) -> None:
    reporter = Reporter()
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, metric_reporters=[reporter])
    producer.send("reported", b"v").result(PATIENCE)
    assert reporter.metrics()["producer-metrics"]["record-send-total"] == 1
    producer.close()
    producer.close()
    assert reporter.closed == 1
    gone = weakref.ref(producer)
    del producer
    gc.collect()
    assert gone() is None


def test_prometheus_gets_legal_names_with_labels(producer: KafkaProducer) -> None:
    registry = CollectorRegistry()
    registry.register(ProducerCollector(producer))
    producer.send("shown", b"v")
    producer.flush(PATIENCE)
    text = generate_latest(registry).decode()
    assert 'kafka_producer_topic_record_send_total{client_id="me",topic="shown"} 1.0\n' in text
    assert "# TYPE kafka_producer_topic_record_send_total counter\n" in text
    assert "# TYPE kafka_producer_io_wait_ratio gauge\n" in text
    labels = {"client_id": "me", "node": "node-1"}
    assert (registry.get_sample_value("kafka_producer_node_request_total", labels) or 0) >= 1
    families = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families)) == len({name for name, _, _ in labelled(producer)})


def exported(producer: KafkaProducer, meanwhile: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """The metrics of the producer in OpenTelemetry, by name; calls `meanwhile` after observe()."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    observe(producer, provider.get_meter("kafkabuf"))
    meanwhile()
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    return {metric.name: metric.data for r in data.resource_metrics for s in r.scope_metrics for metric in s.metrics}


def test_opentelemetry_observes_later_topics(producer: KafkaProducer) -> None:
    def send(topic: str) -> None:
        producer.send(topic, b"v")
        producer.flush(PATIENCE)

    send("one")
    found = exported(producer, lambda: send("two"))
    sent = found["kafka_producer_topic_record_send"]
    assert isinstance(sent, Sum)
    assert sent.is_monotonic
    assert {(point.attributes or {})["topic"]: point.value for point in sent.data_points} == {"one": 1, "two": 1}
    assert {name for name, _, value in labelled(producer) if value == value} == {
        name + "_total" * isinstance(data, Sum) for name, data in found.items()
    }


def test_opentelemetry_does_not_observe_an_average_of_nothing(producer: KafkaProducer) -> None:
    found = exported(producer)
    assert "kafka_producer_batch_size_avg" not in found
    assert "kafka_producer_record_send_rate" in found
    # The SDK would drop the NaN too; other implementations may not.
    assert list(_observations(producer, "kafka_producer_batch_size_avg", CallbackOptions())) == []


def test_labels_are_client_id_topic_and_node(producer: KafkaProducer) -> None:
    producer.send("a.b-c", b"v")
    producer.flush(PATIENCE)
    found = {tuple(labels.items()) for _, labels, _ in labelled(producer)}
    assert {
        (("client_id", "me"),),
        (("client_id", "me"), ("topic", "a.b-c")),
        (("client_id", "me"), ("node", "node-1")),
    } <= found


def test_time_of_transactional_calls_is_counted() -> None:
    with (
        EmbeddedCluster() as cluster,
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="timed") as producer,
    ):
        cluster.create_topic("timed")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({("timed", 0): 1}, "group")
        producer.commit_transaction()
        producer.begin_transaction()
        producer.abort_transaction()
        found = producer.metrics()["producer-metrics"]
    for call in ("init", "begin", "send-offsets", "commit", "abort"):
        assert 0 < found[f"txn-{call}-time-ns-total"] < 60e9
    assert found["flush-time-ns-total"] == 0
