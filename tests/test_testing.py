"""MockProducer: the promises on which a user's tests rely."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

from kafkabuf import KafkaProducer, RecordMetadata
from kafkabuf.errors import (
    BufferExhaustedError,
    ClosedError,
    IllegalStateError,
    InvalidPartitionsError,
    InvalidTopicError,
    NetworkError,
    ProducerFencedError,
    PurgedError,
    SerializationError,
    TimeoutError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.partitioner import partition_for_key
from kafkabuf.testing import MockProducer
from rigs.producer import assert_whole


def manual(**settings: Any) -> MockProducer:
    return MockProducer({"t": 3}, auto_complete=False, **settings)


def transactional(**settings: Any) -> MockProducer:
    producer = MockProducer(**settings)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def test_send_has_the_signature_of_the_real_send() -> None:
    real, mock = (inspect.signature(kind.send).parameters.values() for kind in (KafkaProducer, MockProducer))
    assert [(p.name, p.default) for p in mock][1:] == [(p.name, p.default) for p in real][1:]


def test_mock_has_all_methods_of_the_real_producer_but_bulk_sends() -> None:
    bulk = {"send_many", "send_arrow"}
    for name, method in inspect.getmembers(KafkaProducer, callable):
        if not name.startswith("_") and name not in bulk:
            assert callable(getattr(MockProducer, name, None)), name
            if name not in dir(object) and name != "send" and inspect.isfunction(method):
                assert list(inspect.signature(getattr(MockProducer, name)).parameters) == list(
                    inspect.signature(method).parameters
                )


def test_auto_complete_acknowledges_before_send_returns() -> None:
    seen: list[Any] = []
    producer = MockProducer()
    futures = [producer.send("any", b"v", callback=lambda *outcome: seen.append(outcome)) for _ in range(3)]
    assert [future.result(0).offset for future in futures] == [0, 1, 2]
    assert [(type(metadata), error) for metadata, error in seen] == [(RecordMetadata, None)] * 3
    assert producer.flushed
    assert not producer.accumulator.active, "a batch that has its outcome still stands in a queue"
    assert_whole(producer.pool)


def test_manual_completion_ends_one_record_at_a_time_in_order() -> None:
    producer = manual()
    first, second, third = (producer.send("t", value, partition=1) for value in (b"1", b"2", b"3"))
    assert not first.done()
    assert producer.complete_next()
    assert (first.result(0).offset, second.done()) == (0, False)
    with pytest.raises(TimeoutError):
        second.result(0)
    assert producer.error_next(NetworkError("gone"))
    assert isinstance(second.exception(0), NetworkError)
    assert not producer.flushed
    producer.flush()
    assert third.result(0).offset == 1
    assert not producer.complete_next()
    assert not producer.error_next(NetworkError("gone"))
    assert_whole(producer.pool)


def test_serializers_partitioner_and_checks_are_those_of_the_real_producer() -> None:
    producer = manual(value_serializer=lambda value: json.dumps(value).encode(), key_serializer=str.encode)
    future = producer.send("t", {"a": 1}, key="k", headers=[("h", b"x")], timestamp_ms=5)
    assert producer.history() == [("t", {"a": 1}, "k", [("h", b"x")], partition_for_key(b"k", 3), 5)]
    producer.flush()
    assert future.result(0) == ("t", partition_for_key(b"k", 3), 0, 5, 1, len(b'{"a": 1}'))
    with pytest.raises(SerializationError):
        producer.send("t", object())
    with pytest.raises(InvalidPartitionsError):
        producer.send("t", None, "k", partition=3)
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.send("other", None, "k")
    with pytest.raises(InvalidTopicError, match="'no topic' is not a valid topic name"):
        MockProducer().send("no topic")
    assert len(producer.history()) == 1


def test_committed_transaction_is_in_the_history() -> None:
    producer = transactional(auto_complete=False)
    future = producer.send("t", b"v")
    producer.send_offsets_to_transaction({("in", 0): 7}, "group")
    assert (producer.history(), [r.value for r in producer.uncommitted_records()]) == ([], [b"v"])
    assert producer.uncommitted_offsets() == {"group": {("in", 0): 7}}
    producer.commit_transaction()
    assert future.done()
    assert [record.value for record in producer.history()] == [b"v"]
    assert producer.offsets_history() == [{"group": {("in", 0): 7}}]
    assert (producer.transaction_committed, producer.transaction_in_flight, producer.commit_count) == (True, False, 1)


def test_aborted_transaction_is_not_in_the_history() -> None:
    producer = transactional()
    producer.send("t", b"v")
    producer.send_offsets_to_transaction({("in", 0): 7}, "group")
    producer.abort_transaction()
    assert (producer.history(), producer.uncommitted_records(), producer.offsets_history()) == ([], [], [])
    assert producer.transaction_aborted
    assert not producer.sent_offsets


def test_producer_with_a_transactional_id_sends_nothing_before_its_first_transaction() -> None:
    """As KafkaProducer."""
    producer = MockProducer(transactional_id="t")
    for begin in (producer.init_transactions, producer.begin_transaction):
        with pytest.raises(IllegalStateError, match="outside of a transaction"):
            producer.send("t", b"v")
        begin()
    producer.send("t", b"v")
    assert (producer.history(), len(producer.uncommitted_records())) == ([], 1)


def test_transactional_calls_are_refused_in_a_wrong_state() -> None:
    fresh = MockProducer()
    for call in (fresh.begin_transaction, fresh.commit_transaction, fresh.abort_transaction, fresh.fence_producer):
        with pytest.raises(IllegalStateError):
            call()
    begun = transactional()
    for call in (begun.init_transactions, begun.begin_transaction):
        with pytest.raises(IllegalStateError):
            call()
    begun.commit_transaction()
    outside: list[Callable[[], object]] = [begun.commit_transaction, begun.abort_transaction, lambda: begun.send("t")]
    for late in outside:
        with pytest.raises(IllegalStateError):
            late()


def test_fenced_producer_refuses_every_call() -> None:
    producer = transactional()
    producer.fence_producer()
    for call in (lambda: producer.send("t", b"v"), producer.commit_transaction, producer.abort_transaction):
        with pytest.raises(ProducerFencedError):
            call()


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("send", ("t",)), ("flush", ()), ("partitions_for", ("t",)), ("init_transactions", ()), ("begin_transaction", ()),
     ("send_offsets_to_transaction", ({}, "g")), ("commit_transaction", ()), ("abort_transaction", ()), ("close", ())],
)  # fmt: skip
def test_injected_exception_is_raised(method: str, arguments: tuple[Any, ...]) -> None:
    producer = transactional()
    setattr(producer, f"{method}_exception", ZeroDivisionError("injected"))
    with pytest.raises(ZeroDivisionError):
        getattr(producer, method)(*arguments)
    assert producer.history() == []


def test_exception_for_partitions_for_leaves_send_alone() -> None:
    producer = MockProducer()
    producer.partitions_for_exception = ZeroDivisionError("injected")
    assert producer.send("t", b"v").result(0).offset == 0


def test_closed_mock_refuses_every_call() -> None:
    with MockProducer() as producer:
        pass
    assert producer.closed
    for call in (lambda: producer.send("t", b"v"), producer.flush, lambda: producer.partitions_for("t")):
        with pytest.raises(ClosedError):
            call()


def test_clear_fails_pending_records_and_frees_their_memory() -> None:
    producer = manual()
    future = producer.send("t", b"v")
    producer.clear()
    error = future.exception(0)
    assert isinstance(error, ClosedError)
    assert "clear() has dropped the record" in str(error)
    assert (producer.history(), producer.flushed) == ([], True)
    assert_whole(producer.pool)


def test_too_many_pending_records_are_refused_at_once() -> None:
    producer = manual(buffer_memory=4096)
    for _ in range(8):
        producer.send("t", b"v")
    with pytest.raises(BufferExhaustedError):
        producer.send("t", b"v")
    producer.flush()
    assert_whole(producer.pool)


def test_purge_fails_pending_records() -> None:
    producer = MockProducer({"t": 3}, auto_complete=False)
    future = producer.send("t", b"v")
    producer.purge(in_flight=False)
    assert not future.done()
    producer.purge()
    assert isinstance(future.exception(0), PurgedError)
    assert producer.flushed
