"""An OAuth token endpoint (RFC 6749, 3.2) over https, asked in a form that an attacker cannot redirect.

It uses no other scheme and no redirect. A proxy of the environment carries TLS and sees no secret. The response's body
and its time are bounded. No error shows the secret or the token.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.clock import Clock
from kafkabuf.errors import ConfigError, NetworkError, SaslAuthenticationError, printable
from kafkabuf.network import http_proxy, tls

LARGEST_BODY = 1024 * 1024
DEFAULT_TIMEOUT = 10.0

_ERROR_CODE = re.compile(r"[a-z_]{1,60}")

# Makes the fields of a request's form, and further headers. Each request calls it, so that no assertion is sent twice.
Grant = Callable[[], tuple[Mapping[str, str], Mapping[str, str]]]


def is_retriable(status: int) -> bool:
    """Whether a retry may help after a token endpoint's response with this status."""
    return status >= 500 or status in {408, 425, 429}


class EndpointConfig(Protocol):
    @property
    def sasl_login_connect_timeout_ms(self) -> int | None: ...
    @property
    def sasl_login_read_timeout_ms(self) -> int | None: ...
    @property
    def sasl_login_retry_backoff_ms(self) -> int: ...
    @property
    def sasl_login_retry_backoff_max_ms(self) -> int: ...


class _DeadlineSocket(ssl.SSLSocket):
    """All reads together end at `deadline`: a response that arrives in small pieces must not take longer."""

    deadline: float | None = None  # of time.monotonic(); None: each read has the socket's own time-out

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        try:
            if self.deadline is not None:
                left = self.deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                self.settimeout(left)
            return super().recv_into(*args, **kwargs)
        except TimeoutError:
            raise TimeoutError("the response was not complete within sasl.login.read.timeout.ms") from None


class TokenEndpoint:
    """The endpoint that issues tokens. Raises ConfigError for a URL that is not https, or for a proxy of no use.

    `trusted`: a trust store (PEM, JKS or PKCS12) that replaces the system's CAs.
    """

    def __init__(
        self,
        url: str,
        grant: Grant,
        config: EndpointConfig,
        *,
        trusted: str | None,
        trusted_password: str | None = None,
        clock: Clock,
        random: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._host, self._port, self._path = _parts(url)
        self._proxy = http_proxy.of_environment("https", self._host)
        self._grant = grant
        self._context = ssl.create_default_context() if trusted is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        if trusted is not None:
            tls.trust(self._context, trusted, password=trusted_password)
        self._context.sslsocket_class = _DeadlineSocket
        self._connect_timeout = _seconds(config.sasl_login_connect_timeout_ms)
        self._read_timeout = _seconds(config.sasl_login_read_timeout_ms)
        longest = config.sasl_login_retry_backoff_max_ms
        self._backoff = ExponentialBackoff(config.sasl_login_retry_backoff_ms, longest, random)
        self._patience = longest / 1000  # bounds all waits together, as in Java
        self._clock = clock
        self._sleep = sleep

    def fetch(self) -> tuple[str, float | None]:
        """A token, and when it expires in seconds since the epoch. Retries with a back-off after a NetworkError.

        Raises SaslAuthenticationError for a refusal, NetworkError if the endpoint cannot be reached. Blocks.
        """
        waited = 0.0
        failures = 0
        while True:
            try:
                return self._request_token()
            except NetworkError:
                pause = self._backoff.delay(failures)
                failures += 1
                waited += pause
                if pause <= 0.0 or waited > self._patience:  # a back-off of 0 means no retry, as in Java
                    raise
                self._sleep(pause)

    def _request_token(self) -> tuple[str, float | None]:
        form, more_headers = self._grant()
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._context)
        try:
            connection.sock = sock = self._connected()
            sock.settimeout(self._read_timeout)
            sock.deadline = time.monotonic() + self._read_timeout
            headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
            connection.request("POST", self._path, urllib.parse.urlencode(form), headers | dict(more_headers))
            with connection.getresponse() as response:
                body = response.read(LARGEST_BODY + 1)
        except ssl.SSLCertVerificationError as error:
            raise self._refused(f"is not trusted: {error.verify_message}") from None
        except (OSError, http.client.HTTPException) as error:
            text = printable(f"{type(error).__name__}: {error}")
            raise NetworkError(f"token endpoint {self._host}: {text}") from None
        finally:
            connection.close()
        return self._token_in(response.status, body)

    def _connected(self) -> _DeadlineSocket:
        plain = (
            socket.create_connection((self._host, self._port), self._connect_timeout)
            if self._proxy is None
            else http_proxy.tunnel(self._proxy, self._host, self._port, self._connect_timeout)
        )
        plain.settimeout(self._connect_timeout)  # of the whole handshake
        with plain:  # wrap_socket detaches it
            sock = self._context.wrap_socket(plain, server_hostname=self._host)
        assert isinstance(sock, _DeadlineSocket)
        return sock

    def _token_in(self, status: int, body: bytes) -> tuple[str, float | None]:
        if is_retriable(status):
            raise NetworkError(f"token endpoint {self._host} answered with status {status}")
        if status not in (200, 201):
            raise self._refused(
                f"answered with status {status}{_reason_in(body)} (redirects are not followed); check the credentials"
            )
        if len(body) > LARGEST_BODY:
            raise self._refused(f"answered with more than {LARGEST_BODY} bytes")
        try:
            answer: Any = json.loads(body)
            # As in Java: an identity provider may give its JWT as id_token.
            token = answer.get("access_token") or answer["id_token"]
            lifetime = _lifetime(answer.get("expires_in"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._refused("answered with something that is not JSON with an access_token") from None
        return str(token), None if lifetime is None else self._clock.time_ms() / 1000 + lifetime

    def _refused(self, what: str) -> SaslAuthenticationError:
        return SaslAuthenticationError(f"token endpoint {self._host} {what}")


def _seconds(milliseconds: int | None) -> float:
    return DEFAULT_TIMEOUT if milliseconds is None else milliseconds / 1000


def _parts(url: str) -> tuple[str, int, str]:
    """Host, port, and path with query. Raises ConfigError, whose text does not show the URL."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or 443
    except ValueError:
        parts, port = urllib.parse.urlsplit(""), 0
    if parts.scheme != "https" or not parts.hostname or parts.username is not None:
        raise ConfigError(
            "sasl.oauthbearer.token.endpoint.url must be https://host[:port]/path without a user name, because the "
            "client sends a secret there, or file:///path of a file with a JWT"
        )
    return parts.hostname, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _lifetime(value: Any) -> float | None:
    """`expires_in` in seconds; None for a value of no use: the token's own expiry decides then."""
    try:
        seconds = float(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _reason_in(body: bytes) -> str:
    """The `error` of an error's response (RFC 6749, 5.2): a word such as invalid_client, which contains no secret."""
    try:
        found = json.loads(body[:LARGEST_BODY])["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f" ({found})" if isinstance(found, str) and _ERROR_CODE.fullmatch(found) else ""
