"""The steps from a host name to an acknowledged record, one after the other, for `kafkabuf ping`.

DNS, TCP and TLS use the standard library, so that a failure belongs to one step. SASL, ApiVersions and metadata go
through the producer's own client, and the record through a producer: what works here works in an application.
"""

from __future__ import annotations

import builtins
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from kafkabuf.admin.admin import Admin
from kafkabuf.errors import (
    AuthenticationError,
    KafkaError,
    NetworkError,
    SslAuthenticationError,
    TimeoutError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    error_for_code,
    host_port,
    printable,
)
from kafkabuf.network.resolve import Address, Lookup, resolve
from kafkabuf.network.tls.context import client_context, explain, hung_up
from kafkabuf.process._time import monotonic
from kafkabuf.process.threads import Event
from kafkabuf.protocol import messages

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig

_PRODUCE = 0
_PRODUCE_VERSIONS = range(3, 14)
# Version 8 is the first that tells what the user may do (KIP-430).
_METADATA_VERSIONS = range(8, 14)
_OLD_METADATA_VERSIONS = range(4, 14)
_NOT_TOLD = -(2**31)
_WRITE = 1 << 4  # AclOperation.WRITE
_TITLES = ("dns", "tcp", "tls", "sasl", "api versions", "metadata", "authorization", "record")


class Step(IntEnum):
    """The steps in their order. The value is the command's exit status if the step fails."""

    DNS = 10
    TCP = 11
    TLS = 12
    SASL = 13
    API_VERSIONS = 14
    METADATA = 15
    AUTHORIZATION = 16
    RECORD = 17

    @property
    def title(self) -> str:
        return _TITLES[self - Step.DNS]


@dataclass(frozen=True)
class Outcome:
    """What one step found at one target. `error` is None if the step worked."""

    target: str
    step: Step
    seconds: float
    detail: str = ""
    error: str | None = None


class _Failed(Exception):
    """A step failed: the steps behind it cannot run."""


class Probe:
    """Runs the steps. A failed step ends the steps of its target, and its Outcome is in `failures`.

    `timeout`: seconds for each step.
    """

    def __init__(self, config: ProducerConfig, topic: str | None, *, record: bool, timeout: float) -> None:
        self.failures: list[Outcome] = []
        self._config, self._topic, self._record, self._timeout = config, topic, record, timeout
        self._context = client_context(config) if config.security_protocol in ("SSL", "SASL_SSL") else None
        self._brokers: dict[int, tuple[str, int]] = {}

    def run(self) -> Iterator[Outcome]:
        """Every step's outcome, as soon as it is known. `failures` then has what keeps a producer from working."""
        reached = False
        greeted: set[tuple[str, int]] = set()
        for host, port in self._config.bootstrap_servers:
            target = host_port(host, port)
            before = len(self.failures)
            yield from self._kept(self._transport(target, host, port))
            if len(self.failures) == before:
                with self._asker(host, port) as asker:
                    yield from self._kept(asker.greet(target))
                    if len(self.failures) == before:
                        greeted.add((host, port))
                    if not reached and len(self.failures) == before:
                        reached = True
                        yield from self._kept(asker.describe(target, self._topic))
                        self._brokers = asker.brokers
        if not reached:
            return
        # One bootstrap server is enough for a client.
        self.failures = [failed for failed in self.failures if failed.step >= Step.METADATA]
        for node_id, (host, port) in sorted(self._brokers.items()):
            target = f"broker {node_id} at {host_port(host, port)}"
            before = len(self.failures)
            yield from self._kept(map(_as_advertised, self._transport(target, host, port)))
            if len(self.failures) == before and (host, port) not in greeted:
                # Something else may listen there: a proxy takes every connection.
                with self._asker(host, port) as asker:
                    yield from self._kept(map(_as_advertised, asker.greet(target)))
        if self._record and self._topic is not None and not self.failures:
            yield from self._kept(self._publish(self._topic))

    def _kept(self, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
        for outcome in outcomes:
            if outcome.error is not None:
                self.failures.append(outcome)
            yield outcome

    def _changed(self, **changes: Any) -> ProducerConfig:
        return self._config.replaced({**changes, "max_block_ms": round(self._timeout * 1000)})

    def _asker(self, host: str, port: int) -> _Asker:
        return _Asker(self._changed(bootstrap_servers=((host, port),)))

    def _transport(self, target: str, host: str, port: int) -> Iterator[Outcome]:
        """DNS, TCP and TLS."""
        addresses: list[Address] = []
        sock: list[socket.socket] = []
        with contextlib.suppress(_Failed), contextlib.ExitStack() as stack:
            yield from _timed(target, Step.DNS, lambda: self._resolve(host, port, addresses))
            yield from _timed(target, Step.TCP, lambda: self._connect(addresses, sock))
            stack.callback(sock[0].close)
            if self._context is not None:
                context = self._context
                yield from _timed(target, Step.TLS, lambda: _secure(context, sock[0], host, target))

    def _resolve(self, host: str, port: int, addresses: list[Address]) -> str:
        done = Event()
        lookup = Lookup(host, port, resolve, done.set)
        if not lookup.done and not done.wait(self._timeout):
            raise NetworkError(
                f"no name server answers for {printable(host)!r} within --timeout ({self._timeout:g} s): see "
                "/etc/resolv.conf, and the network of this host"
            )
        if lookup.error is not None:
            raise lookup.error
        addresses += lookup.addresses
        return ", ".join(dict.fromkeys(str(address.sockaddr[0]) for address in addresses))

    def _connect(self, addresses: list[Address], connected: list[socket.socket]) -> str:
        """Connects to the first address that answers."""
        refused = []
        for address in addresses:
            sock = socket.socket(address.family, socket.SOCK_STREAM)
            sock.settimeout(self._timeout)
            try:
                sock.connect(address.sockaddr)
            except OSError as error:
                sock.close()
                refused.append(f"{address.sockaddr[0]}: {error.strerror or error}")
                continue
            connected.append(sock)
            return f"{address.sockaddr[0]}"
        raise NetworkError(
            f"{'; '.join(refused)}. Does a broker listen there, and does a firewall let this host through?"
        )

    def _publish(self, topic: str) -> Iterator[Outcome]:
        def publish() -> str:
            from kafkabuf.producer import KafkaProducer

            producer = KafkaProducer(self._changed())
            try:
                metadata = producer.send(topic, b"kafkabuf ping").result(self._timeout)
            finally:
                producer.close(0)
            return f"partition {metadata.partition}, offset {metadata.offset}"

        with contextlib.suppress(_Failed):
            yield from _timed(f"topic {topic}", Step.RECORD, publish)


class _Asker(Admin):
    """SASL, ApiVersions, metadata and authorization, asked of one bootstrap server."""

    def __init__(self, config: ProducerConfig) -> None:
        super().__init__(config)
        self.brokers: dict[int, tuple[str, int]] = {}
        self._topics: list[Any] = []

    def greet(self, target: str) -> Iterator[Outcome]:
        began = monotonic()
        secured = "SASL" in self.config.security_protocol
        step = Step.SASL if secured else Step.API_VERSIONS
        try:
            while (node_id := self._any_node()) is None or not self._client.ready(node_id):
                if monotonic() - began >= self._timeout:
                    raise self._timed_out("a broker")
                self._pump(began + self._timeout)
            newest = self._client.api_version(node_id, _PRODUCE, _PRODUCE_VERSIONS)
        except KafkaError as error:
            yield Outcome(target, _blamed(error), monotonic() - began, error=str(error))
            return
        if secured:
            yield Outcome(target, step, monotonic() - began, f"{self.config.sasl_mechanism}{self._user()}")
        yield Outcome(target, Step.API_VERSIONS, monotonic() - began, f"Produce up to version {newest}")

    def _timed_out(self, broker: str) -> TimeoutError:
        return TimeoutError(
            f"no response from {broker} within --timeout ({self._timeout:g} s); is this a Kafka listener, and is "
            f"security.protocol={self.config.security_protocol} right for it?"
        )

    def _any_node(self) -> int | None:
        node_id = self._client.least_loaded(connect=True)
        if self._client.bootstrap_failed():
            raise self._client.bootstrap_error()
        return node_id

    def _user(self) -> str:
        user = getattr(self.config, "sasl_username", None)
        return f" as {user}" if user else ""

    def describe(self, target: str, topic: str | None) -> Iterator[Outcome]:
        with contextlib.suppress(_Failed):
            yield from _timed(target, Step.METADATA, lambda: self._ask_metadata(topic))
            if topic is not None:
                yield from _timed(f"topic {topic}", Step.METADATA, lambda: self._partitions(topic))
                yield from _timed(f"topic {topic}", Step.AUTHORIZATION, self._rights)

    def _ask_metadata(self, topic: str | None) -> str:
        values = {"topics": [] if topic is None else [{"name": topic}], "allow_auto_topic_creation": False}
        response = self._metadata_of(values)
        self._topics = list(response.topics)
        self.brokers = {int(broker.node_id): (str(broker.host), int(broker.port)) for broker in response.brokers}
        count = len(self.brokers)
        return f"{count} broker{'s' * (count != 1)}, cluster {response.cluster_id}"

    def _metadata_of(self, values: dict[str, Any]) -> Any:
        def ask(versions: range, values: dict[str, Any]) -> Any:
            deadline = self._clock.monotonic() + self._timeout
            # A lost connection is no reason to try again here: it is what this step found.
            return self._ask(
                self._any_broker, messages.METADATA, versions, lambda reply: [], values, deadline, moved=True
            )

        try:
            return ask(_METADATA_VERSIONS, {**values, "include_topic_authorized_operations": True})
        except UnsupportedVersionError:
            return ask(_OLD_METADATA_VERSIONS, values)

    def _partitions(self, topic: str) -> str:
        answer = self._topics[0]
        if (code := int(answer.error_code)) and not answer.partitions:
            error = error_for_code(code)
            if isinstance(error, UnknownTopicOrPartitionError):
                raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}, or this user may not see it")
            if isinstance(error, TopicAuthorizationError):
                raise TopicAuthorizationError("this user may not see the topic: allow it the operation Write")
            raise error
        leaderless = [int(part.partition_index) for part in answer.partitions if int(part.leader_id) < 0]
        if leaderless:
            raise KafkaError(f"partition {leaderless[0]} has no leader: are its replicas' brokers down?")
        count = len(answer.partitions)
        return f"{count} partition{'s' * (count != 1)}"

    def _rights(self) -> str:
        rights = int(getattr(self._topics[0], "topic_authorized_operations", _NOT_TOLD))
        if rights == _NOT_TOLD:
            return "the broker does not tell"
        if not rights & _WRITE:
            raise TopicAuthorizationError("this user may not write to the topic: allow it the operation Write")
        return "may write"


def _timed(target: str, step: Step, action: Callable[[], str]) -> Iterator[Outcome]:
    """The outcome of one step. Raises _Failed behind a failure."""
    began = monotonic()
    try:
        detail = action()
    except (KafkaError, OSError) as error:
        blamed = step
        if step is Step.METADATA and isinstance(error, TopicAuthorizationError):
            blamed = Step.AUTHORIZATION
        yield Outcome(target, blamed, monotonic() - began, error=str(error))
        raise _Failed from None
    yield Outcome(target, step, monotonic() - began, detail)


def _blamed(error: KafkaError) -> Step:
    """The step of an error that comes behind TCP. TLS 1.3 refuses a client's certificate behind the handshake."""
    if isinstance(error, SslAuthenticationError):
        return Step.TLS
    return Step.SASL if isinstance(error, AuthenticationError) else Step.API_VERSIONS


def _as_advertised(outcome: Outcome) -> Outcome:
    """With advice for an address that the broker names itself."""
    if outcome.error is None or outcome.step not in (Step.DNS, Step.TCP, Step.API_VERSIONS):
        return outcome
    why = outcome.error if outcome.error.endswith("?") else f"{outcome.error}."
    advice = "The broker names this address: its advertised.listeners needs one that this host reaches"
    return replace(outcome, error=f"{why} {advice}")


def _secure(context: ssl.SSLContext, sock: socket.socket, host: str, target: str) -> str:
    try:
        # `sock` stays the caller's: it closes the descriptor.
        with context.wrap_socket(sock.dup(), server_hostname=host.removesuffix(".")) as secured:
            certificate = secured.getpeercert() or {}
            until = certificate.get("notAfter", "")
            return f"{secured.version()}, {_name(certificate)}{f' valid until {until}' if until else ''}"
    except ConnectionError as error:
        raise hung_up(target, error.strerror or str(error)) from None
    except builtins.TimeoutError:
        raise NetworkError(
            f"{target} does not answer the TLS handshake within --timeout; does this listener speak TLS (see "
            "security.protocol)?"
        ) from None
    except (OSError, ValueError) as error:
        raise explain(error, target, beginning=True) from None


def _name(certificate: Any) -> str:
    names = dict(pair for part in certificate.get("subject", ()) for pair in part)
    common = names.get("commonName", "")
    return f"certificate of {printable(common)}," if common else "certificate"
