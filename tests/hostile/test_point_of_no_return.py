"""A call that raises has queued no record, wherever the user's code raises.

Every face reads all that is the user's before the record is in a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.compat import aiokafka, confluent, kafka_python
from kafkabuf.testing import MockProducer
from tests.hostile.trapped import ARGUMENTS, BurntError, Fuse, Passing

UNTIL = 60  # no call runs the user's code more often


def unchanged(data: Any) -> Any:
    return data


class Face:
    """A producer, and how its send() is called. A face without an argument leaves it out."""

    takes: ClassVar[frozenset[str]] = frozenset({"value", "key", "headers", "partition", "timestamp_ms"})

    def __init__(self, servers: str) -> None:
        self.open(servers)

    def open(self, servers: str) -> None: ...

    def send(self, topic: Any, **arguments: Any) -> None: ...

    def end(self) -> None: ...


class Own(Face):
    takes = Face.takes | {"callback", "opaque"}
    settings: ClassVar[dict[str, Any]] = {}

    def open(self, servers: str) -> None:
        self.producer = KafkaProducer(
            bootstrap_servers=servers, linger_ms=0, on_acknowledged=lambda _: None, **self.settings
        )

    def send(self, topic: Any, **arguments: Any) -> None:
        self.producer.send(topic, **arguments)

    def end(self) -> None:
        self.producer.close()


class Intercepted(Own):
    settings: ClassVar[dict[str, Any]] = {"interceptor_classes": [Passing()]}


class Serialized(Own):
    settings: ClassVar[dict[str, Any]] = {
        "value_serializer": unchanged,
        "key_serializer": unchanged,
        "partitioner_class": lambda topic, key, value, partitions: 0,
    }


class KafkaPython(Face):
    settings: ClassVar[dict[str, Any]] = {}

    def open(self, servers: str) -> None:
        self.producer = kafka_python.KafkaProducer(bootstrap_servers=servers, **self.settings)

    def send(self, topic: Any, **arguments: Any) -> None:
        self.producer.send(topic, **arguments)

    def end(self) -> None:
        self.producer.close()


class PartitionedKafkaPython(KafkaPython):
    settings: ClassVar[dict[str, Any]] = {"partitioner": lambda key, everywhere, available: 0}


class Confluent(Face):
    takes = Face.takes | {"callback"}

    def open(self, servers: str) -> None:
        self.producer = confluent.Producer({"bootstrap.servers": servers})

    def send(self, topic: Any, **arguments: Any) -> None:
        if "timestamp_ms" in arguments:
            arguments["timestamp"] = arguments.pop("timestamp_ms")
        self.producer.produce(topic, **arguments)

    def end(self) -> None:
        self.producer.flush()
        self.producer._producer.close()


class ReportingConfluent(Confluent):
    takes = Face.takes

    def send(self, topic: Any, **arguments: Any) -> None:
        super().send(topic, callback=lambda error, message: None, **arguments)


class ConfluentOfBatches(Confluent):
    """One call of produce_batch() for two records, of which the second has the odd argument."""

    takes = frozenset({"value", "key", "headers", "partition", "callback"})

    def send(self, topic: Any, **arguments: Any) -> None:
        messages: list[dict[str, Any]] = [{"value": b"before"}, arguments]
        if self.producer.produce_batch(topic, messages) != 2:
            raise BurntError(messages)


class Mock(Face):
    takes = Face.takes | {"callback"}

    def open(self, servers: str) -> None:
        self.producer = MockProducer(auto_complete=False)

    def send(self, topic: Any, **arguments: Any) -> None:
        self.producer.send(topic, **arguments)

    def end(self) -> None:
        self.producer.flush()


class InALoop(Face):
    """A face whose send() is awaited."""

    def open(self, servers: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.producer = self.made(servers)
        self.loop.run_until_complete(self.producer.start())

    def made(self, servers: str) -> Any: ...

    def send(self, topic: Any, **arguments: Any) -> None:
        self.loop.run_until_complete(self.producer.send(topic, **arguments))

    def end(self) -> None:
        self.loop.run_until_complete(self.producer.stop())
        self.loop.close()


class Aio(InALoop):
    takes = Face.takes | {"opaque"}
    settings: ClassVar[dict[str, Any]] = {}

    def made(self, servers: str) -> Any:
        return AIOKafkaProducer(bootstrap_servers=servers, linger_ms=0, on_acknowledged=lambda _: None, **self.settings)


class InterceptedAio(Aio):
    settings: ClassVar[dict[str, Any]] = {"interceptor_classes": [Passing()], "value_serializer": unchanged}


class AioKafka(InALoop):
    def made(self, servers: str) -> Any:
        return aiokafka.AIOKafkaProducer(bootstrap_servers=servers)


class AioKafkaOfBatches(AioKafka):
    """One batch of two records, of which the second has the odd argument."""

    takes = frozenset({"value", "key", "headers", "timestamp_ms", "partition"})

    def send(self, topic: Any, **arguments: Any) -> None:
        partition = arguments.pop("partition", 0)
        odd = {"timestamp": arguments.pop("timestamp_ms", None), "key": None, "value": None} | arguments

        async def send() -> None:
            batch = self.producer.create_batch()
            batch.append(timestamp=None, key=None, value=b"before")
            batch.append(**odd)
            await self.producer.send_batch(batch, topic, partition=partition)

        self.loop.run_until_complete(send())


FACES: list[tuple[type[Face], int]] = [
    (Own, 1), (Intercepted, 1), (Serialized, 1), (KafkaPython, 1), (PartitionedKafkaPython, 1), (Confluent, 1),
    (ReportingConfluent, 1), (ConfluentOfBatches, 2), (Mock, 1), (Aio, 1), (InterceptedAio, 1), (AioKafka, 1),
    (AioKafkaOfBatches, 2),
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running


@pytest.mark.parametrize(("kind", "records"), FACES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_call_that_raises_has_queued_no_record(cluster: EmbeddedCluster, kind: type[Face], records: int) -> None:
    wrong = []
    for number, (name, odd) in enumerate(ARGUMENTS.items()):
        if not odd(Fuse(0)).keys() <= kind.takes:
            continue
        topic = f"{kind.__name__}-{number}"
        cluster.create_topic(topic, 4)
        face = kind(cluster.bootstrap_servers)
        returned = _try_every_place(face, topic, odd)
        face.end()
        arrived = len(face.producer.history() if isinstance(face, Mock) else cluster.messages(topic))
        if arrived != returned * records:
            wrong.append(f"{name}: {returned} calls returned, and {arrived} records arrived")
    assert not wrong


def _try_every_place(face: Face, topic: str, odd: Callable[[Fuse], dict[str, Any]]) -> int:
    """Call send() with the n-th call of the user's code raising, for each n. Returns how many calls have returned."""
    returned = 0
    for at in range(1, UNTIL):
        fuse = Fuse(at)
        arguments = {"value": b"v"} | odd(fuse)
        try:
            face.send(topic, **arguments)
            returned += 1
        except Exception:
            pass
        if fuse.calls < at:  # the whole call did not run the user's code as often
            return returned
    raise AssertionError(f"the call runs the user's code more than {UNTIL} times")
