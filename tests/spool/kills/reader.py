"""Reads what has arrived, by librdkafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.spool.kills.oracle import Arrived

_PATIENCE = 120.0  # seconds: a transaction that a kill left open ends after a minute, and holds readers up until then
_SILENCE = 8.0  # seconds after which librdkafka is opened anew: it may forget to fetch behind a killed node
_A_WHILE = 0.005
_OF_A_REQUEST = 5.0  # seconds: a node that is gone costs no more than that

Place = tuple[str, int]
T = TypeVar("T")


def patiently(ask: Callable[[], T]) -> T:
    """What librdkafka answers. A node that has moved or was away costs it a request or two."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return ask()
        except KafkaException as error:
            if time.monotonic() > deadline:
                raise RuntimeError(str(error)) from None  # no process can pickle a KafkaException


class Reader:
    """Each `read` goes on where the one before has ended."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._positions: dict[Place, int] = {}
        self._open()

    def _open(self) -> None:
        self._consumer = self._opened("read_committed")
        # Kafka answers a commit before its records are there for readers: the end is that of all records.
        self._ends = self._opened("read_uncommitted")

    def _opened(self, isolation_level: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": isolation_level,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,  # control records lie behind the last record of a transaction
                "fetch.wait.max.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )

    def forget(self, topics: Container[str]) -> None:
        """The topics were made again."""
        self._close()
        self._open()
        self._positions = {place: at for place, at in self._positions.items() if place[0] not in topics}

    def positions(self, topics: Container[str]) -> dict[Place, int]:
        """Up to where it has read."""
        return {place: at for place, at in self._positions.items() if place[0] in topics}

    def read(self, topics: Mapping[str, int]) -> dict[Place, list[Arrived]]:
        """The records of all partitions up to their ends."""
        places = [(topic, number) for topic, count in topics.items() for number in range(count)]
        begins = {place: self._positions.get(place, 0) for place in places}
        ends = {place: self._end(place) for place in places}
        logs: dict[Place, list[Arrived]] = {place: [] for place in places}
        wanted = [place for place in places if ends[place] > begins[place]]
        deadline = time.monotonic() + _PATIENCE
        self._consumer.assign([TopicPartition(*place, begins[place]) for place in wanted])
        left, heard = set(wanted), time.monotonic()
        while left:
            messages = self._consumer.consume(1_000, timeout=_A_WHILE)
            assert messages or time.monotonic() < deadline, f"the ends of {left} were not reached"
            if messages:
                heard = time.monotonic()
            elif time.monotonic() > heard + _SILENCE:
                self._close()
                self._open()
                self._consumer.assign([TopicPartition(*place, begins[place]) for place in left])
                heard = time.monotonic()
            for message in messages:
                place = message.topic() or "", message.partition() or 0
                if (error := message.error()) is None:
                    logs[place].append(_arrived(message))
                    begins[place] = (message.offset() or 0) + 1
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                if (message.offset() or 0) + (error is None) >= ends[place]:
                    left.discard(place)
        self._consumer.unassign()
        self._positions |= ends
        return logs

    def _end(self, place: Place) -> int:
        """Asks for the topic again where the leader has moved, and by a new client where the old one does not learn."""
        opened_at = time.monotonic()

        def ask() -> int:
            nonlocal opened_at
            try:
                return int(self._ends.get_watermark_offsets(TopicPartition(*place), timeout=_OF_A_REQUEST)[1])
            except KafkaException:
                if time.monotonic() > opened_at + _SILENCE:
                    self._close()
                    self._open()
                    opened_at = time.monotonic()
                with suppress(KafkaException):
                    self._ends.list_topics(place[0], timeout=_OF_A_REQUEST)
                raise

        return patiently(ask)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._consumer.close()
        self._ends.close()


def _arrived(message: Message) -> Arrived:
    headers: Any = tuple(message.headers() or [])
    return Arrived(message.key(), message.value(), headers, message.timestamp()[1])
