"""Brokers that speak TLS and SASL over real sockets, under control of the test."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

from kafkabuf.errors import KafkaError
from kafkabuf.network.resolve import Address
from kafkabuf.protocol import messages
from tests.network.support import ALL_VERSIONS, FakeBroker, Received, Rig, cluster_of, rig
from tests.network.tls.certificates import Identity

SASL_VERSIONS = {**ALL_VERSIONS, messages.SASL_HANDSHAKE: (0, 1), messages.SASL_AUTHENTICATE: (0, 2)}


def server_context(identity: Identity, *, client_ca: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.store)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Refused(Exception):
    """The server's side of a mechanism does not accept the client."""


# The server's side of one exchange: the client's messages in, ours out.
ServerExchange = Callable[[bytes], bytes]


class SecureBroker(FakeBroker):
    """A FakeBroker, with TLS if it has a context. It accepts only clients that pass `exchanges[mechanism]()`."""

    def __init__(
        self,
        context: ssl.SSLContext | None = None,
        exchanges: dict[str, Callable[[], ServerExchange]] | None = None,
        *,
        session_ms: int = 0,
        **options: Any,
    ) -> None:
        self.context = context
        self.exchanges = exchanges
        self.session_ms = session_ms
        self.handshakes: list[str] = []  # mechanisms asked for
        self.tokens: list[bytes] = []  # what clients sent
        self.failures: list[Exception] = []  # of TLS, from this side
        self.early: list[int] = []  # APIs asked for by clients not authenticated
        self._under_way: dict[socket.socket, ServerExchange] = {}
        self._passed: set[socket.socket] = set()
        super().__init__(versions=SASL_VERSIONS, **options)

    def _serve(self, sock: socket.socket) -> None:
        if self.context is None:
            super()._serve(sock)
            return
        try:
            secured = self.context.wrap_socket(sock, server_side=True)
        except OSError as error:
            self.failures.append(error)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            return
        self.sockets.append(secured)
        super()._serve(secured)

    def handle(self, request: Received) -> bool:
        """Handle a SASL request. Closes a connection that sends another request during SASL. False: no SASL request."""
        key = request.header.api_key
        if key == messages.SASL_HANDSHAKE:
            name = request.entity().mechanism
            self.handshakes.append(name)
            known = name in (self.exchanges or {})
            request.reply_entity(error_code=0 if known else 33, mechanisms=list(self.exchanges or {}))
            if known and self.exchanges is not None:
                self._under_way[request.sock] = self.exchanges[name]()
        elif key == messages.SASL_AUTHENTICATE:
            self._authenticate(request)
        else:
            if self.exchanges is not None and (request.sock not in self._passed or request.sock in self._under_way):
                self.early.append(key)
                request.sock.shutdown(socket.SHUT_RDWR)
                return True
            return False
        return True

    def _authenticate(self, request: Received) -> None:
        token = bytes(request.entity().auth_bytes)
        self.tokens.append(token)
        try:
            answer = self._under_way[request.sock](token)
        except Refused as error:
            request.reply_entity(error_code=58, error_message=str(error), auth_bytes=b"")
            return
        if not answer or answer.startswith(b"v="):
            del self._under_way[request.sock]
            self._passed.add(request.sock)
        request.reply_entity(error_code=0, error_message=None, auth_bytes=answer, session_lifetime=self.session_ms)


def plain(username: str, password: str) -> Callable[[], ServerExchange]:
    def exchange(token: bytes) -> bytes:
        if token != f"\0{username}\0{password}".encode():
            raise Refused("Authentication failed: Invalid username or password")
        return b""

    return lambda: exchange


class ScramServer:
    """The server's half of SCRAM (RFC 5802). The arguments make it lie, as an attacker would."""

    def __init__(
        self,
        mechanism: str,
        password: str,
        *,
        iterations: int | str = 4096,
        nonce: Callable[[str], str] = lambda ours: ours + secrets.token_hex(8),
        signature: bytes | None = None,
    ) -> None:
        self.hash = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
        self.password, self.iterations, self.nonce, self.signature = password, iterations, nonce, signature
        self.username = ""
        self.extensions: list[str] = []

    def __call__(self) -> ServerExchange:
        return self._first

    def _first(self, token: bytes) -> bytes:
        text = token.decode()
        if not text.startswith("n,,"):
            return self._final(text)
        self._bare = text[3:]
        name, nonce, *self.extensions = self._bare.split(",")
        self.username = name.removeprefix("n=").replace("=2C", ",").replace("=3D", "=")
        self._salt = b"salt of this user"
        salt = base64.b64encode(self._salt).decode()
        self._server_first = f"r={self.nonce(nonce.removeprefix('r='))},s={salt},i={self.iterations}"
        return self._server_first.encode()

    def _final(self, text: str) -> bytes:
        without_proof, _, proof = text.rpartition(",p=")
        message = f"{self._bare},{self._server_first},{without_proof}".encode()
        salted = hashlib.pbkdf2_hmac(self.hash, self.password.encode(), self._salt, int(self.iterations))
        client_key = hmac.digest(salted, b"Client Key", self.hash)
        signature = hmac.digest(hashlib.new(self.hash, client_key).digest(), message, self.hash)
        if base64.b64decode(proof) != bytes(a ^ b for a, b in zip(client_key, signature, strict=True)):
            raise Refused("Authentication failed during authentication due to invalid credentials")
        ours = self.signature or hmac.digest(hmac.digest(salted, b"Server Key", self.hash), message, self.hash)
        return b"v=" + base64.b64encode(ours)


@contextlib.contextmanager
def secured(broker: SecureBroker, host: str = "kafka.test", **settings: Any) -> Iterator[tuple[Rig, SecureBroker]]:
    """A broker under a name that the test chooses, with a topic t, and a client that knows it by that name."""
    protocol = ("SASL_" if broker.exchanges is not None else "") + ("PLAINTEXT" if broker.context is None else "SSL")
    settings.setdefault("security_protocol", protocol)
    broker.host = host
    broker.cluster = cluster_of(broker, topics={"t": 1})

    def resolver(name: str, port: int) -> list[Address]:
        return [Address(socket.AF_INET, ("127.0.0.1", port))]

    try:
        with rig((host, broker.port), resolver=resolver, **settings) as rigged:
            yield rigged, broker
    finally:
        broker.close()


def failure(rigged: Rig) -> KafkaError:
    """The error of the first connection attempt, as threads that wait for metadata get it."""
    found: list[KafkaError] = []
    rigged.metadata.on_failure = found.append  # type: ignore[method-assign, assignment]
    rigged.poll_until(lambda: found)
    return found[0]
