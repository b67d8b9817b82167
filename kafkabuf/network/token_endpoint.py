"""The client-credentials grant (RFC 6749, 4.4) over https, in a form that an attacker cannot redirect.

It uses no other scheme, no redirect and no proxy of the environment. It bounds the response's body. No error shows the
secret or the token.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Callable
from typing import Any, Protocol

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.errors import ConfigError, NetworkError, SaslAuthenticationError, printable
from kafkabuf.network import tls

LARGEST_BODY = 1024 * 1024
DEFAULT_TIMEOUT = 10.0


def is_retriable(status: int) -> bool:
    """Whether a retry may help after a token endpoint's response with this status."""
    return status >= 500 or status in {408, 425, 429}


class EndpointConfig(Protocol):
    @property
    def sasl_oauthbearer_header_urlencode(self) -> bool: ...
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
    """The endpoint that issues tokens. Raises ConfigError for a URL that is not https, or for missing credentials.

    `trusted`: a trust store (PEM, JKS or PKCS12) that replaces the system's CAs.
    """

    def __init__(
        self,
        url: str,
        client_id: str | None,
        client_secret: str | None,
        scope: str | None,
        config: EndpointConfig,
        *,
        trusted: str | None,
        trusted_password: str | None = None,
        random: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" or not parts.hostname or parts.username is not None:
            raise ConfigError(
                "sasl.oauthbearer.token.endpoint.url must be https://host[:port]/path without a user name: the client "
                "sends a secret there"
            )
        if not client_id or not client_secret:
            raise ConfigError(
                "sasl.oauthbearer.token.endpoint.url needs sasl.oauthbearer.client.credentials.client.id and "
                ".client.secret"
            )
        self._host, self._port = parts.hostname, parts.port or 443
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._body = urllib.parse.urlencode({"grant_type": "client_credentials"} | ({"scope": scope} if scope else {}))
        if config.sasl_oauthbearer_header_urlencode:
            client_id, client_secret = urllib.parse.quote_plus(client_id), urllib.parse.quote_plus(client_secret)
        self._authorization = "Basic " + base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
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
                if waited > self._patience:
                    raise
                self._sleep(pause)

    def _request_token(self) -> tuple[str, float | None]:
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=self._connect_timeout, context=self._context
        )
        try:
            connection.connect()
            sock = connection.sock
            assert isinstance(sock, _DeadlineSocket)
            sock.settimeout(self._read_timeout)
            sock.deadline = time.monotonic() + self._read_timeout
            headers = {
                "Authorization": self._authorization,
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
            }
            connection.request("POST", self._path, self._body, headers)
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

    def _token_in(self, status: int, body: bytes) -> tuple[str, float | None]:
        if is_retriable(status):
            raise NetworkError(f"token endpoint {self._host} answered with status {status}")
        if status != 200:
            raise self._refused(f"answered with status {status} (redirects are not followed); check the credentials")
        if len(body) > LARGEST_BODY:
            raise self._refused(f"answered with more than {LARGEST_BODY} bytes")
        try:
            answer: Any = json.loads(body)
            token = answer["access_token"]
            lifetime = answer.get("expires_in")
            return str(token), None if lifetime is None else time.time() + float(lifetime)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._refused("answered with something that is not JSON with an access_token") from None

    def _refused(self, what: str) -> SaslAuthenticationError:
        return SaslAuthenticationError(f"token endpoint {self._host} {what}")


def _seconds(milliseconds: int | None) -> float:
    return DEFAULT_TIMEOUT if milliseconds is None else milliseconds / 1000
