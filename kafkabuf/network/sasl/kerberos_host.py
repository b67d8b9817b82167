"""The host name of a broker's Kerberos principal, as Java finds it.

Java takes the name that the client connects to. Only a short name becomes longer: `kafka1`, whose address leads back to
`kafka1.example.com`, becomes that name. No alias and no address ever becomes a quite different name, which whoever
answers for DNS could choose. (MIT's library may do that: `rdns` and `dns_canonicalize_hostname` in krb5.conf.)
"""

from __future__ import annotations

import ipaddress
import re
import socket

from kafkabuf.errors import SaslAuthenticationError

# What a principal may have as its host, without the characters that have a meaning in principals.
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")


def kerberos_host(host: str) -> str:
    """The host's name for a principal. Asks DNS, and may take as long as DNS does. Raises SaslAuthenticationError."""
    if not _HOST.fullmatch(host):
        raise SaslAuthenticationError(f"GSSAPI: {host!r} cannot be the host of a Kerberos principal")
    name = host
    if _is_address(name):
        name = _name_of(host)
    else:
        longer = _reverse(_first_address(name))
        if longer.lower().startswith(name.lower() + "."):
            name = longer
    return name.removesuffix(".").lower()


def _name_of(address: str) -> str:
    """What an address leads back to, if that name leads to the address. Otherwise the address itself."""
    name = _reverse(address)
    try:
        leads_to = {info[4][0] for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)} if name else set()
    except (OSError, ValueError):
        return address
    return name if address in leads_to else address


def _first_address(name: str) -> str:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, ValueError):
        return ""


def _reverse(address: str) -> str:
    """The name that the address leads back to; empty if it leads to no name."""
    try:
        return socket.gethostbyaddr(address)[0] if address else ""
    except (OSError, ValueError):
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
