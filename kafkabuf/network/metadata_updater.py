"""Asking for metadata: which broker, which version, and what to do when none can be asked (Kafka's MetadataUpdater)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from kafkabuf.backoff import uniform
from kafkabuf.errors import CorruptMessageError, KafkaError, RebootstrapRequiredError, error_for_code
from kafkabuf.network._request import Completion
from kafkabuf.network.connection_state import NodeConnection, State
from kafkabuf.protocol import messages

# 1 is the oldest that can ask for no topic at all; a broker without it is older than Kafka 0.10.
METADATA_VERSIONS = range(1, 14)
NEVER = float("inf")


class NodeAddress(Protocol):
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class ClusterView(Protocol):
    @property
    def brokers(self) -> Mapping[int, NodeAddress]: ...


class MetadataSource(Protocol):
    """What the network needs of `kafkabuf.metadata.metadata.Metadata`, which lies above it."""

    on_update_requested: Callable[[], None]
    changes: int

    @property
    def snapshot(self) -> ClusterView: ...
    def time_to_update(self, now: float) -> float: ...
    def begin_update(self, now: float) -> tuple[str, ...]: ...
    def on_response(self, response: Any) -> None: ...
    def on_failure(self, error: KafkaError) -> None: ...
    def request_update(self) -> None: ...
    def forget_brokers(self) -> None: ...


class Network(Protocol):
    """The part of NetworkClient that carries metadata requests."""

    def known_nodes(self) -> list[NodeConnection]: ...
    def bootstrap_nodes(self) -> list[NodeConnection]: ...
    def connect(self, node: NodeConnection, now: float) -> None: ...
    def submit(self, node: NodeConnection, entity: Any, deliver: Callable[[Completion], None]) -> None: ...
    def check_by(self, when: float) -> None: ...
    def rebootstrap(self, now: float, why: str) -> None: ...


class MetadataUpdater:
    """Keeps `metadata` up to date over `network`. Sender thread.

    `trigger`: seconds without an answer after which the brokers known so far are given up for the bootstrap servers
    (KIP-1102); None: never, not even when none of them can be reached (metadata.recovery.strategy=none, KIP-899).
    """

    def __init__(
        self,
        metadata: MetadataSource,
        network: Network,
        trigger: float | None,
        random: Callable[[], float] = uniform,
    ) -> None:
        self._metadata = metadata
        self._network = network
        self._trigger = trigger
        self._random = random
        self._under_way = False
        self.rebootstrap_due = NEVER
        self.rebootstrap_why = ""

    def run(self, now: float) -> float:
        """Do what can be done now; returns the seconds until there may be more to do (infinite: after some news)."""
        wait = self._metadata.time_to_update(now)
        if wait > 0:
            return wait
        if self._trigger is not None and self.rebootstrap_due == NEVER:
            self.rebootstrap_by(now + self._trigger, f"no broker gave metadata within {self._trigger:g} s")
        node = self.choose(now)
        if node is None:
            asked = self._network.known_nodes() or self._network.bootstrap_nodes()
            return max(min(max(node.not_before, node.throttled_until) for node in asked) - now, 0.0)
        if node.state is State.READY:
            self._ask(node, now)
        elif node.state is State.DISCONNECTED:
            self._network.connect(node, now)
            if node.state is State.DISCONNECTED:
                return 0.0  # failed on the spot: come back for the next node
        return NEVER

    def rebootstrap_by(self, when: float, why: str) -> None:
        """Without an answer until then, all begins again at the bootstrap servers."""
        self.rebootstrap_due = when
        self.rebootstrap_why = why
        self._network.check_by(when)

    def connection_failed(self, error: KafkaError) -> None:
        """No request is lost with this connection, but it may be why none can be sent: worth telling who waits."""
        if not self._under_way:
            self._metadata.on_failure(error)

    def choose(self, now: float, rather_not: int | None = None) -> NodeConnection | None:
        """The least loaded node that is ready, else one being connected, else one that may be; None: all back off."""
        ready = self.least_loaded(now, rather_not)
        if ready is not None:
            return ready
        known, bootstrap = self._network.known_nodes(), self._network.bootstrap_nodes()
        openable = self._openable(known, now)
        if known and openable is None and self._trigger is not None and not self._waits(known, now):
            self._network.rebootstrap(now, "none of the known brokers can be reached")
            known = []
        return openable if known else self._openable(bootstrap, now)

    def least_loaded(self, now: float, rather_not: int | None = None) -> NodeConnection | None:
        """Of the nodes that are ready the one with the fewest requests under way; `rather_not` only if it is alone."""
        nodes = self._network.known_nodes() + self._network.bootstrap_nodes()
        ready = [node for node in nodes if node.state is State.READY and now >= node.throttled_until]
        ready = [node for node in ready if node.node_id != rather_not] or ready
        return min(ready, key=lambda node: (len(node.in_flight), self._random())) if ready else None

    def openable(self, now: float) -> NodeConnection | None:
        """Of the known nodes the one to be connected to next."""
        return self._closed(self._network.known_nodes(), now)

    def _waits(self, nodes: list[NodeConnection], now: float) -> bool:
        """Whether one of them can be reached, and only asked for patience."""
        return any(node.state is State.READY and now < node.throttled_until for node in nodes)

    def _openable(self, nodes: Iterable[NodeConnection], now: float) -> NodeConnection | None:
        nodes = list(nodes)
        for node in nodes:
            if node.state in (State.RESOLVING, State.CONNECTING, State.HANDSHAKING, State.AUTHENTICATING):
                return node
        return self._closed(nodes, now)

    def _closed(self, nodes: Iterable[NodeConnection], now: float) -> NodeConnection | None:
        free = [node for node in nodes if node.can_connect(now)]
        return min(free, key=lambda node: (node.failures, self._random())) if free else None

    def _ask(self, node: NodeConnection, now: float) -> None:
        topics = self._metadata.begin_update(now)
        self._under_way = True
        try:
            version = node.api_version(messages.METADATA, METADATA_VERSIONS)
        except KafkaError as error:
            self._failed(error)
            return
        entity = messages.build_request(
            messages.METADATA,
            version,
            topics=[{"name": name} for name in topics],
            allow_auto_topic_creation=True,
        )
        self._network.submit(node, entity, self._answered)

    def _answered(self, completion: Completion) -> None:
        if completion.error is not None:
            self._failed(completion.error)
            return
        response = completion.decode()
        if code := int(getattr(response, "error_code", 0)):
            self._failed(error_for_code(code))
            if code == RebootstrapRequiredError.code and self._trigger is not None:
                self.rebootstrap_by(0.0, "a broker asked to begin again")
            return
        for broker in response.brokers:
            if broker.node_id < 0 or not broker.host or not 0 < broker.port <= 0xFFFF:
                error = CorruptMessageError(f"metadata names broker {broker.node_id} at {broker.host!r}:{broker.port}")
                self._failed(error)
                raise error  # and the connection that it came by fails
        self._under_way = False
        if response.brokers:
            self.rebootstrap_due = NEVER
        self._metadata.on_response(response)

    def _failed(self, error: KafkaError) -> None:
        self._under_way = False
        self._metadata.on_failure(error)
