"""Requests that know their schema: fields at their limits, arrays repeated up to a megabyte, topics whose names are as
long as names may be, records that become many times their size.

`Cases` draws the requests of one generation from its seed. It may use ids that the cluster gave out, which are the same
in each run of the generation (runs.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kafkabuf.broker.records.compression import GZIP, ZSTD
from kafkabuf.protocol import messages
from kafkabuf.protocol.schema import FIXED
from tests.broker.raw_client import NOW, batch
from tests.hostile.fuzz_requests import values as fuzz_values
from tests.hostile.fuzz_requests import wire as fuzz_wire
from tests.hostile.fuzz_requests.mutations import mutated
from tests.hostile.fuzz_requests.scenarios import (
    SCENARIOS,
    Producer,
    Scenario,
    everything,
    members,
    transaction,
    upgrade,
)
from tests.hostile.fuzz_requests.target import MAX_REQUEST, Case, corpus
from tests.hostile.fuzz_requests.wire import DIGITS, INTEGER, Place, Plain, Repeated
from tests.hostile.fuzz_requests.worlds import SOUND, TOPIC

_BITS = {"b": 8, "h": 16, "i": 32, "q": 64, "B": 8, "H": 16, "I": 32, "?": 8}
# Every request has the bytes of a corpus frame to begin with.
_FRAMES = corpus()
_WITH_FIELDS = [frame for frame in _FRAMES if fuzz_wire.read(frame) is not None]
_SIZES = (1_000, 10_000, 100_000, MAX_REQUEST, MAX_REQUEST)
# How often the partitions of one lookup are named.
_NAMED = (*[1] * 30, *[2] * 10, *[100] * 6, 1_000, 1_000, 10_000)
_CODECS = tuple(fuzz_values.CODECS)
# Sizes of the topics that the fuzzer makes in good faith: most must be small, for the sake of the next requests.
_PARTITIONS = (1, 1, 1, 2, 3, 50, 100_000, 2**31 - 1, 0, -1, -2)
_MANY_TOPICS = (1_000, 5_000, 19_990)
_MANY_PARTITIONS = (1_000, 2_000, 10_000, 20_000)
# Offsets of a transaction, topics that members read, partitions of a topic.
_MOST: dict[Scenario, int] = {transaction: 9_000, members: 2_500, upgrade: 2_500, everything: 9_900}
# How many of the generations begin with a scenario.
_SCENARIOS = 0.4

Draw = Callable[["Cases"], Case]


class Cases:
    """Draws one request after the other. `topic_ids` are the ids of topics that exist, `producer` looks a transactional
    id up. `weights`: how often each draw
    comes, in the place of the usual weights of the kind of world."""

    def __init__(self, generator: random.Random, kind: str, weights: Mapping[Draw, float] | None = None) -> None:
        self._random = generator
        # Folders and files of thousands of partitions take seconds.
        self._large = 0.05 if kind == "folder" else 0.3
        self.topic_ids: Sequence[bytes] = ()
        self.producer: Producer = lambda transactional_id: (-1, -1)
        # A scenario comes first: a world that has served for long ends.
        begins = weights is None and kind in SCENARIOS and generator.random() < _SCENARIOS
        self._scenario: Iterator[Case] = self._begin(kind) if begins else iter(())
        weights = weights or _weights(kind)
        self._draws, self._weights = list(weights), list(weights.values())

    def next(self) -> Case:
        case = next(self._scenario, None) or self._draw()
        whole = len(case.frame) <= MAX_REQUEST
        return replace(case, frame=case.frame[:MAX_REQUEST], expect=case.expect * whole)

    def _draw(self) -> Case:
        (draw,) = self._random.choices(self._draws, self._weights)
        return replace(draw(self), origin=draw.__name__)

    def _begin(self, kind: str) -> Iterator[Case]:
        """The requests of a scenario."""
        scenario = self._random.choice(SCENARIOS[kind])
        for case in scenario(self._random, _MOST.get(scenario, 0), lambda known: self.producer(known)):
            yield replace(case, origin=scenario.__name__)

    # ---- any request

    def mutations(self) -> Case:
        return Case(mutated(self._random, _FRAMES))

    def fields(self) -> Case:
        """One to three fields of a request at a limit."""
        plain = self._plain()
        found = list(fuzz_wire.places(plain.cls, plain.tree))
        for _ in range(self._random.randint(1, 3)):
            if found:
                self._change(self._random.choice(found))
        return Case(fuzz_wire.write(plain))

    def arrays(self) -> Case:
        """An array with one item many times, or as many items that differ."""
        plain = self._plain()
        arrays = [place for place in fuzz_wire.places(plain.cls, plain.tree) if place.is_array and place.value]
        if not arrays:
            return self.fields()
        place = self._random.choice(arrays)
        item = self._random.choice(place.value)
        if self._random.random() < 0.6:
            item = _numbered(item, place)
        place.holder[place.key] = [item]
        room = MAX_REQUEST - len(fuzz_wire.write(plain))
        place.holder[place.key] = Repeated(item, 2)
        size = MAX_REQUEST - room
        size = len(fuzz_wire.write(plain)) - size
        most = max(2, min(self._random.choice(_SIZES), room) // max(size, 1))
        count = most if self._random.random() < 0.3 else min(most, self._random.choice(fuzz_values.COUNTS[3:10]))
        place.holder[place.key] = Repeated(item, count)
        return Case(fuzz_wire.write(plain))

    def nested(self) -> Case:
        """Every array of a request with many items."""
        plain = self._plain()
        arrays = [place for place in fuzz_wire.places(plain.cls, plain.tree) if place.is_array and place.value]
        for place in reversed(arrays):
            item = self._random.choice(place.value)
            count = self._random.choice((2, 10, 50, 140))
            place.holder[place.key] = Repeated(_numbered(item, place) if self._random.random() < 0.5 else item, count)
        return Case(fuzz_wire.write(plain))

    def _plain(self) -> Plain:
        """A request of the corpus that names a topic that exists, mostly."""
        plain = fuzz_wire.read(self._random.choice(_WITH_FIELDS))
        assert plain is not None
        deletes = plain.head[:2] == messages.DELETE_TOPICS.to_bytes(2, "big")
        if self._random.random() < (0.02 if deletes else 0.7):
            for place in fuzz_wire.places(plain.cls, plain.tree):
                self._aim(place)
        return plain

    def _aim(self, place: Place) -> None:
        if place.is_array or place.value is None:
            return
        if place.field.shape.kafka_type == "uuid" and self.topic_ids:
            place.holder[place.key] = self._random.choice(self.topic_ids)
        elif place.field.shape.kafka_type == "string" and place.field.name in ("name", "topic", "topic_name"):
            place.holder[place.key] = TOPIC.encode()

    def _change(self, place: Place) -> None:
        shape, value = place.field.shape, place.value
        if isinstance(value, Repeated):
            return
        if place.is_array:
            value = [] if value is None or self._random.random() < 0.3 else value
            place.holder[place.key] = Repeated(value[0], self._random.choice((2, 3, 10, 100))) if value else []
        elif shape.kafka_type in FIXED:
            place.holder[place.key] = self._fixed(FIXED[shape.kafka_type])
        elif shape.entity is None:
            place.holder[place.key] = self._text(place)

    def _fixed(self, code: str) -> Any:
        if code == "16s":
            return self._random.choice((bytes(16), b"\xff" * 16, *self.topic_ids))
        if code == "d":
            return self._random.choice((0.0, -1.0, float("inf"), float("nan"), 1e308))
        return fuzz_values.integer(self._random, _BITS[code], code.islower() and code != "?")

    def _text(self, place: Place) -> bytes | None:
        if place.field.shape.nullable and self._random.random() < 0.1:
            return None
        if place.field.shape.kafka_type in ("records", "bytes") and self._random.random() < 0.5:
            return self._records()
        return fuzz_values.name(self._random).encode()

    # ---- topics

    def topics(self) -> Case:
        """Topics at the limits of names and numbers are made, grow, are written to and deleted."""
        name = self._random.choice(self._random.choice((fuzz_values.LONG_NAMES, fuzz_values.SHORT_NAMES)))
        if self._random.random() < 0.1:
            name = fuzz_values.name(self._random)
        topic: dict[str, Any] = {"name": name, "num_partitions": 1, "replication_factor": 1}
        topic |= {"assignments": [], "configs": [], "count": self._partitions()}
        if self._random.random() < 0.2:
            topic["num_partitions"] = self._partitions()
        if self._random.random() < 0.1:
            topic["replication_factor"] = fuzz_values.integer(self._random, 16)
        if self._random.random() < 0.2:
            return self._produce(name, batch([b"x"]))
        key, version = self._random.choice(
            ((messages.CREATE_TOPICS, 5), (messages.CREATE_TOPICS, 7), (messages.CREATE_PARTITIONS, 3),
             (messages.DELETE_TOPICS, 5), (messages.DELETE_TOPICS, 5), (messages.METADATA, 9))
        )  # fmt: skip
        if key == messages.CREATE_PARTITIONS and self._random.random() < 0.5:
            topic["name"] = TOPIC
        values: dict[str, Any] = {"topics": [topic], "topic_names": [name], "timeout": 1000}
        values["allow_auto_topic_creation"] = True
        return _case(key, version, **values, validate_only=self._random.random() < 0.1)

    def _partitions(self) -> int:
        return self._random.choice(_MANY_PARTITIONS if self._random.random() < self._large else _PARTITIONS)

    def many_topics(self) -> Case:
        """Very many topics at once, which exist or not."""
        cls_version = self._random.choice(((messages.METADATA, 9), (messages.CREATE_TOPICS, 7)))
        values: dict[str, Any] = {"name": DIGITS.decode(), "num_partitions": 1, "replication_factor": 1}
        values |= {"assignments": [], "configs": []}
        frame = _frame(*cls_version, topics=[values], timeout=1000, allow_auto_topic_creation=True)
        plain = fuzz_wire.read(frame)
        assert plain is not None
        item = plain.tree["topics"][0]
        item["name"] = self._random.choice((b"n", b"m" * 20)) + DIGITS
        plain.tree["topics"] = Repeated(item, self._random.choice(_MANY_TOPICS))
        return Case(fuzz_wire.write(plain))

    def few_descriptors(self) -> Case:
        """A topic for whose files there may be no descriptors."""
        name, count = f"d-{self._random.randrange(20)}", self._random.choice((1, 3, 20))
        topic = {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
        case = _case(messages.CREATE_TOPICS, 7, topics=[topic], timeout=1000)
        if self._random.random() < 0.3:
            topic = {"name": TOPIC, "count": self._random.choice((4, 8, 30)), "assignments": None}
            case = _case(messages.CREATE_PARTITIONS, 3, topics=[topic], timeout=1000)
        return Case(case.frame, descriptors=self._random.choice((0, 1, 2, 3, 5, 8, 20)))

    # ---- records

    def records(self) -> Case:
        """Small batches, mostly. Valid batches must be accepted, whatever they become."""
        if self._random.random() < 0.1:
            data = fuzz_values.json_batch(self._random.choice((GZIP, ZSTD)), self._random.choice((1, 2, 6)) * 10**6)
            return self._produce(SOUND, data, expect="accepted")
        return self._produce(TOPIC, self._records(), partition=self._random.choice((0, 1, 2, 2, 2, 7)))

    def _records(self) -> bytes:
        if self._random.random() < 0.05:
            return fuzz_values.bomb(self._random.choice(_CODECS), self._random.choice((5, 60)))
        if self._random.random() < 0.05:
            return fuzz_values.crowded_batch(
                self._random.choice(_CODECS), self._random.choice((1_000, 50_000, 200_000))
            )
        values = [b"v" * self._random.choice((0, 1, 100, 5_000))] * self._random.choice((1, 1, 2, 30))
        start = fuzz_values.integer(self._random, 63)
        times = [start if self._random.random() < 0.2 else NOW] * len(values)
        codec = self._random.choice((0, 0, 0, 1, 2, 3, 4, 7))
        return batch(values, timestamps=times, attributes=codec if self._random.random() < 0.1 else 0)

    def _produce(self, topic: str, records: bytes, partition: int = 0, expect: str = "") -> Case:
        data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
        acks = self._random.choice((-1, 1, 1)) if expect else self._random.choice((-1, 0, 1))
        return _case(messages.PRODUCE, 9, expect=expect, acks=acks, timeout=1000, topic_data=data)

    def lookups(self) -> Case:
        """Offsets by time, and records, of partitions that have records; named often."""
        if self._random.random() < 0.1:
            partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": NOW}
            topics = [{"name": SOUND, "partitions": [partition]}]
            return _case(messages.LIST_OFFSETS, 5, expect="accepted", topics=topics)
        partition = {"partition_index": self._random.choice((0, 1, 2)), "current_leader_epoch": -1}
        partition["timestamp"] = self._random.choice((0, NOW, NOW + 1, fuzz_values.integer(self._random, 64)))
        fetch = {"partition": partition["partition_index"], "current_leader_epoch": -1, "fetch_offset": 0}
        fetch["partition_max_bytes"] = self._random.choice(
            (2**31 - 1, 1 << 20, 1, fuzz_values.integer(self._random, 32))
        )
        limits = {"max_wait": 0, "min_bytes": 1, "max_bytes": self._random.choice((2**31 - 1, 50 << 20, 1))}
        if self._random.random() < 0.5:
            frame = _frame(messages.LIST_OFFSETS, 5, topics=[{"name": TOPIC, "partitions": [partition]}])
        else:
            frame = _frame(messages.FETCH, 12, topics=[{"topic": TOPIC, "partitions": [fetch]}], **limits)
        plain = fuzz_wire.read(frame)
        assert plain is not None
        (topic,) = plain.tree["topics"]
        topic["partitions"] = Repeated(topic["partitions"][0], self._random.choice(_NAMED))
        return Case(fuzz_wire.write(plain))

    # ---- authentication

    def tokens(self) -> Case:
        token, expect = fuzz_values.token(self._random)
        version = self._random.choice((0, 1, 2))
        frame = _frame(messages.SASL_AUTHENTICATE, version, auth_bytes=token)
        return Case(frame, expect, "OAUTHBEARER")

    def passwords(self) -> Case:
        """No name that the fuzzer knows has its password."""
        name = fuzz_values.name(self._random)
        mechanism = self._random.choice(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"))
        first = f"\0{name}\0{name}" if mechanism == "PLAIN" else f"n,,n={name},r=abc"
        frame = _frame(messages.SASL_AUTHENTICATE, 1, auth_bytes=first.encode())
        return Case(frame, "refused" if mechanism in ("PLAIN", "OAUTHBEARER") else "", mechanism)


# Of a thousand requests. One of many topics costs as much as a thousand others, and one of arrays as fifty.
_WEIGHTS: dict[Draw, float] = {
    Cases.fields: 540,
    Cases.mutations: 275,
    Cases.topics: 80,
    Cases.records: 60,
    Cases.lookups: 35,
    Cases.arrays: 6,
    Cases.nested: 4,
    Cases.many_topics: 0.2,
}
_WEIGHTS_OF_SASL: dict[Draw, float] = {Cases.mutations: 30, Cases.fields: 20, Cases.tokens: 30, Cases.passwords: 20}


def _weights(kind: str) -> Mapping[Draw, float]:
    if kind == "sasl":
        return _WEIGHTS_OF_SASL
    return {**_WEIGHTS, Cases.few_descriptors: 20} if kind == "folder" else _WEIGHTS


def _numbered(item: Any, place: Place) -> Any:
    """An item with the mark that `Repeated` replaces by a number: in its first name, or its first integer."""
    entity, kafka_type = place.field.shape.entity, place.field.shape.kafka_type
    if entity is None:
        return _mark(kafka_type, item)
    for below in fuzz_wire.places(entity, item):
        marked = _mark(below.field.shape.kafka_type, below.value) if not below.is_array else below.value
        if marked != below.value:
            below.holder[below.key] = marked
            break
    return item


def _mark(kafka_type: str, value: Any) -> Any:
    if kafka_type == "string" and value is not None:
        return b"f-" + DIGITS
    return INTEGER if kafka_type == "int32" else value


def warm() -> None:
    """Make what takes long to make."""
    for codec in fuzz_values.CODECS:
        for mib in (5, 60):
            fuzz_values.bomb(codec, mib)
        for count in (1_000, 50_000, 200_000):
            fuzz_values.crowded_batch(codec, count)
    for codec in (GZIP, ZSTD):
        for size in (1, 2, 6):
            fuzz_values.json_batch(codec, size * 10**6)


def _frame(key: int, version: int, **values: Any) -> bytes:
    return messages.encode_request(key, version, 1, "fuzz", messages.build_request(key, version, **values))


def _case(key: int, version: int, expect: str = "", **values: Any) -> Case:
    return Case(_frame(key, version, **values), expect)
