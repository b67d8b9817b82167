"""Token endpoints for tests, over https, and a proxy that opens tunnels to them."""

from __future__ import annotations

import contextlib
import http.server
import selectors
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

from tests.network.support import PATIENCE

Answer = tuple[int, dict[str, str], bytes]  # status, headers, body


class Endpoint:
    """An https server with the test's responses, one for each request in turn, or those that a function makes."""

    def __init__(self, context: ssl.SSLContext, answers: list[Answer] | Callable[[bytes], Answer]) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.drips: threading.Event | None = None  # until this is set, the body is sent byte by byte, slowly
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, dict(self.headers), body))
                if callable(answers):
                    status, headers, answer = answers(body)
                else:
                    status, headers, answer = answers[min(len(outer.requests), len(answers)) - 1]
                with contextlib.suppress(OSError):  # of a client that has read enough
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    for byte in answer if outer.drips is not None else b"":
                        self.wfile.write(bytes([byte]))
                        assert outer.drips is not None
                        outer.drips.wait(0.02)
                    if outer.drips is None:
                        self.wfile.write(answer)

            def log_message(self, *arguments: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *arguments: object) -> None:
                pass  # clients that do not trust this server

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://localhost:{self._server.server_address[1]}/token?a=b"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)


class TunnelProxy:
    """An HTTP proxy that answers CONNECT with `response` and then passes bytes both ways. It keeps the requests.

    An empty response: it never answers.
    """

    def __init__(self, response: bytes = b"HTTP/1.1 200 Connection established\r\nVia: 1.1 test\r\n\r\n") -> None:
        self.requests: list[bytes] = []
        self.passed = bytearray()  # what clients sent through tunnels
        self._response = response
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> TunnelProxy:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                serve = threading.Thread(target=self._serve, args=(client,))
                self._threads.append(serve)
                serve.start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += (part := client.recv(4096))
                if not part:
                    return
            self.requests.append(request)
            client.sendall(self._response)
            if not self._response:
                self._closing.wait(PATIENCE)
            if b" 200 " not in self._response:
                return
            host, _, port = request.split()[1].decode().rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                self._pass_on({client: server, server: client}, client)

    def _pass_on(self, other: dict[Any, Any], client: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:  # select() takes no descriptor above 1023
            for sock in other:
                selector.register(sock, selectors.EVENT_READ, sock)
            while not self._closing.is_set():
                for key, _ in selector.select(0.02):
                    sock = key.data
                    data = sock.recv(65536)
                    if not data:
                        return
                    if sock is client:
                        self.passed += data
                    other[sock].sendall(data)
