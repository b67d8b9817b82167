"""An OAuth token endpoint (RFC 6749, 3.2) over https.

It uses no other scheme. A proxy of the environment carries TLS and sees no secret. http/request.py bounds the response,
and follows no redirect. No error shows the secret or the token.
"""

from __future__ import annotations

import json
import math
import re
import ssl
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.clock import Clock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.config.schema_registry import Address
from kafkabuf.errors import ConfigError, NetworkError, SaslAuthenticationError, SslAuthenticationError
from kafkabuf.network.http import proxy as http_proxy
from kafkabuf.network.http import request as http_request
from kafkabuf.network.http.request import Advice, Request, Transport
from kafkabuf.network.tls import context as tls
from kafkabuf.process import threads

LARGEST_BODY = 1024 * 1024
DEFAULT_TIMEOUT = 10.0

_ADVICE = Advice(
    "name the CA that signed its certificate in ssl.truststore.location of sasl.jaas.config",
    "the client shows a token endpoint no certificate",
    "see sasl.login.read.timeout.ms",
)
_ERROR_CODE = re.compile(r"[a-z_]{1,60}")

# Makes the fields of a request's form, and further headers. Each request calls it, so that no assertion is sent twice.
Grant = Callable[[], tuple[Mapping[str, str], Mapping[str, str]]]


def is_retriable(status: int) -> bool:
    """Whether a retry may help after a token endpoint's response with this status."""
    return status >= 500 or status in {408, 425, 429}


class TokenEndpoint:
    """The endpoint that issues tokens. Raises ConfigError for a URL that is not https, or for an unusable proxy.

    `trusted`: a trust store (PEM, JKS or PKCS12) that replaces the system's CAs.
    """

    def __init__(
        self,
        url: str,
        grant: Grant,
        config: ProducerConfig,
        *,
        trusted: str | None,
        trusted_password: str | None = None,
        clock: Clock,
        random: Callable[[], float],
        sleep: Callable[[float], None] = threads.sleep,
    ) -> None:
        self._address, self._path = _parts(url)
        self._name = f"token endpoint {self._address.host}"
        self._grant = grant
        connect, read = _seconds(config.sasl_login_connect_timeout_ms), _seconds(config.sasl_login_read_timeout_ms)
        proxy = http_proxy.of_environment("https", self._address.host)
        context = _context(trusted, trusted_password)
        self._transport = Transport(
            context, proxy, connect, read, read, LARGEST_BODY, _ADVICE, "kafkabuf-token-endpoint"
        )
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
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        body = urllib.parse.urlencode(form).encode()
        request = Request(self._address, "POST", self._path, headers | dict(more_headers), body, self._name)
        # The lookup of the host's name has no time-out of its own.
        seconds = self._transport.connect_timeout + self._transport.response_timeout
        try:
            response = http_request.send(request, self._transport, seconds)
        except SslAuthenticationError as error:
            raise SaslAuthenticationError(str(error)) from None
        return self._token_in(response.status, response.body)

    def _token_in(self, status: int, body: bytes) -> tuple[str, float | None]:
        if is_retriable(status):
            raise NetworkError(f"{self._name} answered with status {status}")
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
        return SaslAuthenticationError(f"{self._name} {what}")


def _context(trusted: str | None, password: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context() if trusted is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if trusted is not None:
        tls.trust(context, trusted, password=password)
    return context


def _seconds(milliseconds: int | None) -> float:
    return DEFAULT_TIMEOUT if milliseconds is None else milliseconds / 1000


def _parts(url: str) -> tuple[Address, str]:
    """The host, and path with query. Raises ConfigError, whose text does not show the URL."""
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
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Address("https", parts.hostname, port, "", None), path


def _lifetime(value: Any) -> float | None:
    """`expires_in` in seconds; None for a value that it cannot use: the token's own expiry decides then."""
    try:
        seconds = float(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _reason_in(body: bytes) -> str:
    """The `error` of an error's response (RFC 6749, 5.2): a word such as invalid_client, which contains no secret."""
    try:
        error_code = json.loads(body[:LARGEST_BODY])["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f" ({error_code})" if isinstance(error_code, str) and _ERROR_CODE.fullmatch(error_code) else ""
