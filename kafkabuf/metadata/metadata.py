"""What the client knows of the cluster: brokers, topics, partition leaders. Kafka's ProducerMetadata.

User threads ask for topics and wait. The Sender's thread sends the requests (network/metadata_updater.py) and takes the
responses. It replaces the immutable `Cluster` as a whole, so that readers need no lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kafkabuf.backoff import ExponentialBackoff, uniform
from kafkabuf.clock import Clock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import (
    ClosedError,
    KafkaError,
    NetworkError,
    TimeoutError,
    UnknownTopicOrPartitionError,
    host_port,
)
from kafkabuf.metadata.snapshot import Cluster, Node, PartitionInfo, TopicInfo, topic_info
from kafkabuf.process.threads import RLock, Waiter, new_waiter

__all__ = ["Cluster", "Metadata", "Node", "PartitionInfo", "TopicInfo"]

T = TypeVar("T")


class Metadata:
    """The topics in use, the newest `Cluster`, and when to ask again. Any thread, unless a method names the Sender."""

    def __init__(self, config: ProducerConfig, clock: Clock, *, random: Callable[[], float] = uniform) -> None:
        self._config = config
        self._clock = clock
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        self.listeners: list[Callable[[Cluster], None]] = []  # called in the Sender's thread, after each update
        self.on_update_requested: Callable[[], None] = _nothing  # the network client puts its wakeup() here
        # The Sender sets this: topics that have records without an outcome. send() calls add_topic for new names only.
        self.topics_in_use: Callable[[], Iterable[str]] = tuple
        self.creates_topics = True  # whether a broker may create a missing topic that the client asks for
        self._cluster = Cluster()  # only the Sender replaces it
        # Guards all fields below. Reentrant: a signal handler may send while this thread holds the lock.
        self._lock = RLock()
        self._topics: dict[str, float] = {}  # topic: when add_topic was last called for it
        # Locks that waiting threads hold; any news releases them. A list may need memory to give one away.
        self._waiters: deque[Waiter] = deque()
        self.changes = 0  # counts the changes that may change the result of time_to_update
        self._closed = False
        self._closed_because = "the producer was closed while it waited for metadata"
        self._requested = 1  # updates requested so far; a new client wants its first
        self._answered = 0  # the value of _requested that the newest response covers
        self._asking = 0  # the value of _requested that the request in flight covers; 0: no request is in flight
        self._asked: frozenset[str] = frozenset()  # topics in that request
        self._failures = 0  # in a row; a response that leaves something unknown counts as a failure
        self._not_before = 0.0
        self._last_success = float("-inf")
        self._last_error: KafkaError | None = None  # since the last response

    @property
    def snapshot(self) -> Cluster:
        return self._cluster

    @property
    def updated_at(self) -> float:
        """Clock.monotonic() of the newest response; minus infinity before the first."""
        return self._last_success

    # ---- interest ------------------------------------------------------------------------------------------------

    def add_topic(self, name: str) -> bool:
        """Keep a topic up to date, and fetch it at once if it is new. Returns whether it is new.

        The client forgets a topic `metadata.max.idle.ms` after the last call, but not while it is in `topics_in_use`.
        """
        now = self._clock.monotonic()
        with self._lock:
            new = name not in self._topics
            if new:
                self._requested += 1
                self._not_before = now
                self.changes += 1
            # Last: if a signal handler raises before this line, the name is still new in the next call.
            self._topics[name] = now
            wake = new and not self._asking
        if wake:
            self.on_update_requested()
        return new

    def request_update(self) -> None:
        """Fetch metadata again as soon as the back-off allows, because it has proved stale."""
        with self._lock:
            # While an update is under way or backs off, the Sender's next poll ends by itself: a wake-up would spin.
            wake = self._answered == self._requested
            self._requested += 1
            self.changes += 1
        if wake:
            self.on_update_requested()

    def await_topic(self, name: str, timeout: float | None) -> TopicInfo:
        """The topic's partitions. Fetches an unknown topic and waits up to `timeout` seconds (None: for ever).

        Raises InvalidTopicError, TopicAuthorizationError and other fatal errors as soon as a broker reports them. After
        the time-out it raises UnknownTopicOrPartitionError if the cluster has no such topic, else TimeoutError.
        """
        known_before = self._cluster.version

        def known_topic() -> TopicInfo | None:
            new = self.add_topic(name)
            cluster = self._cluster
            info = cluster.topics.get(name)
            if info is None and not new and not self._asking:
                # A signal may have interrupted an earlier call after its request and before it woke the Sender.
                self.on_update_requested()
            if info is None or info.partitions:
                return info
            # An error from before this call may be out of date: only a newer error counts.
            if info.error and not info.error.retriable and cluster.version > known_before:
                raise _copy(info.error)
            self.request_update()
            return None

        topic = self._await(known_topic, timeout)
        if topic is None:
            raise self.missing(name, timeout or 0.0)
        return topic

    def await_update(self, timeout: float | None) -> Cluster:
        """The cluster as a request sent after this call finds it. Raises TimeoutError after `timeout` seconds."""
        with self._lock:
            target = self._requested + 1
        self.request_update()
        cluster = self._await(lambda: self._cluster if self._answered >= target else None, timeout)
        if cluster is None:
            raise TimeoutError(f"no fresh metadata after {round((timeout or 0.0) * 1000)} ms{self.circumstances()}")
        return cluster

    def is_held_here(self) -> bool:
        """Whether this thread holds the lock: a signal handler asks whether it has interrupted a change here."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]

    def close(self, because: str | None = None) -> None:
        """Wake every waiting thread with ClosedError. Later waits raise it at once. `because`: what the error says."""
        with self._lock:
            self._closed = True
            self._closed_because = because or self._closed_because
            self._wake()

    def _await(self, lookup: Callable[[], T | None], timeout: float | None) -> T | None:
        """Call `lookup` now and after all news until it returns a value. None: the time is over."""
        start = self._clock.monotonic()
        while True:
            waiter = new_waiter()
            with self._lock:
                # Before the lookup: news that arrives after the lookup releases the waiter.
                self._waiters.append(waiter)
            try:
                result = lookup()
                if result is not None:
                    return result
                if self._closed:
                    raise ClosedError(self._closed_because)
                self.check()
                elapsed = self._clock.monotonic() - start
                if not self._clock.wait(waiter, None if timeout is None else timeout - elapsed):
                    return None
            finally:
                with self._lock:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)

    def check(self) -> None:
        """Raises the last error if a retry will hardly help, as after a wrong password or certificate."""
        error = self._last_error
        if error is not None and not error.retriable:
            raise _copy(error)

    def missing(self, name: str, timeout: float) -> KafkaError:
        """The error of a wait for a topic that has timed out: the topic does not exist, or no broker has responded."""
        info = self._cluster.topics.get(name)
        error = info.error if info is not None else None
        text = f"topic {name!r} not present in metadata after {round(timeout * 1000)} ms{self.circumstances(error)}"
        if not isinstance(error, UnknownTopicOrPartitionError):
            silent = "" if self._answered else "; KafkaProducer(check=True) raises at once where no broker answers"
            return TimeoutError(text + silent)
        advice = "check the name, create the topic, or let the brokers create it (auto.create.topics.enable)"
        return UnknownTopicOrPartitionError(f"{text}; {advice}")

    def circumstances(self, error: KafkaError | None = None) -> str:
        """The end of an error's text: the bootstrap servers and the last error."""
        servers = ", ".join(host_port(host, port) for host, port in self._config.bootstrap_servers)
        last = self._last_error or error
        return f"; bootstrap servers: {servers}" + (f"; last error: {last}" if last is not None else "")

    # ---- for the Sender --------------------------------------------------------------------------------------------

    def time_to_update(self, now: float) -> float:
        """Seconds until the next Metadata request is due; infinite while a request is in flight."""
        with self._lock:
            if self._asking:
                return float("inf")
            due = self._not_before
            if self._answered == self._requested:
                due = max(due, self._last_success + self._config.metadata_max_age_ms / 1000)
            return max(due - now, 0.0)

    def begin_update(self, now: float) -> tuple[str, ...]:
        """Sender: begin a request and return the topics that it must name. `on_response` or `on_failure` ends it."""
        in_use = dict.fromkeys(self.topics_in_use(), now)
        with self._lock:
            idle_since = now - self._config.metadata_max_idle_ms / 1000
            self._topics |= in_use
            # A copy: the lock is reentrant, and a finalizer that runs in the loop may add a topic.
            self._topics = {name: used for name, used in self._topics.copy().items() if used > idle_since}
            self._asking = self._requested
            self.changes += 1
            self._asked = frozenset(self._topics)
            return tuple(self._topics)

    def abandon_update(self) -> None:
        """Sender: the request that `begin_update` began was not sent: the next turn begins another. Needs no memory."""
        self._asking = 0

    def on_response(self, response: Any) -> None:
        """Sender: a MetadataResponse (kio entity, any version from 1)."""
        if not response.brokers:
            self.on_failure(NetworkError("a broker sent metadata that names no broker: it is still starting"))
            return
        infos = [topic_info(topic, self._cluster.topics.get(topic.name)) for topic in response.topics]
        incomplete = any(info.error is not None and info.error.retriable for info in infos)
        incomplete = incomplete or any(info.doubted for info in infos)
        brokers = {b.node_id for b in response.brokers}
        incomplete = incomplete or any(p.leader not in brokers for info in infos for p in info.partitions)
        # A requested topic that is missing in the response is requested again.
        incomplete = incomplete or not self._asked.issubset(info.name for info in infos)
        with self._lock:
            # A topic that was added while the request was in flight is not in the response: its known state stays.
            kept = {n: i for n, i in self._cluster.topics.items() if n in self._topics and n not in self._asked}
            self._cluster = cluster = Cluster(
                brokers={b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers},
                topics=kept | {info.name: info for info in infos if info.name in self._topics},
                controller=response.controller_id,
                version=self._cluster.version + 1,
                cluster_id=getattr(response, "cluster_id", None) or "",
            )
        try:
            # Before the waiting threads wake: a thread that waits for a partition expects that its queue exists.
            self._call_listeners(cluster)
        except MemoryError:
            incomplete = True  # some listeners lack the news: the next response calls them again
            raise
        finally:
            now = self._clock.monotonic()
            with self._lock:
                self._last_success = now
                self._last_error = None
                self._answered = self._asking or self._answered  # 0: an earlier call found no memory for its end
                self._requested += incomplete
                self._finish(now, self._failures + 1 if incomplete else 0)

    def update_leaders(self, leaders: Mapping[tuple[str, int], tuple[int, int]], nodes: Iterable[Node]) -> None:
        """Sender: see `Cluster.with_leaders`. Threads that wait for a Metadata response go on waiting."""
        self._replace(self._cluster.with_leaders(leaders, nodes))

    def forget_brokers(self) -> None:
        """Sender: drop all known brokers, and request an update: the next response names others (KIP-1102)."""
        self._replace(self._cluster.without_brokers())
        self.request_update()

    def _replace(self, cluster: Cluster) -> None:
        if cluster is not self._cluster:
            self._cluster = cluster
            self._call_listeners(cluster)

    def _call_listeners(self, cluster: Cluster) -> None:
        for listener in self.listeners:
            listener(cluster)

    def on_failure(self, error: KafkaError) -> None:
        """Sender: a request failed. It is repeated after the back-off; a fatal error fails the waiting threads."""
        now = self._clock.monotonic()
        with self._lock:
            if self._asking:
                self._last_error = error
                self._finish(now, self._failures + 1)
            elif self._answered != self._requested:
                # There is no connection yet to send the request over.
                self._last_error = error
                if not error.retriable:
                    self._wake()

    def _finish(self, now: float, failures: int) -> None:
        # Under the lock. The back-off is for repeated requests: topics that were added meanwhile do not wait for it.
        repeated = self._asked.issuperset(self._topics)
        self._not_before = now + (self._backoff.delay(max(failures - 1, 0)) if repeated else 0.0)
        self._failures = failures
        self.changes += 1
        self._asking = 0  # no line before this may be left out: a call that finds no memory is repeated
        self._wake()

    def _wake(self) -> None:
        # Under the lock: a released thread waits again only after this. Without memory the waiters that are left stay.
        while self._waiters:
            self._waiters.popleft().release()


def _nothing() -> None:
    """Default of `on_update_requested`, before the network client sets it."""


def _copy(error: KafkaError) -> KafkaError:
    # Each thread raises its own copy: a shared error would collect the tracebacks of all threads, and their frames.
    return type(error)(*error.args)
