"""The producers of a storm: KafkaProducer, and two others that take its calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from kafkabuf import KafkaProducer
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.compat.confluent import Producer
from kafkabuf.errors import AbortableTransactionError, KafkaError, TimeoutError
from kafkabuf.spool.recovered import Recovered
from tests.spool.kills.plan import Life

T = TypeVar("T")
_WARM_UP = 60.0  # seconds


def opened(life: Life, settings: dict[str, Any], topics: Sequence[str]) -> Any:
    """The producer of a life."""
    if life.face == "aio":
        return Aio(settings)
    if life.face == "confluent":
        return Confluent(settings, topics)
    return KafkaProducer(settings | ({"value_serializer": to_json} if life.serializes else {}))


def to_json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class Aio:
    """AIOKafkaProducer. Its loop runs while a call waits."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._producer = self._run(_started(settings))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)

    def send(self, topic: str, value: bytes, **more: Any) -> object:
        return self._run(self._producer.send(topic, value, **more))

    def send_many(self, topic: str, values: Sequence[bytes], **more: Any) -> object:
        return self._run(self._producer.send_many(topic, values, **more))

    def send_arrow(self, data: Any, **more: Any) -> object:
        return self._run(self._producer.send_arrow(data, **more))

    def flush(self, timeout: float) -> None:
        self._run(self._producer.flush(timeout))

    def init_transactions(self) -> None:
        self._run(self._producer.init_transactions())

    def begin_transaction(self) -> None:
        self._run(self._producer.begin_transaction())

    def commit_transaction(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort_transaction(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self, timeout: float | None) -> None:
        self._run(self._producer.stop(timeout))

    @property
    def recovered(self) -> Recovered | None:
        return self._run(_recovered(self._producer))


async def _recovered(producer: AIOKafkaProducer[Any, Any]) -> Recovered | None:
    return producer.recovered


async def _started(settings: dict[str, Any]) -> AIOKafkaProducer[Any, Any]:
    producer: AIOKafkaProducer[Any, Any] = AIOKafkaProducer(settings, check=False)  # the cluster may be away
    await producer.start()
    return producer


class Confluent:
    """The face of confluent-kafka's Producer. produce() may leave a record of a topic that nobody has described yet in
    a line outside of the file, so the producer learns the topics first."""

    def __init__(self, settings: dict[str, Any], topics: Sequence[str]) -> None:
        self._producer = Producer(dict(map(_librdkafkas, *zip(*settings.items(), strict=True))))
        self._topics = topics
        self._warm = False

    def _own(self) -> KafkaProducer[Any, Any]:
        return self._producer._producer

    def warm_up(self) -> None:
        for topic in () if self._warm else self._topics:
            self._own().topics.info(topic, _WARM_UP)
        self._warm = True

    def send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        self.warm_up()
        with _errors():
            number = -1 if partition is None else partition
            self._producer.produce(topic, value, key, number, timestamp=timestamp_ms or 0, headers=headers)
            self._producer.poll(0)

    def flush(self, timeout: float) -> None:
        with _errors():
            if left := self._producer.flush(timeout):
                raise TimeoutError(f"{left} records are left")

    def init_transactions(self) -> None:
        self._call(self._producer.init_transactions)

    def begin_transaction(self) -> None:
        self._call(self._producer.begin_transaction)

    def commit_transaction(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort_transaction(self) -> None:
        self._call(self._producer.abort_transaction)

    @staticmethod
    def _call(call: Callable[[], object]) -> None:
        with _errors():
            call()

    def close(self, timeout: float | None) -> None:
        """The face has no time-out for close()."""
        self._own().close(timeout)

    @property
    def recovered(self) -> Recovered | None:
        return self._own().recovered


@contextmanager
def _errors() -> Iterator[None]:
    """Raises kafkabuf's errors for confluent-kafka's."""
    try:
        yield
    except BufferError as error:
        raise KafkaError(str(error)) from error
    except KafkaException as error:
        kind = AbortableTransactionError if error.args[0].txn_requires_abort() else KafkaError
        raise kind(str(error)) from error


def _librdkafkas(name: str, value: Any) -> tuple[str, Any]:
    if name == "buffer_memory":
        return "queue.buffering.max.kbytes", value // 1024
    if name == "max_request_size":
        return "message.max.bytes", value
    prefix = "kafkabuf." if name.startswith("buffer_") else ""
    return prefix + name.replace("_", "."), value
