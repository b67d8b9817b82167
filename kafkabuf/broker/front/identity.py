"""Who a client is, for the authorizer (Kafka's DefaultKafkaPrincipalBuilder): its principal, and its host.

A client with SASL is the user as whom it has authenticated. A client with a certificate is the certificate's subject.
Every other client is User:ANONYMOUS. The host is the client's address, as Java writes it.

Deviation: there are no ssl.principal.mapping.rules.
"""

from __future__ import annotations

import asyncio
import ipaddress

from kafkabuf.broker.front.authenticator import Authenticator
from kafkabuf.broker.front.certificate import subject
from kafkabuf.broker.guards.rights import UNLIMITED, LimitedRights, Rights
from kafkabuf.broker.nodes.node import Cluster
from kafkabuf.broker.telemetry.peer import Peer

_ANONYMOUS = "ANONYMOUS"


def rights_of_client(
    cluster: Cluster, transport: asyncio.Transport | None, authenticator: Authenticator | None
) -> Rights:
    """The rights of the client of a connection."""
    if cluster.authorizer is None:
        return UNLIMITED
    assert transport is not None, "a client that sends a request is connected"
    name = _certified_name(transport) if authenticator is None else authenticator.principal
    return LimitedRights(cluster.authorizer, f"User:{name or _ANONYMOUS}", _host(transport))


def peer_of(transport: asyncio.Transport) -> Peer:
    """The other end of a connection, before it has sent anything."""
    # None if the connection has ended already.
    name = transport.get_extra_info("peername")
    return Peer() if name is None else Peer(_host(transport), name[1])


def _certified_name(transport: asyncio.Transport) -> str | None:
    """The subject of the client's certificate; None if the client has shown no certificate."""
    tls = transport.get_extra_info("ssl_object")
    certificate = None if tls is None else tls.getpeercert(binary_form=True)
    return None if certificate is None else subject(certificate)


def _host(transport: asyncio.Transport) -> str:
    """The client's address. Java does not shorten an IPv6 address: ::1 is 0:0:0:0:0:0:0:1."""
    address = ipaddress.ip_address(transport.get_extra_info("peername")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return ":".join(f"{int(group, 16):x}" for group in address.exploded.partition("%")[0].split(":"))
