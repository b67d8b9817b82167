"""Produce (key 0), versions 2 to 13, on the leader: appends batches. replica/appending.py says how.

The node answers a request with acks=1 at once. It parks a request with acks=all until all copies in sync have the
records; where the leader has the only copy, that is at once. It does not answer a request with acks=0: an error then
closes the connection, as in Kafka. From version 10 on, a client that asks the wrong node learns from the response which
node leads (KIP-951).

Deviations: the node does not convert message sets to magic 2. Every error has a message. The error for an unknown codec
says what is wrong, unlike Kafka's. The log_start_offset of a refused batch may differ from Kafka's.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from kafkabuf.broker.apis.dispatch import Frame, api
from kafkabuf.broker.apis.operations import topic_codes
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.faults import NO_ERROR
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.log.batch import is_transactional
from kafkabuf.broker.replica.appending import ALL, Appended, Terms, append_as_leader
from kafkabuf.broker.replica.delayed import MANY, DelayedResponse, Pending, ReplicationWait
from kafkabuf.broker.waiting.slices import Work, finish, next_slice
from kafkabuf.errors import (
    FencedLeaderEpochError,
    InvalidRequestError,
    KafkaError,
    NotLeaderOrFollowerError,
    TransactionalIdAuthorizationError,
    error_for_code,
)
from kafkabuf.protocol import produce
from kafkabuf.protocol.messages import PRODUCE, RequestHeader
from kafkabuf.protocol.produce import PartitionResult, ProduceRequest, ProduceResponse

log = logging.getLogger("kafkabuf.broker")

_HINTED = (NotLeaderOrFollowerError.code, FencedLeaderEpochError.code)
_NO_DATA = memoryview(b"")
_Topics = list[tuple[str | UUID, list[tuple[int, memoryview | None]]]]
# A step of work in slices takes so many batches; a batch of so many bytes is a step alone.
_STEP = 8
_LARGE = 1 << 15
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
    if sum(len(partitions) for _, partitions in request.topics) < MANY:
        response: _Response | Awaitable[_Response] = finish(_answer(node, header, request))
        return response
    request = replace(request, topics=_on_a_copy(request.topics))
    return node.cluster.slices.run(_answer_later(node, header, request), goes_on=True)


def _on_a_copy(topics: _Topics) -> _Topics:
    """The same records in memory of their own: the request's bytes are not valid any more when `handle` has returned.
    It is one copy for all partitions, which the allocator finds and frees at once."""
    copy = memoryview(b"".join([data for _, partitions in topics for _, data in partitions if data is not None]))
    kept: _Topics = []
    at = 0
    for topic, partitions in topics:
        records: list[tuple[int, memoryview | None]] = []
        for index, data in partitions:
            if data is None:
                records.append((index, None))
            else:
                end = at + len(data)
                records.append((index, copy[at:end]))
                at = end
        kept.append((topic, records))
    return kept


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


@dataclass(slots=True)
class _Partition:
    """One partition of a request: what the leader appended, and the partition's result in the response."""

    appended: Appended
    result: PartitionResult

    def fail(self, error: KafkaError) -> None:
        self.result = replace(self.result, error_code=error.code, error_message=str(error))


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
        self._topics: list[tuple[str | UUID, list[_Partition]]] = []
        self.pending: list[tuple[_Partition, Pending]] = []
        if (rights := rights_of(header)).limited:
            for topic, refused in _refusals(node, rights, request).items():
                code, code_after = self._codes[topic]
                self._codes[topic] = code or refused, code_after

    def append(self) -> Work[None]:
        for topic, partitions in self._request.topics:
            appended = []
            for number, (index, data) in enumerate(partitions, 1):
                appended.append(self._append(topic, index, data, *self._codes[topic]))
                if not number % _STEP or (data is not None and len(data) > _LARGE):
                    yield
            self._topics.append((topic, appended))
            yield
        yield from self._tell_followers()

    def _append(
        self, topic: str | UUID, index: int, data: memoryview | None, injected: int, code_after: int
    ) -> _Partition:
        """Appends a batch. The result has the error code `code_after` then (0: none). With an error code in `injected`
        the batch is not appended."""
        if injected:
            appended = Appended(error=error_for_code(injected))
        else:
            appended = append_as_leader(self._node, topic, index, _NO_DATA if data is None else data, self._terms)
        start, error = appended.log_start_offset, appended.error
        if error is not None:
            log.info("node %d: produce to %r, partition %d, refused: %s", self._node.node_id, str(topic), index, error)
            result = PartitionResult(
                index,
                error.code,
                log_start_offset=start,
                error_message=str(error),
                record_errors=appended.record_errors,
            )
        elif code_after:
            result = PartitionResult(index, code_after)
        else:
            result = PartitionResult(index, 0, appended.base_offset, appended.append_time, start)
        return _Partition(appended, result)

    def _tell_followers(self) -> Work[None]:
        """Tells the followers of the new records, and notes the partitions that wait for their followers."""
        requested = [partition for _, partitions in self._topics for partition in partitions]
        appended = [(partition, leader) for partition in requested if (leader := partition.appended.leader) is not None]
        for number, (_, leader) in enumerate(appended, 1):
            leader.appended()
            if not number % _STEP:
                yield
        if self._request.acks == ALL:
            self.pending = [
                (partition, Pending(leader, leader.known.epoch, partition.appended.end))
                for partition, leader in appended
                if leader.log.high_watermark < partition.appended.end and not partition.result.error_code
            ]

    def check(self) -> None:
        """For acks=0: raises InvalidRequestError, which closes the connection, if a partition has an error."""
        results = [partition.result for _, partitions in self._topics for partition in partitions]
        failed = [result for result in results if result.error_code]
        if failed:
            raise InvalidRequestError(f"a request with acks=0 gets no response, and it has failed: {failed[0]}")

    def wait(self) -> Awaitable[ProduceResponse]:
        """Parks the request until all copies in sync have the records or cannot get them any more, or until the
        request's timeout is over."""
        replication = ReplicationWait([pending for _, pending in self.pending])

        def respond() -> ProduceResponse:
            for (partition, _), error in zip(self.pending, replication.errors(), strict=True):
                if error is not None:
                    partition.fail(error)
            return self.response()

        partitions = [pending.replica.partition for _, pending in self.pending]
        parked = DelayedResponse(self._request.timeout_ms / 1000, replication.over, respond, partitions)
        return parked.park(self._node.produces)

    def response(self) -> ProduceResponse:
        topics = [
            (topic, [_hint(self._node, topic, partition.result) for partition in partitions])
            for topic, partitions in self._topics
        ]
        return ProduceResponse(topics, _endpoints(self._node, topics))


def _refusals(node: Node, rights: Rights, request: ProduceRequest) -> dict[str | UUID, int]:
    """The error codes of the topics to which the client may not write. Transactional records need a right to the
    transactional id: without this right nothing of the request is appended."""
    names = [topic for topic, _ in request.topics]
    if any(records and is_transactional(records) for _, partitions in request.topics for _, records in partitions):
        name = request.transactional_id
        if name is None or not rights.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
            return dict.fromkeys(names, TransactionalIdAuthorizationError.code)
    return topic_codes(node, rights, Operation.WRITE, names)


def _hint(node: Node, topic: str | UUID, result: PartitionResult) -> PartitionResult:
    """Adds the leader to a result whose error says that another node leads."""
    if result.error_code not in _HINTED:
        return result
    try:
        state = node.cluster.catalogue.topic(topic).partition(result.partition).seen_by(node.node_id)
    except KafkaError:
        return result
    return replace(result, leader=(state.leader, state.epoch))


def _endpoints(node: Node, topics: list[tuple[str | UUID, list[PartitionResult]]]) -> list[tuple[int, str, int]]:
    """The addresses of the leaders that the results name."""
    node_ids = {result.leader[0] for _, results in topics for result in results if result.leader is not None}
    leaders = [node.cluster.nodes[node_id] for node_id in sorted(node_ids) if node_id in node.cluster.nodes]
    return [(leader.node_id, leader.host, leader.port) for leader in leaders]
