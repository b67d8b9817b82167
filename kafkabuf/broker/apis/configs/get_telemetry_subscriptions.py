"""GetTelemetrySubscriptions (key 71), version 0, on any node: which metrics a client should push.

The response also says how often (KIP-714). As Kafka without a receiver of metrics, a node answers but does not list
this API and PushTelemetry in ApiVersions, unless the cluster has `client_metrics`.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.telemetry.peer import Peer
from kafkabuf.protocol.messages import GET_TELEMETRY_SUBSCRIPTIONS, RequestHeader


@api(GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, of_peer=True)
def handle(node: Node, header: RequestHeader, request: Any, peer: Peer) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(node.client_metrics.subscribe(request, header.client_id, peer))
