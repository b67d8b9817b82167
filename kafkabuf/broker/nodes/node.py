"""One broker: its address, its connections, its replicas of partitions. Belongs to the cluster's event loop.

running     the node listens: its process is alive
paused      the node's process is frozen (SIGSTOP): it takes connections, but answers, fetches and notices nothing
isolated    the node runs, but cannot reach the other nodes and the controller
silent      the node cannot reach its clients either
fenced      the controller has taken the node out of the cluster: the node is dead, is about to stop, or was silent for
            too long
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.configs.nodes import NodeConfigs
from kafkabuf.broker.configs.resources import GroupConfigs, MetricsConfigs
from kafkabuf.broker.groups.groups import OFFSETS_TOPIC, Groups
from kafkabuf.broker.guards.authorizer import Authorizer
from kafkabuf.broker.guards.faults import Faults
from kafkabuf.broker.guards.log_lines import LimitedWarnings
from kafkabuf.broker.guards.quotas import Quotas
from kafkabuf.broker.guards.request_log import RequestLog
from kafkabuf.broker.guards.security import Mechanisms
from kafkabuf.broker.internal.topics import TRANSACTIONS_TOPIC, InternalTopics
from kafkabuf.broker.nodes.catalogue import Catalogue
from kafkabuf.broker.nodes.controller import Controller
from kafkabuf.broker.nodes.memory import ClusterMemory
from kafkabuf.broker.nodes.placement import Placement
from kafkabuf.broker.replica.fetcher import Fetchers
from kafkabuf.broker.replica.followers import LagWatch
from kafkabuf.broker.telemetry.arrived import Arrived
from kafkabuf.broker.telemetry.manager import ClientMetricsManager
from kafkabuf.broker.transactions.coordinator import Transactions
from kafkabuf.broker.waiting._purgatory import RequestPurgatory
from kafkabuf.broker.waiting.slices import Slices
from kafkabuf.broker.waiting.timer import Timeout, Timer
from kafkabuf.clock import Clock


@dataclass(slots=True)
class Traffic:
    """The requests to a node, and the bytes that it received and sent, with the length of each frame."""

    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Listening(Protocol):
    """A listening socket, or its stand-in in a test."""

    @property
    def port(self) -> int: ...
    async def close(self) -> None: ...


class Connection(Protocol):
    """What a node needs of a client's connection. `active`: when bytes last came, in seconds."""

    address: str

    @property
    def parked(self) -> bool: ...
    @property
    def closing(self) -> bool: ...
    @property
    def active(self) -> float: ...
    def abort(self) -> None: ...
    def go_on(self) -> None: ...
    def check_overdue(self) -> None: ...


class Cluster(Protocol):
    """What a node and its APIs need of the cluster."""

    config: ClusterConfig
    cluster_id: str
    clock: Clock
    network_clock: Clock
    loop: asyncio.AbstractEventLoop
    timer: Timer
    listen: Callable[[Node], Listening]
    nodes: dict[int, Node]
    placement: Placement
    controller: Controller
    catalogue: Catalogue
    node_configs: NodeConfigs
    group_configs: GroupConfigs
    metrics_configs: MetricsConfigs
    client_metrics: Arrived
    memory: ClusterMemory
    groups: Groups
    internal_topics: InternalTopics
    transactions: Transactions
    faults: Faults
    quotas: Quotas
    request_log: RequestLog
    slices: Slices
    warnings: LimitedWarnings
    tls: ssl.SSLContext | None
    mechanisms: Mechanisms | None
    authorizer: Authorizer | None

    def refresh_fetchers(self) -> None: ...


class Node:
    """`produces` and `fetches` park requests until their partitions change."""

    def __init__(self, cluster: Cluster, node_id: int, host: str, port: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.host = host
        self.port = port
        self.rack = cluster.config.rack_of(node_id)
        self.max_lag = cluster.config.max_lag
        # Connections in the order of their opening, so that a run in virtual time is the same each time.
        self.connections: dict[Connection, None] = {}
        self.traffic = Traffic()
        self.paused = self.isolated = self.silent = False
        self.fenced = True
        self.replica_lag = 0.0
        self.produces = RequestPurgatory(cluster.timer)
        self.fetches = RequestPurgatory(cluster.timer)
        self.fetchers = Fetchers(self)
        self.lag_watch = LagWatch(self, cluster.timer)
        self.client_metrics = ClientMetricsManager(
            node_id, cluster.metrics_configs, cluster.clock, cluster.config.telemetry_max_bytes, cluster.client_metrics
        )
        self._listener: Listening | None = None
        self._session: Timeout | None = None
        # While this node is isolated: the nodes that were alive when the isolation began. None otherwise.
        self._last_alive: list[int] | None = None

    @property
    def running(self) -> bool:
        return self._listener is not None

    @property
    def alive(self) -> bool:
        """Whether the node is alive, as far as the controller knows."""
        return not self.fenced

    @property
    def connected(self) -> bool:
        """Whether other nodes and the controller reach this node."""
        return self.running and not self.paused and not self.isolated

    @property
    def answers(self) -> bool:
        """Whether the node sends responses to its clients."""
        return self.running and not self.paused and not self.silent

    def now(self) -> float:
        return self.cluster.clock.monotonic()

    def coordinates(self, group_id: str) -> bool:
        return self.cluster.internal_topics.coordinator(OFFSETS_TOPIC, group_id) == self.node_id

    def coordinates_transactions(self, transactional_id: str) -> bool:
        return self.cluster.internal_topics.coordinator(TRANSACTIONS_TOPIC, transactional_id) == self.node_id

    def brokers(self) -> list[Node]:
        """The nodes that this node lists for its clients."""
        return [node for node_id, node in self.cluster.nodes.items() if self.sees(node_id)]

    def sees(self, node_id: int) -> bool:
        """Whether a node is alive, as far as this node knows."""
        return self.cluster.nodes[node_id].alive if self._last_alive is None else node_id in self._last_alive

    # ---- the process

    def listen(self) -> None:
        """Opens the listening socket. For port 0 the system chooses a port, and the node keeps that port."""
        self._listener = self.cluster.listen(self)
        self.port = self._listener.port

    def start(self) -> None:
        if self._listener is None:
            age_ms = self.cluster.node_configs.producer_expiration_ms(self.node_id)
            for replica in self.cluster.catalogue.replicas(self.node_id):
                replica.log.restarted(age_ms)
            self.listen()
            self.paused = False
            self.reconnected()

    async def stop(self) -> None:
        """Stops the node in order: it leaves the cluster first, so that other nodes lead its partitions before its
        connections end."""
        if self.connected:
            self.cluster.controller.fence(self)
            await asyncio.sleep(0)
        await self.kill()

    async def kill(self) -> None:
        """Ends the node as the death of its process would. Its logs stay."""
        await self.close()
        if not self.running and not self.fenced:
            self.cluster.controller.fence(self)

    async def close(self) -> None:
        """Stops listening and cuts every connection. The controller does not know of it yet."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        self._end_session()
        for replica in self.cluster.catalogue.replicas(self.node_id):
            replica.forget()
        self.cluster.refresh_fetchers()
        await listener.close()
        for connection in tuple(self.connections):
            connection.abort()
        while self.connections:
            await asyncio.sleep(0)

    def pause(self) -> None:
        if self.running:
            self.paused = True
            self._disconnected()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.reconnected()
            self._resume_connections()

    # ---- the network

    def lag_by(self, seconds: float) -> None:
        """From now on delays every response that the node fetches from other nodes."""
        self.replica_lag = seconds
        self.fetchers.refresh()

    def isolate(self, from_clients: bool) -> None:
        self.isolated, self.silent = True, from_clients
        if self._last_alive is None:
            self._last_alive = self.cluster.placement.alive()
        if self.running:
            self._disconnected()

    def heal(self) -> None:
        self.isolated = self.silent = False
        self._last_alive = None
        self.reconnected()
        self._resume_connections()

    def reconnected(self) -> None:
        """The controller tells the node the states that it has missed, before anything else happens."""
        if self.connected:
            self._end_session()
            self.cluster.controller.admit(self)
            self.cluster.refresh_fetchers()

    def _disconnected(self) -> None:
        self.cluster.refresh_fetchers()
        if self._session is None:
            self._session = self.cluster.timer.after(self.cluster.config.session_timeout, self._expire)

    def _expire(self) -> None:
        self._session = None
        self.cluster.controller.fence(self)

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.cancel()
            self._session = None

    def _resume_connections(self) -> None:
        """Serves the requests that clients have sent meanwhile."""
        for connection in tuple(self.connections):
            connection.go_on()
