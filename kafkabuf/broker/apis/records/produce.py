"""Produce (key 0), versions 2 to 13, on the leader: appends batches. replica/_appending.pyx says how.

The node answers a request with acks=1 at once. It parks a request with acks=all until all replicas in sync have the
records; where the leader has the only replica, that is at once. It does not answer a request with acks=0: an error then
closes the connection, as in Kafka. From version 10 on, a client that asks the wrong node learns from the response which
node leads (KIP-951).

Deviations: the node does not convert message sets to magic 2. Every error has a message. The response names at most
10,000 bad records, and the first of each batch. The error for an unknown codec
says what is wrong, unlike Kafka's. The log_start_offset of a refused batch may differ from Kafka's.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from kafkabuf.broker.apis.dispatch import Frame, api
from kafkabuf.broker.apis.operations import topic_codes
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.faults import NO_ERROR
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.records.batch import is_compressed, is_transactional, producer_of
from kafkabuf.broker.replica._appending import Appended, append_as_leader
from kafkabuf.broker.replica.delayed import MANY, DelayedResponse, Pending, ReplicationWait
from kafkabuf.broker.replica.rare_appends import ALL, Terms
from kafkabuf.broker.replica.replication import Replica
from kafkabuf.broker.waiting.slices import Work, finish, next_slice
from kafkabuf.broker.wire import produce
from kafkabuf.broker.wire._partition_result import PartitionResult
from kafkabuf.broker.wire.produce import ProduceRequest, ProduceResponse, Topics
from kafkabuf.errors import (
    FencedLeaderEpochError,
    InvalidRequestError,
    KafkaError,
    NotLeaderOrFollowerError,
    TransactionalIdAuthorizationError,
    error_for_code,
)
from kafkabuf.protocol.messages import PRODUCE, RequestHeader

log = logging.getLogger("kafkabuf.broker")

_HINTED = (NotLeaderOrFollowerError.code, FencedLeaderEpochError.code)
# A step of work in slices takes _STEP batches. A batch of _LARGE bytes, or a compressed batch, is a step alone:
# the leader may have to read its records.
_STEP = 8
_LARGE = 1 << 15
# The response names at most this number of bad records, and one of each batch.
_MOST_NAMED = 10_000
# None with acks=0.
_Response = ProduceResponse | None


def _encode(header: RequestHeader, response: ProduceResponse, throttle_ms: int) -> Frame:
    return (produce.encode_response(header, response, throttle_ms),)


@api(
    PRODUCE,
    produce.MIN_VERSION,
    produce.MAX_VERSION,
    decode=produce.decode_request,
    decode_in_steps=None,
    encode=_encode,
    own_errors=True,
    fails_after=True,
)
def handle(node: Node, header: RequestHeader, request: ProduceRequest) -> _Response | Awaitable[_Response]:
    count = sum(len(partitions) for _, partitions in request.topics)
    if count > 1:
        request = replace(request, topics=_last_of_each(request.topics))
    else:
        response: _Response | Awaitable[_Response] = finish(_answer(node, header, request))
        return response
    answer = _answer if count < MANY else _answer_later
    return node.cluster.slices.run(answer(node, header, request), goes_on=True)


def _last_of_each(topics: Topics) -> Topics:
    """Of several batches for one partition only the last counts, as in Kafka."""
    batches: dict[str | UUID, dict[int, bytearray | None]] = {}
    for topic, partitions in topics:
        batches.setdefault(topic, {}).update(partitions)
    return [(topic, list(partitions.items())) for topic, partitions in batches.items()]


def _answer_later(node: Node, header: RequestHeader, request: ProduceRequest) -> Work[Any]:
    """This turn of the loop has decoded thousands of partitions: the next turns append to them."""
    yield from next_slice()
    return (yield from _answer(node, header, request))


def _answer(node: Node, header: RequestHeader, request: ProduceRequest) -> Work[Any]:
    produced = _Produce(node, header, request)
    yield from produced.append()
    if request.acks == 0:
        produced.check()
        return None
    return produced.wait() if produced.pending else produced.response()


class _Produce:
    """One request. The node appends the batches of all partitions before the followers of any partition hear of them.
    `pending` are the partitions that wait for their followers."""

    def __init__(self, node: Node, header: RequestHeader, request: ProduceRequest) -> None:
        self._node = node
        self._request = request
        self._terms = Terms(header.version, request.acks, request.transactional_id)
        names = {topic: node.cluster.catalogue.topic_name(topic) for topic, _ in request.topics}
        faults = node.cluster.faults
        before = faults.take_errors(PRODUCE, list(names.values()))
        after = NO_ERROR if before else faults.take_errors(PRODUCE, list(names.values()), after=True)
        self._codes = {topic: (before.code_for(name), after.code_for(name)) for topic, name in names.items()}
        self._topics: list[tuple[str | UUID, list[PartitionResult]]] = []
        self._named = 0
        # For each batch in a log: its result, the offset behind its last record, and the leader.
        self._appended: list[tuple[PartitionResult, int, Replica]] = []
        self.pending: list[tuple[PartitionResult, Pending]] = []
        if (rights := rights_of(header)).limited:
            for topic, refused in _refusals(node, rights, request).items():
                code, code_after = self._codes[topic]
                self._codes[topic] = code or refused, code_after

    def append(self) -> Work[None]:
        if self._terms.adds_partitions and self._terms.transactional_id is not None:
            yield from self._join_transaction(self._terms.transactional_id)
        for topic, partitions in self._request.topics:
            results: list[PartitionResult] = []
            self._topics.append((topic, results))
            injected, code_after = self._codes[topic]
            for number, (index, data) in enumerate(partitions, 1):
                results.append(self._append(topic, index, data, injected, code_after))
                if not number % _STEP or (data is not None and (len(data) > _LARGE or is_compressed(data))):
                    yield
            yield
        yield from self._tell_followers()

    def _join_transaction(self, transactional_id: str) -> Work[None]:
        """Adds the partitions of the request to its transaction at once. If each were added alone, the coordinator
        would store for each all those before it."""
        added: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for topic, partitions in self._request.topics:
            injected, _ = self._codes[topic]
            for number, (index, data) in enumerate(() if injected else partitions, 1):
                producer = None if data is None else producer_of(data)
                if producer is not None and (partition := self._joining(topic, index, producer)) is not None:
                    added.setdefault(producer, []).append(partition)
                if not number % _STEP:
                    yield
        for producer, those in added.items():
            with suppress(KafkaError):  # each partition gets the error when its batch is appended
                self._node.cluster.transactions.add(transactional_id, producer, those)
            yield

    def _joining(self, topic: str | UUID, index: int, producer: tuple[int, int]) -> tuple[str, int] | None:
        """The partition, if the node leads it and no transaction of the producer is open in its log."""
        with suppress(KafkaError):
            known = self._node.cluster.catalogue.topic(topic)
            leader = known.partition(index).led_by(self._node.node_id)
            if not known.internal and not leader.log.producers.in_transaction(*producer):
                return known.name, index
        return None

    def _append(
        self, topic: str | UUID, index: int, data: bytearray | None, injected: int, code_after: int
    ) -> PartitionResult:
        """Appends a batch. The result has the error code `code_after` then (0: none). With an error code in `injected`
        the batch is not appended."""
        if injected:
            appended = Appended(error=error_for_code(injected))
        else:
            records, most = bytearray() if data is None else data, max(_MOST_NAMED - self._named, 1)
            appended = append_as_leader(self._node, topic, index, records, self._terms, most)
            self._named += len(appended.record_errors)
        if (error := appended.error) is not None:
            return self._refused(topic, index, appended, error)
        if code_after:
            result = PartitionResult(index, code_after)
        else:
            result = PartitionResult(index, 0, appended.base_offset, appended.append_time, appended.log_start_offset)
        if (leader := appended.leader) is not None:
            self._appended.append((result, appended.end, leader))
        return result

    def _refused(self, topic: str | UUID, index: int, appended: Appended, error: KafkaError) -> PartitionResult:
        log.info("node %d: produce to %r, partition %d, refused: %s", self._node.node_id, str(topic), index, error)
        return PartitionResult(
            index,
            error.code,
            log_start_offset=appended.log_start_offset,
            error_message=str(error),
            record_errors=appended.record_errors,
        )

    def _tell_followers(self) -> Work[None]:
        """Tells the followers of the new records, and notes the partitions that wait for their followers."""
        for number, (_, _, leader) in enumerate(self._appended, 1):
            leader.appended()
            if not number % _STEP:
                yield
        if self._request.acks == ALL:
            self.pending = [
                (result, Pending(leader, leader.known.epoch, end))
                for result, end, leader in self._appended
                if leader.log.high_watermark < end and not result.error_code
            ]

    def check(self) -> None:
        """For acks=0: raises InvalidRequestError, which closes the connection, if a partition has an error."""
        for topic, results in self._topics:
            for result in results:
                if result.error_code:
                    raise InvalidRequestError(
                        "a request with acks=0 gets no response, and it has failed: "
                        f"{topic!s}, partition {result.partition}: error {result.error_code}, {result.error_message}"
                    )

    def wait(self) -> Awaitable[ProduceResponse]:
        """Parks the request until all replicas in sync have the records or cannot get them any more, or until the
        request's timeout is over."""
        replication = ReplicationWait([pending for _, pending in self.pending])

        def respond() -> ProduceResponse:
            for (result, _), error in zip(self.pending, replication.errors(), strict=True):
                if error is not None:
                    result.error_code, result.error_message = error.code, str(error)
            return self.response()

        partitions = [pending.replica.partition for _, pending in self.pending]
        parked = DelayedResponse(self._request.timeout_ms / 1000, replication.over, respond, partitions)
        return parked.park(self._node.produces)

    def response(self) -> ProduceResponse:
        for topic, results in self._topics:
            for result in results:
                if result.error_code in _HINTED:
                    _hint(self._node, topic, result)
        return ProduceResponse(self._topics, _endpoints(self._node, self._topics))


def _refusals(node: Node, rights: Rights, request: ProduceRequest) -> dict[str | UUID, int]:
    """The error codes of the topics to which the client may not write. Transactional records need a right to the
    transactional id: without this right nothing of the request is appended."""
    names = [topic for topic, _ in request.topics]
    if any(records and is_transactional(records) for _, partitions in request.topics for _, records in partitions):
        name = request.transactional_id
        if name is None or not rights.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
            return dict.fromkeys(names, TransactionalIdAuthorizationError.code)
    return topic_codes(node, rights, Operation.WRITE, names)


def _hint(node: Node, topic: str | UUID, result: PartitionResult) -> None:
    """Adds the leader to a result whose error says that another node leads."""
    try:
        state = node.cluster.catalogue.topic(topic).partition(result.partition).seen_by(node.node_id)
    except KafkaError:
        return
    result.leader = (state.leader, state.epoch)


def _endpoints(node: Node, topics: list[tuple[str | UUID, list[PartitionResult]]]) -> list[tuple[int, str, int]]:
    """The addresses of the leaders that the results name."""
    node_ids = {result.leader[0] for _, results in topics for result in results if result.leader is not None}
    leaders = [node.cluster.nodes[node_id] for node_id in sorted(node_ids) if node_id in node.cluster.nodes]
    return [(leader.node_id, leader.host, leader.port) for leader in leaders]
