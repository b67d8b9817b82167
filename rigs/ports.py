"""Ports for servers that are told their port, as Apache Kafka is, and cannot be given a socket that listens."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_HOST = "127.0.0.1"
_WANTED = range(20_000, 32_768)  # outside of the range from which Linux gives ports by default
_GIVEN_BY_THE_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")

# Each name keeps a port from the other processes of this network namespace, until this process ends.
_names: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Ports that are free, and that nobody takes before the server listens, or while it is down between two starts.

    The kernel gives none of them to a connection or to a listener without a number, and no other call of this
    function, in whichever process, returns one of them while this process lives.
    """
    low, high = map(int, _GIVEN_BY_THE_KERNEL.read_text().split())
    candidates = [port for port in _WANTED if not low <= port <= high] or list(_WANTED)
    random.shuffle(candidates)
    ports: list[int] = []
    while len(ports) < count:
        if not candidates:
            raise OSError(f"No {count} free ports from {_WANTED.start} to {_WANTED.stop - 1}.")
        if _keep(port := candidates.pop()):
            ports.append(port)
    return ports


def _keep(port: int) -> bool:
    """Keep the port for this process if no server listens on it and no other process keeps it."""
    name = socket.socket(socket.AF_UNIX)
    try:
        # An abstract name: the kernel removes it with its process, and it belongs to the namespace of the ports.
        name.bind(f"\0kafkabuf-port-{port}".encode())
        socket.create_server((_HOST, port)).close()
    except OSError:
        name.close()
        return False
    _names.append(name)
    return True
