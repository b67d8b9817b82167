"""Python code that network code calls back may close and drop any object: network code touches no freed memory.

Each scenario runs in a process of its own. Its allocator overwrites freed memory, so that an access to it crashes.
"""

from __future__ import annotations

import gc
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from kafkabuf.errors import NetworkError
from kafkabuf.network._io import Connection, Poller
from kafkabuf.network._tls import TlsConnection
from kafkabuf.protocol._frame import Frame
from tests.hostile.forked import run_where_freed_memory_is_overwritten

pytestmark = pytest.mark.usefixtures("each_backend")

PEERS: list[socket.socket] = []  # the other ends, kept open


class Cipher:
    """An ssl.SSLObject whose handshake needs no peer. The test gives the behaviour of each method."""

    def __init__(self, **does: Callable[..., Any]) -> None:
        self.does = does

    def do_handshake(self) -> None:
        self.does.get("do_handshake", lambda: None)()

    def write(self, data: memoryview) -> Any:
        return self.does.get("write", len)(data)

    def read(self, size: int, room: memoryview) -> Any:
        if "read" in self.does:
            return self.does["read"](size, room)
        raise ssl.SSLWantReadError

    def wrap_bio(self, *_: object, **__: object) -> Cipher:
        """Makes the object an SSLContext too: it wraps itself."""
        return self


def end() -> socket.socket:
    ours, theirs = socket.socketpair()
    PEERS.append(theirs)
    return ours


def tls(cipher: Any) -> TlsConnection:
    return TlsConnection(cipher, "h")


def frame_of(data: bytes, owner: object = None) -> Frame:
    frame = Frame()
    frame.add_bytes(data)
    frame.own(owner)
    return frame


def refuse(_: object) -> None:
    raise ssl.SSLError("refused")


class Finalizer:
    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __del__(self) -> None:
        self.call()


# ---- the scenarios ---------------------------------------------------------------------------------------------------


def connection_holds_the_last_reference_to_its_poller() -> None:
    Poller().register(end(), "h:1").close()


def failed_send_is_news_of_a_freed_connection() -> None:
    poller, connection = Poller(), tls(Cipher(write=refuse))
    poller.register(end(), "h:1", connection=connection)
    assert poller.poll(1) == [connection]
    connection.send(frame_of(b"x" * 100))
    connection.close()
    del connection
    gc.collect()
    assert poller.poll(0) == []
    survivor = poller.register(end(), "h:1")
    assert poller.poll(1) == [survivor]


def freed_connection_has_unsent_output() -> None:
    poller = Poller()
    connection = poller.register(end(), "h:1")
    assert poller.poll(1) == [connection]
    connection.send(frame_of(b"x" * 100))
    connection.close()
    del connection
    gc.collect()
    assert poller.poll(0) == []


def connection_closes_itself_in_a_send_that_fails() -> None:
    def fail(_: object) -> None:
        connection.close()
        raise ssl.SSLError("refused")

    poller, connection = Poller(), tls(Cipher(write=fail))
    poller.register(end(), "h:1", connection=connection)
    assert poller.poll(1) == [connection]
    connection.send(frame_of(b"x" * 100))
    assert poller.poll(0) == []


def news_of_one_connection_closes_the_others() -> None:
    poller = Poller()
    connections: dict[int, Connection] = {}

    def close_others(number: int) -> None:
        for other in connections.keys() - {number}:
            connections.pop(other).close()
        gc.collect()

    for number in range(3):
        cipher = Cipher(do_handshake=lambda number=number: close_others(number))
        connections[number] = poller.register(end(), "h:1", number, connection=tls(cipher))
    assert poller.poll(1) == list(connections.values())
    assert len(connections) == 1


def news_of_a_connection_closes_it() -> None:
    def close() -> None:
        connection.close()

    poller, connection = Poller(), tls(Cipher(do_handshake=close))
    poller.register(end(), "h:1", connection=connection)
    assert poller.poll(1) == []
    assert connection.closed


def news_of_one_of_several_connections_raises() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    poller = Poller()
    quiet = [poller.register(end(), "h:1", connection=tls(Cipher())) for _ in range(3)]
    poller.register(end(), "h:1", connection=tls(Cipher(do_handshake=interrupt)))
    quiet += [poller.register(end(), "h:1", connection=tls(Cipher())) for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        poller.poll(1)
    poller.poll(0)
    assert all(connection.connected for connection in quiet)


def poll_is_called_during_a_poll() -> None:
    refused: list[str] = []

    def poll() -> None:
        with pytest.raises(ValueError, match="under way already") as raised:
            poller.poll(0)
        refused.append(str(raised.value))

    poller = Poller()
    connection = poller.register(end(), "h:1", connection=tls(Cipher(do_handshake=poll)))
    assert poller.poll(1) == [connection]
    assert len(refused) == 1
    assert poller.poll(0) == []


def finalizer_of_a_closed_connections_frame_polls() -> None:
    poller = Poller()
    connection = poller.register(end(), "h:1")
    other = poller.register(end(), "h:2")
    poller.poll(1)
    other.send(frame_of(b"b" * 100))
    news: list[Connection] = []
    connection.send(frame_of(b"a" * 100, Finalizer(lambda: news.extend(poller.poll(0)))))
    connection.close()
    assert other.queued == 0, "the finalizer did not poll"
    assert news == [], "poll reported a closed connection"


def send_drops_a_frame_that_closes_the_connection() -> None:
    poller = Poller()
    connection = poller.register(end(), "h:1")
    poller.poll(1)
    connection.send(frame_of(b"a" * 100, Finalizer(connection.close)))
    poller.poll(0)
    with pytest.raises(NetworkError, match="closed"):
        connection.send(frame_of(b"b" * 100))


def cipher_closes_its_connection_while_it_reads_a_frame() -> None:
    seen: list[bytes] = []

    def write(data: memoryview) -> int:
        seen.append(bytes(data))
        connection.close()
        gc.collect()
        return len(data)

    poller, connection = Poller(), tls(Cipher(write=write))
    poller.register(end(), "h:1", connection=connection)
    poller.poll(1)
    frame = Frame()
    for _ in range(8):
        frame.add_bytes(os.urandom(8192))
    connection.send(frame)
    assert len(seen) == 1, "a span was read after the connection was closed"


def cipher_sends_while_it_reads_a_frame() -> None:
    seen: list[bytes] = []

    def write(data: memoryview) -> int:
        if not seen:
            seen.append(b"")
            connection.send(frame_of(b"second"))
        seen.append(bytes(data))
        return len(data)

    poller, connection = Poller(), tls(Cipher(write=write))
    poller.register(end(), "h:1", connection=connection)
    poller.poll(1)
    connection.send(frame_of(b"first"))
    assert seen == [b"", b"first", b"second"]


def socket_registers_its_own_connection() -> None:
    poller, connection = Poller(), Connection()

    class Registering:
        def setblocking(self, _: bool) -> None: ...

        def detach(self) -> int:
            poller.register(inner, "h:1", connection=connection)
            return outer.detach()

    inner, outer = end(), end()
    number = outer.fileno()
    with pytest.raises(ValueError, match="has or had a socket"):
        poller.register(Registering(), "h:2", connection=connection)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="Bad file descriptor"):  # the socket is closed
        os.fstat(number)
    assert connection.peer == "h:1"
    assert poller.poll(1) == [connection]


def closed_connection_is_registered_again() -> None:
    poller = Poller()
    connection = poller.register(end(), "h:1")
    poller.poll(1)
    connection.send(frame_of(b"abc"))
    connection.close()
    for other in (poller, Poller()):
        with pytest.raises(ValueError, match="make another"):
            other.register(end(), "h:1", connection=connection)
    assert poller.poll(0) == []


def connections_claim_to_be_equal() -> None:
    class Equal(Connection):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    poller = Poller()
    for number in range(2):
        poller.register(end(), "h:1", number, connection=Equal())
    gc.collect()
    assert {connection.context for connection in poller.poll(1)} == {0, 1}


def connection_is_initialized_again_with_ciphertext_pending() -> None:
    context = ssl.create_default_context()
    poller, connection = Poller(), tls(context)
    poller.register(end(), "h:1", connection=connection)
    poller.poll(1)
    connection.__init__(context, "h")  # type: ignore[misc]
    gc.collect()
    poller.poll(0)
    PEERS[0].setblocking(False)
    assert PEERS[0].recv(1) == b"\x16", "the first handshake was not written"


def cipher_claims_to_have_read(count: int) -> None:
    poller, connection = Poller(), tls(Cipher(read=lambda *_: count))
    PEERS.clear()
    poller.register(end(), "h:1", connection=connection)
    PEERS[0].send(b"hello")
    poller.poll(1)
    poller.poll(0)
    assert isinstance(connection.error, NetworkError)
    assert f"{count} bytes" in str(connection.error)


def cipher_claims_to_have_read_more_than_fits() -> None:
    cipher_claims_to_have_read(1_000_000)


def cipher_claims_to_have_read_a_negative_count() -> None:
    cipher_claims_to_have_read(-1)


# ---- the tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scenario",
    [
        connection_holds_the_last_reference_to_its_poller,
        failed_send_is_news_of_a_freed_connection,
        freed_connection_has_unsent_output,
        connection_closes_itself_in_a_send_that_fails,
        news_of_one_connection_closes_the_others,
        news_of_a_connection_closes_it,
        news_of_one_of_several_connections_raises,
        poll_is_called_during_a_poll,
        finalizer_of_a_closed_connections_frame_polls,
        send_drops_a_frame_that_closes_the_connection,
        cipher_closes_its_connection_while_it_reads_a_frame,
        cipher_sends_while_it_reads_a_frame,
        socket_registers_its_own_connection,
        closed_connection_is_registered_again,
        connections_claim_to_be_equal,
        connection_is_initialized_again_with_ciphertext_pending,
        cipher_claims_to_have_read_more_than_fits,
        cipher_claims_to_have_read_a_negative_count,
    ],
)
def test_no_freed_memory_is_touched_when(scenario: Callable[[], None]) -> None:
    run_where_freed_memory_is_overwritten(scenario)
