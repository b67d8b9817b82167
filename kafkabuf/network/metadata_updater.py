"""Metadata requests: which broker to ask, and what to do if no broker can be asked. Kafka's MetadataUpdater."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, Protocol

from kafkabuf.backoff import uniform
from kafkabuf.errors import CorruptMessageError, KafkaError, RebootstrapRequiredError, error_for_code
from kafkabuf.network._request import Completion
from kafkabuf.network.connection_state import NodeConnection, Place, State
from kafkabuf.protocol import messages

# Version 1 is the first in which a request can name no topic at all. Brokers before Kafka 0.10 lack it.
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
    @property
    def cluster_id(self) -> str: ...


class MetadataSource(Protocol):
    """What the network needs of `kafkabuf.metadata.metadata.Metadata`, which lies above it."""

    on_update_requested: Callable[[], None]
    changes: int
    creates_topics: bool

    @property
    def snapshot(self) -> ClusterView: ...
    def time_to_update(self, now: float) -> float: ...
    def begin_update(self, now: float) -> tuple[str, ...]: ...
    def abandon_update(self) -> None: ...
    def on_response(self, response: Any) -> None: ...
    def on_failure(self, error: KafkaError) -> None: ...
    def request_update(self) -> None: ...
    def forget_brokers(self) -> None: ...


class Network(Protocol):
    """The part of Connections that carries metadata requests."""

    def known_nodes(self) -> list[NodeConnection]: ...
    def bootstrap_nodes(self) -> list[NodeConnection]: ...
    def is_silent(self, node: NodeConnection) -> bool: ...
    def connect(self, node: NodeConnection, now: float) -> None: ...
    def submit(self, node: NodeConnection, entity: Any, deliver: Callable[[Completion], None]) -> None: ...
    def check_by(self, when: float) -> None: ...
    def rebootstrap(self, now: float, why: str) -> None: ...


class MetadataUpdater:
    """Keeps `metadata` up to date over `network`. Thread: the Sender's.

    `trigger`: after so many seconds without metadata the client forgets the brokers and uses the bootstrap servers
    (KIP-1102). None: never, even if no broker can be reached (metadata.recovery.strategy=none, KIP-899). The successors
    of the bootstrap servers are stale when none can be reached, or none gives metadata. Queues have no leaders then.
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
        """Ask for metadata or connect, if due. Returns the seconds until the next call; infinite: wait for news."""
        wait = self._metadata.time_to_update(now)
        if wait > 0:
            return wait
        if self._trigger is not None and self.rebootstrap_due == NEVER:
            self.rebootstrap_by(now + self._trigger, f"no broker gave metadata within {self._trigger:g} s")
        node = self.choose(now)
        if node is None:
            nodes = self._network.known_nodes() or self._network.bootstrap_nodes()
            return max(min(max(node.not_before, node.throttled_until) for node in nodes) - now, 0.0)
        if node.state is State.READY:
            self._ask(node, now)
        elif node.state is State.DISCONNECTED:
            self._network.connect(node, now)
            if node.state is State.DISCONNECTED:
                return 0.0  # the attempt failed at once: the next call tries the next node
        return NEVER

    def rebootstrap_by(self, when: float, why: str) -> None:
        """Use the bootstrap servers again at `when`, unless metadata arrives before."""
        self.rebootstrap_due = when
        self.rebootstrap_why = why
        self._network.check_by(when)

    def connection_failed(self, error: KafkaError) -> None:
        """Report a failed connection to threads that wait for metadata: it may be why no request can be sent."""
        if not self._under_way:
            self._metadata.on_failure(error)

    def choose(self, now: float, avoid: Set[Place] = frozenset()) -> NodeConnection | None:
        """The least loaded ready node, else a connecting node, else a node to connect to. None: all nodes back off.

        A node at a silent address comes after all others. Bootstrap servers serve while no broker is known. One that
        is ready also serves while no known broker can be reached: with it the client need not rebootstrap.
        """
        known, bootstrap = self._network.known_nodes(), self._network.bootstrap_nodes()
        node = self._best(known or bootstrap, now, avoid)
        if node is not None or not known or self._trigger is None or self._waits(known, now):
            return node
        node = self._least_loaded([node for node in bootstrap if not self._network.is_silent(node)], now, avoid)
        if node is None:
            self._network.rebootstrap(now, "none of the known brokers can be reached")
            node = self._best(bootstrap, now, avoid)
        return node

    def least_loaded(self, now: float, avoid: Set[Place] = frozenset()) -> NodeConnection | None:
        """The ready node with the fewest requests in flight, a bootstrap server only while no broker is known.

        A node at a place to `avoid`, or at a silent address, is returned only if no other node is ready.
        """
        nodes = self._network.known_nodes() or self._network.bootstrap_nodes()
        return self._least_loaded(self._talking(nodes), now, avoid) or self._least_loaded(nodes, now, avoid)

    def _best(self, nodes: list[NodeConnection], now: float, avoid: Set[Place]) -> NodeConnection | None:
        talking = self._talking(nodes)
        silent = [node for node in nodes if node not in talking]
        return (self._least_loaded(talking, now, avoid) or self._openable(talking, now)
                or self._least_loaded(silent, now, avoid) or self._openable(silent, now))  # fmt: skip

    def _talking(self, nodes: list[NodeConnection]) -> list[NodeConnection]:
        return [node for node in nodes if not self._network.is_silent(node)]

    def _least_loaded(self, nodes: list[NodeConnection], now: float, avoid: Set[Place]) -> NodeConnection | None:
        ready = [node for node in nodes if node.state is State.READY and now >= node.throttled_until]
        ready = [node for node in ready if avoid.isdisjoint(node.places)] or ready
        return min(ready, key=lambda node: (len(node.in_flight), self._random())) if ready else None

    def openable(self, now: float) -> NodeConnection | None:
        """The known node to connect to next."""
        nodes = self._network.known_nodes()
        return self._closed(self._talking(nodes), now) or self._closed(nodes, now)

    def _waits(self, nodes: list[NodeConnection], now: float) -> bool:
        """Whether a node is connected and has only asked for a pause."""
        return any(node.state is State.READY and now < node.throttled_until for node in nodes)

    def _openable(self, nodes: list[NodeConnection], now: float) -> NodeConnection | None:
        for node in nodes:
            if node.state in (State.RESOLVING, State.CONNECTING, State.HANDSHAKING, State.AUTHENTICATING):
                return node
        return self._closed(nodes, now)

    def _closed(self, nodes: list[NodeConnection], now: float) -> NodeConnection | None:
        free = [node for node in nodes if node.can_connect(now)]
        return min(free, key=lambda node: (node.failures, self._random())) if free else None

    def _ask(self, node: NodeConnection, now: float) -> None:
        try:
            try:
                self._submit(node, self._metadata.begin_update(now))
            except KafkaError as error:
                self._failed(error)
        except BaseException:  # no response will come, and the client must not wait for it
            self._under_way = False
            self._metadata.abandon_update()
            raise

    def _submit(self, node: NodeConnection, topics: tuple[str, ...]) -> None:
        self._under_way = True
        version = node.api_version(messages.METADATA, METADATA_VERSIONS)
        entity = messages.build_request(
            messages.METADATA,
            version,
            topics=[{"name": name} for name in topics],
            allow_auto_topic_creation=self._metadata.creates_topics,
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
                self.rebootstrap_by(0.0, "a broker asked the client to rebootstrap")
            return
        for broker in response.brokers:
            if broker.node_id < 0 or not broker.host or not 0 < broker.port <= 0xFFFF:
                error = CorruptMessageError(f"metadata names broker {broker.node_id} at {broker.host!r}:{broker.port}")
                self._failed(error)
                raise error  # ClientCore.on_news then fails the connection
        self._under_way = False
        if response.brokers:
            self.rebootstrap_due = NEVER
        self._metadata.on_response(response)

    def _failed(self, error: KafkaError) -> None:
        self._under_way = False
        self._metadata.on_failure(error)
