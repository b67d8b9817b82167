"""docs/moving.md: what changes without an error, tried with the other client and with kafkabuf's own producer.

Each row of a table "What changes without an error" has a test here.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import aiokafka
import confluent_kafka
import kafka
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import SerializationError, UnknownTopicOrPartitionError

PAGE = Path(__file__).parents[2] / "docs" / "moving.md"
TESTED: list[tuple[str, str]] = []
PARTITIONS = 8
SECONDS = 60
F = TypeVar("F", bound=Callable[..., object])


def row(client: str, first_cell: str) -> Callable[[F], F]:
    """The row of the page that a test is about."""
    TESTED.append((client, first_cell))
    return lambda test: test


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(auto_create_topics=False) as cluster:
        cluster.create_topic("t", partitions=PARTITIONS)
        yield cluster


@pytest.fixture
def ours(cluster: EmbeddedCluster) -> Iterator[KafkaProducer[Any, Any]]:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        yield producer


# ---- kafka-python ----------------------------------------------------------------------------------------------------


@pytest.fixture
def kafka_python(cluster: EmbeddedCluster) -> Iterator[Any]:
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    yield producer
    producer.close()


@row("kafka-python", "`if future.exception:`")
def test_exception_is_a_property_there_and_a_method_here(kafka_python: Any, ours: KafkaProducer[Any, Any]) -> None:
    future = kafka_python.send("t", b"v")
    future.get(SECONDS)
    assert not future.exception
    mine = ours.send("t", b"v")
    mine.result(SECONDS)
    assert bool(mine.exception)
    assert mine.exception() is None


@row("kafka-python", "a metadata tuple, `topic, partition, *_ = metadata`")
def test_fields_of_metadata_have_another_order(kafka_python: Any, ours: KafkaProducer[Any, Any]) -> None:
    theirs = kafka_python.send("t", b"v").get(SECONDS)
    mine = ours.send("t", b"v").result(SECONDS)
    assert (len(theirs), theirs[2], theirs[3]) == (9, theirs.topic_partition, theirs.offset)
    assert (len(tuple(mine)), tuple(mine)[2]) == (6, mine.offset)


@row("kafka-python", "`send(topic)` without key and value")
def test_record_of_two_nulls_is_an_error_there(kafka_python: Any, ours: KafkaProducer[Any, Any]) -> None:
    with pytest.raises(ValueError, match="key or value"):
        kafka_python.send("t")
    assert ours.send("t").result(SECONDS).offset >= 0


@row("kafka-python", "records without key")
def test_records_without_key_are_spread_one_by_one_there(kafka_python: Any, ours: KafkaProducer[Any, Any]) -> None:
    theirs = [kafka_python.send("t", b"v") for _ in range(100)]
    mine = [ours.send("t", b"v") for _ in range(100)]
    assert len({future.get(SECONDS).partition for future in theirs}) > 2
    assert len({future.result(SECONDS).partition for future in mine}) == 1


@row("kafka-python", "`linger_ms` left out")
def test_linger_of_kafka_python_is_0() -> None:
    assert kafka.KafkaProducer.DEFAULT_CONFIG["linger_ms"] == 0
    assert default("linger_ms") == 5


@row("kafka-python", "`acks=0`")
def test_offset_without_acks_means_nothing_there(cluster: EmbeddedCluster) -> None:
    servers = cluster.bootstrap_servers
    theirs = kafka.KafkaProducer(bootstrap_servers=servers, acks=0, enable_idempotence=False)
    offsets = [theirs.send("t", b"v", partition=0).get(SECONDS).offset for _ in range(3)]
    theirs.close()
    assert offsets == [0, 0, 0]
    with KafkaProducer(bootstrap_servers=servers, acks=0) as mine:
        assert mine.send("t", b"v").result(SECONDS).offset == -1


def default(name: str) -> Any:
    return getattr(ProducerConfig.from_mapping({"bootstrap_servers": "localhost:9"}), name)


# ---- aiokafka --------------------------------------------------------------------------------------------------------


def with_both(cluster: EmbeddedCluster, compare: Callable[[Any, Any], Any], **settings: Any) -> None:
    """Await `compare(theirs, mine)` with a producer of aiokafka and one of kafkabuf's."""

    async def run() -> None:
        servers = cluster.bootstrap_servers
        async with (
            aiokafka.AIOKafkaProducer(bootstrap_servers=servers, **settings) as theirs,
            AIOKafkaProducer(bootstrap_servers=servers, **settings) as mine,
        ):
            await compare(theirs, mine)

    asyncio.run(run())


@row("aiokafka", "positional arguments after the key")
def test_order_of_arguments_after_the_key_is_another(cluster: EmbeddedCluster) -> None:
    async def compare(theirs: Any, mine: Any) -> None:
        assert (await theirs.send_and_wait("t", b"v", b"k", None, 5)).timestamp == 5
        assert (await mine.send_and_wait("t", b"v", b"k", None, 5)).partition == 5
        with pytest.raises(SerializationError, match="headers must be"):
            await mine.send_and_wait("t", b"v", b"k", 5)

    with_both(cluster, compare)


@row("aiokafka", "`acks` and `enable_idempotence` left out")
def test_aiokafka_waits_for_the_leader_only(cluster: EmbeddedCluster) -> None:
    async def compare(theirs: Any, mine: Any) -> None:
        assert (theirs._sender._acks, theirs._txn_manager) == (1, None)

    with_both(cluster, compare)
    assert (default("acks"), default("enable_idempotence")) == (-1, True)


@row("aiokafka", "`linger_ms` left out")
def test_linger_of_aiokafka_is_0() -> None:
    assert aiokafka.AIOKafkaProducer.__init__.__kwdefaults__["linger_ms"] == 0


@row("aiokafka", "`acks=0`")
def test_result_without_acks_is_none_there(cluster: EmbeddedCluster) -> None:
    async def compare(theirs: Any, mine: Any) -> None:
        assert await theirs.send_and_wait("t", b"v") is None
        assert (await mine.send_and_wait("t", b"v")).offset == -1

    with_both(cluster, compare, acks=0)


@row("aiokafka", "records without key")
def test_aiokafka_spreads_records_one_by_one(cluster: EmbeddedCluster) -> None:
    async def partitions(producer: Any) -> set[int]:
        futures = [await producer.send("t", b"v") for _ in range(100)]
        return {metadata.partition for metadata in await asyncio.gather(*futures)}

    async def compare(theirs: Any, mine: Any) -> None:
        assert len(await partitions(theirs)) > 2
        assert len(await partitions(mine)) == 1

    with_both(cluster, compare)


@row("aiokafka", "`send(topic)` without key and value")
def test_aiokafka_refuses_a_record_of_two_nulls(cluster: EmbeddedCluster) -> None:
    async def compare(theirs: Any, mine: Any) -> None:
        with pytest.raises(AssertionError):
            await theirs.send("t")
        assert (await mine.send_and_wait("t")).offset >= 0

    with_both(cluster, compare)


@row("aiokafka", "`isinstance(future, asyncio.Future)`")
def test_future_is_of_another_class_and_is_taken_by_asyncio(cluster: EmbeddedCluster) -> None:
    async def compare(theirs: Any, mine: Any) -> None:
        assert isinstance(await theirs.send("t", b"v"), asyncio.Future)
        futures = [await mine.send("t", b"v") for _ in range(4)]
        assert not isinstance(futures[0], asyncio.Future)
        assert (await asyncio.gather(futures[0]))[0].offset >= 0
        assert await asyncio.wait([futures[1]]) == ({futures[1]}, set())
        assert (await asyncio.wait_for(futures[2], SECONDS)).offset >= 0
        assert (await asyncio.shield(futures[3])).offset >= 0

    with_both(cluster, compare)


@row("aiokafka", "brokers that do not answer for long")
def test_records_have_three_times_the_time() -> None:
    assert aiokafka.AIOKafkaProducer.__init__.__kwdefaults__["request_timeout_ms"] == 40_000
    assert default("delivery_timeout_ms") == 120_000


# ---- confluent-kafka -------------------------------------------------------------------------------------------------


@pytest.fixture
def confluent(cluster: EmbeddedCluster) -> Iterator[confluent_kafka.Producer]:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    yield producer
    producer.flush(SECONDS)


def outcome(
    producer: confluent_kafka.Producer, topic: str, value: bytes, key: bytes | None = None, **keywords: Any
) -> tuple[Any, Any]:
    """What confluent-kafka's callback gets for a record."""
    seen: list[tuple[Any, Any]] = []
    producer.produce(topic, value, key, on_delivery=lambda *both: seen.append(both), **keywords)
    producer.flush(SECONDS)
    return seen[0]


@row("confluent-kafka", "arguments of the callback")
def test_callback_has_the_error_first_there(confluent: confluent_kafka.Producer, ours: KafkaProducer[Any, Any]) -> None:
    error, message = outcome(confluent, "t", b"v")
    assert error is None
    assert message.offset() >= 0
    seen: list[tuple[Any, Any]] = []
    metadata = ours.send("t", b"v", callback=lambda *both: seen.append(both)).result(SECONDS)
    ours.flush(SECONDS)
    assert seen == [(metadata, None)]


@row("confluent-kafka", "thread of the callback")
def test_callback_runs_in_flush_there(confluent: confluent_kafka.Producer, ours: KafkaProducer[Any, Any]) -> None:
    threads: list[threading.Thread] = []
    confluent.produce("t", b"v", on_delivery=lambda *_: threads.append(threading.current_thread()))
    confluent.flush(SECONDS)
    ours.send("t", b"v", callback=lambda *_: threads.append(threading.current_thread()))
    ours.flush(SECONDS)
    assert threads[0] is threading.current_thread()
    assert threads[1] is not threading.current_thread()


@row("confluent-kafka", "exception in a callback")
def test_exception_of_a_callback_comes_out_of_flush_there(
    confluent: confluent_kafka.Producer, ours: KafkaProducer[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def callback(*_: object) -> None:
        raise ZeroDivisionError

    confluent.produce("t", b"v", on_delivery=callback)
    with pytest.raises(ZeroDivisionError):
        confluent.flush(SECONDS)
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    ours.send("t", b"v", callback=callback)
    ours.flush(SECONDS)
    assert [each.exc_type for each in unraisable] == [ZeroDivisionError]


@row("confluent-kafka", "a key's partition")
def test_key_has_another_partition_unless_the_partitioner_is_named(
    cluster: EmbeddedCluster, confluent: confluent_kafka.Producer, ours: KafkaProducer[Any, Any]
) -> None:
    keys = [b"customer-%d" % number for number in range(20)]
    theirs = [outcome(confluent, "t", b"v", key)[1].partition() for key in keys]
    assert [ours.send("t", b"v", key).result(SECONDS).partition for key in keys] != theirs
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, partitioner_class="consistent_random") as as_before:
        assert [as_before.send("t", b"v", key).result(SECONDS).partition for key in keys] == theirs


@row("confluent-kafka", "`timestamp=0`")
def test_timestamp_0_is_now_there(confluent: confluent_kafka.Producer, ours: KafkaProducer[Any, Any]) -> None:
    assert outcome(confluent, "t", b"v", timestamp=0)[1].timestamp()[1] > 1_700_000_000_000
    assert ours.send("t", b"v", timestamp_ms=0).result(SECONDS).timestamp == 0


@row("confluent-kafka", "a producer whose queue is full")
def test_full_queue_is_an_error_at_once_there(cluster: EmbeddedCluster) -> None:
    servers = cluster.bootstrap_servers
    theirs = confluent_kafka.Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1})
    theirs.produce("t", b"v")
    with pytest.raises(BufferError):
        theirs.produce("t", b"v")
    theirs.flush(SECONDS)
    value = b"x" * 10_000
    with KafkaProducer(bootstrap_servers=servers, buffer_memory=32_768, linger_ms=0) as mine:
        futures = [mine.send("t", value, partition=0) for _ in range(50)]
        assert all(future.result(SECONDS).offset >= 0 for future in futures)


@row("confluent-kafka", "`enable.idempotence` left out")
def test_idempotence_is_on_unless_a_setting_contradicts_it(
    cluster: EmbeddedCluster, confluent: confluent_kafka.Producer
) -> None:
    settings = {"bootstrap_servers": cluster.bootstrap_servers}
    assert ProducerConfig.from_mapping(settings).enable_idempotence
    for other in ({"acks": 1}, {"retries": 0}):
        assert not ProducerConfig.from_mapping(settings | other).enable_idempotence
    cluster.create_topic("theirs")
    outcome(confluent, "theirs", b"v")
    assert cluster.messages("theirs")[0].producer_id == -1


@row("confluent-kafka", "a topic that does not exist")
def test_missing_topic_is_an_error_of_the_callback_there(cluster: EmbeddedCluster) -> None:
    servers = cluster.bootstrap_servers
    theirs = confluent_kafka.Producer({"bootstrap.servers": servers, "topic.metadata.propagation.max.ms": 1})
    assert outcome(theirs, "missing", b"v")[0].name() == "UNKNOWN_TOPIC_OR_PART"
    with (
        KafkaProducer(bootstrap_servers=servers, max_block_ms=200) as mine,
        pytest.raises(UnknownTopicOrPartitionError),
    ):
        mine.send("missing", b"v")


@row("confluent-kafka", "`acks=0`")
def test_offset_without_acks_is_none_there(cluster: EmbeddedCluster) -> None:
    theirs = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": 0})
    assert outcome(theirs, "t", b"v")[1].offset() is None


@row("confluent-kafka", "the end of the program without `flush()`")
def test_records_at_the_end_of_a_program_are_lost_there(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("end")
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 2_000}
    for call in (
        "import confluent_kafka; confluent_kafka.Producer({}).produce('end', b'theirs')",
        "import kafkabuf; kafkabuf.KafkaProducer({}).send('end', b'mine')",
    ):
        subprocess.run([sys.executable, "-c", call.replace("{}", repr(settings))], check=True, capture_output=True)
    assert cluster.messages("end") == [b"mine"]


# ---- the page --------------------------------------------------------------------------------------------------------


def test_each_row_of_the_page_has_a_test() -> None:
    rows = []
    for section in re.split(r"^## From ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        _, _, tables = section.partition("What changes without an error:\n\n")
        for line in tables.partition("\n\n")[0].splitlines()[2:]:
            rows.append((section.split("\n")[0], line.strip("|").split(" | ")[0].strip()))
    assert sorted(rows) == sorted(TESTED)
