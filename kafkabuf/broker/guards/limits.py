"""What a node puts up with from its clients, in Kafka's terms where Kafka has one."""

from __future__ import annotations

from dataclasses import dataclass

from kafkabuf.errors import ConfigError

# Kafka's sasl.server.max.receive.size.
MAX_UNAUTHENTICATED = 512 * 1024
# A request without records is small; but each of its bytes may become an object of a hundred. A deviation from Kafka.
MAX_WITHOUT_RECORDS = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`max_connections` per node; `socket_request_max_bytes` a request. A connection is closed when it was idle for
    `connections_max_idle_ms`, when a request takes longer than `request_receive_timeout_ms` from its first byte to its
    last, or when the client has not authenticated after `authentication_timeout_ms`."""

    max_connections: int = 10_000
    socket_request_max_bytes: int = 100 * 1024 * 1024
    connections_max_idle_ms: int = 600_000
    request_receive_timeout_ms: int = 30_000
    authentication_timeout_ms: int = 10_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: at least 1 is needed")
