"""The SASL dialogue of one connection (Kafka's SaslServerAuthenticator). Thread: the event loop.

Until the client has authenticated, the node serves no other request than ApiVersions. SaslHandshake names the
mechanism. After version 1 of SaslHandshake the tokens come in SaslAuthenticate requests; after version 0 they come bare
in frames (KIP-43, KIP-152). A session ends when its token expires, or after connections.max.reauth.ms if that is
earlier. Before that end the client authenticates again on the same connection, as the same principal and with the same
mechanism (KIP-368); otherwise its next request ends the connection. A session without an end cannot be renewed.

Deviations: a refusal goes out at once, not after connection.failed.authentication.delay.ms. A Produce or Fetch request
in the middle of the dialogue gets no response before the connection is closed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kafkabuf.broker.apis.dispatch import Frame, open_request, refuse_api_versions
from kafkabuf.broker.guards.sasl import Exchange
from kafkabuf.broker.guards.security import Mechanisms
from kafkabuf.broker.nodes.node import Node
from kafkabuf.errors import (
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationError,
    UnsupportedSaslMechanismError,
    error_for_code,
)
from kafkabuf.protocol.messages import API_VERSIONS, FETCH, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from kafkabuf.protocol.schema import Buffer

# A client that authenticates again sooner is refused.
_MIN_REAUTHENTICATION_SECONDS = 1.0

_LONGEST_SESSION_MS = 10**15


class Reply(NamedTuple):
    """`frame` is the response (None: no response). A `refusal` is the reason why the connection is closed then."""

    frame: Frame | None
    refusal: str | None = None


class Authenticator:
    """`principal` is the client's name, None before the client has authenticated."""

    def __init__(self, node: Node, mechanisms: Mechanisms) -> None:
        self._node = node
        self._clock = node.cluster.clock
        self._mechanisms = mechanisms
        self.principal: str | None = None
        self._mechanism = ""
        self._exchange: Exchange | None = None
        # Whether tokens come bare, not in SaslAuthenticate requests.
        self._bare = False
        self._versions_answered = False
        # When the session ends, and from when on the client may authenticate again.
        self._expires = math.inf
        self._again_from = 0.0

    @property
    def authenticated(self) -> bool:
        return self.principal is not None

    @property
    def in_dialogue(self) -> bool:
        """Whether the client has not authenticated, or authenticates again: its next frame may be a bare token."""
        return self.principal is None or self._exchange is not None

    def take(self, key: int, frame: Buffer) -> Reply | None:
        """The reply to a request of the dialogue; None for a request that the node may serve.

        Raises a KafkaError if the caller can only close the connection.
        """
        if self._exchange is not None:
            return self._authenticate(self._exchange, key, frame)
        now = self._clock.monotonic()
        renewable = not math.isinf(self._expires) and now >= self._again_from
        if key == SASL_HANDSHAKE and (not self.authenticated or renewable):
            return self._handshake(frame)
        if not self.authenticated:
            self._check_first(key, frame)
        elif now >= self._expires:
            raise SaslAuthenticationError(f"the session of {self.principal} is over, and it did not authenticate again")
        return None

    def _check_first(self, key: int, frame: Buffer) -> None:
        """Before SaslHandshake a client may send ApiVersions alone, until the node serves a version of it."""
        if key != API_VERSIONS or self._versions_answered:
            raise IllegalSaslStateError(f"a request of API key {key} from a client that has not authenticated")
        self._versions_answered = refuse_api_versions(frame) is None

    def _handshake(self, frame: Buffer) -> Reply:
        request = open_request(self._node, frame)
        name, known = request.body.mechanism, self._mechanisms.names
        code = self._node.cluster.faults.take_error(SASL_HANDSHAKE)
        if not code and name not in known:
            code = UnsupportedSaslMechanismError.code
        response = request.encode({"error_code": code, "mechanisms": list(known)})
        if code:
            reason = f"SASL mechanism {name!r} is refused, the mechanisms are {', '.join(known)}"
            # As in Kafka: a client that authenticates again gets no response, only the end of the connection.
            return Reply(None if self.authenticated else response, reason)
        if self.authenticated:
            self._again_from = self._clock.monotonic() + _MIN_REAUTHENTICATION_SECONDS
            self._exchange = self._mechanisms.begin_again(name, self._mechanism)
        else:
            self._exchange = self._mechanisms.begin(name)
        self._mechanism = name
        self._bare = request.header.version == 0
        return Reply(response)

    def _authenticate(self, exchange: Exchange, key: int, frame: Buffer) -> Reply:
        if self._bare:
            return Reply((self._respond(exchange, bytes(frame)),))
        request = open_request(self._node, frame)
        if key != SASL_AUTHENTICATE:
            reason = f"a request of API key {key} from a client that is authenticating"
            if key in (PRODUCE, FETCH):
                raise IllegalSaslStateError(reason)
            return Reply(request.encode({"error_code": IllegalSaslStateError.code}), reason)
        try:
            if code := self._node.cluster.faults.take_error(SASL_AUTHENTICATE):
                raise error_for_code(code)
            token = self._respond(exchange, request.body.auth_bytes)
        except KafkaError as error:
            return Reply(request.encode({"error_code": error.code, "error_message": str(error)}), str(error))
        values = {"error_message": "", "auth_bytes": token, "session_lifetime": self._lifetime_ms()}
        return Reply(request.encode(values))

    def _lifetime_ms(self) -> int:
        """The lifetime of the session that has just begun; 0 if the session has no end, or has not begun."""
        if self._exchange is not None or math.isinf(self._expires):
            return 0
        # A client reads the milliseconds into 64 bits.
        return round(min((self._expires - self._clock.monotonic()) * 1000, _LONGEST_SESSION_MS))

    def _respond(self, exchange: Exchange, token: bytes) -> bytes:
        response = exchange.respond(token)
        if exchange.principal is not None:
            self._finish(exchange.principal, exchange.expires_at)
        return response

    def _finish(self, principal: str, expires_at: float | None) -> None:
        if self.principal not in (None, principal):
            raise SaslAuthenticationError(f"the connection is {self.principal}'s and cannot become {principal}'s")
        self.principal, self._exchange, self._bare = principal, None, False
        lifetimes = [self._mechanisms.max_reauth_ms / 1000 or math.inf]
        if expires_at is not None:
            lifetimes.append(max(0.0, expires_at - self._clock.time_ms() / 1000))
        self._expires = self._clock.monotonic() + min(lifetimes)
