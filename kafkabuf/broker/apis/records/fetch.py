"""Fetch (key 1), versions 4 to 18, for clients, on the leader: reads records. replica/reading.py says how.

A partition that the request repeats counts once, as in Kafka's FetchRequest.fetchData: at its first place, with its
last fields. `fetch.max.bytes` of the broker limits a response, and what a request can wait for.

Deviations: there are no fetch sessions (the session id is always 0, which makes clients send full requests). The node
ignores a replica id that comes over a connection. It never converts magic 0 and 1. The list of aborted transactions of
a partition with an error is null, where Kafka's may be empty.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any
from uuid import UUID

from kafkabuf.broker.apis.dispatch import Frame, api
from kafkabuf.broker.apis.operations import topic_codes
from kafkabuf.broker.guards.acls import Operation
from kafkabuf.broker.guards.limits import FETCH_MAX_BYTES
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.replica.delayed import MANY
from kafkabuf.broker.replica.reading import Response, read, read_in_steps
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.broker.wire import fetch
from kafkabuf.broker.wire.fetch import FetchPartition, FetchRequest
from kafkabuf.protocol.messages import FETCH, RequestHeader

_FETCH_SESSION_ID_NOT_FOUND = 70
_Topics = Sequence[tuple[str | UUID, list[FetchPartition]]]


def _encode(header: RequestHeader, response: Response | int, throttle_ms: int) -> Frame:
    if isinstance(response, int):
        return fetch.encode_response(header, [], response, throttle_ms)
    return fetch.encode_response(header, response, 0, throttle_ms)


@api(
    FETCH,
    fetch.MIN_VERSION,
    fetch.MAX_VERSION,
    decode=fetch.decode_request,
    decode_in_steps=fetch.decode_request_in_steps,
    encode=_encode,
    own_errors=True,
)
def handle(node: Node, header: RequestHeader, request: FetchRequest) -> Response | int | Awaitable[Response]:
    if request.session_id != 0:
        return _FETCH_SESSION_ID_NOT_FOUND
    names = {topic: node.cluster.catalogue.topic_name(topic) for topic, _ in request.topics}
    injected = node.cluster.faults.take_errors(FETCH, list(names.values()))
    codes = {topic: injected.code_for(name) for topic, name in names.items()} if injected else {}
    if (rights := rights_of(header)).limited:
        refused = topic_codes(node, rights, Operation.READ, names)
        codes = {topic: codes.get(topic) or code for topic, code in refused.items()}
    max_bytes = min(request.max_bytes, FETCH_MAX_BYTES)
    bounded = replace(
        request,
        max_bytes=max_bytes,
        min_bytes=min(request.min_bytes, max_bytes),
        topics=_without_repeats(request.topics),
    )
    if sum(len(partitions) for _, partitions in bounded.topics) < MANY:
        return read(node, bounded, codes)
    reading: Work[Any] = read_in_steps(node, bounded, codes)
    return node.cluster.slices.run(reading)


def _without_repeats(topics: _Topics) -> _Topics:
    if len(topics) == 1 and len(topics[0][1]) == 1:
        return topics
    last = {(topic, fetch.partition): fetch for topic, partitions in topics for fetch in partitions}
    by_topic = groupby(last.items(), key=lambda item: item[0][0])
    return [(topic, [fetch for _, fetch in items]) for topic, items in by_topic]
