"""The server's side of SCRAM (RFC 5802, 7677), as far as Kafka supports it: no channel binding, no SASLprep.

A client cannot find out whether a user exists. An unknown user gets a salt that looks like any other and is always the
same, and is refused with the error for a wrong password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kafkabuf.errors import SaslAuthenticationError

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS = 4096

_NAME = r"((?:[^,=]|=2C|=3D)+)"
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
_FIRST = re.compile(rf"([ny]),(?:a={_NAME})?,(n={_NAME},r=({_NONCE})(,.*)?)", re.S)
_FINAL = re.compile(rf"(c=([A-Za-z0-9/+=]+),r=({_NONCE})(?:,[^p].*?)?),p=([A-Za-z0-9/+=]+)", re.S)
_LONGEST_MESSAGE = 4096


@dataclass(frozen=True, slots=True, repr=False)
class _Credential:
    """A server keeps this instead of the password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes


class ScramUsers:
    """Credentials of one mechanism, each derived from the password when its user first connects (some milliseconds)."""

    def __init__(self, mechanism: str, passwords: Mapping[str, str]) -> None:
        self.mechanism = mechanism
        self.hash = HASHES[mechanism]
        self._passwords = passwords
        self._secret = secrets.token_bytes(32)
        self._known: dict[str, _Credential] = {}
        self._nobody = self._derive(b"", self._secret.hex())

    def begin(self) -> ScramExchange:
        return ScramExchange(self)

    def find(self, name: str) -> tuple[_Credential, bool]:
        """The credential for the exchange, and whether the user exists."""
        salt = hmac.digest(self._secret, name.encode(), self.hash)[:16]
        if name not in self._passwords:
            return replace(self._nobody, salt=salt), False
        if name not in self._known:
            self._known[name] = self._derive(salt, self._passwords[name])
        return self._known[name], True

    def _derive(self, salt: bytes, password: str) -> _Credential:
        salted = hashlib.pbkdf2_hmac(self.hash, password.encode(), salt, ITERATIONS)
        client_key = hmac.digest(salted, b"Client Key", self.hash)
        stored_key = hashlib.new(self.hash, client_key).digest()
        return _Credential(salt, stored_key, hmac.digest(salted, b"Server Key", self.hash))


class ScramExchange:
    """The messages are client-first, server-first, client-final, server-final."""

    def __init__(self, users: ScramUsers) -> None:
        self._users = users
        self._name = self._first = self._server_first = self._gs2 = ""
        self._nonce = secrets.token_urlsafe(24)
        self.principal: str | None = None
        self.expires_at: float | None = None

    def respond(self, token: bytes) -> bytes:
        if len(token) > _LONGEST_MESSAGE:
            raise self._refused(f"a message of {len(token)} bytes")
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise self._refused("a message that is not UTF-8") from None
        return (self._prove(text) if self._server_first else self._begin(text)).encode()

    def _begin(self, text: str) -> str:
        match = _FIRST.fullmatch(text)
        if match is None:
            raise self._refused("a first message that is not SCRAM's")
        _, authorization_id, self._first, name, nonce, extensions = match.groups()
        self._name = unescaped(name)
        if authorization_id is not None and unescaped(authorization_id) != self._name:
            raise self._refused("an authorization id that is not the user name")
        self._gs2 = text[: len(text) - len(self._first)]
        self._nonce = nonce + self._nonce
        self._credential, self._exists = self._users.find(self._name)
        if "tokenauth=true" in (extensions or "").split(","):
            self._exists = False  # a delegation token: this broker has no tokens
        salt = base64.b64encode(self._credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={ITERATIONS}"
        return self._server_first

    def _prove(self, text: str) -> str:
        match = _FINAL.fullmatch(text)
        if match is None:
            raise self._refused("a final message that is not SCRAM's")
        without_proof, binding, nonce, proof = match.groups()
        if self._decoded(binding) != self._gs2.encode() or not hmac.compare_digest(nonce, self._nonce):
            raise self._refused("a final message that does not match its first message")
        message = f"{self._first},{self._server_first},{without_proof}".encode()
        hashed, credential = self._users.hash, self._credential
        signature = hmac.digest(credential.stored_key, message, hashed)
        client_proof = self._decoded(proof)
        client_key = bytes(a ^ b for a, b in zip(client_proof, signature, strict=False))
        right = hmac.compare_digest(hashlib.new(hashed, client_key).digest(), credential.stored_key)
        if not (right and len(client_proof) == len(signature) and self._exists):
            raise SaslAuthenticationError(f"{self._users.mechanism}: the user name or the password is wrong")
        self.principal = self._name
        return "v=" + base64.b64encode(hmac.digest(credential.server_key, message, hashed)).decode()

    def _decoded(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise self._refused("bytes that are not base64") from None

    def _refused(self, what: str) -> SaslAuthenticationError:
        return SaslAuthenticationError(f"{self._users.mechanism}: the client sent {what}")


def unescaped(name: str) -> str:
    """The user name that an RFC 5802 saslname stands for."""
    return name.replace("=2C", ",").replace("=3D", "=")
