"""One broker as the client sees it: which state the connection is in, when it may be tried again, what is under way.

Kafka's ClusterConnectionStates and InFlightRequests, per node. All of it belongs to the Sender thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.errors import AuthenticationError, KafkaError, NetworkError, UnsupportedVersionError, printable
from kafkabuf.network._io import Connection
from kafkabuf.network._request import InFlight
from kafkabuf.network.resolve import Address, Lookup, Resolver

NEVER = float("inf")
PRODUCE, FETCH = 0, 1
# KIP-896: Kafka 4 took away Produce before 3 and Fetch before 4, and with them the record formats before magic 2.
FIRST_PRODUCE_OF_KAFKA_4, FIRST_FETCH_OF_KAFKA_4 = 3, 4


class State(Enum):
    DISCONNECTED = "disconnected"
    RESOLVING = "resolving"  # the host's name
    CONNECTING = "connecting"  # TCP, and TLS if there is any
    HANDSHAKING = "handshaking"  # ApiVersions
    AUTHENTICATING = "authenticating"  # SASL, and that again before a session ends
    READY = "ready"


class NodeConnection:
    """State and in-flight table of one node. `connection` is None exactly while DISCONNECTED or RESOLVING."""

    def __init__(self, node_id: int, host: str, port: int) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        self.state = State.DISCONNECTED
        self.connection: Connection | None = None
        self.in_flight: deque[InFlight] = deque()  # in the order sent, which is the order of the responses
        self.versions: dict[int, tuple[int, int]] = {}  # API key: lowest and highest version the broker speaks
        self.agreed: dict[tuple[int, object], int] = {}  # API key, and what we speak of it: the version to use
        self.failures = 0  # attempts in a row that did not reach READY, over all addresses
        self.slow_setups = 0  # how many of them ran out of time
        self.not_before = 0.0  # no attempt earlier than this
        self.setup_deadline = 0.0
        self.established = False  # this connection has been READY
        self.authentication_error: AuthenticationError | None = None  # what the newest attempt failed with
        self.last_error: KafkaError | None = None  # what the newest attempt or connection ended with; None: it is READY
        self.reauthenticate_at = NEVER
        self.last_used = 0.0
        self.throttled_until = 0.0  # it asked to be left alone until then (KIP-219)
        self.lookup: Lookup | None = None  # the newest; it may outlast the attempt that it was started for
        self._untried: deque[Address] = deque()

    def __str__(self) -> str:
        kind = f"broker {self.node_id} at" if self.node_id >= 0 else "bootstrap server"
        return f"{kind} {printable(self.host)}:{self.port}"

    def moved_to(self, host: str, port: int) -> None:
        """Metadata names another address; it counts from the next connection on."""
        if self.state is State.DISCONNECTED and (host, port) != (self.host, self.port):
            self.host, self.port = host, port
            self.failures, self.not_before = 0, 0.0
            self.lookup = None
            self._untried.clear()

    def can_connect(self, now: float) -> bool:
        return self.state is State.DISCONNECTED and now >= self.not_before

    def resolving(self, resolver: Resolver, on_done: Callable[[], None]) -> None:
        """Look for the host's addresses; a look that is still under way from an attempt before goes on."""
        self.state = State.RESOLVING
        if self.lookup is None or self.lookup.done:
            self.lookup = Lookup(self.host, self.port, resolver, on_done)

    def resolved(self, lookup: Lookup) -> Address:
        """Take over the addresses found; the first of them. Raises NetworkError where there are none."""
        if lookup.error is not None or not lookup.addresses:
            raise lookup.error or NetworkError(f"host name {self.host!r} has no address")
        self._untried.extend(lookup.addresses)
        return self._untried.popleft()

    def next_address(self) -> Address | None:
        """The address to try now, None where the name must be resolved anew first: each is tried once before that."""
        return self._untried.popleft() if self._untried else None

    def connecting(self, connection: Connection) -> None:
        self.connection = connection
        self.state = State.CONNECTING
        self.authentication_error = None

    def speaks(self, versions: dict[int, tuple[int, int]]) -> None:
        self.versions = _believable(versions)
        self.agreed.clear()

    def ready(self) -> None:
        self.state = State.READY
        self.established = True
        self.last_error = None
        self.failures = self.slow_setups = 0
        self._untried.clear()

    def disconnected(self, now: float, backoff: ExponentialBackoff | None) -> None:
        """Close the connection. No `backoff`: it was closed on purpose and may be opened again at once.

        While a host has untried addresses there is no wait either: only when all have failed did the host fail.
        """
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        self.state = State.DISCONNECTED
        self.established = False
        self.reauthenticate_at = NEVER
        if backoff is None or self._untried:
            return
        self.not_before = now + backoff.delay(self.failures)
        self.failures += 1

    def refused(self, error: AuthenticationError) -> None:
        """The broker, or its certificate, will not do: nor will it at another address of the same name."""
        self.authentication_error = error
        self._untried.clear()

    def take_in_flight(self) -> Iterator[InFlight]:
        """Every request under way, oldest first; none is afterwards."""
        taken, self.in_flight = self.in_flight, deque()
        return iter(taken)

    def take_written(self) -> list[InFlight]:
        """The requests that end with their last byte written, because no response will come."""
        done = [entry for entry in self.in_flight if not entry.request.expects_response and entry.frame.written]
        if done:
            self.in_flight = deque(entry for entry in self.in_flight if entry not in done)
        return done

    def api_version(self, api_key: int, supported: range | tuple[int, int]) -> int:
        """The highest version both sides speak. `supported`: a range, or lowest and highest."""
        low, high = (supported.start, supported.stop - 1) if isinstance(supported, range) else supported
        if api_key not in self.versions:
            raise UnsupportedVersionError(f"{self} does not offer API {api_key}")
        lowest, highest = self.versions[api_key]
        if max(low, lowest) > min(high, highest):
            raise UnsupportedVersionError(
                f"{self} speaks versions {lowest} to {highest} of API {api_key}, kafkabuf {low} to {high}"
            )
        return min(high, highest)


def _believable(versions: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Kafka 4 claims Produce from 0 on, only so that librdkafka compresses (KAFKA-18659), and hangs up on 0 to 2."""
    lowest, highest = versions.get(PRODUCE, (FIRST_PRODUCE_OF_KAFKA_4, 0))
    if lowest > 0 or versions.get(FETCH, (0, 0))[0] < FIRST_FETCH_OF_KAFKA_4:
        return versions
    return {**versions, PRODUCE: (FIRST_PRODUCE_OF_KAFKA_4, highest)}
