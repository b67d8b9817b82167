"""The clients that push metrics to a node: Kafka's ClientMetricsManager, one for each node.

The node forgets a client when its connection ends, when it has not been heard of for a minute and for three of its
intervals, and, of 16,384 clients, the client that was silent for the longest time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from kafkabuf.broker.configs.resources import MetricsConfigs
from kafkabuf.broker.telemetry.arrived import Arrived, Push
from kafkabuf.broker.telemetry.peer import Peer
from kafkabuf.broker.telemetry.subscriptions import Wanted, wanted_of, what_a_client_is
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.clock import Clock
from kafkabuf.protocol.error_codes import ErrorCode

MOST_CLIENTS = 16_384
_FORGET_AFTER = 60.0
_FORGET_AFTER_INTERVALS = 3
# zstd, lz4, gzip, snappy, in the order of Kafka's preference.
COMPRESSIONS = (4, 3, 1, 2)
_CODECS = range(5)
_NEVER = float("-inf")
_RESERVED = (UUID(int=0), UUID(int=1))
# After these errors a client may ask for its subscription at once.
_ASK_AT_ONCE = (ErrorCode.unknown_subscription_id, ErrorCode.unsupported_compression_type)


@dataclass(slots=True)
class _Client:
    """Times are seconds on the cluster's clock. `peer`: of the connection with whose end the client is forgotten."""

    peer: Peer
    version: int
    subscription_id: int
    interval: float
    heard: float = _NEVER
    last_get: float = _NEVER
    last_push: float = _NEVER
    last_error: ErrorCode = ErrorCode.none
    terminating: bool = False

    def may_get(self, now: float) -> bool:
        if now - max(self.last_get, self.last_push) >= self.interval:
            self.last_get = now
            return True
        return self.last_error in _ASK_AT_ONCE

    def may_push(self, now: float) -> bool:
        """The first push after the subscription may come early: clients spread their first pushes."""
        if self.last_get <= self.last_push and now - self.last_push < self.interval:
            return False
        self.last_push = now
        return True


class ClientMetricsManager:
    """`largest`: the most bytes of a push, as they come. Accepted pushes go to `arrived`."""

    def __init__(
        self, node_id: int, subscriptions: MetricsConfigs, clock: Clock, largest: int, arrived: Arrived
    ) -> None:
        self._node_id = node_id
        self._subscriptions = subscriptions
        self._clock = clock
        self._largest = largest
        self._arrived = arrived
        # The one that was silent for the longest time comes first.
        self._clients: OrderedDict[UUID, _Client] = OrderedDict()
        self._of_peers: dict[Peer, UUID] = {}

    def subscribe(self, request: Any, client_id: str | None, peer: Peer) -> Work[dict[str, Any]]:
        """The response to GetTelemetrySubscriptions: THROTTLING_QUOTA_EXCEEDED if the client asks too often."""
        instance_id = request.client_instance_id
        if instance_id is None or instance_id.int == 0:
            instance_id = uuid4()
        client = yield from self._client(instance_id, client_id, peer)
        if not client.may_get(self._clock.monotonic()):
            return {"error_code": ErrorCode.throttling_quota_exceeded}
        client.last_error = ErrorCode.none
        wanted = yield from self._wanted(instance_id, client_id, peer)
        return {
            "client_instance_id": instance_id,
            "subscription_id": wanted.subscription_id,
            "accepted_compression_types": COMPRESSIONS,
            "push_interval": wanted.interval_ms,
            "telemetry_max_bytes": self._largest,
            "delta_temporality": True,
            "requested_metrics": wanted.metrics,
        }

    def push(self, request: Any, client_id: str | None, peer: Peer) -> Work[dict[str, Any]]:
        """The response to PushTelemetry, with the errors of Kafka's ClientMetricsManager.validatePushRequest."""
        instance_id, content = request.client_instance_id, bytes(request.metrics)
        if instance_id is None or instance_id in _RESERVED:
            return {"error_code": ErrorCode.invalid_request}
        client = yield from self._client(instance_id, client_id, peer)
        client.last_error = self._check(client, request, len(content))
        client.terminating = request.terminating
        if client.last_error is ErrorCode.none:
            at_ms, codec = self._clock.time_ms(), request.compression_type
            self._arrived.add(Push(instance_id, client_id, self._node_id, at_ms, request.terminating, codec, content))
        return {"error_code": client.last_error}

    def disconnected(self, peer: Peer) -> None:
        """The connection of a client has ended."""
        if (instance_id := self._of_peers.get(peer)) is not None:
            self._forget(instance_id)

    def _check(self, client: _Client, request: Any, size: int) -> ErrorCode:
        if client.terminating:
            return ErrorCode.invalid_request
        if not client.may_push(self._clock.monotonic()) and not request.terminating:
            return ErrorCode.throttling_quota_exceeded
        if request.subscription_id != client.subscription_id:
            return ErrorCode.unknown_subscription_id
        if request.compression_type not in _CODECS:
            return ErrorCode.unsupported_compression_type
        return ErrorCode.telemetry_too_large if size > self._largest else ErrorCode.none

    def _client(self, instance_id: UUID, client_id: str | None, peer: Peer) -> Work[_Client]:
        """What is known of a client; made again if the subscriptions have changed."""
        client = self._known(instance_id)
        if client is None:
            wanted = yield from self._wanted(instance_id, client_id, peer)
            # Another connection may have had the same id meanwhile.
            client = self._known(instance_id)
            if client is None:
                client = _Client(peer, wanted.version, wanted.subscription_id, wanted.interval_ms / 1000)
                self._keep(instance_id, client)
        client.heard = self._clock.monotonic()
        self._clients.move_to_end(instance_id)
        return client

    def _wanted(self, instance_id: UUID, client_id: str | None, peer: Peer) -> Work[Wanted]:
        about = what_a_client_is(instance_id, client_id, peer)
        return (yield from wanted_of(self._subscriptions, about, instance_id))

    def _known(self, instance_id: UUID) -> _Client | None:
        client = self._clients.get(instance_id)
        if client is None or client.version != self._subscriptions.version:
            return None
        silent = self._clock.monotonic() - client.heard
        return client if silent < max(_FORGET_AFTER, _FORGET_AFTER_INTERVALS * client.interval) else None

    def _keep(self, instance_id: UUID, client: _Client) -> None:
        self._forget(instance_id)
        self._clients[instance_id] = client
        self._of_peers[client.peer] = instance_id
        if len(self._clients) > MOST_CLIENTS:
            self._forget(next(iter(self._clients)))

    def _forget(self, instance_id: UUID) -> None:
        client = self._clients.pop(instance_id, None)
        if client is not None and self._of_peers.get(client.peer) == instance_id:
            del self._of_peers[client.peer]
