"""A node's listening socket: accepts connections, limits their number, and closes those that exceed a time limit.

Thread: the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress

from kafkabuf.broker.front.connection_quotas import ConnectionQuotas
from kafkabuf.broker.front.server import Connection
from kafkabuf.broker.nodes.node import Node

log = logging.getLogger("kafkabuf.broker")

_BACKLOG = 1024
_ACCEPT_RETRY_SECONDS = 1.0
# The pause between two checks of the connections' time limits. No timer runs while there are no connections.
_SWEEP_SECONDS = 0.5
_TLS_SHUTDOWN_SECONDS = 1.0


class Listener:
    """A listening socket, and the accepted sockets that have no `Connection` yet.

    `close` returns when every accepted socket has its `Connection`, or has failed.

    asyncio's own Server, when closed, forgets sockets that it has accepted and not served, and leaves them open.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._limits = node.cluster.config.limits
        self._quotas = ConnectionQuotas(node.node_id, self._limits, node.cluster.node_configs)
        family = socket.AF_INET6 if ":" in node.host else socket.AF_INET
        self._socket = socket.create_server((node.host, node.port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._accepting: dict[asyncio.Task[None], Connection] = {}
        self._resume: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._refused = 0
        self._listen()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def _listen(self) -> None:
        self._resume = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        try:
            accepted, peer = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # Most likely no file descriptor is left. The socket stays readable, so stop watching it for a while.
            log.warning("cannot accept a connection on port %d: %s", self.port, error)
            self._loop.remove_reader(self._socket)
            self._resume = self._loop.call_later(_ACCEPT_RETRY_SECONDS, self._listen)
            return
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        open_now = itertools.chain(self._node.connections, self._unconnected())
        count = len(self._node.connections) + sum(1 for _ in self._unconnected())
        if (refusal := self._quotas.refusal(address, count, open_now)) is not None:
            self._refuse(accepted, refusal)
            return
        accepted.setblocking(False)
        # The node writes a response whole. asyncio itself sets this option only for sockets that were made with the
        # number of their protocol. macOS refuses it if the client has gone already, which the next read finds too.
        with suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(self._node, address)
        task = self._loop.create_task(self._connect(accepted, connection, peer))
        self._accepting[task] = connection
        task.add_done_callback(self._accepting.pop)
        if self._sweeping is None:
            self.sweep()

    def _unconnected(self) -> Iterator[Connection]:
        """The connections that are still accepted."""
        return (connection for connection in self._accepting.values() if connection not in self._node.connections)

    def _refuse(self, accepted: socket.socket, reason: str) -> None:
        """Logs the 1st, 2nd, 4th, 8th refusal and so on: a client that floods a node must not fill its log."""
        accepted.close()
        self._refused += 1
        if not self._refused & (self._refused - 1):
            log.warning("node %d: %s, refusing more", self._node.node_id, reason)

    async def _connect(self, accepted: socket.socket, connection: Connection, peer: object) -> None:
        context = self._node.cluster.tls
        timeouts = {} if context is None else self._tls_timeouts()
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted, ssl=context, **timeouts)
        except OSError as error:
            self._node.cluster.warnings.warn("node %d: no TLS with %s: %s", self._node.node_id, peer, error)

    def _tls_timeouts(self) -> dict[str, float]:
        handshake = self._limits.authentication_timeout_ms / 1000
        return {"ssl_handshake_timeout": handshake, "ssl_shutdown_timeout": _TLS_SHUTDOWN_SECONDS}

    def sweep(self) -> None:
        """Closes the connections that exceed a time limit or max.connections, again and again while there are any."""
        for connection in tuple(self._node.connections):
            connection.check_overdue()
        if closed := self._quotas.close_excess(self._node.connections):
            log.warning("node %d: closed %d connections beyond max.connections", self._node.node_id, closed)
        busy = self._node.connections or self._accepting
        self._sweeping = self._loop.call_later(_SWEEP_SECONDS, self.sweep) if busy else None

    async def close(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._node.cluster.tls is not None:
            # A client may take any time for its handshake. Cancelling the handshake closes its socket.
            for task in self._accepting:
                task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
