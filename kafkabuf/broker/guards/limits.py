"""The limits that a node sets its clients, under Kafka's names where Kafka has the limit."""

from __future__ import annotations

from dataclasses import dataclass

from kafkabuf.errors import ConfigError

# Kafka's sasl.server.max.receive.size.
MAX_UNAUTHENTICATED = 512 * 1024
# The largest request without records: each of its bytes may become an object of 100 bytes. A deviation from Kafka.
MAX_WITHOUT_RECORDS = 1024 * 1024
# Kafka's fetch.max.bytes of the broker, its default: no client gets more records in one response, whatever it asks for.
FETCH_MAX_BYTES = 57_671_680


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits: `max_connections` is per node, `max_connections_per_ip` per node and client address,
    `socket_request_max_bytes` per request.

    The node closes a connection that was idle for `connections_max_idle_ms`, whose request takes longer than
    `request_receive_timeout_ms` from its first byte to its last, or whose client has not authenticated after
    `authentication_timeout_ms`.
    """

    max_connections: int = 10_000
    max_connections_per_ip: int = 2**31 - 1
    socket_request_max_bytes: int = 100 * 1024 * 1024
    connections_max_idle_ms: int = 600_000
    request_receive_timeout_ms: int = 30_000
    authentication_timeout_ms: int = 10_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: at least 1 is needed")
