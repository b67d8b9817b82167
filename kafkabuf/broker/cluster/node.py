"""One broker: an address, the connections to it, its copies of partitions. Belongs to the cluster's event loop.

running     the node listens, as a process that lives does
paused      the node's process stands still (SIGSTOP): it takes connections, but answers, fetches and notices nothing
isolated    the node runs, but cannot reach the other nodes and the controller
silent      the node cannot reach its clients either
fenced      the controller has taken the node out, having heard nothing from it for too long
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kafkabuf.broker.cluster.catalogue import Catalogue
from kafkabuf.broker.cluster.cluster_config import ClusterConfig
from kafkabuf.broker.cluster.controller import Controller
from kafkabuf.broker.cluster.memory import ClusterMemory
from kafkabuf.broker.cluster.placement import Placement
from kafkabuf.broker.groups.groups import Groups
from kafkabuf.broker.guards.faults import Faults
from kafkabuf.broker.guards.quotas import Quotas
from kafkabuf.broker.guards.request_log import RequestLog
from kafkabuf.broker.guards.security import Mechanisms
from kafkabuf.broker.replica.fetcher import Fetchers
from kafkabuf.broker.replica.followers import LagWatch
from kafkabuf.broker.transactions import Transactions
from kafkabuf.broker.waiting._purgatory import RequestPurgatory
from kafkabuf.broker.waiting.timer import Timeout, Timer
from kafkabuf.clock import Clock


@dataclass(slots=True)
class Traffic:
    """What came to a node and went from it. The bytes are those of whole frames."""

    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Listening(Protocol):
    """A socket that listens, or what stands for it."""

    @property
    def port(self) -> int: ...
    async def close(self) -> None: ...


class Connection(Protocol):
    """What a node needs of a client's connection."""

    @property
    def parked(self) -> bool: ...
    def abort(self) -> None: ...
    def go_on(self) -> None: ...
    def check_overdue(self) -> None: ...


class Cluster(Protocol):
    """What a node, and the APIs that are asked on it, need of the cluster."""

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
    memory: ClusterMemory
    groups: Groups
    transactions: Transactions
    faults: Faults
    quotas: Quotas
    request_log: RequestLog
    tls: ssl.SSLContext | None
    mechanisms: Mechanisms | None

    def refresh_fetchers(self) -> None: ...


class Node:
    """`produces` and `fetches` park requests until their partitions have news."""

    def __init__(self, cluster: Cluster, node_id: int, host: str, port: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.host = host
        self.port = port
        self.max_lag = cluster.config.max_lag
        # In the order of their opening, so that a run in virtual time is the same each time.
        self.connections: dict[Connection, None] = {}
        self.traffic = Traffic()
        self.paused = self.isolated = self.silent = False
        self.fenced = True
        self.replica_lag = 0.0
        self.produces = RequestPurgatory(cluster.timer)
        self.fetches = RequestPurgatory(cluster.timer)
        self.fetchers = Fetchers(self)
        self.lag_watch = LagWatch(self, cluster.timer)
        self._listener: Listening | None = None
        self._session: Timeout | None = None
        # The nodes that were alive when this node last heard of them, while it is isolated.
        self._seen: list[int] | None = None

    @property
    def running(self) -> bool:
        return self._listener is not None

    @property
    def alive(self) -> bool:
        """As far as the controller knows."""
        return not self.fenced

    @property
    def connected(self) -> bool:
        """Whether other nodes and the controller reach this node."""
        return self.running and not self.paused and not self.isolated

    @property
    def answers(self) -> bool:
        """Whether clients hear from this node."""
        return self.running and not self.paused and not self.silent

    def now(self) -> float:
        return self.cluster.clock.monotonic()

    def coordinates(self, key: str) -> bool:
        return self.cluster.placement.coordinator(key) == self.node_id

    def brokers(self) -> list[Node]:
        """The nodes that this node tells clients of."""
        return [node for node_id, node in self.cluster.nodes.items() if self.sees(node_id)]

    def sees(self, node_id: int) -> bool:
        """Whether a node is alive, as far as this node knows."""
        return self.cluster.nodes[node_id].alive if self._seen is None else node_id in self._seen

    # ---- the process

    def listen(self) -> None:
        """Listens. The system chooses a port in place of 0; the node keeps that port from then on."""
        self._listener = self.cluster.listen(self)
        self.port = self._listener.port

    def start(self) -> None:
        if self._listener is None:
            self.listen()
            self.paused = False
            self.reconnected()

    async def stop(self) -> None:
        """Leaves the cluster first, so that other nodes lead its partitions before its connections end."""
        if self.connected:
            self.cluster.controller.fence(self)
            await asyncio.sleep(0)
        await self.kill()

    async def kill(self) -> None:
        """Ends the node as a process that dies. Its logs stay."""
        await self.close()
        if not self.running and not self.fenced:
            self.cluster.controller.fence(self)

    async def close(self) -> None:
        """Stops listening and cuts every connection, answered or not. The other nodes do not know of it yet."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        self._end_session()
        for copy in self.cluster.catalogue.copies(self.node_id):
            copy.forget()
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
            self._hear()

    # ---- the network

    def lag_by(self, seconds: float) -> None:
        """Delays every answer that the node fetches from other nodes, from now on."""
        self.replica_lag = seconds
        self.fetchers.refresh()

    def isolate(self, from_clients: bool) -> None:
        self.isolated, self.silent = True, from_clients
        if self._seen is None:
            self._seen = self.cluster.placement.alive()
        if self.running:
            self._disconnected()

    def heal(self) -> None:
        self.isolated = self.silent = False
        self._seen = None
        self.reconnected()
        self._hear()

    def reconnected(self) -> None:
        """Lets the controller tell the node what it has missed, before anything else happens."""
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

    def _hear(self) -> None:
        """Serves what clients have sent meanwhile."""
        for connection in tuple(self.connections):
            connection.go_on()
