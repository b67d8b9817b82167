"""Produce (key 0), versions 2 to 13.

Version 2 stores message sets of magic 0 and 1, later ones a single magic 2 batch per partition; checked, stamped with
offset and leader epoch, otherwise kept as sent. Batches of idempotent producers are checked against what the partition
knows of them (producer_state.py); a transaction's first batch in a partition needs the coordinator's word for it, which
from version 12 on makes the partition part of the transaction (KIP-890). acks 1 is answered at once; acks all waits in
the purgatory until all copies in sync have the records, which is at once where there is one copy; acks 0 is not
answered, and an error then closes the connection, as in Kafka. From version 10 on a client that asked the wrong node is
told the right one (KIP-951).

Deviations: message sets are not converted to magic 2; time stamps are always the producer's (CreateTime); every error
has a message.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from kafkabuf.broker.apis.dispatch import Frame, api
from kafkabuf.broker.log import batch, message_set, records
from kafkabuf.broker.log.batch import BatchInfo
from kafkabuf.broker.replica.delayed import DelayedAnswer, Pending, ReplicationWait
from kafkabuf.broker.replica.replication import Replica
from kafkabuf.errors import (
    ConcurrentTransactionsError,
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    KafkaError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    TransactionalIdAuthorizationError,
    error_for_code,
)
from kafkabuf.protocol import produce
from kafkabuf.protocol.messages import PRODUCE, RequestHeader
from kafkabuf.protocol.produce import PartitionResult, ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from kafkabuf.broker.cluster.cluster import Node

log = logging.getLogger("kafkabuf.broker")

ALL = -1
_FIRST_TO_KNOW_ABORTABLE = 11
_FIRST_OF_VERSION_2 = 12
_HINTED = (NotLeaderOrFollowerError.code, FencedLeaderEpochError.code)


def _encode(header: RequestHeader, answer: ProduceResponse, throttle_ms: int) -> Frame:
    return (produce.encode_response(header, answer, throttle_ms),)


@api(
    PRODUCE,
    produce.MIN_VERSION,
    produce.MAX_VERSION,
    decode=produce.decode_request,
    encode=_encode,
    own_errors=True,
    fails_after=True,
)
def handle(
    node: Node, header: RequestHeader, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse] | None:
    answer = _Produce(node, header, request)
    if request.acks == 0:
        failed = [result for _, results in answer.topics for result in results if result.error_code]
        if failed:
            raise InvalidRequestError(f"acks=0 leaves no other way to tell of an error: {failed[0]}")
        return None
    return answer.wait() if answer.pending else answer.response()


class _Produce:
    """One request: everything is appended by the time it is made, and followers hear of it all at once. `pending` are
    the partitions that wait for copies."""

    def __init__(self, node: Node, header: RequestHeader, request: ProduceRequest) -> None:
        self._node = node
        self._header = header
        self._request = request
        self.topics: list[tuple[str | UUID, list[PartitionResult]]] = []
        self.pending: list[Pending] = []
        # Where in `topics` the results of `pending` are: topic, partition. And what was appended: also its end.
        self._places: list[tuple[int, int]] = []
        self._appended: list[tuple[int, int, Replica, int]] = []
        names = {topic: _name(node, topic) for topic, _ in request.topics}
        faults = node.cluster.faults
        before = faults.take_errors(PRODUCE, list(names.values()))
        after = {} if before else faults.take_errors(PRODUCE, list(names.values()), after=True)
        for topic, partitions in request.topics:
            code = before.get(names[topic], before.get(None, 0))
            late = after.get(names[topic], after.get(None, 0))
            results: list[PartitionResult] = []
            self.topics.append((topic, results))
            for index, data in partitions:
                results.append(self._append(topic, index, data, code, late))
        self._spread()

    def _spread(self) -> None:
        for _, _, leader, _ in self._appended:
            leader.appended()
        for topic, place, leader, end in self._appended:
            failed = self.topics[topic][1][place].error_code
            if self._request.acks == ALL and leader.log.high_watermark < end and not failed:
                self.pending.append(Pending(leader, leader.known.epoch, end))
                self._places.append((topic, place))

    def wait(self) -> Awaitable[ProduceResponse]:
        """Until all copies in sync have what was appended, or this cannot be any more, or the time is over."""
        copies = ReplicationWait(self.pending)

        def answer() -> ProduceResponse:
            for (topic, place), error in zip(self._places, copies.errors(), strict=True):
                if error is not None:
                    results = self.topics[topic][1]
                    results[place] = replace(results[place], error_code=error.code, error_message=str(error))
            return self.response()

        parked = DelayedAnswer(self._request.timeout_ms / 1000, copies.over, answer)
        return parked.park(self._node.produces, [one.replica.partition for one in self.pending])

    def response(self) -> ProduceResponse:
        topics = [(topic, [_hint(self._node, topic, one) for one in results]) for topic, results in self.topics]
        return ProduceResponse(topics, _endpoints(self._node, topics))

    def _append(
        self, name: str | UUID, index: int, data: memoryview | None, injected: int, late: int
    ) -> PartitionResult:
        start = -1
        try:
            if injected:
                raise error_for_code(injected)
            leader = self._leader(name, index)
            data = memoryview(b"") if data is None else data
            if self._header.version < 3:
                result, end = _store_message_set(self._node, leader, data)
            else:
                info = self._check(leader, data)
                start = leader.log.log_start_offset
                result, end = _store(self._node, leader, info, data)
        except KafkaError as error:
            log.info("node %d: produce to %s-%d refused: %s", self._node.node_id, name, index, error)
            return PartitionResult(index, error.code, log_start_offset=start, error_message=str(error))
        self._appended.append((len(self.topics) - 1, len(self.topics[-1][1]), leader, end))
        return PartitionResult(index, late) if late else result

    def _leader(self, name: str | UUID, index: int) -> Replica:
        """The copy to append to. For acks=all enough must be in sync."""
        acks = self._request.acks
        if acks not in (ALL, 0, 1):
            raise InvalidRequiredAcksError(f"acks={acks}: -1, 0 and 1 are allowed")
        leader = self._node.cluster.topic(name).partition(index).led_by(self._node.node_id)
        if acks == ALL and not leader.enough_in_sync:
            raise NotEnoughReplicasError(
                f"{len(leader.known.isr)} copies are in sync, min.insync.replicas is {leader.partition.min_isr}"
            )
        return leader

    def _check(self, leader: Replica, data: memoryview) -> BatchInfo:
        limits, now = leader.partition.topic.limits, self._node.cluster.clock.time_ms()
        info = batch.check_batch(data, self._header.version, limits, now)
        if info.producer_id >= 0 and info.transactional:
            _join_transaction(self._node, self._header, self._request, leader, info)
        return info


def _name(node: Node, topic: str | UUID) -> str:
    try:
        return node.cluster.topic(topic).name
    except KafkaError:
        return str(topic)


def _join_transaction(
    node: Node,
    header: RequestHeader,
    request: ProduceRequest,
    leader: Replica,
    info: BatchInfo,
) -> None:
    """Nothing to ask while the transaction is open here: then its marker has not been written."""
    if request.transactional_id is None:
        raise TransactionalIdAuthorizationError("transactional records need a transactional id")
    producers, where = leader.log.producers, (leader.partition.topic.name, leader.partition.index)
    if producers.in_transaction(info.producer_id, info.producer_epoch):
        return
    version_2 = header.version >= _FIRST_OF_VERSION_2
    producers.start_verification(info, version_2)
    try:
        node.cluster.transactions.join(
            request.transactional_id,
            (info.producer_id, info.producer_epoch),
            where,
            add=version_2,
            knows_abortable=header.version >= _FIRST_TO_KNOW_ABORTABLE,
        )
    except ConcurrentTransactionsError as error:
        # As Kafka, which means by it: send again, and do not look for another leader.
        raise NotEnoughReplicasError(f"cannot tell whether {where} is part of the transaction: {error}") from error


def _store_message_set(node: Node, leader: Replica, data: memoryview) -> tuple[PartitionResult, int]:
    """The result, and the offset behind the last record."""
    info, offsets = message_set.check_message_set(data, leader.partition.topic.limits, node.cluster.clock.time_ms())
    stored = bytearray(data)
    message_set.stamp(stored, offsets, leader.log.end_offset)
    base = leader.log.append(stored, info, leader.known.epoch)
    return PartitionResult(leader.partition.index, 0, base, -1, leader.log.log_start_offset), base + info.count


def _store(node: Node, leader: Replica, info: BatchInfo, data: memoryview) -> tuple[PartitionResult, int]:
    kept, index, now = leader.log, leader.partition.index, node.cluster.clock.time_ms()
    if info.producer_id >= 0:
        if (found := kept.producers.duplicate(info)) is not None:
            result = PartitionResult(index, 0, found.base_offset, found.max_timestamp, kept.log_start_offset)
            return result, found.base_offset + info.count
        kept.producers.check(info, now)
    if node.cluster.config.verify_records:
        records.verify(data)
    stored = bytearray(data)
    batch.stamp(stored, kept.end_offset, leader.known.epoch)
    base = kept.append(stored, info, leader.known.epoch, now)
    return PartitionResult(index, 0, base, -1, kept.log_start_offset), base + info.count


def _hint(node: Node, name: str | UUID, result: PartitionResult) -> PartitionResult:
    if result.error_code not in _HINTED:
        return result
    try:
        seen = node.cluster.topic(name).partition(result.partition).seen_by(node.node_id)
    except KafkaError:
        return result
    return replace(result, leader=(seen.leader, seen.epoch))


def _endpoints(node: Node, topics: list[tuple[str | UUID, list[PartitionResult]]]) -> list[tuple[int, str, int]]:
    leaders = {result.leader[0] for _, results in topics for result in results if result.leader is not None}
    found = [node.cluster.nodes[one] for one in sorted(leaders) if one in node.cluster.nodes]
    return [(one.node_id, one.host, one.port) for one in found]
