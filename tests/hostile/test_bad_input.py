"""Careless calls raise a named error at once, queue no record, and leave the pool whole."""

from __future__ import annotations

import array
import contextlib
import decimal
import enum
import pickle
import socket
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import (
    ClosedError,
    ConfigError,
    InvalidPartitionsError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    RecordTooLargeError,
    SerializationError,
    TimeoutError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.producer import KafkaProducer
from rigs.fake_client import read_records
from rigs.producer import assert_whole

TOPIC = "plain"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(auto_create_topics=False) as running:
        running.create_topic(TOPIC, partitions=3)
        yield running


@pytest.fixture(scope="module")
def shared(cluster: EmbeddedCluster) -> Iterator[KafkaProducer]:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0, max_block_ms=10_000) as running:
        running.partitions_for(TOPIC)
        yield running


@pytest.fixture
def producer(shared: KafkaProducer) -> Iterator[KafkaProducer]:
    before = shared.records_sent
    yield shared
    assert shared.records_sent == before, "a record was queued"
    shared.flush(10)
    assert_whole(shared.pool)
    assert shared.send(TOPIC, b"and it still works").result(10)
    shared.flush(10)
    assert_whole(shared.pool)


class Colour(enum.StrEnum):
    RED = "red"


class Text(str):
    __slots__ = ()


# ---- key and value ---------------------------------------------------------------------------------------------------

NOT_BYTES = ["text", 5, 1.5, True, [b"a"], (b"a",), {"a": 1}, object(), iter([b"a"]), {b"a"}, decimal.Decimal(1)]


@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize("bad", NOT_BYTES, ids=lambda bad: type(bad).__name__)
def test_value_that_is_not_bytes_like_is_refused(producer: KafkaProducer, field: str, bad: Any) -> None:
    with pytest.raises(
        SerializationError, match=f"the {field} is a {type(bad).__name__}, .* configure {field}_serializer"
    ):
        producer.send(TOPIC, **{field: bad})


def closed_view() -> memoryview:
    view = memoryview(b"abc")
    view.release()
    return view


@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize(
    "bad",
    [memoryview(b"abcdef")[::2], np.arange(10)[::2], np.arange(9).reshape(3, 3).T, closed_view()],
    ids=["memoryview", "numpy", "transposed", "released"],
)
def test_memory_in_pieces_is_refused(producer: KafkaProducer, field: str, bad: Any) -> None:
    with pytest.raises(SerializationError, match=f"the {field}'s memory is not one contiguous piece"):
        producer.send(TOPIC, **{field: bad})


@pytest.mark.parametrize("field", ["key", "value"])
def test_memory_of_python_objects_is_refused(producer: KafkaProducer, field: str) -> None:
    """Their bytes are addresses."""
    bad: Any = np.array([object()])
    with pytest.raises(SerializationError, match=f"the {field} holds Python objects"):
        producer.send(TOPIC, **{field: bad})


def test_bytes_like_objects_are_sent(cluster: EmbeddedCluster, shared: KafkaProducer) -> None:
    values = [b"b", bytearray(b"a"), memoryview(b"xmx")[1:2], array.array("B", [1, 2]), np.arange(3, dtype=np.uint8)]
    futures = [shared.send(TOPIC, value, key=value, partition=2) for value in values]
    offsets = [future.result(10).offset for future in futures]
    stored = {r.offset: r for data in cluster.records(TOPIC, 2) for r in read_records(data)}
    assert [(stored[offset].key, stored[offset].value) for offset in offsets] == [(bytes(v), bytes(v)) for v in values]


@pytest.mark.parametrize(
    "more", [{}, {"partition": 99}, {"headers": [("k", 5)]}, {"key": "text"}, {"timestamp_ms": -1}]
)
def test_send_releases_the_callers_memory(shared: KafkaProducer, more: dict[str, Any]) -> None:
    value, key, header = bytearray(b"value"), bytearray(b"key"), bytearray(b"header")
    arguments: dict[str, Any] = {"key": key, "headers": [("h", header)]} | more
    with contextlib.suppress(KafkaError):
        shared.send(TOPIC, value, **arguments)
    for data in (value, key, header):
        data.append(0)  # raises BufferError while a buffer of `data` is exported


@pytest.mark.parametrize("returned", ["text", 5, ["list"]])
def test_serializer_that_returns_no_bytes_is_refused(cluster: EmbeddedCluster, returned: object) -> None:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, value_serializer=lambda _: returned) as producer:
        with pytest.raises(SerializationError, match=f"the value is a {type(returned).__name__}"):
            producer.send(TOPIC, "anything")
        assert_whole(producer.pool)


@pytest.mark.parametrize("field", ["key", "value"])
def test_error_in_a_serializer_is_named(cluster: EmbeddedCluster, field: str) -> None:
    def bad(value: object) -> bytes:
        raise ZeroDivisionError("oh")

    settings: Any = {f"{field}_serializer": bad}
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings) as producer:
        with pytest.raises(SerializationError, match=f"the {field} serializer raised ZeroDivisionError: oh") as raised:
            producer.send(TOPIC, value=5) if field == "value" else producer.send(TOPIC, key=5)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        assert_whole(producer.pool)


def test_record_larger_than_max_request_size_is_refused(producer: KafkaProducer) -> None:
    two_mib = bytes(2 << 20)
    too_large: list[dict[str, Any]] = [
        {"value": two_mib},
        {"key": two_mib},
        {"headers": [("h", two_mib)]},
        {"value": bytes(1_048_576)},
    ]
    for fields in too_large:
        with pytest.raises(
            RecordTooLargeError, match=r"needs up to \d+ bytes, more than max\.request\.size \(1048576\)"
        ):
            producer.send(TOPIC, **fields)
        with pytest.raises(ValueError, match="max"):  # RecordTooLargeError is a ValueError too
            producer.send(TOPIC, **fields)


def test_record_larger_than_buffer_memory_is_refused(cluster: EmbeddedCluster) -> None:
    servers = cluster.bootstrap_servers
    with KafkaProducer(bootstrap_servers=servers, buffer_memory=100_000, max_request_size=10**6) as producer:
        with pytest.raises(RecordTooLargeError, match=r"more than buffer\.memory \(100000\) holds"):
            producer.send(TOPIC, bytes(99_000))
        assert_whole(producer.pool)
    # The scratch of compression is not available to records.
    with KafkaProducer(
        bootstrap_servers=servers, buffer_memory=4 * 16_384, max_request_size=10**6, compression_type="gzip"
    ) as producer:
        with pytest.raises(RecordTooLargeError, match=r"more than buffer\.memory \(65536\) holds"):
            producer.send(TOPIC, bytes(2 * 16_384))
        assert producer.send(TOPIC, bytes(2 * 16_384 - 200)).result(10)


def test_buffer_memory_without_room_for_a_batch_is_refused(cluster: EmbeddedCluster) -> None:
    with pytest.raises(ConfigError, match=r"buffer\.memory \(32768\) has no room for a batch and the"):
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, buffer_memory=32_768, compression_type="gzip")


# ---- topic -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [None, b"plain", 5, ["plain"], Colour.RED, Text("plain"), "", ".", "..", "a b", "a/b", "é", "a\n", "x" * 250,
     "\ud800", "a\0b"],
)  # fmt: skip
def test_invalid_topic_name_is_refused(producer: KafkaProducer, bad: Any) -> None:
    table = pa.table({"value": ["a"]})
    with pytest.raises(InvalidTopicError, match="topic"):
        producer.send(bad, b"value")
    with pytest.raises(InvalidTopicError, match="topic"):
        producer.send_arrow(table, topic="" if bad is None else bad)
    if not isinstance(bad, Text | Colour):  # partitions_for() accepts subclasses of str
        with pytest.raises(InvalidTopicError, match="topic"):
            producer.partitions_for(bad)


def test_unknown_topic_raises_after_max_block_ms(cluster: EmbeddedCluster) -> None:
    servers = cluster.bootstrap_servers
    with KafkaProducer(bootstrap_servers=servers, max_block_ms=300) as producer:
        producer.partitions_for(TOPIC)
        for _ in range(2):
            with pytest.raises(
                UnknownTopicOrPartitionError, match=f"'nowhere' .* 300 ms; bootstrap servers: {servers}"
            ):
                producer.send("nowhere", b"v")
            with pytest.raises(UnknownTopicOrPartitionError):
                producer.send_arrow(pa.table({"value": ["a"]}), "nowhere")
        with pytest.raises(UnknownTopicOrPartitionError) as raised:
            producer.send_arrow(pa.table({"topic": [TOPIC, "nowhere"], "value": ["a", "b"]}))
        assert raised.value.rows_queued == 1
        producer.flush(10)
        assert_whole(producer.pool)


def test_invalid_name_in_a_topic_column_is_refused(producer: KafkaProducer) -> None:
    for bad in ("", "a b", None):
        with pytest.raises(InvalidTopicError) as raised:
            producer.send_arrow(pa.table({"topic": pa.array([bad], pa.string()), "value": ["a"]}))
        assert raised.value.rows_queued == 0


# ---- partition -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-1, 3, 2**31, 2**63 - 1, 2**63, -(2**70)])
def test_partition_out_of_range_is_refused(producer: KafkaProducer, bad: int) -> None:
    with pytest.raises(InvalidPartitionsError, match=str(bad)):
        producer.send(TOPIC, b"v", partition=bad)


@pytest.mark.parametrize(
    "bad", [True, False, 1.0, 0.5, float("nan"), "1", b"1", [1], decimal.Decimal(1), np.float64(1)]
)
def test_partition_that_is_not_a_whole_number_is_refused(producer: KafkaProducer, bad: Any) -> None:
    with pytest.raises(InvalidPartitionsError, match="a partition must be an int"):
        producer.send(TOPIC, b"v", partition=bad)


def test_numpy_integers_are_accepted(shared: KafkaProducer) -> None:
    send: Any = shared.send
    future = send(TOPIC, b"v", partition=np.int32(2), timestamp_ms=np.int64(5))
    assert (future.result(10).partition, future.result(10).timestamp) == (2, 5)


# ---- timestamp -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [1.6e12, 1.5, "2020-01-01", True, decimal.Decimal(1), [1], 2**63])
def test_timestamp_that_is_not_a_whole_number_is_refused(producer: KafkaProducer, bad: Any) -> None:
    with pytest.raises(InvalidTimestampError, match="timestamp_ms must be an int of milliseconds"):
        producer.send(TOPIC, b"v", timestamp_ms=bad)


@pytest.mark.parametrize("bad", [-1, -(2**63)])
def test_time_before_1970_is_refused(producer: KafkaProducer, bad: int) -> None:
    with pytest.raises(InvalidTimestampError, match="must not be negative"):
        producer.send(TOPIC, b"v", timestamp_ms=bad)


# ---- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [5, object(), "key", b"key", [b"key"], [("key",)], [("key", b"1", b"2")], [("key", "text")], [("key", 5)], [None],
     [(b"key", b"value")], [(None, b"value")], [(5, b"value")], {"key": "text"}, {b"key": b"value"}, [("\ud800", b"")],
     [("ok", b"ok"), "bad"], [("key", memoryview(b"abcd")[::2])], [("key", np.arange(9)[::2])], True],
)  # fmt: skip
def test_header_of_a_wrong_shape_is_refused(producer: KafkaProducer, bad: Any) -> None:
    with pytest.raises(SerializationError, match="header"):
        producer.send(TOPIC, b"v", headers=bad)


@pytest.mark.parametrize(
    "good", [[("k", b"v"), ("n", None)], {"k": b"v", "n": None}, MappingProxyType({"k": b"v", "n": None}),
             (["k", bytearray(b"v")], ["n", None]), iter([("k", memoryview(b"v")), ("n", None)])],
)  # fmt: skip
def test_headers_in_another_container_are_sent(cluster: EmbeddedCluster, shared: KafkaProducer, good: Any) -> None:
    offset = shared.send(TOPIC, b"v", headers=good, partition=1).result(10).offset
    stored = {r.offset: r for data in cluster.records(TOPIC, 1) for r in read_records(data)}
    assert stored[offset].headers == [("k", b"v"), ("n", None)]


def test_headers_that_raise_leave_the_pool_whole(producer: KafkaProducer) -> None:
    def headers() -> Iterator[tuple[str, bytes]]:
        yield "a", b"1"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        producer.send(TOPIC, b"v", headers=headers())


def test_headers_are_refused_in_the_old_format(cluster: EmbeddedCluster) -> None:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, record_magic=1) as producer:
        with pytest.raises(SerializationError, match=r"record\.magic is 1"):
            producer.send(TOPIC, b"v", headers=[("k", b"v")])
        assert_whole(producer.pool)


# ---- the rest of the call --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [5, "print", [print]])
def test_callback_that_cannot_be_called_is_refused_at_once(producer: KafkaProducer, bad: Any) -> None:
    with pytest.raises(TypeError, match="callback must be callable with"):
        producer.send(TOPIC, b"v", callback=bad)


def test_unknown_or_missing_argument_is_refused(producer: KafkaProducer) -> None:
    send: Any = producer.send
    with pytest.raises(TypeError):
        send(TOPIC, b"v", timestamp=5)
    with pytest.raises(TypeError):
        send()


# ---- the producer itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["", [], ",", None, 5, "no-port", "host:http"])
def test_bad_bootstrap_list_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        KafkaProducer(bootstrap_servers=bad)


def test_unresolvable_bootstrap_list_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"no entry can be resolved: no-such-host\.invalid:9092 \("):
        KafkaProducer(bootstrap_servers="no-such-host.invalid:9092")


def test_one_resolvable_bootstrap_entry_is_enough(cluster: EmbeddedCluster) -> None:
    servers = f"no-such-host.invalid:9092,{cluster.bootstrap_servers}"
    with KafkaProducer(bootstrap_servers=servers) as producer:
        assert producer.send(TOPIC, b"v").result(10)


def test_unknown_setting_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"no producer setting 'linger\.msec'; did you mean linger\.ms\?"):
        KafkaProducer({"bootstrap.servers": "localhost:9092", "linger.msec": 5})


@pytest.mark.parametrize("bad", ["localhost:9092", ["localhost:9092"], 5, {"bootstrap.servers"}])
def test_settings_that_are_not_a_mapping_are_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="settings must be a mapping or keywords"):
        KafkaProducer(bad)


def test_call_after_close_is_refused(cluster: EmbeddedCluster) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    producer.send(TOPIC, b"v")
    producer.close()
    for call in (
        lambda: producer.send(TOPIC, b"v"),
        lambda: producer.send("never heard of", b"v"),
        lambda: producer.send_arrow(pa.table({"value": ["a"]}), TOPIC),
    ):
        with pytest.raises(ClosedError, match="the producer is closed"):
            call()
    with pytest.raises(ClosedError):
        producer.partitions_for("unknown")
    producer.flush()
    producer.close()
    assert_whole(producer.pool)


def test_subclass_without_init_raises_closed_error() -> None:
    class Forgetful(KafkaProducer):
        def __init__(self) -> None:
            pass

    with pytest.raises(ClosedError):
        Forgetful().send(TOPIC, b"v")
    with pytest.raises(ClosedError):
        Forgetful().send_arrow(pa.table({"value": ["a"]}), TOPIC)


def test_serializer_that_cannot_be_pickled_raises(cluster: EmbeddedCluster) -> None:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, value_serializer=lambda v: b"") as producer:
        with pytest.raises((pickle.PicklingError, AttributeError)):
            pickle.dumps(producer)


def test_missing_broker_raises_after_max_block_ms() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    producer = KafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", max_block_ms=200)
    try:
        with pytest.raises(
            TimeoutError, match=rf"'t' not present in metadata after 200 ms; bootstrap servers: .*{port}"
        ):
            producer.send("t", b"v")
        with pytest.raises(KafkaError):
            producer.partitions_for("t")
        assert_whole(producer.pool)
    finally:
        producer.close(1)
