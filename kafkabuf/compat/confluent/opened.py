"""The kafkabuf producer below compat.confluent's Producer: it opens without a broker, and its send() never waits."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from kafkabuf.append._producer import ProducerCore, TopicPolicy
from kafkabuf.backoff import uniform
from kafkabuf.batches._accumulator import TopicQueues
from kafkabuf.clock import Clock
from kafkabuf.compat.confluent._confluent import MustWait
from kafkabuf.compat.confluent.errors import AllBrokersDownError, call_error
from kafkabuf.compat.confluent.settings import NO_SERVERS
from kafkabuf.compat.shared.late_names import late_client
from kafkabuf.config.secret import SecretStr
from kafkabuf.errors import KafkaError, NetworkError, TimeoutError, UnknownTopicOrPartitionError
from kafkabuf.network import resolve
from kafkabuf.network.client import NetworkClient
from kafkabuf.network.connection_state import NodeConnection
from kafkabuf.network.connections import Connections
from kafkabuf.network.resolve import Address
from kafkabuf.producer import KafkaProducer
from kafkabuf.sending.lifetime import Disownable

# At most this number of errors wait for poll(); newer errors push the oldest out.
MOST_ERRORS = 100


class Watcher(Protocol):
    def watch(self, client: NetworkClient) -> None: ...


class Opened(KafkaProducer):
    """kafkabuf's producer, which opens though no bootstrap server can be resolved yet.

    Each of the `watchers` watches its client. A fork calls the face's _disown().
    """

    def __init__(self, settings: dict[str, Any], face: Disownable, watchers: Iterable[Watcher]) -> None:
        self._face = weakref.ref(face)
        self._watchers = watchers
        super().__init__(settings)

    def _connect(self, clock: Clock) -> NetworkClient:
        client = late_client(self.config, clock, self._metadata, resolver=_resolve)
        for watcher in self._watchers:
            watcher.watch(client)
        return client

    def _disown(self) -> None:
        super()._disown()
        face = self._face()
        if face is not None:
            face._disown()

    def set_credentials(self, username: str, password: str) -> None:
        """Any thread: connections that authenticate from now on use this name and password."""
        self.config = self.config.replaced({"sasl_username": username, "sasl_password": SecretStr(password)})
        authenticator = self._sender._client.connections.authenticator
        if authenticator is not None:
            from kafkabuf.network.sasl import mechanisms as sasl

            authenticator.use(sasl.mechanism(self.config, self._clock, uniform))


class KnownTopics(TopicPolicy):
    """Topics of the producer that are known now: it requests metadata of another for the next try."""

    def __init__(self, producer: Opened) -> None:
        self._producer = producer

    def await_topic(self, name: str, timeout: float) -> TopicQueues:
        self._producer.check_open()
        try:
            return self._producer.topics.await_topic(name, 0)
        except (TimeoutError, UnknownTopicOrPartitionError):
            raise MustWait from None

    def await_partition(self, name: str, partition: int, timeout: float) -> None:
        self._producer._metadata.add_topic(name)
        self._producer._metadata.request_update()


def core_of(producer: Opened) -> ProducerCore:
    """send() of a producer's queues that never waits: it raises MustWait or BufferExhaustedError."""
    core = ProducerCore()
    config = producer.config.replaced({"max_block_ms": 0})
    core._open(producer.accumulator, KnownTopics(producer), config, producer._clock)
    return core


def all_down(connections: Connections) -> int:
    """How many brokers the client knows, if it has failed to connect to each; else 0."""
    nodes = connections.known_nodes() or connections.bootstrap_nodes()
    return len(nodes) if all(node.last_error is not None for node in nodes) else 0


class ConnectionErrors:
    """The errors of one producer's connections that poll() has not reported yet."""

    def __init__(self, error_cb: Callable[[Any], object]) -> None:
        self._error_cb = error_cb
        self._errors: deque[KafkaError] = deque(maxlen=MOST_ERRORS)
        self._outage = False  # all brokers are down, and `_errors` says so

    def watch(self, client: NetworkClient) -> None:
        client.connections.on_change = partial(self._note, weakref.ref(client.connections))

    def _note(self, client: weakref.ref[Connections], node: NodeConnection, error: KafkaError | None) -> None:
        """Thread: Sender. The node takes requests now, or its connection has failed with the error."""
        connections = client()
        if error is None or connections is None:
            self._outage = False
            return
        self._errors.append(error)
        down = all_down(connections)
        if down and not self._outage:
            self._outage = True
            self._errors.append(AllBrokersDownError(f"{down}/{down} brokers are down"))

    def serve(self) -> int:
        """Call the callback for each error, and return how often."""
        served = 0
        while self._errors:
            self._error_cb(call_error(self._errors.popleft()))
            served += 1
        return served


def _resolve(host: str, port: int) -> list[Address]:
    if f"{host}:{port}" == NO_SERVERS:
        raise NetworkError("bootstrap.servers is not set")
    return resolve.resolve(host, port)
