"""PushTelemetry (key 72), version 0, on any node: takes the metrics of a client (KIP-714).

`EmbeddedCluster.client_metrics` returns them. A node does not unpack them, as Kafka's does not.

Deviation: a push that cannot be read is no error for the client, where the error of Kafka's receiver becomes
INVALID_RECORD.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.telemetry.peer import Peer
from kafkabuf.protocol.messages import PUSH_TELEMETRY, RequestHeader


@api(PUSH_TELEMETRY, 0, 0, of_peer=True)
def handle(node: Node, header: RequestHeader, request: Any, peer: Peer) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(node.client_metrics.push(request, header.client_id, peer))
