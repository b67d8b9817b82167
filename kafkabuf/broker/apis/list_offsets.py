"""ListOffsets (key 2), versions 1 to 10, on the leader: looks up an offset of a partition.

A request names a timestamp, for the first record at or after it, or a special offset: latest (-1), earliest (-2),
newest timestamp (-3), earliest in local storage (-4), latest in remote storage (-5). A timestamp is looked up record by
record, in compressed batches too. With read_committed (version 2 and later) the log ends at its last stable offset.

Deviation: there is no remote storage.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.replica.replication import Replica
from kafkabuf.errors import KafkaError, UnsupportedVersionError, error_for_code
from kafkabuf.protocol.messages import LIST_OFFSETS, RequestHeader

LATEST, EARLIEST, NEWEST_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
# The first version that knows each special offset.
_FIRST = {LATEST: 1, EARLIEST: 1, NEWEST_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
_NOTHING = -1
_READ_COMMITTED = 1


@api(LIST_OFFSETS, 1, 10, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    injected = node.cluster.faults.take_errors(LIST_OFFSETS, [topic.name for topic in request.topics])
    committed = getattr(request, "isolation_level", 0) == _READ_COMMITTED
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _look_up(node, header, topic.name, requested, committed, injected.code_for(topic.name))
                    for requested in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def _look_up(
    node: Node, header: RequestHeader, name: str, requested: Any, committed: bool, injected: int
) -> dict[str, int]:
    index = requested.partition_index
    try:
        if injected:
            raise error_for_code(injected)
        if requested.timestamp < 0 and header.version < _FIRST.get(requested.timestamp, header.version + 1):
            raise UnsupportedVersionError(f"version {header.version} does not know the timestamp {requested.timestamp}")
        partition = node.cluster.catalogue.topic(name).partition(index)
        leader = partition.led_by(node.node_id, getattr(requested, "current_leader_epoch", -1))
        offset, timestamp, epoch = _offset(leader, requested.timestamp, committed)
    except KafkaError as error:
        return {"partition_index": index, "error_code": error.code, "offset": _NOTHING, "timestamp": _NOTHING}
    return {"partition_index": index, "offset": offset, "timestamp": timestamp, "leader_epoch": epoch}


def _offset(leader: Replica, timestamp: int, committed: bool) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch); -1 stands for a value that does not exist."""
    log = leader.log
    end = log.last_stable_offset if committed else log.high_watermark
    if timestamp == LATEST:
        return end, _NOTHING, leader.known.epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, _NOTHING, leader.known.epoch
    if timestamp == LATEST_TIERED:
        return _NOTHING, _NOTHING, _NOTHING
    entry = log.newest() if timestamp == NEWEST_TIMESTAMP else log.offset_at(timestamp)
    return entry if entry is not None and entry[0] < end else (_NOTHING, _NOTHING, _NOTHING)
