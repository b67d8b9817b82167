"""A batch that may be in the log is refused as too large: its parts must not come twice.

The order of events: the broker appends the batch, its response is lost, the topic's limit is lowered, and the retry is
refused. The broker then knows the numbers of the whole, and refuses the numbers of the parts.
"""

from __future__ import annotations

import pytest

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import NetworkError, OutOfOrderSequenceNumberError, RecordTooLargeError
from rigs.producer import assert_whole, only_request
from tests.batches.split_support import TOO_LARGE
from tests.transactions.idempotence_support import OUT_OF_ORDER, IdempotentRig, accept, idempotent, numbers, refuse


def split_in_doubt() -> tuple[IdempotentRig, list[RecordFuture]]:
    """A Rig whose batch of two records was sent without a response, and then refused as too large."""
    rig = idempotent(linger_ms=1)
    futures = [rig.send(b"first"), rig.send(b"second")]
    rig.clock.advance(0.01)
    rig.client.fail(only_request(rig), NetworkError("the connection was lost"))
    rig.turn()
    rig.clock.advance(0.2)
    refuse(rig, only_request(rig), TOO_LARGE)
    return rig, futures


def assert_goes_on_in_a_new_epoch(rig: IdempotentRig) -> None:
    future = rig.send(b"later")
    rig.clock.advance(0.01)
    sent = only_request(rig)
    assert numbers(sent)[1:] == (1, 0)
    accept(rig, sent)
    assert future.exception(0) is None
    assert_whole(rig.pool)


def test_parts_that_the_broker_refuses_by_number_fail_and_go_under_no_new_number() -> None:
    rig, futures = split_in_doubt()
    for sequence in (0, 1):
        sent = only_request(rig)
        assert numbers(sent)[1:] == (0, sequence)
        refuse(rig, sent, OUT_OF_ORDER)
    for future in futures:
        with pytest.raises(OutOfOrderSequenceNumberError, match="unknown whether the broker has the record"):
            future.result(0)
    assert_goes_on_in_a_new_epoch(rig)


def test_part_behind_a_part_that_is_too_large_keeps_its_number() -> None:
    rig, (too_large, behind) = split_in_doubt()
    refuse(rig, only_request(rig), TOO_LARGE)
    assert isinstance(too_large.exception(0), RecordTooLargeError)
    sent = only_request(rig)
    assert numbers(sent)[1:] == (0, 1)
    refuse(rig, sent, OUT_OF_ORDER)
    assert isinstance(behind.exception(0), OutOfOrderSequenceNumberError)
    assert_goes_on_in_a_new_epoch(rig)


def test_parts_of_a_batch_that_no_broker_has_are_delivered() -> None:
    rig, futures = split_in_doubt()
    for offset in (0, 1):
        accept(rig, only_request(rig), base_offset=offset)
    assert [future.result(0).offset for future in futures] == [0, 1]
    assert_whole(rig.pool)


def test_parts_of_a_batch_without_doubt_go_under_new_numbers_behind_a_part_that_failed() -> None:
    rig = idempotent(linger_ms=1)
    too_large, behind = rig.send(b"first"), rig.send(b"second")
    rig.clock.advance(0.01)
    refuse(rig, only_request(rig), TOO_LARGE)
    refuse(rig, only_request(rig), TOO_LARGE)
    sent = only_request(rig)
    assert numbers(sent)[1:] == (1, 0)
    accept(rig, sent)
    assert isinstance(too_large.exception(0), RecordTooLargeError)
    assert behind.exception(0) is None
    assert_whole(rig.pool)
