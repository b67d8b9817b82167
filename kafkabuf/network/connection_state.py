"""One broker as the client sees it: the state of its connection, the time of the next attempt, requests in flight.

Kafka's ClusterConnectionStates and InFlightRequests, per node. The Sender's thread owns all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.errors import AuthenticationError, KafkaError, NetworkError, UnsupportedVersionError, host_port
from kafkabuf.network._io import Connection
from kafkabuf.network._node import NodeCore
from kafkabuf.network._request import InFlight
from kafkabuf.network.resolve import Address, Lookup, Resolver

Place = tuple[str, int]  # a host, by name or by address, and a port

NEVER = float("inf")
PRODUCE, FETCH = 0, 1
# Kafka 4 removed Produce before 3 and Fetch before 4, and with them the record formats before magic 2 (KIP-896).
FIRST_PRODUCE_OF_KAFKA_4, FIRST_FETCH_OF_KAFKA_4 = 3, 4


class State(Enum):
    DISCONNECTED = "disconnected"
    RESOLVING = "resolving"  # the host's name
    CONNECTING = "connecting"  # TCP, and TLS if security.protocol asks for it
    HANDSHAKING = "handshaking"  # ApiVersions
    AUTHENTICATING = "authenticating"  # SASL, and again before a session ends
    READY = "ready"


class NodeConnection(NodeCore):
    """State and in-flight table of one node. The fields that every request reads are in NodeCore."""

    state: State

    def __init__(self, node_id: int, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.state = State.DISCONNECTED
        self.versions: dict[int, tuple[int, int]] = {}  # API key: lowest and highest version that the broker supports
        self.failures = 0  # attempts in a row that did not reach READY, over all addresses
        self.slow_setups = 0  # how many of these attempts timed out
        self.not_before = 0.0  # the back-off ends: no attempt starts earlier
        self.setup_deadline = 0.0
        self.silent_at = NEVER  # a warning says that the address has not answered; only in the first attempt
        self.established = False  # this connection has been READY
        self.authentication_error: AuthenticationError | None = None  # of the newest attempt
        self.last_error: KafkaError | None = None  # of the newest attempt or connection; None: the node is READY
        self.reauthenticate_at = NEVER
        self.lookup: Lookup | None = None  # the newest; it may outlast the attempt that started it
        self._untried: deque[Address] = deque()
        self._tried: Place | None = None  # the resolved address of the newest attempt

    def __str__(self) -> str:
        kind = f"broker {self.node_id} at" if self.node_id >= 0 else "bootstrap server"
        return f"{kind} {host_port(self.host, self.port)}"

    def moved_to(self, host: str, port: int) -> None:
        """Take over the address that metadata names. An open connection keeps its address."""
        if self.state is State.DISCONNECTED and (host, port) != (self.host, self.port):
            self.host, self.port = host, port
            self.failures, self.not_before = 0, 0.0
            self.lookup = self._tried = None
            self._untried.clear()

    @property
    def places(self) -> set[Place]:
        """Host and port by name, and as resolved for the newest attempt. Nodes that share a place are one process."""
        named = (self.host, self.port)
        return {named} if self._tried is None else {named, self._tried}

    def can_connect(self, now: float) -> bool:
        return self.state is State.DISCONNECTED and now >= self.not_before

    def resolving(self, resolver: Resolver, on_done: Callable[[], None]) -> None:
        """Start to resolve the host name, unless the lookup of an earlier attempt is still under way."""
        if self.lookup is None or self.lookup.done:
            self.lookup = Lookup(self.host, self.port, resolver, on_done)
        self.state = State.RESOLVING

    def resolved(self, lookup: Lookup) -> Address:
        """Take over the addresses of the lookup and return the first. Raises NetworkError if it found no address."""
        if lookup.error is not None or not lookup.addresses:
            raise lookup.error or NetworkError(f"host name {self.host!r} has no address")
        self._untried.extend(lookup.addresses)
        return self._take_untried()

    def next_address(self) -> Address | None:
        """The address to try next. None: every address was tried once, and the name must be resolved again."""
        return self._take_untried() if self._untried else None

    def _take_untried(self) -> Address:
        address = self._untried.popleft()
        self._tried = address.sockaddr[:2]
        return address

    def connecting(self, connection: Connection) -> None:
        self.connection = connection
        self.state = State.CONNECTING
        self.authentication_error = None

    def speaks(self, versions: dict[int, tuple[int, int]]) -> None:
        self.versions = _believable(versions)
        self.agreed.clear()

    def ready(self) -> None:
        self.state = State.READY
        self.silent_at = NEVER
        self.established = True
        self.last_error = None
        self.failures = self.slow_setups = 0
        self._untried.clear()

    def disconnected(self, now: float, backoff: ExponentialBackoff | None) -> None:
        """Close the connection. Without `backoff` it was closed on purpose and may be opened again at once.

        There is no back-off while the host has untried addresses: the host fails only when all its addresses have.
        """
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        self.state = State.DISCONNECTED
        self.established = False
        self.reauthenticate_at = self.silent_at = NEVER
        if backoff is None or self._untried:
            return
        self.not_before = now + backoff.delay(self.failures)
        self.failures += 1

    def refused(self, error: AuthenticationError) -> None:
        """Authentication failed. It would also fail at another address of the host, so these are not tried."""
        self.authentication_error = error
        self._untried.clear()

    def written(self) -> list[InFlight]:
        """The requests in the table that are written and get no response (acks=0)."""
        return [entry for entry in self.in_flight if not entry.request.expects_response and entry.frame.written]

    def api_version(self, api_key: int, supported: range | tuple[int, int]) -> int:
        """The highest version that both sides support. `supported`: a range, or lowest and highest."""
        low, high = (supported.start, supported.stop - 1) if isinstance(supported, range) else supported
        if api_key not in self.versions:
            raise UnsupportedVersionError(f"{self} does not offer API {api_key}")
        lowest, highest = self.versions[api_key]
        if max(low, lowest) > min(high, highest):
            raise UnsupportedVersionError(
                f"{self} supports versions {lowest} to {highest} of API {api_key}, kafkabuf {low} to {high}"
            )
        return min(high, highest)


def _believable(versions: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Correct the Produce versions that Kafka 4 claims.

    It claims versions 0 to 2 only to make librdkafka compress (KAFKA-18659), and closes the connection if a client uses
    them.
    """
    lowest, highest = versions.get(PRODUCE, (FIRST_PRODUCE_OF_KAFKA_4, 0))
    if lowest > 0 or versions.get(FETCH, (0, 0))[0] < FIRST_FETCH_OF_KAFKA_4:
        return versions
    return {**versions, PRODUCE: (FIRST_PRODUCE_OF_KAFKA_4, highest)}
