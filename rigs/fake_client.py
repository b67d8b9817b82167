"""A small NetworkClient and broker for the Sender: it records the requests, and the test chooses each response.

kafka-python, which shares no code with kafkabuf, decodes the requests and encodes the responses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.record import MemoryRecords

from kafkabuf.errors import ClosedError, CorruptMessageError, KafkaError, UnsupportedVersionError
from kafkabuf.network.client import Completion, Request
from kafkabuf.protocol import messages
from kafkabuf.protocol._frame import Frame
from kafkabuf.sending._produce import parse_response

NEVER = float("inf")
# The first Produce version in which the client pauses, and not the broker (KIP-219).
FIRST_TO_THROTTLE = 6


@dataclass
class Record:
    """A record as kafka-python reads it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def read_records(data: bytes) -> list[Record]:
    """Every record of a message set or batch. Asserts that the CRCs are right."""
    read = []
    records = MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        for record in batch:
            headers = [(key, value) for key, value in record.headers]
            read.append(Record(record.offset, record.timestamp, record.key, record.value, headers))
    return read


@dataclass
class Produced:
    """A Produce request as kafka-python reads it. `records` keeps the order of the request."""

    version: int
    correlation_id: int
    client_id: str
    acks: int
    timeout_ms: int
    transactional_id: str | None
    records: dict[tuple[str, int], bytes]


def decode_produce(data: bytes) -> Produced:
    """Decode a frame with its length. Asserts that the length is right, and that kafka-python encodes it alike."""
    (size, api_key, version) = struct.unpack_from(">ihh", data)
    assert (size, api_key) == (len(data) - 4, 0)
    request = ProduceRequest.decode(data[4:], version=version, header=True)
    again = ProduceRequest[version](
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        topic_data=request.topic_data,
    )
    again.with_header(request.header.correlation_id, request.header.client_id)
    assert again.encode(header=True, framed=True) == data
    records = {
        (topic.name, partition.index): bytes(partition.records)
        for topic in request.topic_data
        for partition in topic.partition_data
    }
    assert len(records) == sum(len(topic.partition_data) for topic in request.topic_data)
    return Produced(
        version,
        request.header.correlation_id,
        request.header.client_id,
        request.acks,
        request.timeout_ms,
        request.transactional_id,
        records,
    )


@dataclass
class Answer:
    """The broker's response for one partition."""

    error_code: int = 0
    base_offset: int = 0
    log_append_time: int = -1
    message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()
    leader: tuple[int, int] = (-1, -1)  # node id and epoch
    log_start_offset: int = 0


def encode_answer(
    version: int,
    correlation_id: int,
    answers: Mapping[tuple[str, int], Answer],
    *,
    nodes: Mapping[int, tuple[str, int]] | None = None,
    throttle_ms: int = 0,
) -> bytes:
    """A Produce response by kafka-python, without its length. `nodes` has the addresses of new leaders."""
    names = list(dict.fromkeys(name for name, _ in answers))
    topic_class = ProduceResponse.TopicProduceResponse
    partition_class = topic_class.PartitionProduceResponse
    error_class = partition_class.BatchIndexAndErrorMessage
    topics = [
        topic_class(
            name=name,
            partition_responses=[
                partition_class(
                    index=index,
                    error_code=answer.error_code,
                    base_offset=answer.base_offset,
                    log_append_time_ms=answer.log_append_time,
                    log_start_offset=answer.log_start_offset,
                    record_errors=[
                        error_class(batch_index=number, batch_index_error_message=text)
                        for number, text in answer.record_errors
                    ],
                    error_message=answer.message,
                    current_leader=partition_class.LeaderIdAndEpoch(
                        leader_id=answer.leader[0], leader_epoch=answer.leader[1]
                    ),
                )
                for (topic, index), answer in answers.items()
                if topic == name
            ],
        )
        for name in names
    ]
    endpoints = [
        ProduceResponse.NodeEndpoint(node_id=node, host=host, port=port, rack=None)
        for node, (host, port) in (nodes or {}).items()
    ]
    response = ProduceResponse[version](responses=topics, throttle_time_ms=throttle_ms, node_endpoints=endpoints)
    response.with_header(correlation_id)
    return bytes(response.encode(header=True))


@dataclass
class Sent:
    """A Produce request that the Sender gave to the FakeClient."""

    node_id: int
    request: Request
    frame: Frame
    correlation_id: int
    produced: Produced
    started: bool = False  # the poll call may have written bytes of it

    @property
    def partitions(self) -> list[int]:
        return [partition for _, partition in self.produced.records]

    def values(self, partition: int = 0, topic: str = "orders") -> list[bytes | None]:
        return [record.value for record in read_records(self.produced.records[topic, partition])]


def _all_were_taken(sent: Sent, response: bytes) -> bool:
    """What the poll call asks of a response before it starts a queued request."""
    try:
        parsed = parse_response(sent.request.version, response)
    except CorruptMessageError:
        return False
    errors = any(part.error_code or part.message or part.record_errors for part in parsed.partitions.values())
    paused = parsed.throttle_ms and sent.request.version >= FIRST_TO_THROTTLE
    return len(parsed.partitions) == len(sent.produced.records) and not errors and not paused


@dataclass
class OtherRequest:
    """A request other than Produce that the Sender gave to the FakeClient."""

    node_id: int
    entity: Any
    context: Any


@dataclass
class FakeClient:
    """The part of NetworkClient that the Sender uses. The test decides which node is ready, and each response."""

    limit: int = 5  # requests that a node may have in flight
    ahead: int = 0  # requests that it queues for a node beyond `limit`
    versions: dict[int, tuple[int, int]] = field(default_factory=dict)
    unready: set[int] = field(default_factory=set)
    delay: float = NEVER
    errors: dict[int, KafkaError] = field(default_factory=dict)  # by node, why no connection to it is possible
    failed: dict[int, KafkaError] = field(default_factory=dict)  # by node, the error of its last connection
    id_node: int | None = 1  # the node that takes InitProducerId
    id_versions: tuple[int, int] = (0, 5)
    connects: int = 0  # how often the Sender asked for a connection to any broker
    avoided: list[int | None] = field(default_factory=list)  # `avoid` of each call of least_loaded()
    sent: list[Sent] = field(default_factory=list)  # all Produce requests
    under_way: list[Sent] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # the time-out of each poll
    wakeups: int = 0
    telemetry: None = None
    gives_ids: bool = True  # responds to InitProducerId by itself, with 1000, 1001, ...
    ids_given: int = 0
    asked: list[OtherRequest] = field(default_factory=list)  # all requests other than Produce
    pauses: list[tuple[int, int]] = field(default_factory=list)  # node and milliseconds of each throttle
    broken: list[tuple[int, KafkaError]] = field(default_factory=list)  # connections closed for a bad response
    answered: set[int] = field(default_factory=set)  # nodes whose connections could be used before
    on_poll: Callable[[], object] = lambda: None
    _completions: list[Completion] = field(default_factory=list)
    _held: set[int] = field(default_factory=set)  # nodes that start no request until the Sender has seen a response

    def ready(self, node_id: int) -> bool:
        return node_id not in self.unready and self.in_flight(node_id) < self.limit

    def takes_ahead(self, node_id: int) -> bool:
        return node_id not in self.unready and self.in_flight(node_id) < self.limit + self.ahead

    def connection_delay(self, node_id: int) -> float:
        return self.delay

    def last_error(self, node_id: int) -> KafkaError | None:
        return self.failed.get(node_id) or self.errors.get(node_id)

    def has_answered(self, node_id: int) -> bool:
        return node_id in self.answered

    def waits_for(self, node_id: int) -> str | None:
        return None

    def unreachable(self, node_id: int) -> KafkaError | None:
        return self.errors.get(node_id)

    def connection_error(self) -> KafkaError | None:
        return next(iter(self.errors.values()), None)

    def in_flight(self, node_id: int) -> int:
        # No generator: CPython 3.12 and 3.13 crash where one finds no memory, and tests take it from the Sender.
        return len([sent for sent in self.under_way if sent.node_id == node_id])

    def least_loaded(self, *, connect: bool, avoid: int | None = None) -> int | None:
        self.connects += connect and self.id_node is None
        self.avoided.append(avoid)
        return self.id_node

    def send_entity(self, node_id: int, entity: Any, context: Any = None) -> None:
        self.asked.append(OtherRequest(node_id, entity, context))
        if self.gives_ids:
            self.give_id(producer_id=1000 + self.ids_given)
            self.ids_given += 1

    def api_version(self, node_id: int, api_key: int, supported: tuple[int, int] | range) -> int:
        low, high = self.versions.get(node_id, (0, 12)) if api_key == messages.PRODUCE else self.id_versions
        if max(low, supported[0]) > min(high, supported[-1]):
            raise UnsupportedVersionError(f"broker {node_id} speaks {low} to {high}")
        return min(high, supported[-1])

    def send(self, node_id: int, request: Request) -> None:
        frame = request.build(len(self.sent) + 1)
        data = frame.to_bytes()
        assert len(data) == frame.nbytes
        produced = decode_produce(data)
        assert produced.version == request.version
        sent = Sent(node_id, request, frame, produced.correlation_id, produced)
        self.sent.append(sent)
        self.under_way.append(sent)
        self._start(node_id)

    def take_back(self, node_id: int, api_key: int) -> list[Request]:
        waiting = [sent for sent in self.under_way if sent.node_id == node_id and not sent.started]
        self.under_way = [sent for sent in self.under_way if sent not in waiting]
        return [sent.request for sent in waiting]

    def _start(self, node_id: int) -> None:
        here = [sent for sent in self.under_way if sent.node_id == node_id]
        for sent in here[: 0 if node_id in self._held else self.limit]:
            sent.started = True

    def poll(self, timeout: float) -> list[Completion]:
        self.waits.append(timeout)
        if not self._completions:  # otherwise this poll delivers the responses, and the Sender decides first
            self._held.clear()
            for node_id in {sent.node_id for sent in self.under_way}:
                self._start(node_id)
        self.on_poll()
        return self._taken()

    def _taken(self) -> list[Completion]:
        taken, self._completions = self._completions, []
        return taken

    def throttle(self, node_id: int, request: Request, throttle_ms: int) -> None:
        self.pauses.append((node_id, throttle_ms))

    def fail_connection(self, node_id: int, error: KafkaError) -> None:
        self.broken.append((node_id, error))

    def wakeup(self) -> None:
        self.wakeups += 1

    def close(self) -> list[Completion]:
        for sent in list(self.under_way):
            self.fail(sent, ClosedError("the client was closed"))
        return self._taken()

    # ---- for the test

    @property
    def quiet(self) -> bool:
        """No request is under way, and the Sender has taken every completion."""
        return not self.under_way and not self._completions

    def answer(self, sent: Sent, *codes: int, base_offset: int = 0, **more: Any) -> None:
        """Respond with error codes, one for each partition of the request, or success without codes.

        The last code holds for all further partitions.
        """
        codes = codes or (0,)
        answers = {
            partition: Answer(codes[min(index, len(codes) - 1)], base_offset, **more)
            for index, partition in enumerate(sent.produced.records)
        }
        self.answer_with(sent, encode_answer(sent.request.version, sent.correlation_id, answers))

    def give_id(self, producer_id: int = -1, producer_epoch: int = 0, error_code: int = 0) -> None:
        """Respond to the last InitProducerId."""
        last = self.asked[-1]
        version = last.entity.__version__
        response = messages.build_response(
            messages.INIT_PRODUCER_ID,
            version,
            throttle_time_ms=0,
            error_code=error_code,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        self._complete_id(last, messages.encode_response(messages.INIT_PRODUCER_ID, version, 1, response), None)

    def refuse_id(self, error: KafkaError) -> None:
        """Fail the last InitProducerId without a response."""
        self._complete_id(self.asked[-1], None, error)

    def _complete_id(self, asked: OtherRequest, response: bytes | None, error: KafkaError | None) -> None:
        request = Request(messages.INIT_PRODUCER_ID, asked.entity.__version__, lambda _: Frame(), asked.context)
        self._completions.append(Completion(request, asked.node_id, response, error, 0.0))

    def answer_with(self, sent: Sent, response: bytes | None) -> None:
        self.under_way.remove(sent)
        if response is not None and not _all_were_taken(sent, response):
            self._held.add(sent.node_id)
        self._start(sent.node_id)
        self._completions.append(Completion(sent.request, sent.node_id, response, None, 0.0))

    def fail(self, sent: Sent, error: KafkaError, *, never_left: bool = False) -> None:
        self.under_way.remove(sent)
        self._completions.append(Completion(sent.request, sent.node_id, None, error, 0.0, never_left))
