"""Fetch (key 1), versions 4 to 18, for clients, on the leader: reads records. replica/reading.py says how.

Deviations: there are no fetch sessions (the session id is always 0, which makes clients send full requests). The node
ignores a replica id that comes over a connection. It never converts magic 0 and 1. The list of aborted transactions of
a partition with an error is null, where Kafka's may be empty.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kafkabuf.broker.apis.dispatch import Frame, api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.replica.reading import Response, read
from kafkabuf.protocol import fetch
from kafkabuf.protocol.fetch import FetchRequest
from kafkabuf.protocol.messages import FETCH, RequestHeader

_FETCH_SESSION_ID_NOT_FOUND = 70


def _encode(header: RequestHeader, response: Response | int, throttle_ms: int) -> Frame:
    if isinstance(response, int):
        return fetch.encode_response(header, [], response, throttle_ms)
    return fetch.encode_response(header, response, 0, throttle_ms)


@api(FETCH, fetch.MIN_VERSION, fetch.MAX_VERSION, decode=fetch.decode_request, encode=_encode, own_errors=True)
def handle(node: Node, header: RequestHeader, request: FetchRequest) -> Response | int | Awaitable[Response]:
    if request.session_id != 0:
        return _FETCH_SESSION_ID_NOT_FOUND
    names = {topic: node.cluster.catalogue.topic_name(topic) for topic, _ in request.topics}
    injected = node.cluster.faults.take_errors(FETCH, list(names.values()))
    codes = {topic: injected.code_for(name) for topic, name in names.items()} if injected else {}
    return read(node, request, codes)
