"""KafkaProducer against an embedded cluster: futures, callbacks, threads, brokers that come and go, and the end."""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import ClosedError, KafkaError, TimeoutError
from kafkabuf.producer import KafkaProducer
from kafkabuf.record_metadata import RecordMetadata
from rigs.fake_client import Record, read_records
from rigs.producer import PATIENCE, assert_whole
from tests.memory.pool_support import in_thread

PRODUCE = 0


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, default_partitions=3) as running:
        yield running


def open_producer(cluster: EmbeddedCluster, **settings: Any) -> KafkaProducer:
    """A producer with little memory and short back-offs, so that faults show at once."""
    defaults = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "batch_size": 1024,
        "buffer_memory": 64 * 1024,
        "linger_ms": 1,
        "retry_backoff_ms": 10,
        "retry_backoff_max_ms": 50,
        "reconnect_backoff_ms": 10,
        "reconnect_backoff_max_ms": 50,
    }
    return KafkaProducer(defaults | settings)


def fill_memory(producer: KafkaProducer) -> None:
    """Send more records than memory can hold."""
    for _ in range(100):
        producer.send("t", b"x" * 1_000)


def stored(cluster: EmbeddedCluster, topic: str, partition: int) -> list[Record]:
    return [record for data in cluster.records(topic, partition) for record in read_records(data)]


def all_values(cluster: EmbeddedCluster, topic: str) -> list[bytes]:
    partitions = range(cluster.topics()[topic])
    return [record.value or b"" for partition in partitions for record in stored(cluster, topic, partition)]


# ---- sending ---------------------------------------------------------------------------------------------------------


def test_record_is_stored_where_its_metadata_says(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster) as producer:
        futures = [
            producer.send("t", b"value-%d" % n, key=b"key-%d" % n, headers=[("n", b"%d" % n)], timestamp_ms=1_000 + n)
            for n in range(200)
        ]
        producer.flush(PATIENCE)
        assert all(future.done() for future in futures)
        logs = {partition: stored(cluster, "t", partition) for partition in range(3)}
        for n, future in enumerate(futures):
            metadata = future.result(0)
            assert isinstance(metadata, RecordMetadata)
            record = logs[metadata.partition][metadata.offset]
            assert record == Record(metadata.offset, 1_000 + n, b"key-%d" % n, b"value-%d" % n, [("n", b"%d" % n)])
            assert metadata == (
                "t",
                metadata.partition,
                metadata.offset,
                1_000 + n,
                len(b"key-%d" % n),
                len(b"value-%d" % n),
            )
        assert_whole(producer.pool)


@pytest.mark.parametrize(
    "settings", [{"acks": 0}, {"acks": 1}, {"record_magic": 1}, {"batch_size": 0}, {"linger_ms": 0}]
)
def test_no_setting_loses_records(cluster: EmbeddedCluster, settings: dict[str, Any]) -> None:
    with open_producer(cluster, **settings) as producer:
        for n in range(300):
            producer.send("t", b"%d" % n)
        producer.flush(PATIENCE)
        assert producer.metrics()["producer-metrics"]["record-send-total"] == 300
    if settings != {"acks": 0}:
        assert sorted(map(int, all_values(cluster, "t"))) == list(range(300))
    assert_whole(producer.pool)


def test_serializers_are_applied(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster, key_serializer=str.encode, value_serializer=lambda n: b"%d" % n) as producer:
        metadata = producer.send("t", 5, key="k").result(PATIENCE)
    record = stored(cluster, "t", metadata.partition)[0]
    assert (record.key, record.value) == (b"k", b"5")


def test_flush_returns_once_all_records_have_an_outcome(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster, linger_ms=60_000) as producer:
        for _ in range(3):
            futures = [producer.send("t", b"v", partition=partition) for partition in range(3)]
            assert not any(future.done() for future in futures)
            producer.flush(PATIENCE)
            assert all(future.done() for future in futures)


def test_partitions_for_returns_all_partitions_with_leaders(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("five", partitions=5)
    with open_producer(cluster) as producer:
        info = producer.partitions_for("five")
        assert [partition.leader for partition in info.partitions] == [cluster.leader("five", p)[0] for p in range(5)]


# ---- callbacks and futures -------------------------------------------------------------------------------------------


def test_callbacks_run_in_order_in_the_senders_thread_despite_errors(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    called: list[tuple[int, RecordMetadata, KafkaError | None]] = []
    threads: set[str] = set()
    with open_producer(cluster, client_id="mine") as producer:

        def note(n: int, metadata: RecordMetadata, error: KafkaError | None) -> None:
            threads.add(threading.current_thread().name)
            called.append((n, metadata, error))
            if n % 7 == 0:
                raise ZeroDivisionError("in a callback")

        with caplog.at_level(logging.ERROR):
            for n in range(50):
                producer.send("t", b"v", partition=1, callback=partial(note, n))
            producer.flush(PATIENCE)
    assert [(n, metadata.offset, error) for n, metadata, error in called] == [(n, n, None) for n in range(50)]
    assert threads == {"kafkabuf-mine"}
    assert caplog.text.count("ZeroDivisionError('in a callback')") == len(raised) == 8
    assert_whole(producer.pool)


def test_callback_may_send(cluster: EmbeddedCluster) -> None:
    second: list[RecordFuture] = []
    with open_producer(cluster) as producer:
        producer.send("t", b"1", callback=lambda m, e: second.append(producer.send("t", b"2"))).result(PATIENCE)
        assert second[0].result(PATIENCE)
    assert sorted(all_values(cluster, "t")) == [b"1", b"2"]


def test_flush_in_a_callback_is_refused(cluster: EmbeddedCluster) -> None:
    errors: list[Any] = []

    def flush(metadata: RecordMetadata, error: KafkaError | None) -> None:
        try:
            producer.flush()
        except KafkaError as raised:
            errors.append(str(raised))

    with open_producer(cluster) as producer:
        producer.send("t", b"v", callback=flush).result(PATIENCE)
    assert errors == ["flush() in a callback would wait for the callback itself to return: call it in another thread"]


def test_callback_never_waits_for_metadata(cluster: EmbeddedCluster) -> None:
    errors: list[Any] = []

    def send(metadata: RecordMetadata, error: KafkaError | None) -> None:
        for topic, partition in (("unheard-of", None), ("t", 99)):
            try:
                producer.send(topic, b"v", partition=partition)
            except TimeoutError as raised:
                errors.append(str(raised))

    with open_producer(cluster, max_block_ms=600_000) as producer:
        producer.send("t", b"v", callback=send).result(PATIENCE)
        assert ["a callback cannot wait for metadata" in error for error in errors] == [True, True]
        assert producer.send("unheard-of", b"v").result(PATIENCE).offset == 0


def test_close_closes_interceptors_and_serializers(cluster: EmbeddedCluster) -> None:
    closed: list[object] = []

    class Closing:
        def on_send(self, record: Any) -> Any:
            return record

        def serialize(self, topic: str, headers: Any, data: Any) -> Any:
            return data

        def close(self) -> None:
            closed.append(self)

    interceptor, serializer = Closing(), Closing()
    with open_producer(cluster, interceptor_classes=[interceptor], value_serializer=serializer) as producer:
        producer.send("t", b"v")
        assert closed == []
    producer.close()
    assert closed == [interceptor, serializer]
    assert all_values(cluster, "t") == [b"v"]


@pytest.mark.parametrize("timeout", [None, 0])
def test_close_in_a_callback_ends_the_sender(cluster: EmbeddedCluster, timeout: float | None) -> None:
    producer = open_producer(cluster, linger_ms=60_000)
    producer.partitions_for("t")

    def close(metadata: RecordMetadata, error: KafkaError | None) -> None:
        producer.send("t", b"lingers", partition=1)
        producer.close(timeout)

    producer.send("t", b"x" * 1_000, partition=0, callback=close)
    producer.send("t", b"pushes the first out", partition=0)
    producer._thread.join(PATIENCE)
    assert not producer._thread.is_alive()
    assert len(all_values(cluster, "t")) == (3 if timeout is None else 1)
    with pytest.raises(ClosedError):
        producer.send("t", b"v")
    assert_whole(producer.pool)


def test_future_honours_its_timeout_and_shows_the_error(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster, linger_ms=60_000) as producer:
        future = producer.send("t", b"v", partition=0)
        seen: list[RecordFuture] = []
        future.add_done_callback(seen.append)
        with pytest.raises(TimeoutError):
            future.result(0.01)
        waiting = [in_thread(lambda: future.result(PATIENCE)) for _ in range(3)]
        producer.flush(PATIENCE)
        assert {one.result(PATIENCE).offset for one in waiting} == {0}
        assert seen == [future]
        cluster.fail_next(PRODUCE, 87)
        failed = producer.send("t", b"v", partition=0)
        producer.flush(PATIENCE)
        assert type(failed.exception(0)).__name__ == "InvalidRecordError"
        with pytest.raises(KafkaError):
            failed.result(0)
        assert producer.metrics()["producer-metrics"]["record-error-total"] == 1


# ---- trouble ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [3, 6, 7, 19])
def test_retriable_error_is_retried_unnoticed(cluster: EmbeddedCluster, code: int) -> None:
    with open_producer(cluster) as producer:
        producer.partitions_for("t")
        cluster.fail_next(PRODUCE, code, times=2)
        assert producer.send("t", b"v").result(PATIENCE).offset == 0
        assert producer.metrics()["producer-metrics"]["record-retry-total"] == 2
        assert producer.metrics()["producer-metrics"]["record-error-total"] == 0


def test_lost_response_without_idempotence_writes_the_record_twice(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster, enable_idempotence=False) as producer:
        producer.partitions_for("t")
        cluster.drop_next(PRODUCE, times=1)
        assert producer.send("t", b"v", partition=0).result(PATIENCE).offset == 1
    assert [record.value for record in stored(cluster, "t", 0)] == [b"v", b"v"]


def test_lost_response_with_idempotence_writes_the_record_once(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster) as producer:
        producer.send("t", b"u", partition=0).result(PATIENCE)
        cluster.drop_next(PRODUCE, times=1)
        assert producer.send("t", b"v", partition=0).result(PATIENCE).offset == 1
    assert [record.value for record in stored(cluster, "t", 0)] == [b"u", b"v"]


def test_moved_leader_loses_neither_records_nor_order(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("moving", partitions=2, replication_factor=3)
    with open_producer(cluster, max_in_flight_requests_per_connection=1) as producer:
        futures = []
        for n in range(3_000):
            if n % 500 == 250:
                for partition in (0, 1):
                    leader, _ = cluster.leader("moving", partition)
                    cluster.move_leader("moving", partition, leader % 3 + 1)
            futures.append(producer.send("moving", b"%d" % n, partition=n % 2))
        producer.flush(PATIENCE)
        assert all(future.exception(0) is None for future in futures)
    for partition in (0, 1):
        assert [int(r.value or b"") for r in stored(cluster, "moving", partition)] == list(range(partition, 3_000, 2))
    assert_whole(producer.pool)


def test_killed_broker_loses_no_record(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t", partitions=3, replication_factor=3)
    with open_producer(cluster) as producer:
        futures: list[RecordFuture] = []

        def send(count: int) -> None:
            futures.extend(producer.send("t", b"%d" % len(futures), partition=n % 3) for n in range(count))

        for node in (1, 2):
            for n in range(500):
                send(1)
                if n == 250:
                    cluster.stop_node(node)
            cluster.start_node(node)
        producer.flush(PATIENCE)
        assert [future.exception(0) for future in futures] == [None] * 1_000
        for future in futures:
            assert future.result(0).offset >= 0
    values = set(map(int, all_values(cluster, "t")))
    assert values == set(range(1_000))
    assert_whole(producer.pool)


def test_close_ends_in_time_though_the_cluster_is_gone(cluster: EmbeddedCluster) -> None:
    producer = open_producer(cluster, max_block_ms=200)
    producer.send("t", b"v").result(PATIENCE)
    for node in (1, 2, 3):
        cluster.stop_node(node)
    called: list[Any] = []
    future = producer.send("t", b"v", callback=lambda metadata, error: called.append(error))
    with pytest.raises(TimeoutError):
        producer.flush(0.05)
    with pytest.raises(TimeoutError):
        fill_memory(producer)
    producer.close(0.05)
    assert not producer._thread.is_alive()
    with pytest.raises(ClosedError):
        future.result(0)
    assert [type(error) for error in called] == [ClosedError]
    assert_whole(producer.pool)


def test_forced_close_does_not_wait_for_a_slow_response(cluster: EmbeddedCluster) -> None:
    producer = open_producer(cluster, linger_ms=0)
    producer.partitions_for("t")
    cluster.delay_next(PRODUCE, 60.0, times=5)
    future = producer.send("t", b"v")
    producer.close(0)
    assert isinstance(future.exception(0), ClosedError)
    assert_whole(producer.pool)


def test_record_expires_at_delivery_timeout(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster, linger_ms=0, request_timeout_ms=100, delivery_timeout_ms=300) as producer:
        producer.partitions_for("t")
        cluster.delay_next(PRODUCE, 60.0, times=50)
        with pytest.raises(TimeoutError, match=r"delivery\.timeout\.ms \(300 ms\)"):
            producer.send("t", b"v").result(PATIENCE)
        cluster.clear_faults()
        assert producer.send("t", b"v").result(PATIENCE)
        producer.close()
        assert_whole(producer.pool)


def test_close_ends_the_waits_of_other_threads(cluster: EmbeddedCluster) -> None:
    producer = open_producer(cluster, max_block_ms=60_000, linger_ms=0)
    producer.send("t", b"v").result(PATIENCE)
    for node in (1, 2, 3):
        cluster.stop_node(node)
    for_memory = in_thread(lambda: fill_memory(producer))
    for_topic = in_thread(lambda: producer.send("unknown", b"v"))
    while not producer.pool.waiting or not producer._metadata._waiters:
        threading.Event().wait(0.001)
    producer.close(0)
    assert isinstance(for_memory.exception(PATIENCE), ClosedError)
    assert isinstance(for_topic.exception(PATIENCE), ClosedError)
    assert_whole(producer.pool)


# ---- threads ---------------------------------------------------------------------------------------------------------


def test_threads_neither_lose_nor_repeat_nor_reorder_records(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster, max_in_flight_requests_per_connection=1) as producer:
        total = 1_500

        def send(thread: int) -> list[RecordFuture]:
            return [producer.send("t", b"%d:%d" % (thread, n), partition=n % 3) for n in range(total)]

        running = [in_thread(lambda number=number: send(number)) for number in range(4)]  # type: ignore[misc]

        def flush() -> None:
            for _ in range(20):
                producer.flush(PATIENCE)

        flushing = in_thread(flush)
        futures = [future.result(PATIENCE) for future in running]
        flushing.result(PATIENCE)
        producer.flush(PATIENCE)
        assert all(future.exception(0) is None for mine in futures for future in mine)
        for partition in range(3):
            log = [record.value or b"" for record in stored(cluster, "t", partition)]
            for thread in range(4):
                mine = [int(value.split(b":")[1]) for value in log if value.startswith(b"%d:" % thread)]
                assert mine == list(range(partition, total, 3))
                for n in mine:
                    assert log[futures[thread][n].result(0).offset] == b"%d:%d" % (thread, n)
        assert_whole(producer.pool)


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_close_sends_all_records(cluster: EmbeddedCluster) -> None:
    producer = open_producer(cluster, linger_ms=60_000)
    futures = [producer.send("t", b"%d" % n) for n in range(100)]
    producer.close()
    assert all(future.done() for future in futures)
    assert len(all_values(cluster, "t")) == 100
    assert not producer._thread.is_alive()
    producer.close()
    producer.flush()
    assert_whole(producer.pool)


def test_with_block_sends_all_records(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster, linger_ms=60_000) as producer:
        future = producer.send("t", b"v")
    assert future.result(0)
    with contextlib.suppress(ZeroDivisionError), open_producer(cluster, linger_ms=60_000) as producer:
        future = producer.send("t", b"v")
        raise ZeroDivisionError
    assert future.result(0)


def test_collected_producer_sends_its_records_and_ends_its_thread(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    producer = open_producer(cluster, linger_ms=60_000)
    thread, gone = producer._thread, weakref.ref(producer)
    future = producer.send("t", b"v")
    del producer
    gc.collect()
    assert gone() is None
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert future.result(0)
    assert "a KafkaProducer was not closed" in caplog.text


def test_interpreter_that_exits_sends_all_records(cluster: EmbeddedCluster) -> None:
    script = (
        "from kafkabuf import KafkaProducer\n"
        f"producer = KafkaProducer(bootstrap_servers={cluster.bootstrap_servers!r}, linger_ms=60_000)\n"
        "producer.send('t', b'last words')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "Traceback" not in done.stderr
    assert all_values(cluster, "t") == [b"last words"]


def test_unpickled_producer_has_the_same_configuration(cluster: EmbeddedCluster) -> None:
    with open_producer(cluster, linger_ms=3, key_serializer=str.encode, acks="all") as producer:
        data = pickle.dumps(producer)
        with pickle.loads(data) as copy:
            assert type(copy) is KafkaProducer
            assert copy is not producer
            assert isinstance(copy.config, ProducerConfig)
            assert copy.config == producer.config
            assert copy.send("t", b"v", key="k").result(PATIENCE)


def test_config_and_keywords_are_combined(cluster: EmbeddedCluster) -> None:
    config = ProducerConfig.from_mapping({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 3})
    with KafkaProducer(config, acks=1) as producer:
        assert (producer.config.linger_ms, producer.config.acks) == (3, 1)


def test_import_starts_no_thread() -> None:
    script = "import threading, kafkabuf.producer; assert threading.active_count() == 1, threading.enumerate()"
    subprocess.run([sys.executable, "-c", script], timeout=PATIENCE, check=True)


def test_send_has_a_signature_and_a_docstring() -> None:
    """send() is a plain method descriptor, for speed; such a descriptor has a signature only if Cython embeds it."""
    names = ["self", "topic", "value", "key", "headers", "partition", "timestamp_ms", "callback", "opaque"]
    assert list(inspect.signature(KafkaProducer.send).parameters) == names
    assert (KafkaProducer.send.__doc__ or "").startswith("Queue one record")
