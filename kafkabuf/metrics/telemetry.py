"""Metrics that the cluster's operator subscribes to: the client asks for the subscription and pushes (KIP-714).

Kafka's ClientTelemetryReporter. The client asks any ready broker that lists both APIs; other brokers get nothing. A
thread of its own makes each payload. Whatever goes wrong costs telemetry alone, and is logged at the level DEBUG.
Thread: the Sender's.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from kafkabuf.clock import Clock
from kafkabuf.errors import (
    ClosedError,
    IllegalStateError,
    KafkaError,
    TimeoutError,
    UnsupportedVersionError,
    error_for_code,
)
from kafkabuf.metrics import otlp
from kafkabuf.network._request import Completion
from kafkabuf.network.connection_state import NodeConnection, State
from kafkabuf.process.background import BackgroundCall
from kafkabuf.process.producer_log import producer_log
from kafkabuf.process.threads import Event
from kafkabuf.protocol import messages

log = producer_log("kafkabuf.network")

NEVER = float("inf")
VERSIONS = range(1)
DEFAULT_INTERVAL = 300.0  # after an interval that is out of bounds, and after an error
SHORTEST_INTERVAL = 0.1  # the lowest that Kafka's brokers allow
SHORTEST_RETRY = 1.0
LARGEST_PAYLOAD = 1024 * 1024  # Kafka's telemetry.max.bytes, too; a broker may allow less
MOST_PREFIXES = 1000
LONGEST_END = 1.0  # how long close() waits for the last push
_PAYLOAD_CHECK = 0.02
_NOT_UNIQUE = ("", "*")  # a request for all metrics
_UNKNOWN_SUBSCRIPTION_ID, _UNSUPPORTED_COMPRESSION = 117, 76
_TRY_LATER = (118, 89)  # TELEMETRY_TOO_LARGE, THROTTLING_QUOTA_EXCEEDED
_GZIP = 16 + zlib.MAX_WBITS

Snapshot = Mapping[str, Mapping[str, float]]


class Network(Protocol):
    """The part of Connections that carries the requests."""

    def known_nodes(self) -> list[NodeConnection]: ...
    def bootstrap_nodes(self) -> list[NodeConnection]: ...
    def is_silent(self, node: NodeConnection) -> bool: ...
    def submit(self, node: NodeConnection, entity: Any, deliver: Callable[[Completion], None]) -> None: ...
    def check_by(self, when: float) -> None: ...
    def wakeup(self) -> None: ...


class Subscription(NamedTuple):
    """What the broker wants. `interval` is in seconds."""

    client_instance_id: Any
    subscription_id: int
    interval: float
    compressions: tuple[int, ...]
    largest: int
    delta: bool
    prefixes: tuple[str, ...]

    def wants(self, name: str) -> bool:
        return name.startswith(self.prefixes)


class Payload(NamedTuple):
    """`sums`: the sums at its making, from which the next increases count."""

    compression: int
    content: bytes
    sums: dict[tuple[str, Any], float]


class Pushed(NamedTuple):
    """A push without response: its node, the sums of its payload, and its time."""

    node: NodeConnection
    sums: dict[tuple[str, Any], float]
    time_ns: int


class Telemetry:
    """Asks for the subscription, and pushes what `snapshot` returns, which is producer.metrics().

    `labels` are the resource's, such as transactional_id. `random` gives numbers from 0 to 1.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        snapshot: Callable[[], Snapshot],
        labels: Mapping[str, str],
        random: Callable[[], float],
    ) -> None:
        self._network = network
        self._clock = clock
        self._snapshot = snapshot
        self._labels = labels
        self._random = random
        self._start_ns = self._since_ns = clock.time_ms() * 1_000_000
        self._subscription: Subscription | None = None  # None: ask for it
        self._instance_id: UUID | None = None
        self._decided = Event()  # the id is known, or never will be
        self._last_error = "no connected broker takes metrics of clients"
        self._ended = False
        self._due = 0.0
        self._under_way = False
        self._payload: BackgroundCall[Payload] | None = None
        self._sums: dict[tuple[str, Any], float] = {}
        self._pushed: Pushed | None = None
        self._end_by: float | None = None  # close() waits for the last push until then
        network.check_by(0.0)

    def run(self, now: float) -> float:
        """Ask or push, if due. Returns when to call again; infinite: after the next response or connection."""
        if self._under_way or self._end_by is not None:
            return NEVER
        if now < self._due:
            return self._due
        node = self._node(now)
        if node is None:
            return NEVER  # `connected` follows
        if self._subscription is None:
            self._ask(node)
            return NEVER
        if self._payload is None:
            making = self._subscription
            self._payload = BackgroundCall(lambda: self._make(making), self._made, "kafkabuf-telemetry")
        if not self._payload.done:
            return now + _PAYLOAD_CHECK
        self._push(node, self._payload)
        return NEVER

    def connected(self) -> None:
        """A broker takes requests now."""
        if not self._under_way:
            self._network.check_by(self._due)

    def finish(self, now: float) -> bool:
        """The producer closes: push a last time. Returns whether close() should wait for the end of the push."""
        if self._end_by is None:
            self._end_by = now
            self._decided.set()
            # A broker refuses what arrives behind the last push. One connection keeps the order.
            node = self._node(now) if self._pushed is None else self._pushed.node
            if self._subscription is not None and node is not None:
                self._end_by = now + LONGEST_END
                self._under_way = False
                if self._pushed is not None:  # the broker gets its increases before the last push
                    self._sums, self._since_ns = self._pushed.sums, self._pushed.time_ns
                self._push_last(node, self._subscription)
                self._network.check_by(self._end_by)
        return now < self._end_by

    def closed(self) -> None:
        """The client was closed: no caller waits for the id any more."""
        self._end_by = 0.0 if self._end_by is None else self._end_by
        self._decided.set()

    def instance_id(self, timeout: float) -> UUID:
        """Any thread: the id that a broker has given to this client. Waits for it for `timeout` seconds.

        Raises TimeoutError with the last error, IllegalStateError if the brokers have refused the client, and
        ClosedError if the producer closes meanwhile.
        """
        self._decided.wait(timeout)
        if self._instance_id is not None:
            return self._instance_id
        if self._end_by is not None:
            raise ClosedError("the producer was closed before a broker gave it a client instance id")
        if self._ended:
            raise IllegalStateError(f"the brokers have given no client instance id: {self._last_error}")
        raise TimeoutError(f"no broker has given a client instance id within {timeout:g} s: {self._last_error}")

    # ---- internals -------------------------------------------------------------------------------------------------

    def _node(self, now: float) -> NodeConnection | None:
        """The ready node with the fewest requests in flight that knows both APIs, a bootstrap server if need be.

        Telemetry opens no connection, and an idle producer may have only the connection to a bootstrap server.
        """
        known = self._network.known_nodes()
        nodes = [node for node in [*known, *self._network.bootstrap_nodes()] if not self._network.is_silent(node)]
        ready = [node for node in nodes if node.state is State.READY and now >= node.throttled_until]
        able = [node for node in ready if self._knows_telemetry(node)]
        return min(able, key=lambda node: (node.node_id < 0, len(node.in_flight)), default=None)

    def _knows_telemetry(self, node: NodeConnection) -> bool:
        try:
            for api_key in (messages.GET_TELEMETRY_SUBSCRIPTIONS, messages.PUSH_TELEMETRY):
                node.api_version(api_key, VERSIONS)
        except UnsupportedVersionError:
            return False
        return True

    def _ask(self, node: NodeConnection) -> None:
        request = messages.build_request(messages.GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id=self._instance_id)
        self._submit(node, request, self._on_subscription)

    def _submit(self, node: NodeConnection, request: Any, handle: Callable[[Completion], None]) -> None:
        def deliver(completion: Completion) -> None:
            if self._end_by is not None:
                return
            try:
                handle(completion)
            except Exception as error:  # the connection must not suffer
                self._stop(f"{type(error).__name__}: {error}")

        self._under_way = True
        self._network.submit(node, request, deliver)

    def _on_subscription(self, completion: Completion) -> None:
        response = None if completion.error is not None else completion.decode()
        if response is None or response.error_code != 0:
            self._failed(completion.error, 0 if response is None else response.error_code)
            return
        if response.client_instance_id is None:
            self._stop("the broker gave no client instance id")
            return
        self._instance_id = response.client_instance_id
        self._decided.set()
        subscription = _subscription(response)
        if self._subscription is None and not subscription.delta:
            self._sums.clear()
        wait = subscription.interval
        if subscription.prefixes:
            self._subscription = subscription
            wait *= 0.5 + self._random()  # spreads the pushes of clients that started together
        self._wait(wait)

    def _make(self, subscription: Subscription) -> Payload:
        """Any thread: the present metrics, encoded and compressed."""
        now_ns = self._clock.time_ms() * 1_000_000
        points = list(otlp.points(self._snapshot(), subscription.wants))
        sums = {(point.name, point.label): point.value for point in points if point.is_sum}
        if subscription.delta:
            points = [
                point._replace(value=point.value - self._sums.get((point.name, point.label), 0.0))
                if point.is_sum
                else point
                for point in points
            ]
        start_ns = self._since_ns if subscription.delta else self._start_ns
        content = otlp.encode(
            points, self._labels, start_ns, now_ns, delta=subscription.delta, largest=subscription.largest
        )
        return Payload(*_compressed(content, subscription.compressions), sums)

    def _made(self) -> None:
        """The payload's thread: end the poll. The Sender's thread may overwrite the time: _PAYLOAD_CHECK follows."""
        self._network.check_by(0.0)
        self._network.wakeup()

    def _push(self, node: NodeConnection, made: BackgroundCall[Payload]) -> None:
        subscription, self._payload = self._subscription, None
        assert subscription is not None
        try:
            payload = made.result()
        except Exception as error:
            self._stop(f"the metrics cannot be encoded: {error}")
            return
        self._pushed = Pushed(node, payload.sums, self._clock.time_ms() * 1_000_000)
        request = _push_request(subscription, payload, terminating=False)
        self._submit(node, request, self._on_pushed)

    def _push_last(self, node: NodeConnection, subscription: Subscription) -> None:
        try:
            request = _push_request(subscription, self._make(subscription), terminating=True)
        except Exception as error:
            log.debug("telemetry: no last push, because the metrics cannot be encoded: %s", error)
            self._end_by = 0.0
            return
        self._network.submit(node, request, self._on_last)

    def _on_last(self, completion: Completion) -> None:
        self._end_by = 0.0

    def _on_pushed(self, completion: Completion) -> None:
        pushed, self._pushed = self._pushed, None
        error_code = 0 if completion.error is not None else completion.decode().error_code
        if completion.error is not None or error_code != 0:
            self._failed(completion.error, error_code)
            return
        assert self._subscription is not None
        assert pushed is not None
        self._sums, self._since_ns = pushed.sums, pushed.time_ns
        self._wait(self._subscription.interval)

    def _failed(self, error: KafkaError | None, error_code: int) -> None:
        """Ask for the subscription again, at a time that depends on the error, or never."""
        interval = DEFAULT_INTERVAL if self._subscription is None else self._subscription.interval
        self._subscription = None
        self._last_error = str(error) if error is not None else str(error_for_code(error_code))
        if error is not None and not isinstance(error, UnsupportedVersionError):
            self._wait(DEFAULT_INTERVAL)
        elif error_code in (_UNKNOWN_SUBSCRIPTION_ID, _UNSUPPORTED_COMPRESSION):
            self._wait(SHORTEST_RETRY)
        elif error_code in _TRY_LATER:
            self._wait(max(interval, SHORTEST_RETRY))
        else:
            self._stop(self._last_error)

    def _wait(self, seconds: float) -> None:
        self._under_way = False
        self._due = self._clock.monotonic() + seconds
        self._network.check_by(self._due)

    def _stop(self, why: str) -> None:
        log.debug("telemetry ends: %s", why)
        self._last_error, self._ended = why, True
        self._decided.set()
        self._under_way = False
        self._due = NEVER


def _subscription(response: Any) -> Subscription:
    """What the response asks for, within bounds: the broker may be faulty."""
    interval = response.push_interval.total_seconds()
    # The broker asks for beginnings of these names. A beginning that starts with another beginning adds nothing.
    ours = f"{otlp.PREFIX}producer."
    prefixes: list[str] = []
    for name in sorted({*response.requested_metrics}):
        prefix = "" if name in _NOT_UNIQUE else name
        if (ours.startswith(prefix) or prefix.startswith(ours)) and not any(map(prefix.startswith, prefixes[-1:])):
            prefixes.append(prefix)
    return Subscription(
        client_instance_id=response.client_instance_id,
        subscription_id=response.subscription_id,
        interval=max(interval, SHORTEST_INTERVAL) if interval > 0 else DEFAULT_INTERVAL,
        compressions=tuple(response.accepted_compression_types),
        largest=min(max(response.telemetry_max_bytes, 0), LARGEST_PAYLOAD),
        delta=response.delta_temporality,
        prefixes=tuple(prefixes[:MOST_PREFIXES]),
    )


def _push_request(subscription: Subscription, payload: Payload, *, terminating: bool) -> Any:
    return messages.build_request(
        messages.PUSH_TELEMETRY,
        0,
        client_instance_id=subscription.client_instance_id,
        subscription_id=subscription.subscription_id,
        terminating=terminating,
        compression_type=payload.compression,
        metrics=payload.content,
    )


def _compressed(content: bytes, accepted: Iterable[int]) -> tuple[int, bytes]:
    """Compressed with the first of the broker's codecs that this client has; with none, as it is."""
    for codec in accepted:
        if codec == 0:
            break
        try:
            if codec == 1:
                compressor = zlib.compressobj(wbits=_GZIP)
                return 1, compressor.compress(content) + compressor.flush()
            if codec in (3, 4):
                import cramjam

                library: Any = cramjam.lz4 if codec == 3 else cramjam.zstd
                return codec, bytes(library.compress(content))
        except Exception as error:  # such as a build of cramjam that does not work here
            log.debug("telemetry: codec %d failed: %s", codec, error)
    return 0, content
