"""With a file a record leaves the file when the cluster has it, or refuses it for good, and for no other reason."""

from __future__ import annotations

import contextlib
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.errors import BufferExhaustedError, NetworkError, UnknownTopicOrPartitionError
from rigs.producer import SLAB, TOPIC, Rig, only_request
from tests.batches.split_support import TOO_LARGE, Topic, decoded
from tests.spool.test_recovery import delivered, killed

UNKNOWN_SERVER_ERROR = -1
NOT_LEADER = 6
NOT_ENOUGH_REPLICAS = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED = 29, 31
INVALID_TIMESTAMP, INVALID_RECORD = 32, 87
POLICY_VIOLATION = 44
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
VALUES = [b"%d" % number for number in range(8)]


def under_way(path: Path, **settings: Any) -> Rig:
    rig = Rig(file=path, buffer_path=str(path), **settings)
    for value in VALUES:
        rig.send(value)
    rig.linger_over()
    return rig


@pytest.mark.parametrize("code", [NOT_LEADER, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, TOO_LARGE])
def test_forced_close_leaves_what_a_broker_refuses_for_now(path: Path, code: int) -> None:
    rig = under_way(path)
    rig.client.answer(only_request(rig), code)
    rig.sender.recovery.forced = True  # close(0), while the turn takes the response
    rig.turn()
    rig.sender.close(force=True)
    rig.sender.run()
    assert delivered(Rig(file=killed(rig, path.with_name("left")))) == VALUES


@pytest.mark.parametrize(("expire", "is_failed"), [("never", False), ("since_send", True), ("since_recovery", True)])
def test_retries_limit_only_records_that_may_expire(path: Path, expire: str, is_failed: bool) -> None:
    rig = under_way(path, retries=2, buffer_expire=expire)
    for _ in range(4):
        for sent in rig.sent_after_turn():
            rig.client.answer(sent, NOT_ENOUGH_REPLICAS)
        rig.turn()
        rig.clock.advance(10)
    assert (rig.incomplete() == []) == is_failed
    if not is_failed:
        assert delivered(rig) == VALUES


def test_recovered_records_of_a_partition_that_is_gone_wait_until_it_is_there_again(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig([1, 1], file=path)
    rig.send(b"waits", partition=1)
    rig = Rig([1, 1], file=killed(rig, path.with_name("left")))
    future = rig.send(b"new", partition=1)
    rig.accumulator.topic_queues(TOPIC, [1])
    rig.linger_over()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            rig.turn()
    assert isinstance(future.exception(0), UnknownTopicOrPartitionError)  # as without a file
    assert [record.getMessage() for record in caplog.records if "wait in the file" in record.getMessage()] == [
        "the records wait in the file of kafkabuf.buffer.path: partition 1 of topic 'orders' is gone: the topic was "
        "deleted and made again with 1 partition(s)"
    ]
    rig.lead(1, 1)
    rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 1]] == [b"waits"]


def test_lost_connection_at_a_forced_close_leaves_the_batch(path: Path) -> None:
    rig = under_way(path)
    rig.client.fail(only_request(rig), NetworkError("the connection was lost"))
    rig.sender.recovery.forced = True
    rig.turn()
    rig.sender.close(force=True)
    rig.sender.run()
    assert delivered(Rig(file=killed(rig, path.with_name("left")))) == VALUES


@pytest.mark.parametrize("code", [CLUSTER_AUTHORIZATION_FAILED, UNKNOWN_SERVER_ERROR])
def test_records_wait_in_their_order_while_no_broker_gives_a_producer_id(path: Path, code: int) -> None:
    rig = under_way(path)
    assert rig.accumulator.producer_state is not None
    rig.accumulator.producer_state.set_producer_id_and_epoch(-1, -1)
    rig.client.gives_ids = False
    rig.turn()
    rig.client.give_id(error_code=code)
    rig.turn()
    rig.send(b"newer")
    rig.clock.advance(2)
    rig.client.gives_ids = True
    assert delivered(rig) == [*VALUES, b"newer"]


@pytest.mark.parametrize(
    "code", [CLUSTER_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_SERVER_ERROR, POLICY_VIOLATION]
)
def test_records_wait_until_the_broker_takes_them(path: Path, code: int, caplog: pytest.LogCaptureFixture) -> None:
    rig = under_way(path)
    with caplog.at_level(logging.WARNING):
        rig.client.answer(only_request(rig), code)
        rig.turn()
    assert "the records wait in the file" in caplog.text
    assert delivered(rig) == VALUES


@pytest.mark.parametrize("code", [INVALID_TIMESTAMP, INVALID_RECORD])
def test_record_that_is_at_fault_itself_leaves_the_file(path: Path, code: int) -> None:
    rig = under_way(path)
    rig.client.answer(only_request(rig), code)
    rig.turn()
    assert not rig.incomplete()
    assert delivered(Rig(file=killed(rig, path.with_name("left")))) == []


@pytest.mark.parametrize("doubtful", [False, True])
@pytest.mark.parametrize("code", [INVALID_TIMESTAMP, INVALID_RECORD])
def test_recovered_records_that_are_refused_for_good_stay_for_every_process_and_pass_no_other(
    path: Path, code: int, doubtful: bool, caplog: pytest.LogCaptureFixture
) -> None:
    file = killed(under_way(path), path.with_name("left"))
    for process in range(3):
        rig = Rig(file=file)
        recovered = rig.recovered
        assert recovered is not None
        assert recovered.records.total() == len(VALUES)
        (batch,) = recovered.partitions[TOPIC, 0].evidence.batches
        assert batch.numbered == (doubtful and process > 0)  # a process asks the cluster where it may have the batch
        rig.send(b"%d is new" % process)
        if doubtful:
            rig.client.fail(only_request(rig), NetworkError("the connection was lost"))
            rig.turn()
            rig.clock.advance(10)
        rig.client.answer(only_request(rig), code)
        rig.turn()
        assert "the records wait in the file" in caplog.text
        rig.ack_all()
        assert recovered.kept == {(TOPIC, 0): len(VALUES)}
        assert recovered.failed.total() == recovered.pending == 0
        file = killed(rig, path.with_name(f"left by {process}"))
    rig = Rig(file=file)
    assert delivered(rig) == VALUES


def test_error_of_a_record_that_waits_for_the_proof_says_so(path: Path) -> None:
    rig = Rig(file=killed(under_way(path), path.with_name("left")))
    rig.queue().muted = True  # as between the opening and the proof
    assert "the cluster has not said yet which of the recovered records of orders-0 it has" in rig.pool.why()


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("place", [0, 1, 3, 6, 7])
def test_recovered_record_that_is_too_large_for_good_holds_back_no_other_of_its_batch(
    path: Path, place: int, compression: str
) -> None:
    rig = Rig(file=path, buffer_path=str(path), compression_type=compression)
    values = [random.Random(number).randbytes(200 if number == place else 30) for number in range(8)]
    for value in values:
        rig.send(value)
    file = killed(rig, path.with_name("left"))
    others = [value for value in values if value is not values[place]]
    for process in range(2):
        rig = Rig(file=file, compression_type=compression)
        rig.send(b"new")
        broker = Topic(rig, 250)
        broker.serve()
        assert rig.recovered is not None
        assert broker.values() == [*(others if process == 0 else []), b"new"]
        assert rig.recovered.kept == {(TOPIC, 0): 1}
        file = killed(rig, path.with_name(f"left by {process}"))
    assert delivered(Rig(file=file, compression_type=compression)) == [values[place]]


def test_recovered_record_that_is_too_large_stays_with_those_behind_it_where_the_file_is_full(path: Path) -> None:
    rig = Rig(file=path, buffer_path=str(path))
    for value in [b"first", b"x" * 300, b"third", b"fourth"]:
        rig.send(value)
    rig = Rig(file=killed(rig, path.with_name("left")))
    taken = []
    for size in (SLAB, SLAB // 2, SLAB // 4, SLAB // 8, 1):
        with contextlib.suppress(BufferExhaustedError):
            while True:
                taken.append(rig.pool.allocate(size, 0))
    broker = Topic(rig, 250)
    broker.serve()
    assert rig.recovered is not None
    assert broker.values() == [b"first"]
    assert rig.recovered.kept == {(TOPIC, 0): 3}
    after = Rig(file=killed(rig, path.with_name("full")))
    assert after.recovered is not None
    numbered = [batch.numbered for batch in after.recovered.partitions[TOPIC, 0].evidence.batches]
    assert numbered == [False, *[True] * (len(numbered) - 1)]  # only of the refused record it is certain
    assert delivered(after) == [b"x" * 300, b"third", b"fourth"]


def test_parts_that_the_broker_refuses_for_their_numbers_stay_and_hold_back_no_other_record(path: Path) -> None:
    rig = under_way(path)
    rig.client.fail(only_request(rig), NetworkError("the connection was lost"))
    rig.turn()
    rig.clock.advance(10)
    rig.client.answer(only_request(rig), TOO_LARGE)
    rig.turn()
    future = rig.send(b"new")
    while not future.done():
        rig.linger_over()
        (sent,) = rig.sent_after_turn()
        (record, *_) = decoded(sent.produced.records[TOPIC, 0])
        rig.client.answer(sent, OUT_OF_ORDER_SEQUENCE_NUMBER if record.value in VALUES else 0)
        rig.turn()
    assert future.exception(0) is None
    assert not rig.incomplete()
    assert delivered(Rig(file=killed(rig, path.with_name("left")))) == VALUES
