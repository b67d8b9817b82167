"""How many connections a node accepts, in all and of one address (Kafka's ConnectionQuotas).

max.connections, max.connections.per.ip and max.connections.per.ip.overrides of the running node apply to the next
connection. A node that has more connections than a new max.connections closes those that were silent for longest.

Deviation: a connection beyond max.connections is closed at once, where Kafka lets it wait for a free place. An override
names an address or localhost: the node does not ask a name server.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

from kafkabuf.broker.configs.node_kinds import MAX_CONNECTIONS, PER_ADDRESS, PER_ADDRESS_OVERRIDES, overrides
from kafkabuf.broker.configs.nodes import NodeConfigs
from kafkabuf.broker.guards.limits import ConnectionLimits
from kafkabuf.broker.nodes.node import Connection

# A sweep closes at most this number of connections: each end of a connection takes some steps of the loop.
_CLOSED_AT_A_TIME = 500


class ConnectionQuotas:
    """`limits` are those that the cluster was made with; `settings` has what was changed since."""

    def __init__(self, node_id: int, limits: ConnectionLimits, settings: NodeConfigs) -> None:
        self._node_id = node_id
        self._limits = limits
        self._settings = settings

    @property
    def most(self) -> int:
        given = self._settings.set_for(MAX_CONNECTIONS, self._node_id)
        return self._limits.max_connections if given is None else int(given)

    def most_of(self, address: str) -> int:
        """How many connections the address may have."""
        given = self._settings.set_for(PER_ADDRESS_OVERRIDES, self._node_id)
        if given and (most := overrides(PER_ADDRESS_OVERRIDES, given).get(address)) is not None:
            return most
        given = self._settings.set_for(PER_ADDRESS, self._node_id)
        return self._limits.max_connections_per_ip if given is None else int(given)

    def refusal(self, address: str, count: int, connections: Iterable[Connection]) -> str | None:
        """Why the node, which has `count` connections, takes no further connection of an address, or None."""
        if count >= (most := self.most):
            return f"{most} connections are open"
        most = self.most_of(address)
        # Counting takes long with many connections, and most nodes have no such limit.
        if count >= most and sum(connection.address == address for connection in connections) >= most:
            return f"{most} connections of {address} are open"
        return None

    def close_excess(self, connections: Iterable[Connection]) -> int:
        """Closes the connections beyond max.connections, those that were silent for longest first. Returns how many."""
        held = [connection for connection in connections if not connection.closing]
        excess = min(len(held) - self.most, _CLOSED_AT_A_TIME)
        silent = nsmallest(excess, held, key=lambda connection: connection.active) if excess > 0 else []
        for connection in silent:
            connection.abort()
        return len(silent)
