"""The client's side of SCRAM (RFC 5802, 7677), as far as Kafka implements it: no channel binding, no SASLprep.

A delegation token (KIP-48) authenticates by SCRAM, too: the token's id is the user, its HMAC in base64 the password,
and the first message ends in `,tokenauth=true`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from functools import partial

from kafkabuf.errors import SaslAuthenticationError, printable
from kafkabuf.process.background import BackgroundCall

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# With fewer iterations an eavesdropper can guess the password easily. More iterations are an attack on this client.
FEWEST_ITERATIONS, MOST_ITERATIONS = 4096, 1_000_000
LONGEST_MESSAGE = 4096

_GS2_HEADER = "n,,"  # no channel binding, no authorization identity
_SERVER_FIRST = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9/+=]+),i=(-?[0-9]{1,20})(,.*)?")
_SERVER_FINAL = re.compile(r"(?:v=([A-Za-z0-9/+=]+)|e=([^,]*))(,.*)?")


class Scram:
    """A user's credentials for a SCRAM mechanism. They keep the salted password for the next connection."""

    slow_step = "deriving the salted password takes long: the broker asks for many iterations"

    def __init__(self, name: str, username: str, password: str, *, is_token: bool = False) -> None:
        self.name = name
        self.hash = HASHES[name]
        self.username = username
        self.extensions = ",tokenauth=true" if is_token else ""
        self.advice = (
            f"delegation token {printable(username)}: it has expired, was taken back, or is not known there yet; "
            "another token takes another producer"
            if is_token
            else ""
        )
        self._password = password
        self._salted: tuple[bytes, int, bytes] | None = None

    def begin(self, host: str = "", nonce: str | None = None) -> ScramExchange:
        return ScramExchange(self, nonce or secrets.token_urlsafe(24))

    def renew(self, on_done: Callable[[], None]) -> float:
        return float("inf")

    def salted_password(self, salt: bytes, iterations: int) -> bytes:
        """Any thread. Takes up to a second for many iterations, and releases the GIL meanwhile."""
        known = self._salted
        if known is None or known[:2] != (salt, iterations):
            salted = hashlib.pbkdf2_hmac(self.hash, self._password.encode(), salt, iterations)
            known = self._salted = (salt, iterations, salted)
        return known[2]


class ScramExchange:
    """One authentication: client-first, server-first, client-final, server-final, in no other order."""

    def __init__(self, credentials: Scram, nonce: str) -> None:
        self._credentials = credentials
        self._nonce = nonce
        self._first = f"n={escaped(credentials.username)},r={nonce}{credentials.extensions}"
        self._signature: bytes | None = None
        self._step = 0

    @property
    def slow(self) -> bool:
        return self._step == 1

    def respond_in_background(self, challenge: bytes, on_done: Callable[[], None]) -> BackgroundCall[bytes | None]:
        return BackgroundCall(partial(self.respond, challenge), on_done, "kafkabuf-sasl-scram")

    def respond(self, challenge: bytes) -> bytes | None:
        """The next message. None: the server has proved that it knows the password. Raises SaslAuthenticationError."""
        self._step += 1
        if self._step == 1:
            return (_GS2_HEADER + self._first).encode()
        if len(challenge) > LONGEST_MESSAGE:
            raise self._refused(f"a message of {len(challenge)} bytes")
        try:
            text = challenge.decode()
        except UnicodeDecodeError:
            raise self._refused("a message that is not UTF-8") from None
        if self._step == 2:
            return self._prove(text)
        self._verify(text)
        return None

    def _prove(self, server_first: str) -> bytes:
        match = _SERVER_FIRST.fullmatch(server_first)
        if match is None:
            raise self._refused("a first message that is not SCRAM's")
        nonce, salt, iterations = match[1], self._decode(match[2]), int(match[3])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise self._refused("a nonce that does not extend the client's: it may be a replay")
        if not FEWEST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            raise self._refused(
                f"{iterations} iterations, allowed are {FEWEST_ITERATIONS} to {MOST_ITERATIONS}: create the user's "
                "credentials again with a number in this range"
            )
        without_proof = f"c={base64.b64encode(_GS2_HEADER.encode()).decode()},r={nonce}"
        message = f"{self._first},{server_first},{without_proof}".encode()
        salted = self._credentials.salted_password(salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._credentials.hash, client_key).digest(), message)
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _verify(self, server_final: str) -> None:
        match = _SERVER_FINAL.fullmatch(server_final)
        if match is None or self._signature is None or self._step != 3:
            raise self._refused("a final message that is not SCRAM's")
        if match[2] is not None:
            raise SaslAuthenticationError(
                f"{self._credentials.name}: the broker refused the credentials: {printable(match[2])}"
            )
        if not hmac.compare_digest(self._decode(match[1]), self._signature):
            raise self._refused("a wrong signature: it does not know the password, so it may be an impostor")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._credentials.hash)

    def _decode(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise self._refused("bytes that are not base64") from None

    def _refused(self, what: str) -> SaslAuthenticationError:
        return SaslAuthenticationError(f"{self._credentials.name}: the broker sent {what}")


def escaped(username: str) -> str:
    """RFC 5802's saslname: `=` and `,` are written as their codes."""
    return username.replace("=", "=3D").replace(",", "=2C")
