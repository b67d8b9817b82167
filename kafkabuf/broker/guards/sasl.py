"""SASL mechanisms from the server's side: PLAIN and OAUTHBEARER. SCRAM has a file of its own."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kafkabuf.clock import Clock
from kafkabuf.errors import SaslAuthenticationError

# From a token to who it is and, in seconds since the epoch, until when. Raises whatever it likes to refuse it.
TokenValidator = Callable[[str], "str | tuple[str, float | None]"]

_BEARER = re.compile(r"n,(?:a=([^,]*))?,\x01((?:[A-Za-z]+=[^\x01]*\x01)+)\x01")


class Exchange(Protocol):
    """One authentication on one connection. Done when there is a `principal`; `expires_at`: seconds since the epoch."""

    principal: str | None
    expires_at: float | None

    def respond(self, token: bytes) -> bytes:
        """What to send after what the client sent. SaslAuthenticationError for whom not to let in."""


class Refusing:
    """Lets nobody in: its reason is told in answer to the first token."""

    def __init__(self, reason: str) -> None:
        self.principal: str | None = None
        self.expires_at: float | None = None
        self._reason = reason

    def respond(self, token: bytes) -> bytes:
        raise SaslAuthenticationError(self._reason)


class Plain:
    """User name and password as they are (RFC 4616)."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self.principal: str | None = None
        self.expires_at: float | None = None
        self._passwords = passwords

    def respond(self, token: bytes) -> bytes:
        try:
            other, name, password = token.decode().split("\0")
        except ValueError:
            raise SaslAuthenticationError("PLAIN: the client sent something else than two NULs between texts") from None
        # An unknown user's password is compared too, with one that nobody can have given: it holds a NUL.
        expected = self._passwords.get(name, "\0")
        right = hmac.compare_digest(password.encode(), expected.encode())
        if not right or not name or other not in ("", name):
            raise SaslAuthenticationError("PLAIN: user name or password is wrong")
        self.principal = name
        return b""


class OAuthBearer:
    """RFC 7628 and KIP-255. What is wrong with a token goes back as JSON, and the client ends the dialogue then."""

    def __init__(self, validate: TokenValidator) -> None:
        self.principal: str | None = None
        self.expires_at: float | None = None
        self._validate = validate
        self._problem: str | None = None

    def respond(self, token: bytes) -> bytes:
        if self._problem is not None:
            raise SaslAuthenticationError(f"OAUTHBEARER: {self._problem}")
        match = _BEARER.fullmatch(token.decode("utf-8", "replace"))
        fields = dict(one.split("=", 1) for one in match[2].split("\x01")[:-1]) if match is not None else {}
        scheme, _, value = fields.get("auth", "").partition(" ")
        if match is None or scheme.lower() != "bearer" or not value.strip():
            raise SaslAuthenticationError("OAUTHBEARER: the client sent a first message without a bearer token")
        try:
            found = self._validate(value.strip())
            name, self.expires_at = (found, None) if isinstance(found, str) else found
        except Exception as error:  # the validator is the user's: whatever it raises means no
            self._problem = f"the token is refused: {error}"
            return json.dumps({"status": "invalid_token"}).encode()
        if match[1] not in (None, "", name):
            raise SaslAuthenticationError(f"OAUTHBEARER: the token is {name}'s, not {match[1]}'s")
        self.principal = name
        return b""


def unsecured_tokens(clock: Clock) -> TokenValidator:
    """Takes JWTs that nobody signed (`"alg": "none"`), of which anybody can make any: for tests, as Kafka's default is.

    The claim sub is the principal, exp must lie ahead, iat may not.
    """

    def validate(token: str) -> tuple[str, float]:
        head, claims, signature = _parts(token)
        if head.get("alg") != "none" or signature:
            raise ValueError('it is signed, and this broker takes unsigned ones ("alg": "none") only')
        name, expires, issued = claims.get("sub"), claims.get("exp"), claims.get("iat", 0)
        if not (
            isinstance(name, str) and name and isinstance(expires, int | float) and isinstance(issued, int | float)
        ):
            raise ValueError("the claims sub (a text) and exp (a number) are needed, iat is a number")
        now = clock.time_ms() / 1000
        if expires <= now or issued > now:
            raise ValueError(f"it is valid from {issued} to {expires}, now is {now:.0f}")
        return name, float(expires)

    return validate


def _parts(token: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    try:
        head, claims, signature = token.split(".")
        decoded = [json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in (head, claims)]
    except (ValueError, binascii.Error, RecursionError):
        raise ValueError("it is no JWT: three parts of base64 with points between them") from None
    if not all(isinstance(one, dict) for one in decoded):
        raise ValueError("it is no JWT: its parts are no JSON objects")
    return decoded[0], decoded[1], signature
