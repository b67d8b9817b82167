"""OAUTHBEARER (RFC 7628, KIP-255): tokens come from the user's callable, from an endpoint or from a file."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kafkabuf.clock import Clock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import ConfigError, KafkaError, SaslAuthenticationError, printable
from kafkabuf.network.sasl.retrievers import check_options, extensions_in, retriever
from kafkabuf.process.background import BackgroundCall

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # RFC 6750: no character that could end the header with the token
# RFC 7628: no character that could end a field of the message. `auth` is the name of the token's own field.
_EXTENSION = re.compile(r"(?!auth=)[A-Za-z]+=[\x21-\x7e \t\r\n]+")
_NO_EXTENSIONS: Mapping[str, str] = MappingProxyType({})
_LONGEST_STATUS = 200


class Token(NamedTuple):
    """A bearer token. `expires_at`: seconds since the epoch; None: the expiry that the token itself has, as a JWT.

    The client sends the SASL extensions with the token (KIP-342).
    """

    value: str
    expires_at: float | None = None
    extensions: Mapping[str, str] = _NO_EXTENSIONS


TokenProvider = Callable[[], "Token | tuple[str, float | None] | tuple[str, float | None, Mapping[str, str]] | str"]


def mechanism(
    config: ProducerConfig, options: Mapping[str, str], clock: Clock, random: Callable[[], float]
) -> OAuthBearer:
    """OAUTHBEARER from the settings, or JAAS options: clientId, clientSecret, scope, extension_*, ssl.truststore.*.

    Raises ConfigError.
    """
    provider, url = config.sasl_oauthbearer_token_provider, config.sasl_oauthbearer_token_endpoint_url
    if (provider is None) == (url is None):
        raise ConfigError(
            "sasl.mechanism=OAUTHBEARER needs either sasl_oauthbearer_token_provider (a callable that returns a token) "
            "or sasl.oauthbearer.token.endpoint.url with credentials"
        )
    check_options(options)
    if provider is None:
        assert url is not None
        provider = _with_extensions(retriever(url, config, options, clock, random), extensions_in(options))
    return OAuthBearer(provider, config, clock, random)


def _with_extensions(
    provider: Callable[[], str | tuple[str, float | None]], extensions: Mapping[str, str]
) -> TokenProvider:
    def token() -> Token:
        provided = provider()
        value, expires_at = (provided, None) if isinstance(provided, str) else provided
        return Token(value, expires_at, extensions)

    return token if extensions else provider


class _Kept(NamedTuple):
    """A token and when to renew it: by the wall clock, as its expiry, and by the monotonic clock.

    A wall clock that is set back would let a token look fresh after its expiry.
    """

    token: Token
    renewal: float
    monotonic_renewal: float


class OAuthBearer:
    """Keeps a token until sasl.login.refresh.* says that it is due for renewal, and then gets the next token."""

    name = "OAUTHBEARER"
    slow_step = "the token provider, or token endpoint, has not given a token yet"
    advice = ""

    def __init__(
        self, provider: TokenProvider, config: ProducerConfig, clock: Clock, random: Callable[[], float]
    ) -> None:
        self._provider = provider
        self._config = config
        self._clock = clock
        self._random = random
        # Threads replace it as a whole, so that no thread waits for a renewal.
        self._kept: _Kept | None = None
        # Thread: Sender. The newest call of the provider. All connections that need a token share it, and each gives up
        # after its own time-out. If each started a thread, a provider that hangs would cause ever more threads.
        self._attempt: BackgroundCall[Token] | None = None

    def begin(self, host: str) -> OAuthExchange:
        return OAuthExchange(self)

    def renew(self, on_done: Callable[[], None]) -> float:
        return float("inf")  # the next authentication renews the token

    @property
    def fresh(self) -> bool:
        kept = self._kept
        if kept is None:
            return False
        return self._clock.time_ms() / 1000 < kept.renewal and self._clock.monotonic() < kept.monotonic_renewal

    def attempt(self, on_done: Callable[[], None]) -> BackgroundCall[Token]:
        """Thread: Sender. The fetch of a token that is under way, or a new fetch."""
        if self._attempt is None or self._attempt.done:
            self._attempt = BackgroundCall(self.token, on_done, "kafkabuf-sasl-oauth")
        return self._attempt

    def token(self) -> Token:
        """The token to use. Any thread; takes as long as the provider. Raises SaslAuthenticationError, KafkaError."""
        kept = self._kept
        if kept is None or not self.fresh:
            token = _checked(self._provided())
            renewal, now = self._renewal(token), self._clock.time_ms() / 1000
            kept = self._kept = _Kept(token, renewal, self._clock.monotonic() + renewal - now)
        return kept.token

    def _provided(self) -> object:
        try:
            return self._provider()
        except KafkaError:
            raise
        except Exception as error:
            text = f"OAUTHBEARER: the token provider raised {type(error).__name__}: {error}"
            raise SaslAuthenticationError(text) from error

    def drop(self, token: str) -> None:
        """Forget a token that the broker refused: the next connection gets another token."""
        kept = self._kept
        if kept is not None and kept.token.value == token:
            self._kept = None

    def _renewal(self, token: Token) -> float:
        """When to renew, in seconds since the epoch (Kafka's ExpiringCredentialRefreshingLogin)."""
        config, now = self._config, self._clock.time_ms() / 1000
        expires_at = _expiry_in(token.value) if token.expires_at is None else token.expires_at
        if expires_at is None:
            return now  # the token has no expiry: each connection gets a new token
        if expires_at <= now:
            raise SaslAuthenticationError("OAUTHBEARER: the token has expired already; check its source and the clocks")
        window = config.sasl_login_refresh_window_factor + config.sasl_login_refresh_window_jitter * self._random()
        due = min(now + (expires_at - now) * window, expires_at - config.sasl_login_refresh_buffer_seconds)
        due = max(due, now + config.sasl_login_refresh_min_period_seconds)
        # The token lives too short for buffer and minimum period: only the window counts then, as in Java.
        return due if due < expires_at else now + (expires_at - now) * window


class OAuthExchange:
    def __init__(self, bearer: OAuthBearer) -> None:
        self._bearer = bearer
        self._token = ""
        self._status = ""

    @property
    def slow(self) -> bool:
        return not self._token and not self._bearer.fresh

    def respond_in_background(self, challenge: bytes, on_done: Callable[[], None]) -> FirstMessage:
        return FirstMessage(self, self._bearer.attempt(on_done))

    def begin(self, token: Token) -> bytes:
        self._token = token.value
        fields = {"auth": f"Bearer {token.value}", **token.extensions}
        pairs = "".join(f"\x01{name}={value}" for name, value in fields.items())
        return f"n,,{pairs}\x01\x01".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        if not self._token:
            return self.begin(self._bearer.token())
        if not challenge:
            return None
        # The broker refuses a token by a challenge. It sends its error code after this response (RFC 7628, 3.2.3).
        self._bearer.drop(self._token)
        if self._status:
            raise SaslAuthenticationError(f"OAUTHBEARER: the broker refused the token: {self._status}")
        self._status = _status_in(challenge)
        return b"\x01"


class FirstMessage:
    """The first message of an exchange, which needs a token."""

    def __init__(self, exchange: OAuthExchange, attempt: BackgroundCall[Token]) -> None:
        self._exchange = exchange
        self._attempt = attempt

    @property
    def done(self) -> bool:
        return self._attempt.done

    def result(self) -> bytes:
        return self._exchange.begin(self._attempt.result())


def _checked(provided: Any) -> Token:
    token = Token(*provided) if isinstance(provided, tuple) and len(provided) in (2, 3) else Token(provided)
    valid = isinstance(token.value, str) and _TOKEN.fullmatch(token.value)
    if not (valid and isinstance(token.expires_at, int | float | None) and isinstance(token.extensions, Mapping)):
        raise SaslAuthenticationError(
            "OAUTHBEARER: the token provider must return a bearer token as a str, or a tuple of the token, its expiry "
            "in seconds since the epoch and perhaps a mapping of SASL extensions; it returned a "
            f"{type(provided).__name__} that is neither"
        )
    for name, value in token.extensions.items():
        if not _EXTENSION.fullmatch(f"{name}={value}"):  # the value may be a secret
            raise SaslAuthenticationError(
                f"OAUTHBEARER: the SASL extension {name!r} is not valid: its name must be letters, and not auth; its "
                "value must be printable ASCII text, and not empty"
            )
    return token


def _expiry_in(token: str) -> float | None:
    """The claim `exp` of a JWT; None if the token has none. The client does not verify the JWT: the broker does."""
    try:
        payload = token.split(".")[1]
        expires_at = float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    return expires_at if math.isfinite(expires_at) else None


def _status_in(challenge: bytes) -> str:
    try:
        return printable(str(json.loads(challenge)["status"]), _LONGEST_STATUS)
    except (KeyError, TypeError, ValueError, RecursionError):
        return "no reason given"
