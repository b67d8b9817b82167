"""Producers that open though no bootstrap server can be resolved yet: the names are resolved for each connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkabuf.clock import Clock
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.network import resolve
from kafkabuf.network.client import NetworkClient
from kafkabuf.network.resolve import Address, Resolver
from kafkabuf.producer import KafkaProducer

if TYPE_CHECKING:
    import ssl

    from kafkabuf.config import ProducerConfig


class LateProducer(KafkaProducer):
    """kafkabuf's producer, which opens though no bootstrap server can be resolved yet."""

    def _connect(self, clock: Clock) -> NetworkClient:
        return late_client(self.config, clock, self._metadata, ssl_context=self._ssl_context)


def late_client(
    config: ProducerConfig,
    clock: Clock,
    metadata: Metadata,
    *,
    resolver: Resolver = resolve.resolve,
    ssl_context: ssl.SSLContext | None = None,
) -> NetworkClient:
    """A client whose constructor resolves no name, unless canonical names take the place of names."""
    late = _LateResolver(resolver)
    late.connecting = config.client_dns_lookup != "use_all_dns_ips"
    client = NetworkClient(config, clock, metadata, resolver=late, ssl_context=ssl_context)
    late.connecting = True
    return client


class _LateResolver:
    """Resolves names when the client connects. The constructor of a NetworkClient resolves them, too: too early."""

    connecting = False

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def __call__(self, host: str, port: int) -> Sequence[Address]:
        return self._resolver(host, port) if self.connecting else []
