"""A proxy between clients and a broker that sends some responses twice, like a broken device in the network."""

from __future__ import annotations

import contextlib
import socket
import threading

from kafkabuf.protocol import messages
from tests.network.support import read_exactly


class DuplicatingProxy:
    """Forwards frames to `port`. Sends those responses to Produce requests twice whose numbers are in `twice`."""

    def __init__(self, port: int, twice: frozenset[int]) -> None:
        self._target = ("127.0.0.1", port)
        self._twice = twice
        self._lock = threading.Lock()
        self._answers = 0  # responses to Produce requests so far
        self.duplicated = 0
        self.most_unanswered = 0  # most Produce requests on one connection that had no response at one time
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._target)
                self._sockets += [client, broker]
                unanswered: set[int] = set()  # correlation ids
                self._start(self._requests, client, broker, unanswered)
                self._start(self._responses, client, broker, unanswered)

    def _requests(self, client: socket.socket, broker: socket.socket, unanswered: set[int]) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(client):
                if int.from_bytes(frame[4:6], "big") == messages.PRODUCE:
                    with self._lock:
                        unanswered.add(int.from_bytes(frame[8:12], "big"))
                        self.most_unanswered = max(self.most_unanswered, len(unanswered))
                broker.sendall(frame)
        _end(broker)

    def _responses(self, client: socket.socket, broker: socket.socket, unanswered: set[int]) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(broker):
                with self._lock:
                    produced = int.from_bytes(frame[4:8], "big") in unanswered
                    unanswered.discard(int.from_bytes(frame[4:8], "big"))
                    self._answers += produced
                    twice = produced and self._answers in self._twice
                    self.duplicated += twice
                client.sendall(frame * (1 + twice))
        _end(client)

    def close(self) -> None:
        _end(self._listener)
        for sock in self._sockets:
            _end(sock)
        for thread in self._threads:
            thread.join()
        for sock in [self._listener, *self._sockets]:
            sock.close()


def _frame(sock: socket.socket) -> bytes:
    """A frame with its length; b"" at the end of the stream."""
    prefix = read_exactly(sock, 4)
    return prefix + read_exactly(sock, int.from_bytes(prefix, "big")) if prefix else b""


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
