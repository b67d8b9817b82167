"""SASL on a connection: SaslHandshake, then SaslAuthenticate until both sides have finished (KIP-43, KIP-152).

The client authenticates again on the same connection before the session ends (KIP-368). The node is not READY
meanwhile, so the client sends nothing else; the broker responds to earlier requests first. Kafka's counterpart is
SaslClientAuthenticator.
Thread: the Sender's, except the steps that an Exchange calls slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

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
from kafkabuf.process.producer_log import producer_log
from kafkabuf.protocol import messages

if TYPE_CHECKING:
    from kafkabuf.network.sasl.mechanisms import Exchange, Mechanism, Step

log = producer_log("kafkabuf.network")

HANDSHAKE_VERSION = 1  # after version 0, tokens would travel bare and not in SaslAuthenticate requests
AUTHENTICATE_VERSIONS = range(3)
# The least seconds between two authentications on a connection. A broker may ask for less, by mistake or as an attack.
SHORTEST_SESSION = 1.0
# The client renews a session after 85 to 95 % of its length, as Java does. The share is random, so that clients do not
# all renew at once.
WINDOW, JITTER = 0.85, 0.10


class Network(Protocol):
    """The part of Connections that carries the dialogue."""

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
    last_used: float  # when the connection last carried another request
    step: Step | None = None  # the slow step under way
    session: float = 0.0  # seconds for which the broker accepts this authentication; 0: without end


class Authenticator:
    """Authenticates connections with one mechanism, and never with one that the broker prefers."""

    def __init__(self, mechanism: Mechanism, network: Network, clock: Clock, random: Callable[[], float]) -> None:
        self._mechanism = mechanism
        self._network = network
        self._clock = clock
        self._random = random
        self.waiting: list[Dialogue] = []  # dialogues with a slow step under way

    def use(self, mechanism: Mechanism) -> None:
        """Any thread: authenticate with other credentials from now on."""
        self._mechanism = mechanism

    def begin(self, node: NodeConnection, deadline: float) -> None:
        """Authenticate for the first time, or again. `deadline` is for the whole dialogue, not for each request."""
        node.api_version(messages.SASL_HANDSHAKE, range(HANDSHAKE_VERSION, HANDSHAKE_VERSION + 1))
        version = node.api_version(messages.SASL_AUTHENTICATE, AUTHENTICATE_VERSIONS)
        dialogue = Dialogue(node, node.connection, self._mechanism.begin(node.host), version, node.last_used)
        node.state = State.AUTHENTICATING
        node.setup_deadline = deadline
        self._network.check_by(deadline)
        entity = messages.build_request(messages.SASL_HANDSHAKE, HANDSHAKE_VERSION, mechanism=self._mechanism.name)
        self._network.submit(node, entity, partial(self._accepted, dialogue))

    def renew(self) -> float:
        """Start a renewal of the credentials that is due. Returns when to call again, by the monotonic clock."""
        return self._mechanism.renew(self._network.wakeup)

    def waits_for(self, node: NodeConnection) -> str:
        """Which slow step of this client an authentication with the node waits for. Empty: no step is under way."""
        waits = any(dialogue.node is node and dialogue.connection is node.connection for dialogue in self.waiting)
        return self._mechanism.slow_step if waits else ""

    def take_steps(self) -> Iterator[tuple[NodeConnection, KafkaError]]:
        """Continue the dialogues whose slow step has ended. Yields each node whose step failed, with the error."""
        for dialogue in list(self.waiting):
            assert dialogue.step is not None
            failure: KafkaError | None = None
            if dialogue.node.connection is dialogue.connection:  # else it was closed meanwhile
                if not dialogue.step.done:
                    continue
                try:
                    self._send(dialogue, dialogue.step.result())
                except KafkaError as error:
                    failure = error
            self.waiting.remove(dialogue)  # last: without memory the next call tries again
            if failure is not None:
                yield dialogue.node, failure

    def _accepted(self, dialogue: Dialogue, completion: Completion) -> None:
        if completion.error is not None:
            return  # the connection is closed already
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
            dialogue.step = dialogue.exchange.respond_in_background(challenge, self._network.wakeup)
            self.waiting.append(dialogue)
        else:
            self._send(dialogue, dialogue.exchange.respond(challenge))

    def _send(self, dialogue: Dialogue, token: bytes | None) -> None:
        if token is None:
            self._finish(dialogue)
            return
        entity = messages.build_request(messages.SASL_AUTHENTICATE, dialogue.version, auth_bytes=token)
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
            reason = printable(message or "it gives no reason")
            if self._mechanism.advice:
                reason += f" ({self._mechanism.advice})"
            raise SaslAuthenticationError(f"{dialogue.node} refused the {self._mechanism.name} credentials: {reason}")
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
        self._network.check_by(self.renew())
        log.debug("%s has authenticated us with %s", node, self._mechanism.name)
        if node.established:
            node.last_used = dialogue.last_used  # an authentication does not keep an idle connection open
        self._network.established(node)
