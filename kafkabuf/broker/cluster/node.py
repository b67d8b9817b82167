"""One broker: an address, the connections to it, its copies of partitions. Belongs to the cluster's event loop.

running     listens, as a process that lives does
paused      its process stands still (SIGSTOP): connections are taken, nothing is answered, fetched or noticed
isolated    it runs, but neither the other nodes nor the controller can be reached
silent      the same towards clients
fenced      what the controller has decided about a node that it has not heard from for too long
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kafkabuf.broker.front.server import Connection
from kafkabuf.broker.replica.fetcher import Fetchers
from kafkabuf.broker.replica.replication import LagWatch
from kafkabuf.broker.waiting._purgatory import RequestPurgatory
from kafkabuf.broker.waiting.timer import Timeout

if TYPE_CHECKING:
    from kafkabuf.broker.cluster.cluster import Cluster


@dataclass(slots=True)
class Traffic:
    """What came to a node and went from it, frames with all that is in them."""

    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Listening(Protocol):
    """A socket that listens, or what stands for one."""

    @property
    def port(self) -> int: ...
    async def close(self) -> None: ...


class Node:
    """`produces` and `fetches` park requests until their partitions have news."""

    def __init__(self, cluster: Cluster, node_id: int, host: str, port: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.host = host
        self.port = port
        # In the order they came, so that a run in virtual time is the same each time.
        self.connections: dict[Connection, None] = {}
        self.traffic = Traffic()
        self.paused = self.isolated = self.silent = False
        self.fenced = True
        self.replica_lag = 0.0
        self.produces = RequestPurgatory(cluster.timer)
        self.fetches = RequestPurgatory(cluster.timer)
        self.fetchers = Fetchers(self)
        self.lag_watch = LagWatch(self)
        self._listener: Listening | None = None
        self._session: Timeout | None = None
        # While it is isolated: the nodes that were alive when it last heard of them.
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
        """Whether other nodes and the controller reach it."""
        return self.running and not self.paused and not self.isolated

    @property
    def answers(self) -> bool:
        """Whether clients hear from it."""
        return self.running and not self.paused and not self.silent

    def now(self) -> float:
        return self.cluster.clock.monotonic()

    def coordinates(self, key: str) -> bool:
        return self.cluster.coordinator(key) == self.node_id

    def brokers(self) -> list[Node]:
        """The nodes that it tells clients of."""
        return [self.cluster.nodes[one] for one in self.cluster.nodes if self.sees(one)]

    def sees(self, node_id: int) -> bool:
        """Whether a node is alive, as far as this one knows."""
        return self.cluster.nodes[node_id].alive if self._seen is None else node_id in self._seen

    # ---- the process

    def listen(self) -> None:
        """A port of 0 becomes the one the system gave, and stays the node's from then on."""
        self._listener = self.cluster.listen(self)
        self.port = self._listener.port

    def start(self) -> None:
        if self._listener is None:
            self.listen()
            self.paused = False
            self.reconnected()

    async def stop(self) -> None:
        """Leaves the cluster first, so that others lead what it led before its connections end."""
        if self.connected:
            self.cluster.controller.fence(self)
            await asyncio.sleep(0)
        await self.kill()

    async def kill(self) -> None:
        """As a process that dies. Its logs stay."""
        await self.close()
        if not self.running and not self.fenced:
            self.cluster.controller.fence(self)

    async def close(self) -> None:
        """Stops listening and cuts every connection, answered or not. The others know nothing of it yet."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        self._end_session()
        for copy in self.cluster.copies(self.node_id):
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
        """From now on what it fetches from other nodes comes late by so much."""
        self.replica_lag = seconds
        self.fetchers.refresh()

    def isolate(self, from_clients: bool) -> None:
        self.isolated, self.silent = True, from_clients
        if self._seen is None:
            self._seen = self.cluster.alive()
        if self.running:
            self._disconnected()

    def heal(self) -> None:
        self.isolated = self.silent = False
        self._seen = None
        self.reconnected()
        self._hear()

    def reconnected(self) -> None:
        """Nothing else happens before it has been told what it missed."""
        if self.connected:
            self._end_session()
            self.cluster.controller.admit(self)
            self.cluster.refresh_fetchers()

    def _disconnected(self) -> None:
        self.cluster.refresh_fetchers()
        if self._session is None:
            self._session = self.cluster.timer.after(self.cluster.session_timeout, self._expire)

    def _expire(self) -> None:
        self._session = None
        self.cluster.controller.fence(self)

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.cancel()
            self._session = None

    def _hear(self) -> None:
        """Goes on with what clients have sent meanwhile."""
        for connection in tuple(self.connections):
            connection.go_on()
