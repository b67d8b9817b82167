"""max.block.ms: one limit for both waits of a send(), for metadata and for memory (Kafka's doSend)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import BufferExhaustedError, InvalidPartitionsError, KafkaError, TimeoutError
from rigs.producer import PATIENCE, SLAB, Rig

SLOW = "slow"  # a topic whose metadata take 0.3 s
VALUE = b"x" * (SLAB - 200)

Send = Callable[[Rig, str], object]
SENDS: dict[str, Send] = {
    "send": lambda rig, topic: rig.producer.send(topic, VALUE),
    "send by a detour": lambda rig, topic: rig.producer.send(topic, VALUE),
    "send_many": lambda rig, topic: rig.producer.send_many(topic, [VALUE]),
    "send_many, intercepted": lambda rig, topic: rig.producer.send_many(topic, [VALUE]),
    "send_arrow": lambda rig, topic: rig.producer.send_arrow(pa.record_batch({"value": [VALUE]}), topic),
    "send_arrow, topics in a column": lambda rig, topic: rig.producer.send_arrow(
        pa.record_batch({"value": [VALUE], "topic": [topic]})
    ),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "send by a detour": {"value_serializer": "bytes"},
    "send_many, intercepted": {"interceptor_classes": [type("Seeing", (), {"on_send": lambda _, record: record})()]},
}


def slow_rig(monkeypatch: pytest.MonkeyPatch, kind: str = "send", slabs: int = 1) -> Rig:
    rig = Rig(slabs=slabs, linger_ms=10_000, max_block_ms=1_000, **SETTINGS.get(kind, {}))

    def await_topic(name: str, timeout: float) -> Any:
        rig.clock.advance(0.3)
        return rig.accumulator.topic_queues(name, [1])

    monkeypatch.setattr(rig.producer.topics, "await_topic", await_topic)
    return rig


def seconds(rig: Rig, what: Callable[[], object], kind: type[KafkaError] = BufferExhaustedError) -> float:
    """The seconds until the call raises."""
    began = rig.clock.monotonic()
    with pytest.raises(kind):
        what()
    return rig.clock.monotonic() - began


@pytest.mark.parametrize("kind", SENDS)
def test_wait_for_metadata_shortens_the_wait_for_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = slow_rig(monkeypatch, kind)
    rig.fill()
    assert seconds(rig, lambda: SENDS[kind](rig, SLOW)) == pytest.approx(1)
    # The next call waits for memory alone, with the whole of max.block.ms.
    assert seconds(rig, lambda: SENDS[kind](rig, SLOW)) == pytest.approx(1)


def test_wait_for_the_topic_shortens_the_waits_for_partition_and_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = slow_rig(monkeypatch)
    given = []

    def await_partition(name: str, partition: int, timeout: float) -> None:
        given.append(timeout)
        rig.clock.advance(0.5)
        rig.accumulator.topic_queues(name, [1] * (partition + 1))

    monkeypatch.setattr(rig.producer.topics, "await_partition", await_partition)
    rig.fill()
    assert seconds(rig, lambda: rig.producer.send(SLOW, VALUE, partition=3)) == pytest.approx(1)
    assert seconds(rig, lambda: rig.producer.send_many(SLOW, [VALUE] * 2, partitions=[4, 0])) == pytest.approx(1)
    assert given == [pytest.approx(0.7), 1]


def test_wait_after_max_block_ms_is_over_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = slow_rig(monkeypatch)
    given = []

    def await_partition(name: str, partition: int, timeout: float) -> None:
        given.append(timeout)

    def await_topic(name: str, timeout: float) -> Any:
        rig.clock.advance(5)
        return rig.topic

    monkeypatch.setattr(rig.producer.topics, "await_topic", await_topic)
    monkeypatch.setattr(rig.producer.topics, "await_partition", await_partition)
    assert seconds(rig, lambda: rig.producer.send(SLOW, VALUE, partition=3), InvalidPartitionsError) == 5
    assert given == [0]
    rig.fill()
    assert seconds(rig, lambda: rig.producer.send(SLOW, VALUE)) == 5


def test_each_record_of_a_bulk_append_has_its_own_max_block_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = slow_rig(monkeypatch, slabs=2)
    for topic in (SLOW, "slower"):
        began = rig.clock.monotonic()
        with pytest.raises(BufferExhaustedError) as raised:
            rig.producer.send_many(topic, [VALUE] * 3)
        assert raised.value.rows_queued == 2
        assert rig.clock.monotonic() - began == pytest.approx(1.3)
        rig.ack_all()


def test_record_after_a_record_that_is_too_large_has_its_own_max_block_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = slow_rig(monkeypatch)
    rig.fill()
    assert seconds(rig, lambda: rig.producer.send_many(SLOW, [b"x" * 5 * SLAB, VALUE])) == pytest.approx(1.3)


def test_wait_for_a_partition_ends_at_its_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        EmbeddedCluster() as cluster,
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, max_block_ms=30_000) as producer,
    ):
        producer.send("t", b"v").result(PATIENCE)
        known = producer.metrics()["producer-metrics"]["metadata-wait-time-ns-total"]
        with pytest.raises(TimeoutError, match="no fresh metadata after 0 ms"):
            producer.topics.await_partition("t", 1, 0)
        assert producer.metrics()["producer-metrics"]["metadata-wait-time-ns-total"] > known
