"""Numbers of batches: when batches go, under which numbers, and which go again. The broker is scripted.

This file has the cases of Kafka's SenderTest and TransactionManagerTest on idempotent producers. A comment names each.
"""

from __future__ import annotations

import pytest

from kafkabuf.errors import NetworkError
from rigs.producer import PRODUCER_ID, assert_whole, only_request
from tests.transactions.idempotence_support import NOT_LEADER, OUT_OF_ORDER, idempotent, numbers, send_each

# ---- numbering -------------------------------------------------------------------------------------------------------


# Kafka: testSequenceNumberIncrement, testDefaultSequenceNumber
def test_numbers_count_records() -> None:
    rig = idempotent(leaders=(1, 1))
    rig.send(b"a")
    rig.send(b"b")
    rig.send(partition=1)
    first = only_request(rig)
    assert numbers(first, 0) == (PRODUCER_ID, 0, 0)
    assert numbers(first, 1) == (PRODUCER_ID, 0, 0)
    rig.send(b"c")
    second = only_request(rig)
    assert numbers(second, 0) == (PRODUCER_ID, 0, 2)
    rig.ack_all()
    assert rig.queue().last_acked == 2
    assert_whole(rig.pool)


# Kafka: testIdempotenceWithMultipleInflights
@pytest.mark.parametrize("passing", [NOT_LEADER, 7, 19, 20])
def test_retry_keeps_its_numbers(passing: int) -> None:
    rig = idempotent()
    futures = send_each(rig, 2)
    first, second = rig.client.sent
    rig.client.answer(first, passing)
    rig.client.answer(second, OUT_OF_ORDER)
    rig.turn()
    rig.clock.advance(0.2)
    again = only_request(rig)  # the second batch waits until the broker acknowledges the first
    assert again.produced.records == first.produced.records
    rig.client.answer(again)
    rig.turn()
    later = only_request(rig)
    assert later.produced.records == second.produced.records
    rig.client.answer(later, base_offset=1)
    rig.turn()
    assert [future.result(0).offset for future in futures] == [0, 1]
    assert rig.state.producer_epoch == 0
    assert_whole(rig.pool)


def test_lost_connection_changes_no_number() -> None:
    rig = idempotent()
    futures = send_each(rig, 4)
    for sent in list(rig.client.under_way):
        rig.client.fail(sent, NetworkError("gone"))
    rig.turn()
    rig.clock.advance(0.2)
    rig.ack_all()
    before, after = rig.client.sent[:4], rig.client.sent[4:]
    assert [sent.produced.records for sent in after] == [sent.produced.records for sent in before]
    assert [future.done() for future in futures] == [True] * 4
    assert_whole(rig.pool)
