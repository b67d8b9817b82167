"""Records of produce() whose topic is not known yet. produce() never waits, so the records wait here, in order.

The Sender's thread moves a line's records into the queues when metadata describes the topic. A record that finds no
memory stays first in its line; the next poll(), flush() or produce() moves the line on.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from kafkabuf.compat.confluent._confluent import Message, MustWait, bytes_of
from kafkabuf.errors import (
    BufferExhaustedError,
    KafkaError,
    PurgedError,
    RecordTooLargeError,
    TimeoutError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.process.threads import RLock
from kafkabuf.producer import KafkaProducer

OVERHEAD = 100  # bytes that a record takes at most besides its key, value and headers

# Messages, each with its callback.
Line = deque[tuple[Message, Any]]


class Queue(Protocol):
    """The producer."""

    def _send(self, message: Message, on_delivery: Any) -> None:
        """Queue a message's record. Raises MustWait, or a kafkabuf error."""

    def _fail(self, message: Message, on_delivery: Any, error: KafkaError) -> None: ...


class Lines:
    """The lines of one producer. Neither the lines nor metadata keep the producer from being collected.

    `timeout` is message.timeout.ms in seconds, `propagation` topic.metadata.propagation.max.ms: a topic that brokers do
    not know for that long counts as missing.
    """

    def __init__(self, producer: Queue, opened: KafkaProducer, timeout: float, propagation: float) -> None:
        self.by_topic: dict[str, Line] = {}
        self._producer = weakref.ref(producer)
        self._accumulator = opened.accumulator
        self._metadata = metadata = opened._metadata
        self._largest = opened.config.max_request_size
        self._timeout = timeout
        self._propagation = propagation
        # Reentrant: a signal handler may produce. Guards the order of each line.
        self._lock = RLock()
        # True while a line moves. A signal handler, or a __del__ of a record that moves, does not move the line again.
        self._moving = False
        move = weakref.WeakMethod(self.move)
        metadata.listeners.append(lambda cluster: (move() or _nothing)())

    def add(self, message: Message, on_delivery: Any) -> None:
        """Let a message wait in its topic's line. Raises the errors that send() would raise for a known topic."""
        if (refusal := self._accumulator.refusal) is not None:  # there is no transaction that the record could join
            raise refusal()
        # The caller may change a bytearray before the record is encoded.
        message.set_key(bytes_of(message.key(), "key"))
        message.set_value(bytes_of(message.value(), "value"))
        if (headers := message.headers()) is not None:
            message.set_headers([(name, bytes_of(data, "header")) for name, data in headers])
        size = OVERHEAD + sum(len(data) for data in (message.key(), message.value()) if data is not None)
        if size > self._largest:
            raise RecordTooLargeError(f"the record needs up to {size} bytes: message.max.bytes is {self._largest}")
        topic = message.topic()
        self._metadata.add_topic(topic)
        with self._lock:
            self.by_topic.setdefault(topic, deque()).append((message, on_delivery))
        self.move(topic)  # metadata may have come before the message stood in the line

    def move(self, only: str | None = None) -> None:
        """Queue the records of topics that are known now."""
        if not self.by_topic:
            return
        with self._alone() as alone:
            if not alone:
                return
            for topic in [only] if only is not None else list(self.by_topic):
                if topic in self.by_topic and self._is_described(topic):
                    self._move_line(topic, self.by_topic[topic])

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Locks the lines. False in a call that interrupts another call of the same thread."""
        with self._lock:
            alone, self._moving = not self._moving, True
            try:
                yield alone
            finally:
                self._moving = not alone

    def _is_described(self, topic: str) -> bool:
        info = self._metadata.snapshot.topics.get(topic)
        return info is not None and (bool(info.partitions) or (info.error is not None and not info.error.retriable))

    def _move_line(self, topic: str, line: Line) -> None:
        producer = self._producer()
        while line and producer is not None:
            try:
                producer._send(*line[0])
            except (MustWait, BufferExhaustedError):
                return
            except KafkaError as error:
                producer._fail(*line[0], error)
            except RuntimeError:  # closed: close() fails what is left
                return
            line.popleft()
        if not line:
            self.by_topic.pop(topic, None)

    def expire(self) -> None:
        """Fail the records that have waited for too long. Moves the others if they can."""
        self.move()
        producer = self._producer()
        assert producer is not None, "its own call"
        with self._alone() as alone:
            if not alone:
                return
            for topic, line in list(self.by_topic.items()):
                missing = self._is_missing(topic)
                limit = min(self._timeout, self._propagation) if missing else self._timeout
                while line and line[0][0].age >= limit:
                    producer._fail(*line.popleft(), self._late(topic, missing and self._propagation <= self._timeout))
                if not line:
                    del self.by_topic[topic]
                else:
                    self._metadata.add_topic(topic)  # it is still in use

    def _is_missing(self, topic: str) -> bool:
        info = self._metadata.snapshot.topics.get(topic)
        return info is not None and isinstance(info.error, UnknownTopicOrPartitionError)

    def _late(self, topic: str, missing: bool) -> KafkaError:
        if missing:
            return self._metadata.missing(topic, self._propagation)
        return TimeoutError(f"topic {topic!r} is not known after {self._timeout:g} s{self._metadata.circumstances()}")

    def purge(self, why: str) -> None:
        """Fail all records that wait."""
        producer = self._producer()
        assert producer is not None, "its own call"
        with self._alone() as alone:
            while alone and self.by_topic:
                _, line = self.by_topic.popitem()
                for message, on_delivery in line:
                    producer._fail(message, on_delivery, PurgedError(why))

    def __len__(self) -> int:
        return sum(len(line) for line in list(self.by_topic.values()))


def _nothing() -> None:
    """The lines are gone."""
