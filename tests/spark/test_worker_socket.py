"""A task acknowledges what the JVM has sent: otherwise the JVM holds the rows back for 40 ms."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from kafkabuf.spark.worker import worker_socket

MAIN = "def main(infile):\n    return run()"


def connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


def quick(found: socket.socket) -> int:
    return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)


def called_in(module: str, infile: Any) -> None:
    """Call from a function `main` of that module, as PySpark's worker does."""
    names: dict[str, Any] = {"__name__": module, "run": worker_socket.acknowledge}
    exec(MAIN, names)
    names["main"](infile)


@pytest.mark.parametrize(("module", "expected"), [("pyspark.worker", 1), ("another", 0)])
def test_bytes_of_the_jvm_are_acknowledged_at_once(module: str, expected: int) -> None:
    client, server = connection()
    with client, server, client.makefile("rb") as infile:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        called_in(module, infile)
        assert quick(client) == expected
        server.sendall(b"rows")
        assert client.recv(4) == b"rows"


def test_rows_that_come_by_another_socket_are_left_alone() -> None:
    first, second = socket.socketpair()
    with first, second, first.makefile("rb") as infile:
        called_in("pyspark.worker", infile)
