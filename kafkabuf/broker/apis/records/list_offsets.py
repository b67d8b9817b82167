"""ListOffsets (key 2), versions 1 to 10, on the leader: looks up an offset of a partition.

A request names a timestamp, for the first record at or after it, or a special offset: latest (-1), earliest (-2),
newest timestamp (-3), earliest in local storage (-4), latest in remote storage (-5). A timestamp is looked up record by
record, in compressed batches too. With read_committed (version 2 and later) the log ends at its last stable offset. The
node refuses a partition that a request names twice.

Deviation: there is no remote storage.
"""

from __future__ import annotations

from asyncio import Future
from collections import Counter
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.replica.replication import Replica
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidRequestError, KafkaError, UnsupportedVersionError, error_for_code
from kafkabuf.protocol.messages import LIST_OFFSETS, RequestHeader

LATEST, EARLIEST, NEWEST_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
# The first version that knows each special offset.
_FIRST = {LATEST: 1, EARLIEST: 1, NEWEST_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
_NOTHING = -1
_READ_COMMITTED = 1
_NAMED_TWICE = InvalidRequestError("the request names the partition twice")


@api(LIST_OFFSETS, 1, 10, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_look_up_all(node, header, request))


def _look_up_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    injected = node.cluster.faults.take_errors(LIST_OFFSETS, [topic.name for topic in request.topics])
    committed = getattr(request, "isolation_level", 0) == _READ_COMMITTED
    repeated, rights = _repeated(request), rights_of(header)
    topics = []
    for topic in request.topics:
        code = injected.code_for(topic.name) or rights.code(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        partitions = []
        for index, requested in {item.partition_index: item for item in topic.partitions}.items():
            if not code and (topic.name, index) in repeated:
                partitions.append(_refuse(index, _NAMED_TWICE))
            else:
                answer = yield from _look_up(node, header, topic.name, requested, committed, code)
                partitions.append(answer)
            yield
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


def _repeated(request: Any) -> set[tuple[str, int]]:
    """The partitions that a request names more than once."""
    named = Counter((topic.name, item.partition_index) for topic in request.topics for item in topic.partitions)
    return {partition for partition, times in named.items() if times > 1}


def _look_up(
    node: Node, header: RequestHeader, name: str, requested: Any, committed: bool, code: int
) -> Work[dict[str, int]]:
    index = requested.partition_index
    try:
        if code:
            raise error_for_code(code)
        if requested.timestamp < 0 and header.version < _FIRST.get(requested.timestamp, header.version + 1):
            raise UnsupportedVersionError(f"version {header.version} does not know the timestamp {requested.timestamp}")
        partition = node.cluster.catalogue.topic(name).partition(index)
        leader = partition.led_by(node.node_id, getattr(requested, "current_leader_epoch", -1))
        offset, timestamp, epoch = yield from _offset(leader, requested.timestamp, committed)
    except KafkaError as error:
        return _refuse(index, error)
    return {"partition_index": index, "offset": offset, "timestamp": timestamp, "leader_epoch": epoch}


def _refuse(index: int, error: KafkaError) -> dict[str, int]:
    return {"partition_index": index, "error_code": error.code, "offset": _NOTHING, "timestamp": _NOTHING}


def _offset(leader: Replica, timestamp: int, committed: bool) -> Work[tuple[int, int, int]]:
    """(offset, timestamp, leader epoch); -1 stands for a value that does not exist."""
    log = leader.log
    end = log.last_stable_offset if committed else log.high_watermark
    if timestamp == LATEST:
        return end, _NOTHING, leader.known.epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, _NOTHING, leader.known.epoch
    if timestamp == LATEST_TIERED:
        return _NOTHING, _NOTHING, _NOTHING
    most = leader.partition.topic.limits.max_message_bytes
    finding = log.newest_in_steps(most) if timestamp == NEWEST_TIMESTAMP else log.offset_at_in_steps(timestamp, most)
    entry = yield from finding
    return entry if entry is not None and entry[0] < end else (_NOTHING, _NOTHING, _NOTHING)
