"""What a test asks the cluster: which records have arrived, wait for records, follow a topic."""

from __future__ import annotations

import gc
import gzip
import json
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from kafkabuf.broker import ConsumerRecord, EmbeddedCluster
from kafkabuf.broker.log import decoding
from kafkabuf.broker.replica import arrivals
from kafkabuf.clock import ManualClock
from kafkabuf.errors import (
    ClosedError,
    ConfigError,
    CorruptMessageError,
    InvalidRecordError,
    TimeoutError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.protocol import messages as m
from tests.broker.message_support import (
    CountedCluster,
    await_parked,
    await_waiting_for_topics,
    delete_before,
    producer,
    raw,
)
from tests.broker.raw_client import NOW, RawClient, batch
from tests.broker.transactions.test_transactional_clients import (
    COMMITTED,
    EACH,
    TRANSACTIONS,
    with_aiokafka,
    with_confluent,
)
from tests.broker.transactions.test_transactional_clients import PARTITIONS as TRANSACTIONAL_PARTITIONS
from tests.broker.transactions.test_transactional_clients import with_kafka_python as transactions_with_kafka_python

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3) as running:
        yield running
    gc.collect()


@pytest.fixture
def alone() -> Iterator[CountedCluster]:
    with CountedCluster() as running:
        yield running


# ---- which records a consumer gets


@pytest.mark.parametrize(
    ("body", "attributes", "error"),
    [
        (b"no gzip", 1, CorruptMessageError),
        (gzip.compress(bytes(2000), mtime=0), 1, CorruptMessageError),
        (b"\x7f" * 7, 0, InvalidRecordError),
    ],
    ids=["no gzip", "more than may be unpacked", "no record"],
)
def test_records_that_nobody_can_read_raise_the_error_that_says_why(
    alone: CountedCluster, monkeypatch: pytest.MonkeyPatch, body: bytes, attributes: int, error: type[Exception]
) -> None:
    monkeypatch.setattr(decoding, "MAX_UNPACKED", 1000)
    alone.create_topic("t")
    records = batch([b"v"], body=body, attributes=attributes)
    data = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    client = raw(alone, "t")
    answer = client.ask(m.PRODUCE, 9, acks=1, timeout=1000, topic_data=data)
    client.socket.close()
    assert answer.responses[0].partition_responses[0].error_code == 0
    for call in (alone.messages, alone.wait_for_messages, lambda topic: list(alone.consume(topic))):
        with pytest.raises(error):
            call("t")


@pytest.mark.parametrize("send", [with_confluent, transactions_with_kafka_python, with_aiokafka])
def test_exactly_the_committed_records_are_shown(
    cluster: EmbeddedCluster, send: Callable[[EmbeddedCluster, str], int]
) -> None:
    topic = f"transactions-{send.__name__}"
    cluster.create_topic(topic, TRANSACTIONAL_PARTITIONS)
    opened = send(cluster, topic)
    found = cluster.wait_for_messages(topic, len(COMMITTED))
    assert sorted(found.values, key=repr) == sorted(COMMITTED, key=repr)
    everything = cluster.messages(topic, isolation_level="read_uncommitted")
    assert len(everything) == TRANSACTIONS * EACH + opened, "aborted and open records, but no control record"
    assert all(record.producer_id >= 0 and record.producer_epoch >= 0 for record in everything)
    offsets = [record.offset for record in everything if record.partition == 1]
    assert offsets == sorted(offsets)
    assert offsets[-1] > len(offsets) - 1, "control records have offsets"


def test_open_transaction_holds_records_back_until_its_end(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("held")
    with producer(cluster, transactional_id="held") as client, producer(cluster) as other:
        client.init_transactions()
        client.begin_transaction()
        client.send("held", b"in a transaction").result(10)
        other.send("held", b"behind it").result(10)
        with pytest.raises(TimeoutError) as raised:
            cluster.wait_for_messages("held", 1, timeout=0.01)
        assert str(raised.value) == (
            "0 of 1 messages arrived in topic 'held' within 0.01 s; an open transaction holds back partition 0 from "
            "offset 0 to 1"
        )
        assert cluster.messages("held") == []
        assert cluster.messages("held", isolation_level="read_uncommitted") == [b"in a transaction", b"behind it"]
        client.commit_transaction()
        assert cluster.wait_for_messages("held", 2) == [b"in a transaction", b"behind it"]


def test_records_above_the_high_watermark_are_not_shown() -> None:
    with EmbeddedCluster(brokers=2, min_insync_replicas=2) as cluster:
        cluster.create_topic("t")
        follower = 3 - cluster.leader("t", 0)[0]
        with producer(cluster, acks=1, enable_idempotence=False) as client:
            client.send("t", b"in both replicas").result(10)
            assert cluster.wait_for_messages("t", 1) == [b"in both replicas"]
            cluster.pause_node(follower)
            client.send("t", b"in one replica").result(10)
            assert cluster.end_offset("t", 0) == 2
            assert cluster.messages("t") == [b"in both replicas"]
            assert cluster.messages("t", isolation_level="read_uncommitted") == [b"in both replicas"]
            cluster.resume_node(follower)
            assert cluster.wait_for_messages("t", 2).values[1] == b"in one replica"


def test_deleted_records_are_not_shown(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("deleted")
    with raw(cluster, "deleted") as client:
        for _ in range(2):
            assert client.produce("deleted", batch([b"0", b"1", b"2"])).error_code == 0
        cluster.wait_for_messages("deleted", 6)
        delete_before(client, "deleted", 4)
    assert [record.offset for record in cluster.messages("deleted")] == [4, 5]
    assert [record.offset for record in cluster.consume("deleted", timeout=0)] == [4, 5]


def test_records_come_by_partition_and_offset(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("sorted", 3)
    with producer(cluster) as client:
        for number in range(30):
            client.send("sorted", b"%d" % number, partition=2 - number % 3)
        client.flush()
    found = cluster.wait_for_messages("sorted", 30)
    assert [(r.partition, r.offset) for r in found] == [
        (partition, offset) for partition in range(3) for offset in range(10)
    ]
    assert cluster.messages("sorted", 1) == [b"%d" % number for number in range(1, 30, 3)]
    assert list(cluster.consume("sorted", 2, timeout=0)) == cluster.messages("sorted", 2)


def test_data_folder_is_read(tmp_path: Path) -> None:
    for round_ in range(2):
        with EmbeddedCluster(data_dir=tmp_path) as cluster:
            with producer(cluster, compression_type="zstd") as client:
                for number in range(1000):
                    client.send("t", b"%d-%d" % (round_, number))
                client.flush()
            assert cluster.messages("t") == [
                b"%d-%d" % (r, number) for r in range(round_ + 1) for number in range(1000)
            ]
    (log,) = tmp_path.glob("node-1/t-0/*.log")
    with EmbeddedCluster(data_dir=tmp_path) as cluster:
        with log.open("r+b") as file:
            file.seek(100)
            file.write(b"damage")
        with pytest.raises(CorruptMessageError, match="CRC"):
            cluster.messages("t")


# ---- waiting


def test_wait_ends_with_the_record_and_does_not_poll(alone: CountedCluster) -> None:
    found: list[ConsumerRecord] = []
    alone.create_topic("t", 2)
    waiter = threading.Thread(target=lambda: found.extend(alone.wait_for_messages("t", 3)))
    with producer(alone) as client:
        client.send("t", b"0", partition=0).result(10)
        alone.calls = 0
        waiter.start()
        await_parked(alone)
        client.send("t", b"1", partition=1).result(10)
        client.send("t", b"2", partition=1).result(10)
        waiter.join(10)
    assert [record.value for record in found] == [b"0", b"1", b"2"]
    # Each look at the bounds and each piece is a call; so is each look of `await_parked`.
    assert alone.calls < 15 + alone.looks


def test_wait_begins_before_the_topic_and_its_partitions_exist(alone: CountedCluster) -> None:
    found: list[ConsumerRecord] = []
    waiter = threading.Thread(target=lambda: found.extend(alone.wait_for_messages("new", 2)))
    waiter.start()
    await_waiting_for_topics(alone)
    alone.create_topic("new")
    await_parked(alone)
    with RawClient(alone.bootstrap_servers) as client:
        topics = [{"name": "new", "count": 2, "assignments": None}]
        client.ask(m.CREATE_PARTITIONS, 3, topics=topics, timeout=1000, validate_only=False)
        await_parked(alone, partitions=2)
        for partition in range(2):
            client.produce("new", batch([b"%d" % partition]), partition=partition)
    waiter.join(10)
    assert [record.value for record in found] == [b"0", b"1"]


def test_wait_survives_the_death_of_the_leader() -> None:
    with EmbeddedCluster(brokers=3) as cluster:
        cluster.create_topic("t")
        found: list[ConsumerRecord] = []
        waiter = threading.Thread(target=lambda: found.extend(cluster.wait_for_messages("t", 2)))
        with producer(cluster) as client:
            client.send("t", b"before").result(10)
            waiter.start()
            await_parked(cluster)
            cluster.kill_node(cluster.leader("t", 0)[0])
            client.send("t", b"after").result(10)
            waiter.join(10)
    assert [record.value for record in found] == [b"before", b"after"]


def test_error_says_what_arrived(alone: CountedCluster) -> None:
    with producer(alone) as client:
        for number in range(12):
            client.send("orders", b"value %d" % number, key=b"key", headers=[("h", b"x")])
        client.flush()
    with pytest.raises(TimeoutError) as raised:
        alone.wait_for_messages("orders", 13, timeout=0)
    lines = str(raised.value).splitlines()
    assert lines[0] == "12 of 13 messages arrived in topic 'orders' within 0 s"
    assert lines[1] == "  partition 0, offset 0: key b'key', value b'value 0', headers [('h', b'x')]"
    assert lines[11:] == ["  ... and 2 more"]
    with pytest.raises(TimeoutError, match="there is no topic 'order': the cluster has 'orders'"):
        alone.wait_for_messages("order", 1, timeout=0)
    with pytest.raises(UnknownTopicOrPartitionError, match="there is no topic 'order': the cluster has 'orders'"):
        alone.messages("order")
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 7"):
        alone.wait_for_messages("orders", 1, partition=7)
    with pytest.raises(ConfigError, match="isolation_level='committed': one of read_uncommitted, read_committed"):
        alone.messages("orders", isolation_level="committed")  # type: ignore[arg-type]


def test_timeout_is_in_real_time() -> None:
    with EmbeddedCluster(clock=ManualClock(wall_ms=NOW)) as cluster:
        cluster.create_topic("t")
        with pytest.raises(TimeoutError):
            cluster.wait_for_messages("t", 1, timeout=0.01)
        assert list(cluster.consume("t", timeout=0.01)) == []


def test_interrupted_wait_leaves_nothing_parked(alone: CountedCluster) -> None:
    alone.create_topic("t")

    class Interrupted(Exception):
        pass

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            alone.wait_for_messages("t", 1, timeout=60)
    finally:
        signal.signal(signal.SIGALRM, before)
    await_parked(alone, count=0)


# ---- following


def test_iterator_follows_the_log(alone: CountedCluster) -> None:
    with producer(alone) as client:
        client.send("t", b"0").result(10)
        records = alone.consume("t")
        assert next(records).value == b"0"
        client.send("t", b"1").result(10)
        client.send("t", b"2").result(10)
        assert [next(records).value, next(records).value] == [b"1", b"2"]

        def send_later() -> None:
            await_parked(alone)
            client.send("t", b"3")

        later = threading.Thread(target=send_later)
        later.start()
        assert next(records).value == b"3"
        later.join()


def test_iterator_ends_with_the_cluster() -> None:
    with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        found: list[ConsumerRecord] = []
        reader = threading.Thread(target=lambda: found.extend(cluster.consume("t", timeout=None)))
        reader.start()
        await_parked(cluster)
    reader.join(10)
    assert not reader.is_alive()
    assert found == []
    with pytest.raises(ClosedError):
        cluster.consume("t")


def test_wait_ends_with_the_cluster() -> None:
    errors: list[BaseException] = []
    with EmbeddedCluster() as cluster:
        cluster.create_topic("t")

        def wait() -> None:
            try:
                cluster.wait_for_messages("t", 1, timeout=60)
            except ClosedError as error:
                errors.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        await_parked(cluster)
    waiter.join(10)
    assert [str(error) for error in errors] == ["the cluster was stopped meanwhile"]


def test_iterator_tells_that_its_topic_was_deleted(alone: CountedCluster) -> None:
    with producer(alone) as client:
        client.send("t", b"0").result(10)
    records = alone.consume("t")
    assert next(records).value == b"0"
    with RawClient(alone.bootstrap_servers) as raw_client:
        raw_client.ask(m.DELETE_TOPICS, 5, topic_names=["t"], timeout=1000)
    alone.create_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted while its records were read"):
        next(records)


# ---- many records, many threads


@pytest.mark.parametrize("on_disk", [False, True])
def test_many_records_do_not_keep_the_nodes_from_their_clients(tmp_path: Path, on_disk: bool) -> None:
    count, values = 100_000, [json.dumps({"id": number}).encode() for number in range(100)]
    with CountedCluster(data_dir=tmp_path if on_disk else None) as cluster:
        cluster.create_topic("t")
        with RawClient(cluster.bootstrap_servers) as client:
            small = batch(values[:1])
            for _ in range(count // 100 - 1):
                client.produce("t", batch(values))
            for _ in range(100):
                client.produce("t", small)
        cluster.longest = 0.0
        assert len(cluster.wait_for_messages("t", count)) == count
        assert len(cluster.messages("t")) == count
        assert sum(1 for _ in cluster.consume("t", timeout=0)) == count
        assert cluster.longest < 1


def test_threads_read_at_the_same_time(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("shared", 2)
    found: dict[int, list[ConsumerRecord]] = {}
    threads = [
        threading.Thread(target=lambda n=number: found.update({n: cluster.wait_for_messages("shared", 500)}))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    with producer(cluster) as client:
        for number in range(500):
            client.send("shared", struct.pack(">i", number), partition=number % 2)
        client.flush()
    for thread in threads:
        thread.join(20)
    assert [len(records) for records in found.values()] == [500] * 4
    assert all(records == found[0] for records in found.values())


@pytest.mark.parametrize("read", ["messages", "consume"])
def test_time_to_read_many_partitions_is_not_the_square_of_their_number(
    alone: CountedCluster, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    looks: list[object] = []
    bounds = arrivals.bounds
    monkeypatch.setattr(arrivals, "bounds", lambda *arguments: looks.append(1) or bounds(*arguments))  # type: ignore[func-returns-value]
    alone.create_topic("wide", partitions=300)
    with producer(alone) as sending:
        for number in range(300):
            sending.send("wide", b"v", partition=number)
    found = alone.messages("wide") if read == "messages" else list(alone.consume("wide", timeout=0.0))
    assert len(found) == 300
    assert len(looks) <= 10 * 300
