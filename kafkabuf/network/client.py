"""The network client. Kafka's NetworkClient.

Its poll is _client.pyx, for which connections.py opens and ends the connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafkabuf.backoff import uniform
from kafkabuf.clock import Clock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import AuthenticationError, KafkaError, NetworkError
from kafkabuf.network import resolve
from kafkabuf.network._client import ClientCore, Requests
from kafkabuf.network._io import Poller
from kafkabuf.network._request import Completion, Request
from kafkabuf.network.connection_state import State
from kafkabuf.network.connections import Connections
from kafkabuf.network.metadata_updater import MetadataSource
from kafkabuf.network.resolve import Connector, Resolver

if TYPE_CHECKING:
    import ssl

    from kafkabuf.network.connections import MetricsPush

__all__ = ["Completion", "NetworkClient", "Request"]


class NetworkClient(ClientCore):
    """Sends requests to brokers by node id. Thread: the Sender's, except `wakeup`.

    Bootstrap servers are nodes -1, -2, ... Raises ConfigError if no bootstrap server resolves, or keys, certificates or
    credentials are missing or unreadable. `ssl_context` replaces the ssl.* settings. `connector` and `resolver` replace
    TCP and DNS in tests. A forked child drops its copy and calls nothing on it.
    """

    connections: Connections

    def __init__(
        self,
        config: ProducerConfig,
        clock: Clock,
        metadata: MetadataSource,
        poller: Poller | None = None,
        *,
        connector: Connector | None = None,
        resolver: Resolver = resolve.resolve,
        random: Callable[[], float] = uniform,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        poller, requests = poller or Poller(), Requests(config, clock)
        connections = Connections(config, clock, metadata, poller, requests, connector, resolver, random, ssl_context)
        super().__init__(metadata, poller, requests, connections)
        if config.security_protocol in ("SSL", "SASL_SSL"):
            self.most_ahead = 0  # the poll call starts waiting requests without the GIL, and encryption needs the GIL
        metadata.on_update_requested = self.wakeup

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def connection_delay(self, node_id: int) -> float:
        """Seconds until the back-off or throttling of the node ends; infinite if `ready` waits for news from `poll`.

        Raises AuthenticationError if the newest attempt ended with it and no broker has accepted this client before:
        further attempts will hardly help. Where a broker has accepted the client, a refusal may pass.
        """
        node = self.connections.node(node_id)
        now = self.requests.clock.monotonic()
        if node is not None and node.state is State.DISCONNECTED:
            if node.authentication_error is not None and not self.connections.accepted:
                raise node.authentication_error
            return max(node.not_before - now, 0.0)
        if node is not None and now < node.throttled_until and node.state is State.READY:
            return node.throttled_until - now
        return float("inf")

    def unreachable(self, node_id: int) -> KafkaError | None:
        """Why a node that is not `ready` takes no request: its connection failed and backs off, or metadata does not
        name the node. None: the node is connected or connecting, or no broker is known and no attempt has failed yet.

        A caller that may ask another node instead does so if there is an error: this node may be gone for good.
        """
        node = self.connections.node(node_id)
        if node is None:
            unknown = NetworkError(f"broker {node_id} is not among those that metadata names")
            return unknown if self._metadata.snapshot.brokers else self.connection_error()
        return node.last_error if node.state is State.DISCONNECTED else None

    def connection_error(self) -> KafkaError | None:
        """Why `least_loaded` finds no node: the error of the latest failed connection. None: no attempt has failed yet.

        Raises AuthenticationError if every known broker refuses to authenticate this client, and no broker has accepted
        it before.
        """
        nodes = self.connections.known_nodes() or self.connections.bootstrap_nodes()
        newest_first = sorted(nodes, key=lambda node: -node.not_before)
        failed = [node.last_error for node in newest_first if node.last_error is not None]
        passing = [error for error in failed if not isinstance(error, AuthenticationError)]
        if failed and not passing and len(failed) == len(nodes) and not self.connections.accepted:
            raise failed[0]
        return next(iter(passing or failed), None)

    def bootstrap_failed(self) -> bool:
        """Whether every bootstrap server was tried, over all its addresses, and its newest connection failed."""
        return all(node.failures and node.last_error is not None for node in self.connections.bootstrap_nodes())

    def bootstrap_error(self) -> KafkaError:
        """Why no bootstrap server has given metadata, once `bootstrap_failed`."""
        errors = [node.last_error for node in self.connections.bootstrap_nodes() if node.last_error is not None]
        if len(errors) == 1:
            return type(errors[0])(*errors[0].args)
        return NetworkError("no bootstrap server can be used: " + "; ".join(map(str, errors)))

    def in_flight(self, node_id: int) -> int:
        """How many requests to the node are sent or queued, and not complete."""
        node = self.requests.nodes.get(node_id)
        return 0 if node is None else len(node.in_flight)

    def last_error(self, node_id: int) -> KafkaError | None:
        """The error of the node's newest attempt or connection. None: the node is ready, or was never tried."""
        node = self.requests.nodes.get(node_id)
        return None if node is None else node.last_error

    def has_answered(self, node_id: int) -> bool:
        """Any thread: whether a connection to the node's address was ready before, so that the settings are right."""
        node = self.requests.nodes.get(node_id)
        return node is not None and self.connections.has_answered(node)

    def waits_for(self, node_id: int) -> str | None:
        """Any thread: what keeps the node from taking requests now, in words. None: no reason is known."""
        node = self.requests.nodes.get(node_id)
        if node is None:
            brokers = self._metadata.snapshot.brokers
            unknown = bool(brokers) and node_id not in brokers
            return f"metadata does not say where broker {node_id} is, which leads it" if unknown else None
        if node.state is not State.READY:
            return f"the connection to {node}, which leads it, is not ready yet ({node.state.value})"
        pause = node.throttled_until - self.requests.clock.monotonic()
        return None if pause <= 0 else f"{node}, which leads it, throttles this client for {pause:.1f} s more"

    def least_loaded(self, *, connect: bool, avoid: int | None = None) -> int | None:
        """The ready node with the fewest requests in flight, for a request that any broker can answer.

        None: no node is ready. With `connect` the client then connects to a node, if an attempt is due. `avoid`: a
        node that could not help before and may be cut off from the other brokers. It, or another node at its address,
        is returned only if no other is ready; with `connect` the client then connects to another node for the next
        call.
        """
        now = self.requests.clock.monotonic()
        avoided = set() if avoid is None or (asked := self.requests.nodes.get(avoid)) is None else asked.places
        updater = self.connections.updater
        node = updater.choose(now, avoided) if connect else updater.least_loaded(now, avoided)
        if node is None:
            return None
        if connect and node.state is State.READY and not avoided.isdisjoint(node.places):
            other = updater.openable(now)
            if other is not None:
                self.connections.connect(other, now)
        if node.state is State.DISCONNECTED:
            self.connections.connect(node, now)
        return node.node_id if node.state is State.READY else None

    # ---- requests --------------------------------------------------------------------------------------------------

    def send_entity(self, node_id: int, entity: Any, context: Any = None, *, timeout: float | None = None) -> None:
        """As `send`, for a kio request entity: its class names the API and version."""
        self.send(node_id, self.connections.request(entity, context, timeout))

    def close(self) -> list[Completion]:
        """Close every connection. Completes every request in flight with ClosedError and returns the completions."""
        self.connections.close()
        self._poller.close()
        return self.requests.take_completions()

    def discard(self) -> None:
        """After close(): drop all references back to this client, so that its descriptors need no garbage collector."""
        self._metadata.on_update_requested = _nothing
        self.requests.nodes.clear()
        self.connections.authenticator = None
        vars(self.connections).clear()

    @property
    def telemetry(self) -> MetricsPush | None:
        return self.connections.telemetry

    @property
    def finalized_features(self) -> dict[str, int]:
        """The cluster's features: name: level."""
        return self.connections.handshake.finalized_features


def _nothing() -> None:
    """Called when metadata is requested of a client that was discarded."""
