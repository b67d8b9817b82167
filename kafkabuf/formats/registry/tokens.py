"""Bearer tokens for the registry: a given token, or tokens of an OAuth endpoint (client credentials, RFC 6749, 4.4)."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from kafkabuf.clock import Clock
from kafkabuf.config.schema_registry import parse_url
from kafkabuf.errors import AuthenticationError, NetworkError
from kafkabuf.formats.registry import transport
from kafkabuf.formats.registry.closing import Closing
from kafkabuf.formats.registry.settings import TOKEN, RegistrySettings
from kafkabuf.network.http.request import basic
from kafkabuf.network.sasl.token_endpoint import is_retriable
from kafkabuf.process.threads import Lock

_REFRESH_AFTER = 0.8  # of a token's lifetime


class TokenSource:
    """The bearer token for the next request.

    A remembered token is stale after 80 % of its lifetime. The registry notices a token that was revoked before: after
    its status 401 the caller calls `drop`.
    """

    def __init__(self, settings: RegistrySettings, clock: Clock, closing: Closing) -> None:
        self._closing = closing
        self._settings = settings
        self._clock = clock
        self._lock = Lock()
        self._token: str | None = None
        self._stale_at = 0.0

    def token(self, seconds: float) -> str | None:
        """A token, or None where none is configured. Raises NetworkError, AuthenticationError. Blocks."""
        if self._settings.bearer_auth_credentials_source is None:
            return None
        if self._settings.bearer_auth_token is not None:
            return self._settings.bearer_auth_token.get_secret_value()
        with self._lock:
            if self._token is not None and self._clock.monotonic() < self._stale_at:
                return self._token
        token, lifetime = self._request(seconds)  # outside the lock: another thread may have less time
        with self._lock:
            self._token = token
            self._stale_at = self._clock.monotonic() + (_REFRESH_AFTER * lifetime)
        return token

    def drop(self, token: str | None) -> bool:
        """Forget a token that the registry refused. Returns whether another one can be had."""
        if token is None or self._settings.bearer_auth_credentials_source != "OAUTHBEARER":
            return False
        with self._lock:
            if self._token == token:
                self._token = None
        return True

    def _request(self, seconds: float) -> tuple[str, float]:
        settings = self._settings
        address = parse_url(str(settings.bearer_auth_issuer_endpoint_url), "https")
        secret = settings.bearer_auth_client_secret
        assert secret is not None  # the settings are checked
        scope = {"scope": settings.bearer_auth_scope} if settings.bearer_auth_scope else {}
        headers = {
            "Authorization": basic(f"{settings.bearer_auth_client_id}:{secret.get_secret_value()}"),
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        body = urlencode({"grant_type": "client_credentials"} | scope).encode()
        response = transport.send(address, "POST", "", headers, body, settings, seconds, self._closing)
        name = f"token endpoint {address}"
        if is_retriable(response.status):
            raise NetworkError(f"{name}: status {response.status}")
        if response.status != 200:
            redirects = " (redirects are not followed)" if 300 <= response.status < 400 else ""
            raise AuthenticationError(f"{name}: status {response.status}{redirects}; check the credentials")
        granted = _granted(response.body)
        if granted is None:
            raise AuthenticationError(f"{name}: the response is not JSON with an access_token")
        return granted


def _granted(body: bytes) -> tuple[str, float] | None:
    """The token in a response and its lifetime in seconds; None for another response, which no error shows."""
    try:
        answer: Any = json.loads(body)
        # Without a lifetime the token serves until the registry refuses it.
        token, lifetime = answer["access_token"], float(answer.get("expires_in") or "inf")
        return (token, lifetime) if TOKEN.fullmatch(token) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
