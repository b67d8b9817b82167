"""One HTTP request with an end: lookup, connection, TLS, proxy and response together stay within a time.

The client of a Schema Registry and that of token endpoints use it. Its server may be hostile. It follows no redirect,
because a redirect would hand the credentials to another host. It bounds the bytes of a response, with headers, framing
and trailers, and it decompresses nothing.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from kafkabuf.config.schema_registry import Address
from kafkabuf.errors import ConfigError, KafkaError, NetworkError, SslAuthenticationError, printable
from kafkabuf.network.http import proxy as http_proxy
from kafkabuf.process import _time
from kafkabuf.process.background import BackgroundCall
from kafkabuf.process.threads import Event, Lock

_AROUND_BODY = 1024 * 1024  # for status, headers, framing, and what a server says before and after
_GRACE = 1.0  # seconds

# What helps against a certificate that OpenSSL refuses for these reasons (X509_V_ERR, x509_vfy.h).
_ADVICE = {
    9: "see whether the clock of this host is right",
    10: "the server needs a new certificate, or the clock of this host is wrong",
    62: "give the URL with a host that the certificate names",
    64: "give the URL with a host that the certificate names",
}

T = TypeVar("T")


class Closing(Protocol):
    """What ends the waits of a client that closes."""

    def waking(self, wake: Callable[[], object]) -> AbstractContextManager[None]:
        """During the block, closing calls `wake`. Raises ClosedError, before and after the block."""
        ...


class Request(NamedTuple):
    """`path` is added to the address's own path. `name` stands for the server in errors."""

    address: Address
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None
    name: str

    def __repr__(self) -> str:  # the headers have credentials
        return f"Request({self.method} {self.address}{self.path})"


class Advice(NamedTuple):
    """The ends of errors: which settings help."""

    untrusted: str
    no_certificate: str
    slow: str


class Transport(NamedTuple):
    """How requests travel, and what bounds them. Times are in seconds."""

    context: ssl.SSLContext | None
    """None: the address is no https."""
    proxy: Address | None
    connect_timeout: float
    """Seconds for the connection, for the proxy's response, and for the TLS handshake."""
    read_timeout: float
    """Seconds for one read."""
    response_timeout: float
    """Seconds for all reads together: a response in small pieces must not take longer."""
    largest_body: int
    advice: Advice
    thread: str
    """The name of the thread of a request."""


class Response(NamedTuple):
    """A body that is too large is cut, one byte behind `largest_body`."""

    status: int
    body: bytes
    location: str | None


def basic(user: str) -> str:
    """The header Authorization for `user:password`."""
    return "Basic " + base64.b64encode(user.encode()).decode()


def within(
    seconds: float, call: Callable[[], T], abandon: Callable[[], None], name: str, thread: str, closing: Closing | None
) -> T:
    """The result of a call that may take `seconds`. After it, or on Ctrl-C, `abandon` makes the call's thread end.

    The call runs in a thread of its own: neither a lookup of a host name nor a response in small pieces can be bounded
    otherwise. Raises NetworkError after the time, and ClosedError at `closing`.
    """
    ended, process = Event(), os.getpid()
    running = BackgroundCall(call, ended.set, thread)
    try:
        with contextlib.nullcontext() if closing is None else closing.waking(ended.set):
            in_time = ended.wait(max(seconds, 0.0))
    except BaseException:
        if os.getpid() == process:  # a signal handler may fork, and the connection is the parent's
            abandon()
        raise
    if not in_time:
        if os.getpid() == process:
            abandon()
        raise NetworkError(f"{name} gave no response within {seconds:.3g} s")
    return running.result()


def send(request: Request, transport: Transport, seconds: float, closing: Closing | None = None) -> Response:
    """Send a request and read the response, whatever its status. Raises NetworkError, SslAuthenticationError.

    Raises ConfigError for a credential that no header may have.
    """
    exchange = _Exchange(request, transport, seconds)
    return within(seconds, exchange.run, exchange.abandon, request.name, transport.thread, closing)


class _Exchange:
    """A request and its response, on a connection of their own."""

    def __init__(self, request: Request, transport: Transport, seconds: float) -> None:
        self._request = request
        self._transport = transport
        self._seconds = seconds
        self._lock = Lock()
        self._sock: socket.socket | None = None
        self._is_abandoned = False

    def run(self) -> Response:
        try:
            return self._respond()
        except KafkaError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            failure = explained(error, self._request.name, self._transport.advice)
        finally:
            if self._sock is not None:
                self._sock.close()
        raise failure  # outside the except: the error above may show a header, and must not be its context

    def abandon(self) -> None:
        """End `run`, from another thread."""
        with self._lock:
            self._is_abandoned = True
            sock = self._sock
        if sock is not None:
            shut_down(sock)

    def _respond(self) -> Response:
        request, transport = self._request, self._transport
        sock = self._connected()
        # `within` ends the call after `seconds`, and says so. The socket must not end it at the same time.
        longest = self._seconds + _GRACE
        sock.settimeout(min(transport.read_timeout, longest))
        connection = self._connection(sock)
        connection.request(request.method, self._path(), request.body, self._headers())
        until = _time.monotonic() + min(transport.response_timeout, longest)
        return _received(_HTTPResponse(sock, request.method, transport, until), transport.largest_body)

    def _connected(self) -> socket.socket:
        address, transport = self._request.address, self._transport
        timeout, hop = min(transport.connect_timeout, self._seconds), transport.proxy or address
        if transport.proxy is not None and transport.context is not None:
            sock = http_proxy.tunnel(transport.proxy, address.host, address.port, timeout)
        else:
            sock = socket.create_connection((hop.host, hop.port), timeout)
        self._keep(sock)
        if transport.context is None:
            return sock
        sock.settimeout(timeout)  # of the whole handshake
        secured = transport.context.wrap_socket(sock, server_hostname=address.host, do_handshake_on_connect=False)
        self._keep(secured)  # before the handshake, which `abandon` must end
        secured.do_handshake()
        return secured

    def _keep(self, sock: socket.socket) -> None:
        with self._lock:
            self._sock = sock
            is_abandoned = self._is_abandoned
        if is_abandoned:  # nobody waits, and nothing may be sent
            shut_down(sock)

    def _connection(self, sock: socket.socket) -> http.client.HTTPConnection:
        host, port, context = self._request.address.host, self._request.address.port, self._transport.context
        connection = (
            http.client.HTTPConnection(host, port)
            if context is None
            else http.client.HTTPSConnection(host, port, context=context)
        )
        connection.sock = sock
        return connection

    def _path(self) -> str:
        """A proxy for plain HTTP gets the whole URL."""
        address, path = self._request.address, self._request.path
        whole = self._transport.proxy is not None and self._transport.context is None
        return f"{address}{path}" if whole else address.path + path

    def _headers(self) -> dict[str, str]:
        proxy = self._transport.proxy
        for_proxy = http_proxy.authorization(proxy) if proxy is not None and self._transport.context is None else {}
        return dict(self._request.headers) | for_proxy


def shut_down(sock: socket.socket) -> None:
    """End the reads of another thread, which `close` would not wake."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class _Bounded(io.RawIOBase):
    """What a server sends, up to some bytes and until some time. http.client bounds neither a chunk nor trailers."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, transport: Transport, until: float) -> None:
        self._raw = raw
        self._sock = sock
        self._transport = transport
        self._until = until  # of the monotonic clock
        self._largest = self._left = transport.largest_body + _AROUND_BODY

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - _time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the response was not complete in time: {self._transport.advice.slow}")
        try:
            self._sock.settimeout(min(left, self._transport.read_timeout))
            count = self._raw.readinto(buffer)
        except TimeoutError:
            raise TimeoutError(f"the response was not complete in time: {self._transport.advice.slow}") from None
        self._left -= count or 0
        if self._left < 0:
            raise http.client.HTTPException(f"the response has more than {self._largest} bytes")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _HTTPResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, method: str, transport: Transport, until: float) -> None:
        super().__init__(sock, method=method)
        self.fp = io.BufferedReader(_Bounded(self.fp.detach(), sock, transport, until))


def _received(response: http.client.HTTPResponse, largest: int) -> Response:
    try:
        with response:
            response.begin()
            body = response.read(largest + 1)
    except (OSError, http.client.HTTPException):
        raise
    except Exception:  # http.client's own, as for a chunk of a negative length
        raise http.client.HTTPException("the response is not HTTP") from None
    if response.length and len(body) <= largest:  # read() with a size does not tell it
        raise http.client.IncompleteRead(body, response.length)
    return Response(response.status, body, response.getheader("Location"))


def explained(error: Exception, name: str, advice: Advice) -> KafkaError:
    """The error of a request without a response."""
    if isinstance(error, ssl.SSLCertVerificationError):
        what = _ADVICE.get(error.verify_code, advice.untrusted)
        return SslAuthenticationError(f"{name} is not trusted: {printable(error.verify_message).rstrip('.')}; {what}")
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        return SslAuthenticationError(f"{name} refuses the TLS handshake: {error.reason}; {advice.no_certificate}")
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        # Its text would show a header, which may be a secret.
        return ConfigError(f"{name}: a credential has a character that no HTTP header may have")
    return NetworkError(f"{name}: {printable(f'{type(error).__name__}: {error}')}")
