"""A KafkaProducer with a file, against the embedded cluster: what one process left, the next one delivers once."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.errors import BufferExhaustedError, ClosedError, ConfigError, PurgedError, TimeoutError
from kafkabuf.spool.file import Layout, SpoolFile
from kafkabuf.spool.recovered import Recovered
from rigs.fake_client import read_records
from tests.waiting import wait_until

TOPIC = "t"
PATIENCE = 60.0
PRODUCE = 0
_alive: list[object] = []  # a producer that is collected sends its records


def opened(cluster: EmbeddedCluster, path: Path, **settings: Any) -> KafkaProducer[Any, Any]:
    defaults = {"linger_ms": 0, "buffer_memory": 1 << 20, "retry_backoff_ms": 1, "reconnect_backoff_ms": 1}
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, **({"buffer_path": str(path)} | defaults | settings)
    )
    _alive.append(producer)
    return producer


def in_child(run: Callable[[], object], until: Callable[[], object] = lambda: True) -> None:
    """Runs in a child, which is killed once it has returned and `until` is true."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run()
            os.write(writer, b".")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader, "rb") as pipe:
        assert pipe.read(1) == b".", "the child failed"
    wait_until(until)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def left_by_a_killed_process(cluster: EmbeddedCluster, path: Path, values: list[bytes], **settings: Any) -> None:
    def run() -> None:
        producer = opened(cluster, path, **({"linger_ms": 600_000} | settings))
        for value in values:
            producer.send(TOPIC, value)

    in_child(run)


def stored(cluster: EmbeddedCluster) -> list[bytes | None]:
    return [record.value for data in cluster.records(TOPIC, 0) for record in read_records(data)]


def is_empty(path: Path, config: Any) -> bool:
    with SpoolFile(path, Layout(config.buffer_memory, config.slab_size)) as file:
        return file.tables.live_count == 0


def test_records_of_a_killed_process_come_once_and_before_new_records(cluster: EmbeddedCluster, path: Path) -> None:
    values = [b"%d" % number for number in range(3_000)]
    left_by_a_killed_process(cluster, path, values, linger_ms=0)  # some were acknowledged, some are in flight
    with opened(cluster, path) as producer:
        producer.send(TOPIC, b"new").result(PATIENCE)
        recovered = producer.recovered
        assert recovered is not None
        assert recovered.pending == 0
    assert stored(cluster) == [*values, b"new"]
    assert is_empty(path, producer.config)


def test_records_whose_batch_the_broker_has_are_not_sent_again(cluster: EmbeddedCluster, path: Path) -> None:
    """The response to the batch is lost, and the process is killed before it repeats the request."""
    cluster.drop_next(PRODUCE)
    settings = {"retry_backoff_ms": 600_000, "retry_backoff_max_ms": 600_000, "linger_ms": 0}

    def run() -> None:
        opened(cluster, path, **settings).send(TOPIC, b"there")

    in_child(run, until=lambda: stored(cluster))
    with opened(cluster, path) as producer:
        producer.flush(PATIENCE)
        assert producer.recovered is not None
        assert producer.recovered.acknowledged == {(TOPIC, 0): 1}
    assert stored(cluster) == [b"there"]


def test_close_in_time_leaves_an_empty_file_and_a_close_that_is_forced_leaves_the_records(
    cluster: EmbeddedCluster, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kafkabuf.producer")
    producer = opened(cluster, path, linger_ms=600_000)
    future = producer.send(TOPIC, b"left")
    producer.close(0)
    (warning,) = caplog.messages  # none tells of errors that were not read
    assert "1 records were not delivered and stay in the file" in warning
    with pytest.raises(ClosedError, match="the record stays in the file"):
        future.result(PATIENCE)
    with opened(cluster, path) as after:
        assert after.recovered is not None
        assert after.recovered.records == {(TOPIC, 0): 1}
        after.flush(PATIENCE)
        assert after.recovered.delivered == {(TOPIC, 0): 1}
    assert stored(cluster) == [b"left"]
    assert is_empty(path, producer.config)


def test_records_outlast_an_outage_that_is_longer_than_their_time_out(cluster: EmbeddedCluster, path: Path) -> None:
    settings = {"delivery_timeout_ms": 100, "request_timeout_ms": 100}
    with opened(cluster, path, **settings) as producer:
        producer.send(TOPIC, b"before").result(PATIENCE)
        cluster.kill_node(1)
        future = producer.send(TOPIC, b"outlasts")
        with pytest.raises(TimeoutError):
            future.result(1.0)
        cluster.start_node(1)
        assert future.result(PATIENCE).offset == 1


def test_outage_ends_close_after_delivery_timeout(cluster: EmbeddedCluster, path: Path) -> None:
    settings = {"delivery_timeout_ms": 100, "request_timeout_ms": 100}
    producer = opened(cluster, path, **settings)
    producer.send(TOPIC, b"before").result(PATIENCE)
    cluster.kill_node(1)
    producer.send(TOPIC, b"left")
    producer.close()
    cluster.start_node(1)
    with opened(cluster, path) as after:
        after.flush(PATIENCE)
    assert stored(cluster) == [b"before", b"left"]


def test_purged_records_do_not_come_back(cluster: EmbeddedCluster, path: Path) -> None:
    producer = opened(cluster, path, linger_ms=600_000)
    future = producer.send(TOPIC, b"purged")
    producer.purge()
    with pytest.raises(PurgedError):
        future.result(PATIENCE)
    producer.close(0)
    assert is_empty(path, producer.config)


def test_forked_child_sends_without_the_file(cluster: EmbeddedCluster, path: Path) -> None:
    with opened(cluster, path) as producer:
        producer.send(TOPIC, b"parent").result(PATIENCE)

        def run() -> None:
            producer.send(TOPIC, b"child").result(PATIENCE)

        in_child(run)
        producer.send(TOPIC, b"parent again").result(PATIENCE)
    assert stored(cluster) == [b"parent", b"child", b"parent again"]


def test_fork_changes_nothing_in_the_file(cluster: EmbeddedCluster, path: Path) -> None:
    """The parent is killed with an open batch, which the child has closed for itself."""

    def run() -> None:
        producer = opened(cluster, path, linger_ms=600_000)
        producer.send(TOPIC, b"before")
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        producer.send(TOPIC, b"behind")

    in_child(run)
    with opened(cluster, path) as producer:
        producer.flush(PATIENCE)
        assert producer.recovered is not None
        assert producer.recovered.damaged == []
    assert stored(cluster) == [b"before", b"behind"]


def test_second_producer_is_refused_with_the_process_that_has_the_file(cluster: EmbeddedCluster, path: Path) -> None:
    with opened(cluster, path), pytest.raises(ConfigError, match=f"process {os.getpid()} has"):
        opened(cluster, path)
    opened(cluster, path).close()


def test_file_of_other_records_is_refused_and_stays(cluster: EmbeddedCluster, path: Path) -> None:
    left_by_a_killed_process(cluster, path, [b"old"], record_magic=1, enable_idempotence=False)
    with pytest.raises(ConfigError, match=r"holds records of record\.magic=1"):
        opened(cluster, path)
    with opened(cluster, path, record_magic=1, enable_idempotence=False) as producer:
        producer.flush(PATIENCE)
    assert stored(cluster) == [b"old"]


def test_file_of_records_without_transaction_is_refused_by_a_producer_with_one(
    cluster: EmbeddedCluster, path: Path
) -> None:
    left_by_a_killed_process(cluster, path, [b"old"])
    with pytest.raises(ConfigError, match="belong to no transaction"):
        opened(cluster, path, transactional_id="tx")
    opened(cluster, path).close()
    assert stored(cluster) == [b"old"]


def test_records_of_an_open_transaction_are_dropped_and_counted(cluster: EmbeddedCluster, path: Path) -> None:
    def run() -> None:
        producer = opened(cluster, path, transactional_id="tx", linger_ms=600_000)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, b"uncommitted")

    in_child(run)
    with opened(cluster, path, transactional_id="tx") as producer:
        assert producer.recovered is not None
        assert producer.recovered.uncommitted == {(TOPIC, 0): 1}
    assert is_empty(path, producer.config)


def test_records_without_numbers_come_at_least_once_and_a_warning_names_them(
    cluster: EmbeddedCluster, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kafkabuf.producer")
    left_by_a_killed_process(cluster, path, [b"maybe"], enable_idempotence=False)
    with opened(cluster, path, enable_idempotence=False) as producer:
        producer.flush(PATIENCE)
        assert producer.recovered is not None
        assert producer.recovered.unproven == {(TOPIC, 0): 1}
    assert stored(cluster) == [b"maybe"]
    assert "t-0: 1 recovered records are sent, and may come a second time" in caplog.text


def test_unproven_records_stay_in_the_file_if_the_user_says_so(cluster: EmbeddedCluster, path: Path) -> None:
    left_by_a_killed_process(cluster, path, [b"maybe"], enable_idempotence=False)
    for _ in range(2):
        with opened(cluster, path, enable_idempotence=False, buffer_unproven="keep") as producer:
            producer.send(TOPIC, b"new").result(PATIENCE)
            assert producer.recovered is not None
            assert producer.recovered.kept == {(TOPIC, 0): 1}
    assert stored(cluster) == [b"new", b"new"]
    with opened(cluster, path, enable_idempotence=False) as producer:
        producer.flush(PATIENCE)
    assert stored(cluster) == [b"new", b"new", b"maybe"]


def test_records_that_stay_for_want_of_a_proof_stay_behind_every_later_process(
    cluster: EmbeddedCluster, path: Path
) -> None:
    """The log loses what the first process had sent. A process behind it sends records of its own, and is killed."""
    cluster.drop_next(PRODUCE)
    settings = {"retry_backoff_ms": 600_000, "retry_backoff_max_ms": 600_000}
    in_child(lambda: opened(cluster, path, **settings).send(TOPIC, b"maybe"), until=lambda: stored(cluster))
    leader, _ = cluster.leader(TOPIC, 0)

    def lose(c: Any) -> None:
        log = c.catalogue.topic(TOPIC).partition(0).led_by(leader).log
        log.delete_before(1)
        log.producers._entries.clear()

    cluster._call(lose)

    def send_some() -> None:
        producer = opened(cluster, path, buffer_unproven="keep")
        for value in (b"sent", b"sent later"):
            producer.send(TOPIC, value).result(PATIENCE)

    for _ in range(3):
        in_child(send_some)
    with opened(cluster, path, buffer_unproven="keep") as producer:
        producer.flush(PATIENCE)
        assert producer.recovered is not None
        assert producer.recovered.kept == {(TOPIC, 0): 1}
    assert stored(cluster) == [b"sent", b"sent later"] * 3


def test_settings_of_the_file_need_the_file_and_a_response() -> None:
    for settings, text in (
        ({"buffer_full": "refuse"}, "kafkabuf.buffer.full is about the file"),
        ({"buffer_path": ""}, "kafkabuf.buffer.path: expected the path of a file"),
        ({"buffer_path": "b\0"}, "kafkabuf.buffer.path: expected the path of a file"),
        ({"buffer_path": "b", "acks": 0, "enable_idempotence": False}, "needs acks of 1 or all"),
        ({"buffer_path": "b", "retries": 0}, "needs retries of 1 or more"),
        ({"buffer_path": "b", "kafkabuf.buffer.sync": "often"}, "expected process, flush, or 1 to"),
    ):
        with pytest.raises(ConfigError, match=text):
            KafkaProducer({"bootstrap.servers": "localhost:9"} | settings)


def test_full_file_refuses_a_record_at_once_if_the_user_says_so(cluster: EmbeddedCluster, path: Path) -> None:
    small = {"buffer_memory": 4096, "batch_size": 1024, "linger_ms": 600_000, "max_block_ms": 600_000}
    cluster.create_topic("other")
    with opened(cluster, path, buffer_full="refuse", **small) as producer:
        producer.partitions_for(TOPIC)
        cluster.kill_node(1)
        for _ in range(4):
            producer.send(TOPIC, b"x" * 900)
        with pytest.raises(BufferExhaustedError):
            producer.send(TOPIC, b"x" * 900)
        cluster.start_node(1)


def test_full_file_drops_its_oldest_records_if_the_user_says_so(
    cluster: EmbeddedCluster, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kafkabuf.producer")
    small = {"buffer_memory": 4096, "batch_size": 1024, "linger_ms": 0, "max_block_ms": 60_000}
    with opened(cluster, path, buffer_full="drop_oldest", **small) as producer:
        producer.send(TOPIC, b"first").result(PATIENCE)
        cluster.kill_node(1)
        futures = [producer.send(TOPIC, b"%d" % number * 900) for number in range(10)]
        cluster.start_node(1)
        producer.flush(PATIENCE)
        dropped = [future for future in futures if future.exception() is not None]
    assert isinstance(dropped[0].exception(), BufferExhaustedError)
    assert futures[-4:] == [future for future in futures if future.exception() is None][-4:]
    assert len(stored(cluster)) == 1 + len(futures) - len(dropped)
    assert "records were dropped up to now, the oldest first" in caplog.text


def test_refused_password_fails_no_record_of_the_file(path: Path) -> None:
    security = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "user"}
    with EmbeddedCluster(brokers=1, security=Security(users={"user": "right"})) as cluster:
        cluster.create_topic(TOPIC)
        with opened(cluster, path, sasl_password="right", linger_ms=600_000, **security) as first:
            first.send(TOPIC, b"waits")
            first.close(0)
        with opened(cluster, path, sasl_password="wrong", **security) as producer:
            future = producer.send(TOPIC, b"waits too")
            with pytest.raises(TimeoutError):
                future.result(0.5)
            producer.close(0)
        with opened(cluster, path, sasl_password="right", **security) as last:
            last.flush(PATIENCE)
        assert stored(cluster) == [b"waits", b"waits too"]


def test_record_that_the_user_may_not_write_waits_in_the_file_for_the_right(
    cluster: EmbeddedCluster, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kafkabuf.producer")
    with opened(cluster, path) as producer:
        cluster.fail_next(PRODUCE, error_code=29, times=3)  # TOPIC_AUTHORIZATION_FAILED
        assert producer.send(TOPIC, b"waits").result(PATIENCE).offset == 0
    assert caplog.text.count("the records wait in the file of kafkabuf.buffer.path") == 1


def test_flush_waits_for_the_disk_if_the_user_says_so(
    cluster: EmbeddedCluster, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[object] = []
    monkeypatch.setattr(SpoolFile, "sync", lambda file: synced.append(file))
    with opened(cluster, path, buffer_sync="flush") as producer:
        producer.send(TOPIC, b"value")
        producer.flush(PATIENCE)
        assert len(synced) == 1
    with opened(cluster, path) as producer:
        producer.flush(PATIENCE)
    assert len(synced) == 2  # a close() waits for the disk, too; the second producer has another setting


def test_path_object_names_the_file(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with opened(cluster, tmp_path / "other", buffer_path=tmp_path / "buffer"):
        assert (tmp_path / "buffer").exists()


@pytest.mark.parametrize(
    ("other", "settings"),
    [({"buffer_memory": 2 << 20}, "buffer.memory=1048576"), ({"batch_size": 1 << 10}, "batch.size=16384")],
)
def test_file_of_other_sizes_is_made_anew_once_it_is_empty(
    cluster: EmbeddedCluster, path: Path, other: dict[str, int], settings: str
) -> None:
    left_by_a_killed_process(cluster, path, [b"waits"])
    with pytest.raises(ConfigError, match=f"holds 1 batches, and was made with .*{settings}.*kafkabuf spool drain"):
        opened(cluster, path, **other)
    opened(cluster, path).close(PATIENCE)
    with opened(cluster, path, **other) as producer:
        producer.send(TOPIC, b"new")
        producer.flush(PATIENCE)
        assert path.stat().st_size == Layout(producer.config.buffer_memory, producer.config.slab_size).size
    assert stored(cluster) == [b"waits", b"new"]


def test_settling_one_partition_looks_at_no_other(
    cluster: EmbeddedCluster, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file holds up to 16,384 partitions: a look at all of them for each took minutes."""
    left_by_a_killed_process(cluster, path, [b"waits"])
    looks: list[Recovered] = []

    def look(recovered: Recovered) -> int:
        looks.append(recovered)
        return 0

    monkeypatch.setattr(Recovered, "unsettled", property(look))
    with opened(cluster, path) as producer:
        producer.flush(PATIENCE)
    assert not looks
    assert stored(cluster) == [b"waits"]


@pytest.mark.parametrize("wanted", ["sync", "proof"])
def test_producer_that_gets_no_thread_for_its_file_leaves_the_file_as_it_was(
    cluster: EmbeddedCluster, path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    left_by_a_killed_process(cluster, path, [b"waits"])
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.endswith(wanted):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            opened(cluster, path, buffer_sync=1_000, client_id="without")
    # Producers of other tests in this process may have threads still.
    wait_until(lambda: not any(thread.name.startswith("kafkabuf-without") for thread in threading.enumerate()))
    with opened(cluster, path) as producer:
        producer.flush(PATIENCE)
    assert stored(cluster) == [b"waits"]
