"""The end and the largest response of a request that confluent-kafka's client sends.

Its HTTP library (httpx) has a time-out for each read alone, and reads as much as comes. It offers what bounds need:
hooks for a request and a response, and a trace of the connections that it opens.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

from kafkabuf.errors import ConfigError
from kafkabuf.formats.registry import rest_client
from kafkabuf.formats.registry.transport import LARGEST_BODY
from kafkabuf.network.http.request import shut_down
from kafkabuf.process.threads import Lock

_CONNECTED = (".connect_tcp.complete", ".start_tls.complete")


def session_of(client: Any) -> Any | None:
    """The HTTP session of a SchemaRegistryClient; None for a version of it whose session takes no bounds."""
    session = getattr(getattr(client, "_rest_client", None), "session", None)
    library = sys.modules.get(type(session).__module__.partition(".")[0])
    return session if hasattr(session, "event_hooks") and hasattr(library, "ByteStream") else None


class Bounds:
    """The bounds of one client's request to the URL `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._sock: socket.socket | None = None
        self._ended = False

    def put_on(self, client: Any) -> None:
        """Bound all requests of a SchemaRegistryClient. Raises ConfigError for a version of it that takes no bounds."""
        session = session_of(client)
        if session is None:
            raise ConfigError("nothing bounds the responses to this version of confluent-kafka: set client to kafkabuf")
        self._library = sys.modules[type(session).__module__.partition(".")[0]]
        session.event_hooks = {"request": [self._prepare], "response": [self._read]}

    def end(self) -> None:
        """End the request, from another thread."""
        with self._lock:
            self._ended = True
            sock = self._sock
        if sock is not None:
            shut_down(sock)

    def _prepare(self, request: Any) -> None:
        request.headers["Accept-Encoding"] = "identity"  # a few compressed bytes may become gigabytes
        request.extensions["trace"] = self._trace

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event.endswith(_CONNECTED):
            with self._lock:
                self._sock = sock = info["return_value"].get_extra_info("socket")
                ended = self._ended
            if ended:
                shut_down(sock)

    def _read(self, response: Any) -> None:
        """Read the body, which the library would do next without a bound."""
        response.headers.pop("Content-Encoding", None)  # nobody asked for one
        body = bytearray()
        for piece in response.stream:
            body += piece
            if len(body) > LARGEST_BODY:
                raise rest_client.unusable(self._name, f"has more than {LARGEST_BODY} bytes")
        response.stream.close()
        response.stream = self._library.ByteStream(bytes(body))
