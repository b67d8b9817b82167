"""Brokers whose responses break the protocol: their connection fails, the others go on, and every future ends."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.clock import ManualClock
from kafkabuf.errors import CorruptMessageError, KafkaError, NetworkError, UnknownServerError
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.producer import KafkaProducer
from kafkabuf.protocol import messages
from rigs.fake_client import Answer, Produced, decode_produce, encode_answer
from rigs.producer import assert_whole
from tests.effort import effort
from tests.network.support import (
    ALL_VERSIONS,
    PATIENCE,
    FakeBroker,
    Received,
    brokers,
    cluster_of,
    config_for,
    produce,
    rig,
    topic_of,
)
from tests.protocol.test_messages import sample

TOPIC = "t"

# ---- Produce ---------------------------------------------------------------------------------------------------------

Lie = Callable[[Produced, bytes], bytes]


def truth(produced: Produced) -> bytes:
    answers = {key: Answer(base_offset=5) for key in produced.records}
    return encode_answer(produced.version, produced.correlation_id, answers)


def instead(answers: dict[tuple[str, int], Answer], produced: Produced) -> bytes:
    return encode_answer(produced.version, produced.correlation_id, answers)


# Frames without their length. `framed` adds the right length. WHOLE_FRAMES have a length of their own.
LIES: dict[str, Lie] = {
    "ends early": lambda produced, right: right[:-7],
    "nothing but a correlation id": lambda produced, right: right[:4],
    "bytes behind the end": lambda produced, right: right + b"\0",
    "another correlation id": lambda produced, right: (produced.correlation_id + 1).to_bytes(4, "big") + right[4:],
    "a topic nobody asked for": lambda produced, right: instead({("other", 0): Answer()}, produced),
    "a partition nobody asked for": lambda produced, right: instead(
        {**{key: Answer(base_offset=5) for key in produced.records}, (TOPIC, 77): Answer()}, produced
    ),
    "no topic": lambda produced, right: instead({}, produced),
    "negative offset": lambda produced, right: instead({(TOPIC, 1): Answer(base_offset=-9)}, produced),
    "negative pause": lambda produced, right: right[:-5] + b"\xff\xff\xff\xff\0",
    "null for the topics": lambda produced, right: right[:5] + b"\0" + bytes(5),
    "2^31 topics": lambda produced, right: right[:5] + b"\x80\x80\x80\x80\x08" + bytes(40),
    "2^31 tags": lambda produced, right: right[:-1] + b"\x80\x80\x80\x80\x08" + bytes(40),
    "endless varint": lambda produced, right: right[:5] + b"\xff" * 40,
    "noise": lambda produced, right: right[:4] + bytes(range(256)),
}
WHOLE_FRAMES: dict[str, bytes] = {
    "a frame of no length": bytes(4),
    "a frame of negative length": b"\xff\xff\xff\xff",
    "a frame of 2^31 - 1 bytes": b"\x7f\xff\xff\xff",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


class Responder(threading.Thread):
    """Answers a broker's Produce requests, the first `lies` of them with a malformed response."""

    def __init__(self, broker: FakeBroker, lie: str = "", lies: float = 0) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.lie = lie
        self.lies = lies
        self.lied = 0
        self.start()

    def run(self) -> None:
        while (received := self.broker.requests.get()) is not None:
            if received.header.api_key == messages.INIT_PRODUCER_ID:
                received.reply_entity(error_code=0, producer_id=7, producer_epoch=0, throttle_time=0)
                continue
            produced = decode_produce(len(received.frame).to_bytes(4, "big") + received.frame)
            lying = self.lied < self.lies
            self.lied += lying
            with contextlib.suppress(OSError):
                received.send_frame(self._frame(produced) if lying else framed(truth(produced)))

    def _frame(self, produced: Produced) -> bytes:
        return WHOLE_FRAMES.get(self.lie) or framed(LIES[self.lie](produced, truth(produced)))

    def stop(self) -> None:
        self.broker.requests.put(None)  # type: ignore[arg-type]
        self.join(PATIENCE)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@contextlib.contextmanager
def honest_and_liar(lie: str, lies: float, **more: Any) -> Iterator[tuple[KafkaProducer, FakeBroker, FakeBroker]]:
    """A producer for a topic: an honest broker leads partition 0, a broker that lies leads partition 1."""
    with brokers(2, versions={**ALL_VERSIONS, messages.INIT_PRODUCER_ID: (0, 4)}) as (honest, liar):
        responders = [Responder(honest), Responder(liar, lie, lies)]
        defaults: dict[str, Any] = {
            "linger_ms": 0,
            "retry_backoff_ms": 1,
            "reconnect_backoff_ms": 1,
            "request_timeout_ms": 5_000,
        }
        try:
            with KafkaProducer(bootstrap_servers="{}:{}".format(*honest.address), **(defaults | more)) as producer:
                producer.partitions_for(TOPIC)
                yield producer, honest, liar
                producer.close(PATIENCE)
                assert_whole(producer.pool)
        finally:
            for responder in responders:
                responder.stop()


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("lie", [*LIES, *WHOLE_FRAMES])
def test_bad_response_fails_its_connection_only(lie: str, idempotent: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "kafkabuf.network")
    with honest_and_liar(lie, 1, enable_idempotence=idempotent) as (producer, honest, liar):
        before = len(honest.sockets)
        futures = [producer.send(TOPIC, b"v", partition=partition) for partition in (0, 1, 0, 1, 0, 1)]
        assert [future.result(PATIENCE).offset for future in futures]
        assert producer.send(TOPIC, b"v", partition=1).result(PATIENCE).offset == 5
        assert len(honest.sockets) <= before + 1, "the connection to the honest broker stayed open"
        assert len(liar.sockets) >= 2, "the connection to the liar was closed, and a new one was opened"
    named = [record.getMessage() for record in caplog.records if f":{liar.port}" in record.getMessage()]
    assert any(
        reason in text
        for text in named
        for reason in ("is not understood", "correlation id", "announced a frame", "names no broker")
    ), named
    assert not any(record.levelno >= logging.ERROR for record in caplog.records)


@pytest.mark.parametrize("lie", ["ends early", "a topic nobody asked for", "a frame of negative length"])
def test_every_future_ends_though_the_broker_always_lies(lie: str) -> None:
    with honest_and_liar(lie, float("inf"), request_timeout_ms=200, delivery_timeout_ms=400) as (producer, _, _):
        lost = [producer.send(TOPIC, b"v", partition=1) for _ in range(3)]
        assert producer.send(TOPIC, b"v", partition=0).result(PATIENCE).offset == 5
        for future in lost:
            assert isinstance(future.exception(PATIENCE), KafkaError)


def test_unknown_error_code_fails_its_record_only(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: Lie = lambda produced, right: instead({(TOPIC, 1): Answer(error_code=31_000, message="eh")}, produced)  # noqa: E731
    monkeypatch.setitem(LIES, "unknown error", refused)
    with honest_and_liar("unknown error", 1) as (producer, _, liar):
        with pytest.raises(UnknownServerError, match="eh"):
            producer.send(TOPIC, b"v", partition=1).result(PATIENCE)
        assert producer.send(TOPIC, b"v", partition=1).result(PATIENCE).offset == 5
        assert len(liar.sockets) == 1, "the response itself was well-formed"


# ---- all other responses ---------------------------------------------------------------------------------------------


def metadata_lie(name: str, received: Received, right: dict[str, Any]) -> None:
    """Answer a Metadata request wrongly."""
    header = received.header
    entity = messages.build_response(messages.METADATA, header.version, **right)
    body = messages.encode_response(messages.METADATA, header.version, header.correlation_id, entity)[4:]
    nowhere = {**right, "brokers": [{"node_id": 0, "host": "", "port": 9092}]}
    far = {**right, "brokers": [{"node_id": 0, "host": "h", "port": 70_000}]}
    below = {**right, "brokers": [{"node_id": -1, "host": "h", "port": 9}]}
    if name in ("nowhere", "far", "below"):
        received.reply_entity(**{"nowhere": nowhere, "far": far, "below": below}[name])
    else:
        broken = {
            "ends early": body[:-3],
            "over-long": body + b"\0\0",
            "empty": b"",
            "2^31 brokers": b"\0" + bytes(4) + b"\x80\x80\x80\x80\x08" + bytes(40),
            "negative pause": b"\0" + b"\xff\xff\xff\xff" + body[5:],
        }[name]
        received.reply(broken)


@pytest.mark.parametrize(
    "lie",
    ["ends early", "over-long", "empty", "2^31 brokers", "negative pause", "nowhere", "far", "below"],
)
def test_bad_metadata_is_refused_and_requested_again(lie: str, caplog: pytest.LogCaptureFixture) -> None:
    with brokers() as (broker,), rig(broker) as rigged:
        right, broker.cluster = broker.cluster, None
        assert right is not None
        rigged.poll_until(lambda: not broker.requests.empty())
        metadata_lie(lie, broker.next_request(), right)
        rigged.poll_until(lambda: rigged.client.connection_delay(-1) < 1)
        assert rigged.metadata.snapshot.version == 0
        assert "is not understood" in caplog.text
        broker.cluster = right
        rigged.clock.advance(2)
        rigged.connect(0)


GREETING = messages.encode_response(
    messages.API_VERSIONS,
    3,
    1,
    messages.build_response(
        messages.API_VERSIONS,
        3,
        api_keys=[{"api_key": key, "min_version": 0, "max_version": 12} for key in (0, 3, 18)],
    ),
)[4:]


@pytest.mark.parametrize(
    "body",
    [
        GREETING[:-3],
        GREETING + b"\0",
        b"",
        b"\0\0" + b"\x80\x80\x80\x80\x08" + bytes(40),  # 2^31 APIs
        GREETING[:-5] + b"\xff\xff\xff\xff\0",  # a negative pause
        b"\x7f\xff" + GREETING[2:],  # an unknown error
        b"\0\x23" + bytes(4),  # UNSUPPORTED_VERSION without any API
    ],
    ids=["early", "over-long", "empty", "2^31", "pause", "error", "nothing"],
)
def test_bad_api_versions_response_is_refused_and_requested_again(body: bytes) -> None:
    with brokers(greets=False) as (broker,), rig(broker) as rigged:
        rigged.poll_until(lambda: not broker.requests.empty())
        broker.next_request().reply(body)
        first = len(broker.sockets)
        if body == b"\0\x23" + bytes(4):  # the client then asks in the oldest version
            rigged.poll_until(lambda: not broker.requests.empty())
            broker.next_request().reply(b"\0\x23" + bytes(4))
        rigged.poll_until(lambda: rigged.client.connection_delay(-1) < 1)
        assert not rigged.client.ready(-1)
        assert rigged.client.in_flight(-1) == 0
        rigged.clock.advance(2)
        broker.greets = True
        rigged.connect(0)
        assert len(broker.sockets) > first


def test_bad_response_to_another_request_fails_its_connection() -> None:
    with brokers() as (broker,), rig(broker) as rigged:
        rigged.connect(0)
        for context in ("first", "second"):
            entity = messages.build_request(messages.FIND_COORDINATOR, 3, key="k", key_type=0)
            rigged.client.send_entity(0, entity, context)
        rigged.client.poll(0)
        broker.next_request().reply(b"\0\0\0\0\0\0")
        done = rigged.completions(2)
        assert [c.request.context for c in done] == ["first", "second"]
        for completion in done:
            assert isinstance(completion.error, NetworkError)
            with pytest.raises(NetworkError, match=r"broker 0 at .* is not understood: malformed find_coordinator"):
                completion.decode()
        assert not rigged.client.ready(0)


def test_requests_behind_a_bad_response_fail_at_once() -> None:
    patient: dict[str, Any] = {"retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}
    with brokers() as (broker,), rig(broker, **patient) as rigged:
        rigged.connect(0)
        rigged.metadata.request_update()  # an update is due already, so that no request for it wakes the poll
        for context in ("bad", "behind it"):
            rigged.client.send(0, produce(context=context))
        rigged.client.poll(0)
        broker.next_request().reply(b"\0")
        (bad,) = rigged.completions(1)
        rigged.client.fail_connection(0, CorruptMessageError("one byte"))
        rescue = threading.Timer(PATIENCE, rigged.client.wakeup)
        rescue.start()
        (behind,) = rigged.client.poll(None)
        assert rescue.is_alive()
        rescue.cancel()
        assert (bad.request.context, behind.request.context) == ("bad", "behind it")
        assert "is not understood: one byte" in str(behind.error)
        assert not rigged.client.ready(0)
        rigged.client.fail_connection(0, CorruptMessageError("it is closed already"))
        rigged.client.fail_connection(77, CorruptMessageError("nobody"))


def metadata_frame(version: int) -> bytes:
    made = cluster_of(topics=None)
    made["brokers"] = [{"node_id": 1, "host": "one", "port": 9092, "rack": "r"}]
    made["topics"] = [topic_of("t", [1, 1], epoch=3), topic_of("u", [], error=5)]
    return messages.encode_response(
        messages.METADATA, version, 1, messages.build_response(messages.METADATA, version, **made)
    )


METADATA_FRAMES = {version: metadata_frame(version) for version in range(1, 14)}


@settings(max_examples=effort(300), deadline=None)
@given(
    version=st.sampled_from(sorted(METADATA_FRAMES)),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_metadata_with_wrong_bytes_is_read_or_refused(version: int, changes: list[tuple[int, int]]) -> None:
    frame = bytearray(METADATA_FRAMES[version])
    for place, value in changes:
        frame[place % len(frame)] = value
    metadata = Metadata(config_for(("boot", 1)), ManualClock())
    metadata.add_topic("t")
    metadata.begin_update(0.0)
    try:
        entity = messages.decode_response(messages.METADATA, version, bytes(frame))[1]
    except CorruptMessageError:
        return
    metadata.on_response(entity)
    assert metadata.time_to_update(0.0) < float("inf"), "another request will follow in any case"
    for topic in metadata.snapshot.topics.values():
        assert [info.partition for info in topic.partitions] == list(range(len(topic.partitions)))


def versions_of(key: int) -> tuple[int, int]:
    known = messages.known_versions(key)
    return known.start, known.stop - 1


# Every API whose responses the client reads with kio, in the newest version and the oldest.
OTHER_APIS = [(key, version) for key in (10, 17, 18, 22, 24, 25, 26, 28, 36) for version in versions_of(key)]
OTHER_FRAMES = {
    api: messages.encode_response(*api, 1, sample(messages.response_class(*api), filled=True)) for api in OTHER_APIS
}


@settings(max_examples=effort(300), deadline=None)
@given(
    api=st.sampled_from(OTHER_APIS),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 60),
)
def test_response_with_wrong_bytes_is_read_or_refused(
    api: tuple[int, int], changes: list[tuple[int, int]], cut: int
) -> None:
    frame = bytearray(OTHER_FRAMES[api])
    for place, value in changes:
        frame[place % len(frame)] = value
    with contextlib.suppress(CorruptMessageError):
        messages.decode_response(*api, bytes(frame[: len(frame) - max(cut - 50, 0)]))
