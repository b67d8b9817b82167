"""How the producer gets its id, and what it does without an id: the Sender turned by hand."""

from __future__ import annotations

import pytest

from kafkabuf.errors import ConfigError, NetworkError, TimeoutError, UnknownServerError, UnsupportedVersionError
from rigs.fake_client import Sent
from rigs.producer import Rig, assert_whole, only_request, quick_rig
from tests.transactions.idempotence_support import IdempotentRig, idempotent, numbers


def fresh(**settings: object) -> IdempotentRig:
    rig = idempotent(**settings)
    rig.state.set_producer_id_and_epoch(-1, -1)
    rig.client.gives_ids = False
    return rig


def asked_after_turn(rig: Rig) -> int:
    before = len(rig.client.asked)
    rig.turn()
    return len(rig.client.asked) - before


@pytest.mark.parametrize("code", [14, 15, 16, 7, None])
def test_producer_id_is_requested_again_after_a_back_off(code: int | None) -> None:
    rig = fresh(retry_backoff_ms=100, retry_backoff_max_ms=400)
    future = rig.send()
    assert asked_after_turn(rig) == 1
    assert asked_after_turn(rig) == 0  # under way
    for asked, wait in enumerate((0.13, 0.25), 1):
        if code is None:
            rig.client.refuse_id(NetworkError("gone"))
        else:
            rig.client.give_id(error_code=code)
        rig.turn()
        rig.sender.run_once()
        assert len(rig.client.asked) == asked
        assert 0 < rig.client.waits[-1] <= wait
        rig.clock.advance(wait)
        assert asked_after_turn(rig) == 1
    rig.client.give_id(9)
    rig.turn()
    assert numbers(only_request(rig)) == (9, 0, 0)
    rig.ack_all()
    assert future.result(0)
    assert_whole(rig.pool)


@pytest.mark.parametrize("code", [0, 7, 15])
def test_another_broker_is_asked_after_a_broker_gave_no_id(code: int) -> None:
    """The broker may be paused or cut off from the controller, and stay so."""
    rig = fresh()
    rig.send()
    rig.turn()
    if code:
        rig.client.give_id(error_code=code)
    else:
        rig.client.refuse_id(NetworkError("lost"))
    rig.turn()
    rig.clock.advance(1)
    assert asked_after_turn(rig) == 1
    assert rig.client.avoided == [None, rig.client.id_node]
    rig.client.give_id(9)
    rig.ack_all()


@pytest.mark.parametrize("old", [True, False])
def test_records_fail_if_the_broker_supports_no_producer_ids(old: bool) -> None:
    rig = fresh()
    rig.client.id_versions = (9, 9)
    future = rig.send()
    if not old:  # the broker offers the API and refuses the request
        rig.client.id_versions = (0, 5)
        rig.turn()
        rig.client.give_id(error_code=35)
    rig.turn()
    with pytest.raises(UnsupportedVersionError, match="set it to false" if old else "35"):
        future.result(0)
    later = rig.send()
    rig.turn()
    assert isinstance(later.exception(0), UnsupportedVersionError)
    assert len(rig.client.asked) == (not old)
    assert not rig.client.sent
    assert_whole(rig.pool)


def test_producer_goes_on_after_a_refusal_that_may_pass() -> None:
    rig = fresh()
    future = rig.send()
    rig.turn()
    rig.client.give_id(error_code=-1)
    rig.turn()
    with pytest.raises(UnknownServerError, match="InitProducerId was refused"):
        future.result(0)
    rig.clock.advance(2)
    later = rig.send()
    rig.client.gives_ids = True
    rig.ack_all()
    assert later.exception(0) is None
    assert_whole(rig.pool)


def test_negative_id_or_epoch_is_refused() -> None:
    rig = fresh()
    rig.send()
    rig.turn()
    rig.client.give_id(producer_id=7, producer_epoch=-253)
    rig.turn()
    assert not rig.state.has_producer_id
    assert not rig.client.sent


def test_idle_producer_opens_no_connection_for_an_id() -> None:
    rig = fresh()
    rig.client.id_node = None
    rig.sender.run_once()
    assert (rig.client.connects, rig.client.waits[-1]) == (0, float("inf"))
    rig.send()
    rig.sender.run_once()
    assert rig.client.connects == 1
    assert 0 < rig.client.waits[-1] < 0.2
    rig.client.id_node = 2
    rig.client.gives_ids = True
    rig.ack_all()
    assert rig.client.asked[0].node_id == 2
    assert_whole(rig.pool)


def test_id_is_fetched_before_a_record_waits_for_it() -> None:
    rig = fresh()
    assert asked_after_turn(rig) == 1  # a connection is open, so the id costs nothing
    entity = rig.client.asked[0].entity
    assert entity.transactional_id is None
    assert entity.transaction_timeout.total_seconds() > 2_000_000
    rig.client.give_id(9)
    rig.turn()
    rig.send()
    assert numbers(only_request(rig)) == (9, 0, 0)


@pytest.mark.parametrize(("acks", "idempotence"), [(0, None), (1, None), (-1, False)])
def test_producer_without_idempotence_asks_for_no_id(acks: int, idempotence: bool | None) -> None:
    settings = {} if idempotence is None else {"enable_idempotence": idempotence}
    rig = quick_rig(acks=acks, **settings)
    rig.send()
    sent: Sent = only_request(rig)
    assert numbers(sent) == (-1, -1, -1)
    assert not rig.client.asked


def test_records_that_expire_before_there_is_an_id_leave_no_gap() -> None:
    rig = fresh(delivery_timeout_ms=1_000)
    future = rig.send()
    rig.turn()
    rig.clock.advance(1)
    rig.turn()
    assert isinstance(future.exception(0), TimeoutError)
    rig.client.give_id(9)
    rig.turn()
    rig.send()
    assert numbers(only_request(rig)) == (9, 0, 0)
    assert not rig.state.has_unresolved_sequences
    rig.ack_all()
    assert_whole(rig.pool)


def test_records_of_magic_1_have_no_numbers() -> None:
    with pytest.raises(ConfigError, match=r"record\.magic"):
        idempotent(record_magic=1)
    rig = quick_rig(record_magic=1)
    assert rig.accumulator.producer_state is None
