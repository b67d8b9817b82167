"""A lack of memory in the client: it goes on at the next poll, and nothing waits for a time-out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from kafkabuf.clock import ManualClock
from kafkabuf.errors import KafkaError, NetworkError
from kafkabuf.network import bounds, client
from kafkabuf.network._client import Requests
from kafkabuf.network.authenticator import Authenticator, Dialogue
from kafkabuf.process import background
from kafkabuf.process.threads import Event
from kafkabuf.protocol import messages
from tests.network.support import Received, Rig, brokers, cluster_of, one_broker, produce, rig


class Scarce:
    """Stands for a method, and finds no memory in its first calls."""

    def __init__(self, method: Callable[..., Any], lacking: int = 1) -> None:
        self.method = method
        self.lacking = lacking
        self.calls = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls <= self.lacking:
            raise MemoryError
        return self.method(*arguments, **named)


def make_scarce(target: object, name: str) -> Scarce:
    scarce = Scarce(getattr(target, name))
    setattr(target, name, scarce)
    return scarce


class PatchableRequests(Requests):
    """Requests whose methods a test may replace: an object of a Cython class has no attributes of its own."""


@pytest.fixture(autouse=True)
def _patchable_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "Requests", PatchableRequests)


def poll_to_the_error(rigged: Rig) -> None:
    """Poll until a poll finds no memory. The time stands still, so that no time-out helps."""
    with pytest.raises(MemoryError):
        rigged.poll_until(lambda: False)


def arrive(rigged: Rig, broker: Any) -> Received:
    """Poll until a request of the test's own arrives at the broker."""
    rigged.poll_until(lambda: not broker.requests.empty())
    return cast(Received, broker.next_request())


def test_metadata_request_for_which_there_is_no_memory_is_made_by_the_next_poll() -> None:
    with one_broker() as (rigged, broker):
        before = len(broker.metadata_requests)
        make_scarce(rigged.client.connections, "submit")
        rigged.metadata.request_update()
        rigged.clock.advance(1)
        poll_to_the_error(rigged)
        rigged.poll_until(lambda: len(broker.metadata_requests) > before)


def test_node_counts_as_being_resolved_until_its_connection_is_opened() -> None:
    with brokers() as (broker,), rig(broker) as rigged:
        seen: list[bool] = []
        opening = rigged.client.connections._open_resolved

        def watched(node: Any, *rest: Any) -> None:
            seen.append(node in rigged.client.connections.resolving)
            opening(node, *rest)

        setattr(rigged.client.connections, "_open_resolved", watched)  # noqa: B010 -- a type checker allows no assignment
        rigged.connect(0)
        assert seen
        assert all(seen)


def test_end_of_a_connection_for_which_there_is_no_memory_is_completed_by_the_next_poll() -> None:
    with one_broker() as (rigged, broker):
        rigged.client.send(0, produce())
        arrive(rigged, broker)
        make_scarce(rigged.client.connections, "disconnect")
        broker.drop_connections()
        poll_to_the_error(rigged)
        (ended,) = rigged.completions(1)
        assert isinstance(ended.error, NetworkError)


def test_written_request_without_response_is_not_lost() -> None:
    with one_broker() as (rigged, _):
        make_scarce(rigged.client.requests, "complete")
        rigged.client.send(0, produce(answered=False))
        assert len(rigged.completions(1)) == 1


def test_time_outs_are_checked_again_after_a_check_that_found_no_memory() -> None:
    with one_broker(request_timeout_ms=1000) as (rigged, broker):
        rigged.client.send(0, produce())
        arrive(rigged, broker)
        make_scarce(rigged.client.connections, "_warn_of_silence")
        rigged.clock.advance(1.1)
        poll_to_the_error(rigged)
        (ended,) = rigged.completions(1)
        assert "within 1100 ms" in str(ended.error)


def asked_for_a_long_response(rigged: Rig, broker: Any) -> Received:
    """A Metadata request of the test's own that is under way."""
    broker.cluster = None  # the test responds
    request = messages.build_request(messages.METADATA, 9, topics=[], allow_auto_topic_creation=False)
    rigged.client.send_entity(0, request)
    return arrive(rigged, broker)


def respond_at_length(received: Received, broker: Any) -> None:
    topics = {f"topic-{'x' * 200}-{i}": 1 for i in range(bounds.LARGEST_DECODED_AT_ONCE // 200)}
    received.reply_entity(**cluster_of(broker, topics=topics))


def test_long_response_that_no_thread_can_decode_ends_its_request() -> None:
    with one_broker() as (rigged, broker):
        received = asked_for_a_long_response(rigged, broker)
        scarce = make_scarce(rigged.client.connections, "decode")
        respond_at_length(received, broker)
        (ended,) = rigged.completions(1)
        assert scarce.calls == 1
        assert isinstance(ended.error, NetworkError | KafkaError)
        assert ended.error.retriable


def test_decoded_response_for_which_there_is_no_memory_is_completed_by_the_next_poll() -> None:
    with one_broker() as (rigged, broker):
        received = asked_for_a_long_response(rigged, broker)
        make_scarce(rigged.client.requests, "respond")
        respond_at_length(received, broker)
        poll_to_the_error(rigged)
        (ended,) = rigged.completions(1)
        assert ended.error is None
        assert ended.decode().brokers


def test_close_ends_each_request_though_its_first_call_finds_no_memory() -> None:
    with brokers() as (broker,), rig(broker) as rigged:
        rigged.connect(0)
        received = asked_for_a_long_response(rigged, broker)
        make_scarce(rigged.client.requests, "respond").lacking = 1_000_000
        respond_at_length(received, broker)
        poll_to_the_error(rigged)
        make_scarce(rigged.client.requests, "complete")
        with pytest.raises(MemoryError):
            rigged.client.close()
        assert len(rigged.client.close()) == 1


def test_authentication_whose_slow_step_has_ended_goes_on_at_the_next_call() -> None:
    class Step:
        done = True

        def result(self) -> bytes:
            return b"token"

    class Node:
        connection = None

    authenticator = Authenticator(cast(Any, None), cast(Any, None), ManualClock(), lambda: 0.5)
    sent: list[bytes] = []
    authenticator._send = Scarce(lambda dialogue, token: sent.append(token))  # type: ignore[method-assign]
    dialogue = Dialogue(cast(Any, Node()), None, cast(Any, None), 0, 0.0, cast(Any, Step()))
    authenticator.waiting.append(dialogue)
    with pytest.raises(MemoryError):
        list(authenticator.take_steps())
    assert list(authenticator.take_steps()) == []
    assert sent == [b"token"]
    assert not authenticator.waiting


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_background_calls_for_which_there_is_no_thread_fail_and_later_calls_run(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*arguments: object) -> None:
        raise error("no thread")

    told: list[str] = []
    in_turn = background.CallsInTurn("test")
    with monkeypatch.context() as patched:
        patched.setattr(background, "new_thread", no_thread)
        alone = background.BackgroundCall(lambda: 1, lambda: told.append("alone"), "test")
        queued = in_turn.start(lambda: 2, lambda: told.append("queued"))
    assert told == ["alone", "queued"]
    for call in (alone, queued):
        with pytest.raises(KafkaError, match="no thread"):
            call.result()
    ran = Event()
    later = in_turn.start(lambda: 3, ran.set)
    assert ran.wait(60)
    assert later.result() == 3
