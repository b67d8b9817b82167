"""The server's side of the SASL mechanisms PLAIN and OAUTHBEARER. For SCRAM see scram.py."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kafkabuf.clock import Clock
from kafkabuf.errors import SaslAuthenticationError

# Takes a token; returns its principal, or (principal, seconds since the epoch when the token expires). Refuses a token
# by raising any exception.
TokenValidator = Callable[[str], "str | tuple[str, float | None]"]

_BEARER = re.compile(r"n,(?:a=([^,]*))?,\x01((?:[A-Za-z]+=[^\x01]*\x01)+)\x01")


class Exchange(Protocol):
    """One authentication on one connection. It has succeeded when `principal` is set. `expires_at`: seconds since the
    epoch."""

    principal: str | None
    expires_at: float | None

    def respond(self, token: bytes) -> bytes:
        """The server's response to the client's `token`. Raises SaslAuthenticationError to refuse the client."""


class Refusing:
    """Refuses every client, with `reason` as the response to the first token."""

    def __init__(self, reason: str) -> None:
        self.principal: str | None = None
        self.expires_at: float | None = None
        self._reason = reason

    def respond(self, token: bytes) -> bytes:
        raise SaslAuthenticationError(self._reason)


class Plain:
    """User name and password in plain text (RFC 4616)."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self.principal: str | None = None
        self.expires_at: float | None = None
        self._passwords = passwords

    def respond(self, token: bytes) -> bytes:
        try:
            authorization_id, name, password = token.decode().split("\0")
        except ValueError:
            raise SaslAuthenticationError("PLAIN: the client's token is not three texts split by two NULs") from None
        # For an unknown user the password is compared too, with a NUL, which no client can send.
        expected = self._passwords.get(name, "\0")
        right = hmac.compare_digest(password.encode(), expected.encode())
        if not right or not name or authorization_id not in ("", name):
            raise SaslAuthenticationError("PLAIN: the user name or the password is wrong")
        self.principal = name
        return b""


class OAuthBearer:
    """RFC 7628 and KIP-255. The server refuses a token by an error in JSON; the client then ends the dialogue."""

    def __init__(self, validate: TokenValidator) -> None:
        self.principal: str | None = None
        self.expires_at: float | None = None
        self._validate = validate
        self._problem: str | None = None

    def respond(self, token: bytes) -> bytes:
        if self._problem is not None:
            raise SaslAuthenticationError(f"OAUTHBEARER: {self._problem}")
        match = _BEARER.fullmatch(token.decode("utf-8", "replace"))
        fields = dict(pair.split("=", 1) for pair in match[2].split("\x01")[:-1]) if match is not None else {}
        scheme, _, value = fields.get("auth", "").partition(" ")
        if match is None or scheme.lower() != "bearer" or not value.strip():
            raise SaslAuthenticationError("OAUTHBEARER: the client sent a first message without a bearer token")
        try:
            valid = self._validate(value.strip())
            name, self.expires_at = (valid, None) if isinstance(valid, str) else valid
        except Exception as error:  # the validator is the user's: any exception refuses the token
            self._problem = f"the token is refused: {error}"
            return json.dumps({"status": "invalid_token"}).encode()
        if self.expires_at is not None and math.isnan(self.expires_at):
            raise SaslAuthenticationError(
                f"OAUTHBEARER: the validator says that the token expires at {self.expires_at}"
            )
        if match[1] not in (None, "", name):
            raise SaslAuthenticationError(f"OAUTHBEARER: the token belongs to {name}, not to {match[1]}")
        self.principal = name
        return b""


def unsecured_tokens(clock: Clock) -> TokenValidator:
    """Accepts unsigned JWTs (`"alg": "none"`), which anybody can make: for tests, as Kafka's default validator is.

    The claim sub is the principal. The time exp must be in the future, iat and nbf must not be. Python reads Infinity
    and NaN, which JSON does not have: a token with one of these as its end would never expire.
    """

    def validate(token: str) -> tuple[str, float]:
        head, claims, signature = _parts(token)
        if head.get("alg") != "none" or signature:
            raise ValueError('the token is signed, but this broker takes only unsigned tokens ("alg": "none")')
        name = claims.get("sub")
        times = [_seconds(claims, "exp", None), _seconds(claims, "iat", 0), _seconds(claims, "nbf", 0)]
        if not (isinstance(name, str) and name) or None in times:
            raise ValueError("the token needs the claims sub (a text) and exp (a number); iat and nbf must be numbers")
        expires, issued, not_before = (time or 0.0 for time in times)
        now = clock.time_ms() / 1000
        if expires <= now or max(issued, not_before) > now:
            raise ValueError(f"the token is valid from {max(issued, not_before)} to {expires}, the time is {now:.0f}")
        return name, expires

    return validate


def _seconds(claims: dict[str, Any], name: str, default: float | None) -> float | None:
    """A claim that is a time; None if the claim is no finite number."""
    value = claims.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number of more than 308 digits
        return None


def _parts(token: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    try:
        head, claims, signature = token.split(".")
        decoded = [json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in (head, claims)]
    except (ValueError, binascii.Error, RecursionError):
        raise ValueError("the token is not a JWT: a JWT has three parts of base64 with points between them") from None
    if not all(isinstance(part, dict) for part in decoded):
        raise ValueError("the token is not a JWT: its parts are not JSON objects")
    return decoded[0], decoded[1], signature
