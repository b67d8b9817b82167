"""How connections begin and end: addresses, handshakes, failures and time-outs. Thread: the Sender's.

`Connections` calls `Requests` (_client.pyx), which keeps what is in flight, and never the poll, which calls it.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.clock import Clock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import (
    AuthenticationError,
    ClosedError,
    ConfigError,
    KafkaError,
    NetworkError,
    ProtocolError,
    printable,
)
from kafkabuf.network import bounds, resolve
from kafkabuf.network._client import ConnectionPolicy, Requests, broken
from kafkabuf.network._io import Connection, Poller
from kafkabuf.network._request import Completion, InFlight, Request, decoded
from kafkabuf.network.advice import advised, own_lack
from kafkabuf.network.authenticator import Authenticator
from kafkabuf.network.connection_state import NEVER, NodeConnection, Place, State
from kafkabuf.network.failure_log import FailureLog
from kafkabuf.network.handshake import Handshake
from kafkabuf.network.metadata_updater import MetadataSource, MetadataUpdater
from kafkabuf.network.resolve import Address, Connector, Lookup, Resolver
from kafkabuf.process.background import BackgroundCall
from kafkabuf.process.producer_log import producer_log
from kafkabuf.protocol import messages
from kafkabuf.protocol._frame import Frame

if TYPE_CHECKING:
    import ssl

    from kafkabuf.network._tls import TlsConnection

    class MetricsPush(Protocol):
        """Pushes the producer's metrics to brokers: metrics/telemetry.py, which imports this folder."""

        def run(self, now: float) -> float: ...
        def connected(self) -> None: ...
        def finish(self, now: float) -> bool: ...
        def closed(self) -> None: ...


log = producer_log("kafkabuf.network")

SILENCE = 4.0  # seconds after which an address that has never answered is worth a warning
BEING_OPENED = (State.RESOLVING, State.CONNECTING, State.AUTHENTICATING)


@dataclass(eq=False)
class Decoding:
    """A long response that another thread decodes."""

    node: NodeConnection
    connection: Connection | None  # that received the response
    entry: InFlight
    frame: bytes
    step: BackgroundCall[Any]


class Connections(ConnectionPolicy):
    """The connections of one client. NetworkClient says what the arguments are."""

    def __init__(
        self,
        config: ProducerConfig,
        clock: Clock,
        metadata: MetadataSource,
        poller: Poller,
        requests: Requests,
        connector: Connector | None,
        resolver: Resolver,
        random: Callable[[], float],
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        over_tls = config.security_protocol in ("SSL", "SASL_SSL")
        if ssl_context is not None and not over_tls:
            raise ConfigError(f"ssl_context needs security.protocol SSL or SASL_SSL, found {config.security_protocol}")
        self._secured = _secured_by(config, ssl_context, clock) if over_tls else None
        if config.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
            from kafkabuf.network.sasl import mechanisms as sasl

            self.authenticator = Authenticator(sasl.mechanism(config, clock, random), self, clock, random)
        hosts = resolve.bootstrap_hosts(config.bootstrap_servers, config.client_dns_lookup, resolver)
        self.wakeup = poller.wakeup
        self._config = config
        self._clock = clock
        self._metadata = metadata
        self._poller = poller
        self._requests = requests
        self._nodes = requests.nodes
        self._resolver = resolver
        self._connector: Connector = connector or partial(
            resolve.connect, send_buffer=config.send_buffer_bytes, receive_buffer=config.receive_buffer_bytes
        )
        self._reconnect = ExponentialBackoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, random)
        self._setup = ExponentialBackoff(
            config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms, random
        )
        self._bootstrap = [NodeConnection(-1 - i, host, port) for i, (host, port) in enumerate(hosts)]
        self._nodes.update((node.node_id, node) for node in self._bootstrap)
        recovers = config.metadata_recovery_strategy == "rebootstrap"
        trigger = config.metadata_recovery_rebootstrap_trigger_ms / 1000 if recovers else None
        self._checks_cluster = recovers and config.metadata_cluster_check_enable
        self._misrouted: Counter[int] = Counter()  # how often in a row, by node id
        self.handshake = Handshake(self)
        self.updater = MetadataUpdater(metadata, self, trigger, random)
        self._failures = FailureLog()
        self._silent: set[Place] = set()
        self._answered: set[Place] = set()
        self.accepted = False  # a broker has authenticated this client, with the settings that it still has
        self.telemetry: MetricsPush | None = None
        # Called with a node that takes requests now and None, or whose attempt or connection has failed and the error.
        self.on_change: Callable[[NodeConnection, KafkaError | None], object] | None = None

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def node(self, node_id: int) -> NodeConnection | None:
        """The node's state, at the address that metadata names now. None: metadata does not know the node."""
        broker = self._metadata.snapshot.brokers.get(node_id)
        node = self._nodes.get(node_id)
        if broker is None:
            return node
        if node is None:
            node = self._nodes[node_id] = NodeConnection(node_id, broker.host, broker.port)
        node.moved_to(broker.host, broker.port)
        return node

    def known_nodes(self) -> list[NodeConnection]:
        return [node for node_id in self._metadata.snapshot.brokers if (node := self.node(node_id)) is not None]

    def bootstrap_nodes(self) -> list[NodeConnection]:
        return self._bootstrap

    def is_silent(self, node: NodeConnection) -> bool:
        """Whether a time-out has ended a connection to the node's address, and no connection there was ready since.

        A frozen process lets every connection stand: another connection to the address would cost a second time-out.
        It is an order of choice only: where no other node is left, the client asks the node there.
        """
        return not self._silent.isdisjoint(node.places)

    def has_answered(self, node: NodeConnection) -> bool:
        """Any thread: whether a connection to the node's address was ready before, so that the settings are right."""
        return not self._answered.isdisjoint(node.places)

    # ---- opening ---------------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        """Connect to the node if an attempt is due."""
        node = self.node(node_id)
        now = self._clock.monotonic()
        if node is None:
            self._metadata.request_update()
        elif node.can_connect(now):
            self.connect(node, now)

    def connect(self, node: NodeConnection, now: float) -> None:
        """Start a connection to the node's next address. The attempt may fail before this method returns."""
        node.setup_deadline = now + self._setup.delay(node.slow_setups)
        if not node.failures and not node.versions and node.setup_deadline > now + SILENCE:
            node.silent_at = now + SILENCE
        self.check_by(min(node.setup_deadline, node.silent_at))
        address = node.next_address()
        if address is not None:
            self._open(node, address, now)
            return
        try:
            node.resolving(self._resolver, self.wakeup)
            self.resolving.add(node)
        except (RuntimeError, MemoryError) as error:  # there are too many threads
            why = str(error) or "there is no memory"
            self.disconnect(node, NetworkError(f"cannot connect to {node}: {why}"), now)
            return
        self._take_resolved(now)

    def _take_resolved(self, now: float) -> None:
        """Connect to the nodes whose host name is resolved now. Fail those whose host name cannot be resolved."""
        for node in list(self.resolving):
            lookup = node.lookup
            if lookup is not None and not lookup.done:
                continue
            if lookup is not None and node.state is State.RESOLVING:  # else the attempt timed out meanwhile
                self._open_resolved(node, lookup, now)
            self.resolving.discard(node)  # last: without memory the next poll tries again

    def _open_resolved(self, node: NodeConnection, lookup: Lookup, now: float) -> None:
        try:
            address = node.resolved(lookup)
        except KafkaError as error:
            self.disconnect(node, NetworkError(f"cannot connect to {node}: {error}"), now)
        else:
            self._open(node, address, now)

    def _open(self, node: NodeConnection, address: Address, now: float) -> None:
        try:
            # Metadata may name an invalid host: neither the system nor ssl takes a name with NUL in it.
            secured = None if self._secured is None else self._secured(node.host)
            node.connecting(self._register(self._connector(address), node, secured))
        except Exception as error:
            advice = own_lack(error)
            why = NetworkError(f"cannot connect to {node}: {printable(str(error))}{advice}")
            self.disconnect(node, why, now, advise=not advice)
            return
        log.debug("connecting to %s, address %s", node, address.sockaddr)

    def _register(self, sock: socket.socket, node: NodeConnection, secured: TlsConnection | None) -> Connection:
        in_flight = self._config.max_in_flight_requests_per_connection
        return self._poller.register(
            sock, str(node), node, max_frame=bounds.LARGEST_STRAY, max_in_flight=in_flight, connection=secured
        )

    def greet(self, node: NodeConnection) -> None:
        self.handshake.begin(node)

    @property
    def meant_cluster(self) -> str:
        """The cluster that brokers are asked for (KIP-1242). "": it is unknown, or they are not asked."""
        return self._metadata.snapshot.cluster_id if self._checks_cluster else ""

    def misrouted(self, node: NodeConnection) -> None:
        """The address belongs to another broker, perhaps of another cluster: the metadata is out of date."""
        when = self._clock.monotonic() + self._reconnect.delay(self._misrouted[node.node_id])
        self._misrouted[node.node_id] += 1
        self.updater.rebootstrap_by(when, f"{node} says that it is another broker, or in another cluster")

    def greeted(self, node: NodeConnection) -> None:
        """The broker has responded to the handshake."""
        if self.authenticator is None:
            self.established(node)
        else:
            self._authenticate(self.authenticator, node, self._clock.monotonic())

    def _authenticate(self, authenticator: Authenticator, node: NodeConnection, now: float) -> None:
        authenticator.begin(node, now + self._config.request_timeout_ms / 1000)

    def established(self, node: NodeConnection) -> None:
        """The node has passed the handshake and authentication: it takes requests now."""
        assert node.connection is not None
        node.ready()
        self._misrouted.pop(node.node_id, None)
        self.accepted = True
        self._silent -= node.places
        self._answered = (self._answered & self._places_in_use()) | node.places
        log.debug("%s is ready", node)
        if self.telemetry is not None:
            self.telemetry.connected()
        if self.on_change is not None:
            self.on_change(node, None)

    # ---- the client's own requests ---------------------------------------------------------------------------------

    def submit(self, node: NodeConnection, entity: Any, deliver: Callable[[Completion], None]) -> None:
        """Send one of the client's own requests. It may exceed max.in.flight, so that it does not starve.

        `deliver` is called again after a MemoryError, with the same Completion or with that of the connection's end.
        """
        self._requests.send(node, self.request(entity), deliver)

    def request(self, entity: Any, context: Any = None, timeout: float | None = None) -> Request:
        return Request(entity.__api_key__, entity.__version__, partial(self._frame, entity), context, True, timeout)

    def _frame(self, entity: Any, correlation_id: int) -> Frame:
        body = messages.encode_request(
            entity.__api_key__, entity.__version__, correlation_id, self._config.client_id, entity
        )
        frame = Frame()
        frame.largest_response = bounds.largest_response(entity, len(body))
        frame.add_bytes(len(body).to_bytes(4, "big") + body)
        return frame

    def decode(self, node: NodeConnection, entry: InFlight, frame: bytes) -> None:
        step = BackgroundCall(partial(decoded, entry.request, frame), self.wakeup, "kafkabuf-decode")
        self.decoding.append(Decoding(node, node.connection, entry, frame, step))

    def _take_decoded(self, now: float) -> None:
        """Complete requests whose long response is decoded now. A malformed response fails its connection if open."""
        for decoding in [decoding for decoding in self.decoding if decoding.step.done]:
            failure = self._complete_decoded(decoding)
            self.decoding.remove(decoding)  # last: without memory the next poll tries again
            if failure is not None:
                self._fail_if_open(decoding, failure, now)

    def _complete_decoded(self, decoding: Decoding) -> Exception | None:
        """Returns the error with which the connection fails."""
        node, entry = decoding.node, decoding.entry
        try:
            entity = decoding.step.result()
        except KafkaError as error:
            malformed = broken(node, _without_memory(error))
            self._requests.complete(node, entry, None, malformed)
            return malformed
        try:
            self._requests.respond(node, entry, decoding.frame, entity)
        except MemoryError:
            if not self._requests.is_completed(entry):
                raise
        except Exception as error:
            return error
        return None

    def _fail_if_open(self, decoding: Decoding, error: Exception, now: float) -> None:
        if decoding.connection is not None and decoding.node.connection is decoding.connection:
            self.disconnect(decoding.node, broken(decoding.node, error), now)

    # ---- the end of a connection -----------------------------------------------------------------------------------

    def disconnect(self, node: NodeConnection, error: KafkaError, now: float, *, advise: bool = True) -> None:
        """Close a failed connection, then complete its requests with the error, the oldest first."""
        node.failing, self.unfinished = error, True  # first: where memory is short, the next poll does the rest
        lost = sum(not entry.frame.untouched for entry in node.in_flight)
        if advise:
            seen_brokers, has_answered = bool(self._metadata.snapshot.brokers), self.has_answered(node)
            protocol = self._config.security_protocol
            error = advised(error, node, protocol, seen_brokers=seen_brokers, has_answered=has_answered)
        if isinstance(error, AuthenticationError):
            if node.established:
                # The broker accepted these credentials before. The next connection shows whether it still does.
                error = NetworkError(f"the session with {node} could not be renewed: {error}")
            else:
                node.refused(error)
        node.last_error = error
        self._log_failure(node, error, lost, now)
        self._close_connection(node, now, self._reconnect)
        self._fail_in_flight(node, error)
        self.updater.connection_failed(error)
        if node.node_id >= 0:
            self._metadata.request_update()
        node.failing = None
        if self.on_change is not None:
            self.on_change(node, error)

    def finish_disconnects(self, now: float) -> None:
        for node in list(self._nodes.values()):
            if (error := node.failing) is not None:
                self.disconnect(node, broken(node, error), now)
        self.unfinished = False

    def _log_failure(self, node: NodeConnection, error: KafkaError, lost: int, now: float) -> None:
        text = f"{error} ({lost} requests in flight)" if lost else str(error)
        if node.failures & (node.failures + 1):  # only the 1st, 2nd, 4th, 8th ... failure in a row is a warning
            log.debug("%s", text)
        elif not lost and node.state is State.READY and not isinstance(error, ProtocolError):
            log.info("%s", text)
        else:
            self._failures.warn(text, now)
            self.check_by(self._failures.due)

    def _close_connection(self, node: NodeConnection, now: float, backoff: ExponentialBackoff | None) -> None:
        if self._requests.stats is not None and node.connection is not None and node.connection.connected:
            self._requests.stats.closed.add(1, now)
        node.disconnected(now, backoff)

    def _fail_in_flight(self, node: NodeConnection, error: KafkaError) -> None:
        # The requests may complete only now, because the connection is closed and its frames are dropped. Requests of
        # which no byte was written complete last and in reverse, so that their batches give back their sequence numbers
        # in the reverse of the order in which they got them.
        while node.in_flight and not node.in_flight[0].frame.untouched:
            entry = node.in_flight.popleft()
            try:
                self._requests.complete(node, entry, None, error)
            except MemoryError:
                if not self._requests.is_completed(entry):
                    node.in_flight.appendleft(entry)  # the next poll tries again
                raise
        while node.in_flight:
            entry = node.in_flight.pop()
            try:
                unsent = error if isinstance(error, ClosedError) else NetworkError(f"the request never left: {error}")
                self._requests.complete(node, entry, None, unsent, None, True)
            except MemoryError:
                if not self._requests.is_completed(entry):
                    node.in_flight.append(entry)
                raise

    def rebootstrap(self, now: float, why: str) -> None:
        """Close every connection, forget every broker, and use the bootstrap servers again (KIP-899, KIP-1102)."""
        self._failures.warn(f"{why}: the client starts again with bootstrap.servers", now)
        self.check_by(self._failures.due)
        for node in list(self._nodes.values()):
            if node.state is not State.DISCONNECTED:
                self.disconnect(node, NetworkError(f"the client gave up {node}: {why}"), now)
            if node.node_id >= 0:
                del self._nodes[node.node_id]
        self._metadata.forget_brokers()
        self.updater.rebootstrap_due = NEVER  # last: without memory it is still due

    def close(self) -> None:
        """Close every connection, and complete every request in flight with ClosedError."""
        error = ClosedError("the producer was closed before the response came")
        self._failures.log_left_out()
        if self.telemetry is not None:
            self.telemetry.closed()
        while self.decoding:  # without memory a second call goes on here
            self._requests.complete(self.decoding[0].node, self.decoding[0].entry, None, error)
            del self.decoding[0]
        for node in self._nodes.values():
            self._close_connection(node, self._clock.monotonic(), None)
            self._fail_in_flight(node, error)

    # ---- what is due -----------------------------------------------------------------------------------------------

    def run(self, now: float) -> None:
        """Continue what other threads have finished, then end late and idle connections."""
        self._take_resolved(now)
        self._take_decoded(now)
        if self.authenticator is not None:
            for node, error in self.authenticator.take_steps():
                self.disconnect(node, error, now, advise=False)  # the broker has no part in this error
        if now >= self._requests.next_check:
            self._check_time_outs(now)

    def update_metadata(self, now: float) -> float:
        return self.updater.run(now)

    def check_by(self, when: float) -> None:
        """Check the time-outs at `when` at the latest."""
        self._requests.next_check = min(self._requests.next_check, when)

    def _check_time_outs(self, now: float) -> None:
        self._requests.next_check = NEVER
        try:
            self._end_late(now)
        except BaseException:  # without memory, for instance: the next poll checks all again
            self._requests.next_check = now
            raise

    def _end_late(self, now: float) -> None:
        idle = self._config.connections_max_idle_ms / 1000
        for node in self._nodes.values():
            if node.state in BEING_OPENED and now >= node.setup_deadline:
                node.slow_setups += 1
                reason = "" if self.authenticator is None else self.authenticator.waits_for(node)
                text = f"connection to {node} was not established in time" + (reason and f": {reason}")
                self._fell_silent(node)
                self.disconnect(node, NetworkError(text), now, advise=not reason)
            self._warn_of_silence(node, now)
            late = next((entry for entry in node.in_flight if now >= entry.deadline), None)
            if late is not None:
                waited = round((now - late.sent_at) * 1000)
                name = f"request {late.correlation_id} (API {late.request.api_key})"
                error = NetworkError(f"no response to {name} from {node} within {waited} ms; the connection is closed")
                self._fell_silent(node)
                self.disconnect(node, error, now)
            if self.authenticator is not None and node.state is State.READY and now >= node.reauthenticate_at:
                self._authenticate(self.authenticator, node, now)
            if node.state is State.READY and not node.in_flight and 0 <= idle <= now - node.last_used:
                log.debug("closing the connection to %s, unused for %d s", node, idle)
                self._close_connection(node, now, None)
            self.check_by(self._deadline(node))
        if self.authenticator is not None:
            self.check_by(self.authenticator.renew())
        if self.telemetry is not None:
            self.check_by(self.telemetry.run(now))
        if now >= self.updater.rebootstrap_due:
            self.rebootstrap(now, self.updater.rebootstrap_why)
        self.check_by(self.updater.rebootstrap_due)
        if now >= self._failures.due:
            self._failures.log_left_out()
        self.check_by(self._failures.due)

    def _fell_silent(self, node: NodeConnection) -> None:
        self._silent = (self._silent & self._places_in_use()) | node.places

    def _places_in_use(self) -> set[Place]:
        return set().union(*(node.places for node in self._nodes.values()))

    def _warn_of_silence(self, node: NodeConnection, now: float) -> None:
        """A port where no broker listens may take a connection and never answer: say so before the time-out does."""
        if now < node.silent_at:
            return
        node.silent_at = NEVER
        if node.state in (State.CONNECTING, State.HANDSHAKING):
            protocol = self._config.security_protocol
            text = f"{node} has not answered for {SILENCE:g} s: is it a listener of a broker, for security.protocol="
            self._failures.warn(f"{text}{protocol}?", now)

    def _deadline(self, node: NodeConnection) -> float:
        """When the next time-out of the node is due."""
        due = node.setup_deadline if node.state in BEING_OPENED else node.reauthenticate_at
        due = min(due, node.silent_at)
        if node.in_flight:
            return min(due, *(entry.deadline for entry in node.in_flight))
        idle = self._config.connections_max_idle_ms / 1000
        return min(due, node.last_used + idle) if node.state is State.READY and idle >= 0 else due


def _without_memory(error: KafkaError) -> KafkaError:
    """The error of a background call; a retriable one if the call found no memory."""
    lacking = isinstance(error.__cause__, MemoryError)
    return NetworkError("there was no memory to decode the response") if lacking else error


def _secured_by(config: ProducerConfig, context: ssl.SSLContext | None, clock: Clock) -> Callable[[str], TlsConnection]:
    """Makes the TLS of a connection to a host. Imports ssl late: plain connections do not need it."""
    if context is None:
        from kafkabuf.network.reloading import ReloadingTls

        return ReloadingTls(config, clock)
    from kafkabuf.network._tls import TlsConnection

    return partial(TlsConnection, context)
