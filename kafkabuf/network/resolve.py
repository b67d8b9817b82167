"""From host names to addresses, and from addresses to connecting sockets."""

from __future__ import annotations

import _socket
import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kafkabuf.errors import ConfigError, KafkaError, NetworkError, host_port, printable
from kafkabuf.process.background import tell
from kafkabuf.process.producer_log import producer_log
from kafkabuf.process.threads import new_thread

log = producer_log("kafkabuf.network")


class Address(NamedTuple):
    """One way to reach a host: an address family and what `socket.connect` takes for it."""

    family: int
    sockaddr: Any


_NO_TEXT = NetworkError("a host name cannot be resolved")  # where there is no memory to say more

Resolver = Callable[[str, int], Sequence[Address]]
Connector = Callable[[Address], socket.socket]


def _is_patched() -> bool:
    """Whether the sockets of this process are those of greenlets, which make a hub for each thread that uses them."""
    return socket.socket.__module__ != "socket"


def resolve(host: str, port: int) -> list[Address]:
    """Every TCP address of `host`, in the resolver's order. Raises NetworkError. Blocks until DNS has responded."""
    try:
        lookup = _socket.getaddrinfo if _is_patched() else socket.getaddrinfo
        infos = lookup(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # UnicodeError is a ValueError; a NUL in the name raises ValueError too
        raise NetworkError(f"host name {host!r} cannot be resolved: {error}") from error
    return [Address(family, sockaddr) for family, _, _, _, sockaddr in infos]


class Lookup:
    """Resolves a host name in a thread of its own: a name server may take half a minute to respond.

    The thread sets `done` last and then calls `on_done`. If the host is an IP address, the lookup is done at once.
    """

    def __init__(self, host: str, port: int, resolver: Resolver, on_done: Callable[[], None]) -> None:
        self._host = host
        self._port = port
        self._resolver = resolver
        self._on_done = on_done
        self._began = False
        self.done = False
        self.addresses: Sequence[Address] = ()
        self.error: KafkaError | None = None
        if _is_address(host):
            self._resolve()
        else:
            try:
                # Nothing can end getaddrinfo early: the interpreter must not wait for the thread at exit.
                new_thread(self._run, f"kafkabuf-resolve-{printable(host)}").start()
            except (RuntimeError, MemoryError) as error:  # there are too many threads
                if not self._began:
                    self._fail(error)

    def _run(self) -> None:
        self._began = True
        self._resolve()
        tell(self._on_done)

    def _resolve(self) -> None:
        failure: BaseException | None = None
        try:
            self.addresses = self._resolver(self._host, self._port)
        except BaseException as error:  # even SystemExit: the connection waits for the lookup
            failure = error
        if failure is None:
            self.done = True
        else:
            self._fail(failure)

    def _fail(self, failure: BaseException) -> None:
        try:
            if isinstance(failure, KafkaError):
                self.error = failure
            else:
                self.error = NetworkError(f"host name {self._host!r} cannot be resolved: {failure}")
        except BaseException:  # there is no memory, or the error has no text
            self.error = _NO_TEXT
        self.done = True


def _is_address(host: str) -> bool:
    return any(_is_address_of(family, host) for family in (socket.AF_INET, socket.AF_INET6))


def _is_address_of(family: int, host: str) -> bool:
    address, scoped, zone = host.partition("%")
    try:
        socket.inet_pton(family, address)
    except (OSError, ValueError):  # ValueError: a null byte, or no ASCII
        return False
    return not scoped or (family == socket.AF_INET6 and zone != "")


def bootstrap_hosts(
    servers: Sequence[tuple[str, int]], dns_lookup: str = "use_all_dns_ips", resolver: Resolver = resolve
) -> list[tuple[str, int]]:
    """The entries of `bootstrap.servers` that resolve.

    With `resolve_canonical_bootstrap_servers_only` each address of an entry becomes a host of its own, under its
    canonical name. Raises ConfigError with every entry if no entry resolves.
    """
    if not servers:
        raise ConfigError("bootstrap.servers is empty: give at least one host:port of the cluster")
    hosts: list[tuple[str, int]] = []
    failures: list[str] = []
    for host, port in servers:
        try:
            addresses = resolver(host, port)
        except NetworkError as error:
            log.warning("bootstrap server %s is left out: %s", host_port(host, port), error)
            failures.append(f"{host_port(host, port)} ({error})")
            continue
        if dns_lookup == "resolve_canonical_bootstrap_servers_only":
            hosts += [(socket.getfqdn(address.sockaddr[0]), port) for address in addresses]
        else:
            hosts.append((host, port))
    if not hosts:
        raise ConfigError(f"bootstrap.servers: no entry can be resolved: {', '.join(failures)}")
    return hosts


def connect(address: Address, send_buffer: int = -1, receive_buffer: int = -1) -> socket.socket:
    """A non-blocking TCP socket that is connecting. Buffer sizes in bytes; -1: the system's. Raises OSError."""
    kind: Any = _socket.socket if _is_patched() else socket.socket
    sock: socket.socket = kind(address.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        # A request is written as a whole: a wait for more bytes to fill a packet would only delay it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, size in ((socket.SO_SNDBUF, send_buffer), (socket.SO_RCVBUF, receive_buffer)):
            if size >= 0:
                sock.setsockopt(socket.SOL_SOCKET, option, size)
        code = sock.connect_ex(address.sockaddr)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock
