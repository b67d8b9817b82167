"""One HTTP request with an end: connection, TLS, proxy and response together stay within a time.

It follows no redirect, because a redirect would hand the credentials to another host. It bounds the response's body.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import os
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from kafkabuf.config.schema_registry import Address
from kafkabuf.config.secret import SecretStr
from kafkabuf.errors import ConfigError, KafkaError, NetworkError, SslAuthenticationError, printable
from kafkabuf.formats.registry.closing import Closing
from kafkabuf.network import http_proxy, tls
from kafkabuf.network.background import BackgroundCall

LARGEST_BODY = 4 * 1024 * 1024  # a registry keeps a schema in one record; a larger JSON takes seconds to read
_LARGEST_RESPONSE = LARGEST_BODY + 1024 * 1024  # with its status, headers, framing, and what it says before and after

# What helps against a certificate that OpenSSL refuses for these reasons (X509_V_ERR, x509_vfy.h).
_ADVICE = {
    9: "see whether the clock of this host is right",
    10: "the server needs a new certificate, or the clock of this host is wrong",
    62: "give the URL with a host that the certificate names",
    64: "give the URL with a host that the certificate names",
}

T = TypeVar("T")


class HttpSettings(Protocol):
    @property
    def ssl_ca_location(self) -> str | None: ...
    @property
    def ssl_certificate_location(self) -> str | None: ...
    @property
    def ssl_key_location(self) -> str | None: ...
    @property
    def ssl_key_password(self) -> SecretStr | None: ...
    @property
    def proxy(self) -> Address | None: ...
    @property
    def http_connect_timeout_ms(self) -> int: ...
    @property
    def http_read_timeout_ms(self) -> int: ...


class Request(NamedTuple):
    """`path` is added to the address's own path."""

    address: Address
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = None

    def __repr__(self) -> str:  # the headers have credentials
        return f"Request({self.method} {self.address}{self.path})"


class Response(NamedTuple):
    status: int
    body: bytes
    location: str | None


def basic(user: str) -> str:
    """The header Authorization for `user:password`."""
    return "Basic " + base64.b64encode(user.encode()).decode()


def within(seconds: float, call: Callable[[], T], abandon: Callable[[], None], name: str, closing: Closing) -> T:
    """The result of a call that may take so long. After it, or on Ctrl-C, `abandon` makes the call's thread end.

    The call runs in a thread of its own: neither a lookup of a host name nor a response in small pieces can be bounded
    otherwise. Raises NetworkError after the time, and ClosedError at `closing`.
    """
    ended, process = threading.Event(), os.getpid()
    running = BackgroundCall(call, ended.set, "kafkabuf-schema-registry")
    try:
        with closing.waking(ended.set):
            in_time = ended.wait(min(max(seconds, 0.0), threading.TIMEOUT_MAX))
    except BaseException:
        if os.getpid() == process:  # a signal handler may fork, and the connection is the parent's
            abandon()
        raise
    if not in_time:
        if os.getpid() == process:
            abandon()
        raise NetworkError(f"{name} gave no response within {seconds:.3g} s")
    return running.result()


def send(request: Request, settings: HttpSettings, seconds: float, closing: Closing) -> Response:
    """Send a request and read the response, whatever its status. Raises NetworkError, SslAuthenticationError.

    Raises ConfigError for a file of the ssl settings that is not readable, or a credential that no header may have.
    """
    connection, path, headers = _connection(request, settings, seconds)
    connection.response_class = _HTTPResponse

    def exchange() -> Response:
        try:
            connection.connect()
            # `within` ends the call after `seconds`, and says so. The socket must not end it at the same time.
            connection.sock.settimeout(min(settings.http_read_timeout_ms / 1000, seconds + 1.0))
            connection.request(request.method, path, request.body, headers)
            return _received(connection)
        except (OSError, http.client.HTTPException, ValueError) as error:
            failure = explained(error, str(request.address))
        finally:
            connection.close()
        raise failure  # outside the except: the error above may show a header, and must not be its context

    def abandon() -> None:
        if connection.sock is not None:
            shut_down(connection.sock)

    return within(seconds, exchange, abandon, str(request.address), closing)


def shut_down(sock: socket.socket) -> None:
    """End the reads of another thread, which `close` would not wake."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class _Bounded(io.RawIOBase):
    """What a server sends, up to _LARGEST_RESPONSE bytes. http.client bounds neither a chunk nor trailers."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self._left = _LARGEST_RESPONSE

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._raw.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise http.client.HTTPException(f"the response has more than {_LARGEST_RESPONSE} bytes")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _HTTPResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Bounded(self.fp.detach()))


def _received(connection: http.client.HTTPConnection) -> Response:
    try:
        with connection.getresponse() as response:
            body = response.read(LARGEST_BODY + 1)
    except ValueError:  # http.client's own, as for a chunk of a negative length
        raise http.client.HTTPException("the response is not HTTP") from None
    if response.length and len(body) <= LARGEST_BODY:  # read() with a size does not tell it
        raise http.client.IncompleteRead(body, response.length)
    return Response(response.status, body, response.getheader("Location"))


def explained(error: Exception, name: str) -> KafkaError:
    """The error of a request without a response."""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = _ADVICE.get(error.verify_code, "name the CA that signed its certificate in ssl.ca.location")
        return SslAuthenticationError(f"{name} is not trusted: {printable(error.verify_message).rstrip('.')}; {advice}")
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        return SslAuthenticationError(
            f"{name} refuses the TLS handshake: {error.reason}; see ssl.certificate.location and ssl.key.location"
        )
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        # Its text would show a header, which may be a secret.
        return ConfigError(f"{name}: a credential has a character that no HTTP header may have")
    return NetworkError(f"{name}: {printable(f'{type(error).__name__}: {error}')}")


def tls_context(settings: HttpSettings) -> ssl.SSLContext:
    """A context that checks the server's certificate and name. Raises ConfigError for a file that is not readable."""
    context = ssl.create_default_context()
    if settings.ssl_ca_location is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if os.path.isdir(settings.ssl_ca_location):
                context.load_verify_locations(capath=settings.ssl_ca_location)
            else:
                with open(settings.ssl_ca_location, encoding="utf-8", errors="replace") as file:
                    tls.load_certificates(context, file.read())
        except (OSError, ValueError) as error:
            raise _unreadable("ssl.ca.location", settings.ssl_ca_location, error) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.ssl_certificate_location is not None:
        _load_key(context, settings, settings.ssl_certificate_location)
    return context


def _load_key(context: ssl.SSLContext, settings: HttpSettings, certificate: str) -> None:
    secret = settings.ssl_key_password

    def missing() -> NoReturn:  # without a callback OpenSSL would ask at the terminal
        raise ConfigError("the client's private key is encrypted: set ssl.key.password")

    password = missing if secret is None else secret.get_secret_value
    try:
        context.load_cert_chain(certificate, settings.ssl_key_location, password=password)
    except OSError as error:
        file = settings.ssl_key_location or certificate
        raise _unreadable("ssl.certificate.location, ssl.key.location, ssl.key.password", file, error) from None


def _unreadable(names: str, file: str, error: OSError | ValueError) -> ConfigError:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return ConfigError(f"{names}: {file} is not readable as PEM ({reason})")


def _connection(
    request: Request, settings: HttpSettings, seconds: float
) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """The connection, not yet opened, the path to ask for, and the headers."""
    address, headers = request.address, dict(request.headers)
    path = address.path + request.path
    timeout = min(settings.http_connect_timeout_ms / 1000, seconds)
    proxy = settings.proxy or http_proxy.of_environment(address.scheme, address.host)
    hop = proxy or address
    if address.scheme == "https":
        secure = http.client.HTTPSConnection(hop.host, hop.port, timeout=timeout, context=tls_context(settings))
        if proxy is not None:
            secure.set_tunnel(address.host, address.port, http_proxy.authorization(proxy))
        return secure, path, headers
    if proxy is not None:
        path = f"{address}{request.path}"
        headers |= http_proxy.authorization(proxy)
    return http.client.HTTPConnection(hop.host, hop.port, timeout=timeout), path, headers
