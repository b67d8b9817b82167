"""What the client knows of the cluster: brokers, topics, partition leaders. Kafka's ProducerMetadata.

User threads ask for topics and wait; the Sender thread carries the requests (network/metadata_updater.py) and brings
the answers. What is known is an immutable `Cluster`, replaced whole, so that readers need no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from kafkabuf.backoff import ExponentialBackoff, uniform
from kafkabuf.clock import Clock
from kafkabuf.errors import ClosedError, KafkaError, NetworkError, TimeoutError, UnknownTopicOrPartitionError
from kafkabuf.metadata.snapshot import Cluster, Node, PartitionInfo, TopicInfo, topic_info

__all__ = ["Cluster", "Metadata", "MetadataConfig", "Node", "PartitionInfo", "TopicInfo"]

T = TypeVar("T")


class MetadataConfig(Protocol):
    """The settings that metadata needs, in milliseconds."""

    @property
    def bootstrap_servers(self) -> tuple[tuple[str, int], ...]: ...
    @property
    def metadata_max_age_ms(self) -> int: ...
    @property
    def metadata_max_idle_ms(self) -> int: ...
    @property
    def retry_backoff_ms(self) -> int: ...
    @property
    def retry_backoff_max_ms(self) -> int: ...


class Metadata:
    """Interest in topics, the newest `Cluster`, and when to ask again. Any thread, except where the Sender is named."""

    def __init__(self, config: MetadataConfig, clock: Clock, *, random: Callable[[], float] = uniform) -> None:
        self._config = config
        self._clock = clock
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        self.listeners: list[Callable[[Cluster], None]] = []  # called in the Sender thread, after each update
        self.on_update_requested: Callable[[], None] = _nothing  # the network client puts its wakeup() here
        # The Sender's: topics that have records without an outcome. Whoever sends asks for nothing while that lasts.
        self.topics_in_use: Callable[[], Iterable[str]] = tuple
        self._cluster = Cluster()  # replaced by the Sender only
        # Guards everything below. Reentrant, for a signal's handler may send from within.
        self._lock = threading.RLock()
        self._topics: dict[str, float] = {}  # interest: when each was last asked for
        self._waiters: list[threading.Lock] = []  # held locks, released on any news
        self.changes = 0  # of what time_to_update answers from
        self._closed = False
        self._requested = 1  # updates asked for so far; a new client wants its first
        self._answered = 0  # the value of _requested that the newest answer covers
        self._asking = 0  # and that the request under way will cover; 0: none is
        self._asked: frozenset[str] = frozenset()  # topics in that request
        self._failures = 0  # in a row, counting answers that leave something unknown
        self._not_before = 0.0
        self._last_success = float("-inf")
        self._last_error: KafkaError | None = None  # since the last answer

    @property
    def snapshot(self) -> Cluster:
        return self._cluster

    @property
    def updated_at(self) -> float:
        """Clock.monotonic() of the newest answer; minus infinity before the first."""
        return self._last_success

    # ---- interest ------------------------------------------------------------------------------------------------

    def add_topic(self, name: str) -> bool:
        """Keep `name` up to date until nobody asks for it for `metadata.max.idle.ms`; a new name is fetched at once.

        Nor is it forgotten while it is among `topics_in_use`. Whether it is new.
        """
        now = self._clock.monotonic()
        with self._lock:
            new = name not in self._topics
            if new:
                self._requested += 1
                self._not_before = now
                self.changes += 1
            # Last: a signal's handler may raise before, and then the name is new to the next call as well.
            self._topics[name] = now
            wake = new and not self._asking
        if wake:
            self.on_update_requested()
        return new

    def request_update(self) -> None:
        """What is known proved stale: fetch anew as soon as the back-off allows."""
        with self._lock:
            # While an update is under way or backs off the Sender comes back by itself; waking it would make it spin.
            wake = self._answered == self._requested
            self._requested += 1
            self.changes += 1
        if wake:
            self.on_update_requested()

    def await_topic(self, name: str, timeout: float | None) -> TopicInfo:
        """The topic's partitions, fetched if need be, waiting up to `timeout` seconds (None: for ever).

        Raises InvalidTopicError, TopicAuthorizationError and the like as soon as a broker says so; after the time-out
        UnknownTopicOrPartitionError if the cluster answered that there is no such topic, else TimeoutError.
        """
        known_before = self._cluster.version

        def found() -> TopicInfo | None:
            new = self.add_topic(name)
            cluster = self._cluster
            info = cluster.topics.get(name)
            if info is None and not new and not self._asking:
                # An earlier call may have been interrupted between asking and waking the Sender.
                self.on_update_requested()
            if info is None or info.partitions:
                return info
            # A refusal from before this call may have been lifted: only a newer one counts.
            if info.error and not info.error.retriable and cluster.version > known_before:
                raise _copy(info.error)
            self.request_update()
            return None

        topic = self._await(found, timeout)
        if topic is None:
            raise self.missing(name, timeout or 0.0)
        return topic

    def await_update(self, timeout: float | None) -> Cluster:
        """The answer to a request sent after this call. Raises TimeoutError after `timeout` seconds."""
        with self._lock:
            target = self._requested + 1
        self.request_update()
        cluster = self._await(lambda: self._cluster if self._answered >= target else None, timeout)
        if cluster is None:
            raise TimeoutError(f"no fresh metadata after {round((timeout or 0.0) * 1000)} ms{self.circumstances()}")
        return cluster

    def is_held_here(self) -> bool:
        """Whether this thread is in the middle of a change here, which a signal's handler has interrupted."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]

    def close(self) -> None:
        """Wake every waiter with ClosedError; whoever would wait later gets it at once."""
        with self._lock:
            self._closed = True
            self._wake()

    def _await(self, found: Callable[[], T | None], timeout: float | None) -> T | None:
        """What `found` gives as soon as it gives something, looking after each piece of news; None: out of time."""
        start = self._clock.monotonic()
        while True:
            waiter = threading.Lock()
            waiter.acquire()
            with self._lock:
                # Before the look at what is known: news that comes after it releases the waiter.
                self._waiters.append(waiter)
            try:
                result = found()
                if result is not None:
                    return result
                if self._closed:
                    raise ClosedError("the producer was closed while it waited for metadata")
                self.check()
                elapsed = self._clock.monotonic() - start
                if not self._clock.wait(waiter, None if timeout is None else timeout - elapsed):
                    return None
            finally:
                with self._lock:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)

    def check(self) -> None:
        """Raises why no broker answered, where asking again will hardly help: a wrong password or certificate."""
        error = self._last_error
        if error is not None and not error.retriable:
            raise _copy(error)

    def missing(self, name: str, timeout: float) -> KafkaError:
        """The error of having waited for a topic in vain: there is none, or nobody has said."""
        info = self._cluster.topics.get(name)
        error = info.error if info is not None else None
        text = f"topic {name!r} not present in metadata after {round(timeout * 1000)} ms{self.circumstances(error)}"
        if not isinstance(error, UnknownTopicOrPartitionError):
            return TimeoutError(text)
        advice = "check the name, create the topic, or have the brokers do so (auto.create.topics.enable)"
        return UnknownTopicOrPartitionError(f"{text}; {advice}")

    def circumstances(self, error: KafkaError | None = None) -> str:
        """The end of an error's text: who was asked, and what came of it last."""
        servers = ", ".join(f"{host}:{port}" for host, port in self._config.bootstrap_servers)
        last = self._last_error or error
        return f"; bootstrap servers: {servers}" + (f"; last error: {last}" if last is not None else "")

    # ---- for the Sender --------------------------------------------------------------------------------------------

    def update_due(self, now: float) -> bool:
        return self.time_to_update(now) <= 0

    def time_to_update(self, now: float) -> float:
        """Seconds until a Metadata request is wanted; infinite while one is under way."""
        with self._lock:
            if self._asking:
                return float("inf")
            due = self._not_before
            if self._answered == self._requested:
                due = max(due, self._last_success + self._config.metadata_max_age_ms / 1000)
            return max(due - now, 0.0)

    def begin_update(self, now: float) -> tuple[str, ...]:
        """Sender: a request goes out now; which topics it must name. `on_response` or `on_failure` ends it."""
        in_use = dict.fromkeys(self.topics_in_use(), now)
        with self._lock:
            idle_since = now - self._config.metadata_max_idle_ms / 1000
            self._topics |= in_use
            # A copy: the lock is reentrant, and a finalizer that runs here may send to a new topic.
            self._topics = {name: used for name, used in self._topics.copy().items() if used > idle_since}
            self._asking = self._requested
            self.changes += 1
            self._asked = frozenset(self._topics)
            return tuple(self._topics)

    def on_response(self, response: Any) -> None:
        """Sender: a MetadataResponse (kio entity, any version from 1)."""
        if not response.brokers:
            self.on_failure(NetworkError("a broker answered with metadata that names no broker: it is still starting"))
            return
        answers = [topic_info(topic, self._cluster.topics.get(topic.name)) for topic in response.topics]
        incomplete = any(info.error is not None and info.error.retriable for info in answers)
        incomplete = incomplete or any(info.doubted for info in answers)
        brokers = {b.node_id for b in response.brokers}
        incomplete = incomplete or any(p.leader not in brokers for info in answers for p in info.partitions)
        # A topic that was asked for and has no answer at all is asked for again too.
        incomplete = incomplete or not self._asked.issubset(info.name for info in answers)
        with self._lock:
            # A topic that was added while the request was under way has no answer in it: what was known stays.
            kept = {n: i for n, i in self._cluster.topics.items() if n in self._topics and n not in self._asked}
            self._cluster = cluster = Cluster(
                brokers={b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers},
                topics=kept | {info.name: info for info in answers if info.name in self._topics},
                controller=response.controller_id,
                version=self._cluster.version + 1,
            )
        try:
            # Before the waiters wake: a thread that waits for a partition expects its queue to be there.
            self._tell(cluster)
        finally:
            now = self._clock.monotonic()
            with self._lock:
                self._last_success = now
                self._last_error = None
                self._answered = self._asking
                self._requested += incomplete
                self._finish(now, self._failures + 1 if incomplete else 0)

    def update_leaders(self, leaders: Mapping[tuple[str, int], tuple[int, int]], nodes: Iterable[Node]) -> None:
        """Sender: see `Cluster.with_leaders`. No answer to a request: who waits for one goes on waiting."""
        self._replace(self._cluster.with_leaders(leaders, nodes))

    def forget_brokers(self) -> None:
        """Sender: the brokers known so far are of no use; whoever answers next tells of others (KIP-1102)."""
        self._replace(self._cluster.without_brokers())
        self.request_update()

    def _replace(self, cluster: Cluster) -> None:
        if cluster is not self._cluster:
            self._cluster = cluster
            self._tell(cluster)

    def _tell(self, cluster: Cluster) -> None:
        for listener in self.listeners:
            listener(cluster)

    def on_failure(self, error: KafkaError) -> None:
        """Sender: no answer came. Asked again after the back-off; an error that is not retriable fails the waiters."""
        now = self._clock.monotonic()
        with self._lock:
            if self._asking:
                self._last_error = error
                self._finish(now, self._failures + 1)
            elif self._answered != self._requested:
                # Not even asked yet, for want of a connection.
                self._last_error = error
                if not error.retriable:
                    self._wake()

    def _finish(self, now: float, failures: int) -> None:
        # Under the lock. Topics added meanwhile need not wait for a back-off that is meant for repeated questions.
        repeated = self._asked.issuperset(self._topics)
        self._not_before = now + (self._backoff.delay(max(failures - 1, 0)) if repeated else 0.0)
        self._failures = failures
        self._asking = 0
        self.changes += 1
        self._wake()

    def _wake(self) -> None:
        # Under the lock: a released waiter removes itself only after this.
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.release()


def _nothing() -> None:
    """The wake-up of a client that has no network yet."""


def _copy(error: KafkaError) -> KafkaError:
    # One thread's traceback, and what it holds, is none of the others' business.
    return type(error)(*error.args)
