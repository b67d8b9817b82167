"""SASL on a connection: SaslHandshake, then SaslAuthenticate until both sides are content (KIP-43, KIP-152).

And again before the session ends (KIP-368), on the same connection: the node is not READY meanwhile, so nothing else is
sent; what was sent before is answered before. Kafka's SaslClientAuthenticator. Thread: the Sender's, except the steps
that an Exchange calls slow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from kafkabuf.clock import Clock
from kafkabuf.errors import (
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationError,
    UnsupportedSaslMechanismError,
    error_for_code,
    printable,
)
from kafkabuf.network._io import Connection
from kafkabuf.network._request import Completion
from kafkabuf.network.connection_state import NodeConnection, State
from kafkabuf.network.sasl import Exchange, Mechanism, Step
from kafkabuf.protocol import messages

log = logging.getLogger("kafkabuf.network")

HANDSHAKE_VERSION = 1  # since this one the tokens travel in SaslAuthenticate, not bare
AUTHENTICATE_VERSIONS = range(3)
# Between two authentications on a connection: a session may be shorter by mistake, or to keep us busy.
SHORTEST_SESSION = 1.0
# As Java: of a session's length 85 to 95 % are used, so that not all clients come at once, nor too late.
WINDOW, JITTER = 0.85, 0.10


class Network(Protocol):
    """The part of NetworkClient that carries the dialogue."""

    def submit(self, node: NodeConnection, entity: Any, deliver: Callable[[Completion], None]) -> None: ...
    def wakeup(self) -> None: ...
    def established(self, node: NodeConnection) -> None: ...
    def check_by(self, when: float) -> None: ...


@dataclass(eq=False)
class Dialogue:
    """One authentication on one connection."""

    node: NodeConnection
    connection: Connection | None
    exchange: Exchange
    version: int  # of SaslAuthenticate
    last_used: float  # when the connection carried something else
    step: Step | None = None  # the slow one under way
    session: float = 0.0  # seconds that the broker will accept this authentication for; 0: without end


class Authenticator:
    """Authenticates connections with one mechanism, and never with another."""

    def __init__(self, mechanism: Mechanism, network: Network, clock: Clock, random: Callable[[], float]) -> None:
        self._mechanism = mechanism
        self._network = network
        self._clock = clock
        self._random = random
        self.waiting: list[Dialogue] = []  # those with a step under way

    def begin(self, node: NodeConnection, deadline: float) -> None:
        """First or again. The deadline is for all of it; each request has one of its own besides."""
        node.api_version(messages.SASL_HANDSHAKE, range(HANDSHAKE_VERSION, HANDSHAKE_VERSION + 1))
        version = node.api_version(messages.SASL_AUTHENTICATE, AUTHENTICATE_VERSIONS)
        dialogue = Dialogue(node, node.connection, self._mechanism.begin(), version, node.last_used)
        node.state = State.AUTHENTICATING
        node.setup_deadline = deadline
        self._network.check_by(deadline)
        entity = messages.build_request(messages.SASL_HANDSHAKE, HANDSHAKE_VERSION, mechanism=self._mechanism.name)
        self._network.submit(node, entity, partial(self._accepted, dialogue))

    def waits_for(self, node: NodeConnection) -> str:
        """Why an authentication with the node takes so long, if that is for something on this side."""
        waits = any(one.node is node and one.connection is node.connection for one in self.waiting)
        return self._mechanism.slow_step if waits else ""

    def take_steps(self) -> Iterator[tuple[NodeConnection, KafkaError]]:
        """Go on where a slow step has ended; the nodes with which that was not possible, and why."""
        waiting, self.waiting = self.waiting, []
        for dialogue in waiting:
            assert dialogue.step is not None
            if dialogue.node.connection is not dialogue.connection:
                continue  # it was closed meanwhile
            if not dialogue.step.done:
                self.waiting.append(dialogue)
                continue
            try:
                self._send(dialogue, dialogue.step.result())
            except KafkaError as error:
                yield dialogue.node, error

    def _accepted(self, dialogue: Dialogue, completion: Completion) -> None:
        if completion.error is not None:
            return  # the connection is gone already
        response = completion.decode()
        if int(response.error_code) == UnsupportedSaslMechanismError.code:
            offered = printable(", ".join(response.mechanisms)) or "none"
            raise UnsupportedSaslMechanismError(
                f"{dialogue.node} does not take sasl.mechanism={self._mechanism.name} on this listener, only: {offered}"
            )
        self._check(dialogue, response, None)
        self._respond(dialogue, b"")

    def _respond(self, dialogue: Dialogue, challenge: bytes) -> None:
        if dialogue.exchange.slow:
            dialogue.step = dialogue.exchange.respond_aside(challenge, self._network.wakeup)
            self.waiting.append(dialogue)
        else:
            self._send(dialogue, dialogue.exchange.respond(challenge))

    def _send(self, dialogue: Dialogue, answer: bytes | None) -> None:
        if answer is None:
            self._finish(dialogue)
            return
        entity = messages.build_request(messages.SASL_AUTHENTICATE, dialogue.version, auth_bytes=answer)
        self._network.submit(dialogue.node, entity, partial(self._challenged, dialogue))

    def _challenged(self, dialogue: Dialogue, completion: Completion) -> None:
        if completion.error is not None:
            return
        response = completion.decode()
        self._check(dialogue, response, response.error_message)
        lifetime = getattr(response, "session_lifetime", None)
        dialogue.session = lifetime.total_seconds() if lifetime is not None else 0.0
        self._respond(dialogue, response.auth_bytes)

    def _check(self, dialogue: Dialogue, response: Any, message: str | None) -> None:
        code = int(response.error_code)
        if code == SaslAuthenticationError.code:
            why = printable(message or "it gives no reason")
            raise SaslAuthenticationError(f"{dialogue.node} refused the {self._mechanism.name} credentials: {why}")
        if code == IllegalSaslStateError.code:
            text = f"{dialogue.node} expects no SASL here: check the port, and security.protocol"
            raise IllegalSaslStateError(text)
        if code:
            raise error_for_code(code, f"{dialogue.node} refused SASL: {message or response.error_code!r}")

    def _finish(self, dialogue: Dialogue) -> None:
        node, now = dialogue.node, self._clock.monotonic()
        node.reauthenticate_at = float("inf")
        if dialogue.session > 0:
            due = dialogue.session * (WINDOW + JITTER * self._random())
            node.reauthenticate_at = now + max(due, SHORTEST_SESSION)
            self._network.check_by(node.reauthenticate_at)
        log.debug("%s has authenticated us with %s", node, self._mechanism.name)
        if node.established:
            node.last_used = dialogue.last_used  # this was no use that should keep it from being closed as idle
        self._network.established(node)
