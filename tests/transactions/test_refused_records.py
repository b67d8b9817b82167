"""A transaction that outlives the records that its brokers refuse: no record is lost, none comes twice."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import AbortableTransactionError, InvalidRecordError, KafkaError
from kafkabuf.protocol.messages import PRODUCE
from kafkabuf.transactions.states import State
from rigs.fake_client import Sent, read_records
from rigs.producer import assert_whole
from tests.transactions.idempotence_support import numbers
from tests.transactions.rig import GIVEN_ID, LOST, TransactionalRig

INVALID_RECORD, INVALID_TIMESTAMP, TOO_LARGE, LIST_TOO_LARGE = 87, 32, 10, 18
NOT_LEADER, OUT_OF_ORDER, DUPLICATE, TIMED_OUT = 6, 45, 46, 7


def outliving(**settings: Any) -> TransactionalRig:
    """A rig in a transaction that outlives refused records. The leader has acknowledged a record, and answers none."""
    rig = TransactionalRig(**settings).begun()
    rig.manager.producer_state.outlives_refusals = True
    rig.send(b"first")
    rig.turns()
    rig.forget()
    rig.client.sent.clear()
    rig.hold(PRODUCE)
    return rig


def sent_each(rig: TransactionalRig, count: int) -> list[RecordFuture]:
    """Send records, each in a batch and request of its own."""
    futures = []
    for number in range(count):
        futures.append(rig.send(b"%d" % number))
        rig.turns(1)
    return futures


def answer(rig: TransactionalRig, sent: Sent, code: int) -> None:
    rig.client.answer(sent, code, base_offset=-1 if code else 7)


@pytest.mark.parametrize("v2", [False, True], ids=["V1", "V2"])
@pytest.mark.parametrize("code", [INVALID_RECORD, INVALID_TIMESTAMP, TOO_LARGE, LIST_TOO_LARGE])
def test_transaction_is_committed_without_the_refused_record(code: int, v2: bool) -> None:
    rig = outliving(v2=v2)
    futures = sent_each(rig, 3)
    for sent, fate in zip(list(rig.client.under_way), [code, OUT_OF_ORDER, OUT_OF_ORDER], strict=True):
        answer(rig, sent, fate)
    rig.let_go(PRODUCE)
    rig.manager.commit()
    assert [future.exception(0) is None for future in futures] == [False, True, True]
    assert [numbers(sent)[2] for sent in rig.client.sent] == [1, 2, 3, 1, 2], "the later records take over the numbers"
    assert rig.asked.count("init") == 0
    rig.assert_usable()
    assert_whole(rig.pool)


def test_refused_record_without_records_behind_it_leaves_its_number_free() -> None:
    rig = outliving()
    for code in (INVALID_RECORD, INVALID_RECORD, 0):
        (future,) = sent_each(rig, 1)
        (sent,) = rig.client.under_way
        assert numbers(sent) == (GIVEN_ID, 0, 1)
        answer(rig, sent, code)
        rig.turns(2)
        assert (future.exception(0) is None) == (code == 0)
    rig.manager.commit()


def test_first_record_of_a_partition_may_be_refused() -> None:
    rig = outliving()
    future = rig.send(b"bad", 2)
    rig.turns()
    (sent,) = rig.client.under_way
    answer(rig, sent, INVALID_RECORD)
    rig.let_go(PRODUCE)
    good = rig.send(b"good", 2)
    rig.manager.commit()
    assert isinstance(future.exception(0), InvalidRecordError)
    assert good.exception(0) is None
    assert numbers(rig.client.sent[-1], 2) == (GIVEN_ID, 0, 0)


@pytest.mark.parametrize("code", [NOT_LEADER, TIMED_OUT, LOST], ids=["not leader", "timed out", "connection lost"])
def test_record_that_a_broker_may_have_ends_the_transaction_when_it_is_refused(code: int | KafkaError) -> None:
    """An earlier attempt may have been appended: its numbers cannot be used again."""
    rig = outliving()
    (future,) = sent_each(rig, 1)
    (sent,) = rig.client.under_way
    if isinstance(code, KafkaError):
        rig.client.fail(sent, code)
    else:
        answer(rig, sent, code)
    rig.turns(1)
    rig.clock.advance(1)
    rig.turns()
    answer(rig, rig.client.under_way[0], INVALID_RECORD)
    rig.turns()
    assert isinstance(future.exception(0), InvalidRecordError)
    assert rig.manager.state is State.ABORTABLE_ERROR


def test_no_record_gets_a_new_number_while_a_request_is_under_way() -> None:
    """The broker could carry out the request later, under the number that another batch has then."""
    rig = outliving()
    sent_each(rig, 3)
    refused, second, third = rig.client.under_way
    answer(rig, refused, INVALID_RECORD)
    rig.turns(2)
    answer(rig, second, OUT_OF_ORDER)
    rig.turns(2)
    assert rig.client.under_way == [third]
    rig.send(b"late")
    rig.turns(2)
    assert rig.client.under_way == [third], "a new record waits too"
    answer(rig, third, OUT_OF_ORDER)
    rig.turns(2)
    assert [numbers(sent)[2] for sent in rig.client.under_way] == [1]


def test_record_behind_a_gap_whose_request_was_lost_ends_the_transaction() -> None:
    rig = outliving()
    futures = sent_each(rig, 2)
    refused, lost = rig.client.under_way
    answer(rig, refused, INVALID_RECORD)
    rig.turns(1)
    rig.client.fail(lost, LOST)
    rig.turns(1)
    rig.clock.advance(1)
    rig.turns()
    (again,) = rig.client.under_way
    assert numbers(again)[2] == 2, "the record keeps its number"
    answer(rig, again, OUT_OF_ORDER)
    rig.turns()
    assert futures[1].exception(0) is not None
    assert rig.manager.state is State.ABORTABLE_ERROR
    rig.let_go(PRODUCE)
    rig.manager.abort()
    rig.assert_usable()


def test_refused_record_behind_a_record_in_doubt_leaves_that_record_its_number() -> None:
    rig = outliving()
    futures = sent_each(rig, 3)
    first, second, third = rig.client.under_way
    answer(rig, first, TIMED_OUT)
    answer(rig, second, INVALID_RECORD)
    answer(rig, third, OUT_OF_ORDER)
    rig.turns(1)
    rig.clock.advance(1)
    rig.client.sent.clear()
    rig.fate(PRODUCE, DUPLICATE)
    rig.let_go(PRODUCE)
    rig.manager.commit()
    assert [future.exception(0) is None for future in futures] == [True, False, True]
    assert [numbers(sent)[2] for sent in rig.client.sent] == [1, 2]


def test_other_failures_still_end_the_transaction() -> None:
    rig = outliving()
    sent_each(rig, 1)
    answer(rig, rig.client.under_way[0], 29)
    rig.let_go(PRODUCE)
    with pytest.raises(AbortableTransactionError):
        rig.manager.commit()


class Log:
    """A partition as a broker keeps it: it takes a batch only with the next number, and none with a bad record."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = [b"first"]
        self.batches: list[tuple[int, int]] = [(0, 0)]  # first and last number

    def take(self, sent: Sent) -> int:
        (data,) = sent.produced.records.values()
        values = [record.value for record in read_records(data)]
        if any(value and value.startswith(b"bad") for value in values):
            return INVALID_RECORD
        first = numbers(sent)[2]
        last = first + len(values) - 1
        if (first, last) in self.batches[-5:]:
            return DUPLICATE
        if first != self.batches[-1][1] + 1:
            return OUT_OF_ORDER
        self.batches.append((first, last))
        self.values += values
        return 0


class Network:
    """Carries requests to a Log. A connection may break before or after the broker has read a request.

    The broker may carry out the requests of a broken connection late, between the requests of the next connection.
    """

    def __init__(self, rig: TransactionalRig, draw: random.Random, breaks: float) -> None:
        self.rig, self.draw, self.breaks = rig, draw, breaks
        self.log = Log()
        self.late: list[Sent] = []

    def carry(self, sent: Sent) -> None:
        answer(self.rig, sent, self.log.take(sent))
        if self.late and self.draw.random() < 0.5:
            self.log.take(self.late.pop(0))

    def carry_some(self) -> None:
        while self.rig.client.under_way and self.draw.random() < 0.5:
            if self.draw.random() < self.breaks:
                self.cut()
                return
            self.carry(self.rig.client.under_way[0])

    def cut(self) -> None:
        lost = list(self.rig.client.under_way)
        read = self.draw.randrange(len(lost) + 1)
        for place, sent in enumerate(lost):
            if place < read:
                self.log.take(sent)
            elif self.draw.random() < 0.5:
                self.late.append(sent)
            self.rig.client.fail(sent, LOST)
        self.rig.turns(1)
        self.rig.clock.advance(1)

    def finish(self) -> None:
        for _ in range(400):
            self.rig.turns(1)
            for sent in list(self.rig.client.under_way):
                self.carry(sent)
            if not self.rig.accumulator.incomplete:
                return
            self.rig.clock.advance(0.2)
        raise AssertionError("the Sender does not finish its work")


def sent_over(network: Network) -> dict[bytes, RecordFuture]:
    """Send 60 records of which some are bad, until the transaction must be aborted."""
    rig, draw = network.rig, network.draw
    futures = {}
    for number in range(60):
        value = b"%s%d" % (b"bad" if draw.random() < 0.2 else b"good", number)
        try:
            futures[value] = rig.send(value)
        except AbortableTransactionError:
            break
        if draw.random() < 0.6:
            rig.turns(1)
        network.carry_some()
    return futures


@pytest.mark.parametrize("seed", range(60))
def test_every_good_record_is_committed_once_or_the_transaction_is_aborted(seed: int) -> None:
    draw = random.Random(seed)
    rig = outliving(delivery_timeout_ms=10_000_000)
    network = Network(rig, draw, draw.choice([0.0, 0.0, 0.1]))
    futures = sent_over(network)
    network.finish()
    rig.let_go(PRODUCE)
    taken = [value for value in network.log.values if value != b"first"]
    if rig.manager.state is State.IN_TRANSACTION:
        rig.manager.commit()
        bad = {future.batch for value, future in futures.items() if value.startswith(b"bad")}
        assert {value for value, future in futures.items() if future.exception(0) is None} == set(taken)
        assert {value for value, future in futures.items() if future.batch not in bad} == set(taken)
    else:
        assert network.breaks, "without a broken connection the transaction goes on"
        rig.manager.abort()
    assert len(set(taken)) == len(taken)
    assert_whole(rig.pool)
