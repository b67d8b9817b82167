"""The producers that the bench compares. All are opened in the same way, and publish the same records."""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice, repeat
from typing import Any

from bench.measure import BATCH_LARGE, LINGER_MS, VALUE_SIZE, Client, Delivered, Publish
from kafkabuf.cli.perf import peers
from kafkabuf.config import ProducerConfig

VALUE = os.urandom(VALUE_SIZE)
KEY = os.urandom(16)
HEADERS = [("trace", os.urandom(16)), ("source", b"bench")]
REPLAY_IN_FLIGHT = 5
ARROW_ROWS = 10_000
PRODUCE_BATCH = 1_000
POLL_EVERY = 1024
# Returns the values of so many records.
Values = Callable[[int], Iterable[bytes]]
SAME_VALUE: Values = partial(repeat, VALUE)
# The best of a short search over linger.ms (0 to 200), batch.size (128 KiB to 1 MB, its maximum), batch.num.messages.
CONFLUENT_BEST = {"linger.ms": 200, "batch.size": 1_000_000, "batch.num.messages": 100_000}


def kafkabuf(
    batch_size: int,
    *,
    callback: bool = False,
    full: bool = False,
    told: bool = False,
    values: Values = SAME_VALUE,
    settings: Mapping[str, Any] | None = None,
) -> Client:
    """send() in a loop. `full` adds a key and two headers to every record. `told`: every record has an object, and
    on_acknowledged gets those of a batch at once."""

    @contextmanager
    def open_(bootstrap: str, topic: str) -> Iterator[Publish]:
        from kafkabuf import KafkaProducer

        merged = {"batch_size": batch_size, "linger_ms": LINGER_MS, "acks": "all"} | dict(settings or {})
        delivered = Delivered()
        on_delivery = delivered.on_kafkabuf

        def publish(records: int) -> int:
            send = producer.send
            if full:
                for value in values(records):
                    send(topic, value, KEY, HEADERS, callback=on_delivery)
            elif callback:
                for value in values(records):
                    send(topic, value, callback=on_delivery)
            elif told:
                for number, value in enumerate(values(records)):
                    send(topic, value, opaque=number)
            else:
                for value in values(records):
                    send(topic, value)
            producer.flush()
            delivered.check(records if callback or full or told else 0)
            return records

        on_acknowledged = delivered.on_acknowledged if told else None
        with closing(KafkaProducer(merged, bootstrap_servers=bootstrap, on_acknowledged=on_acknowledged)) as producer:
            yield publish

    return open_


def kafkabuf_arrow(batch_size: int, *, settings: Mapping[str, Any] | None = None) -> Client:
    """send_arrow() of a table's batches, 10,000 rows each."""

    @contextmanager
    def open_(bootstrap: str, topic: str) -> Iterator[Publish]:
        import pyarrow as pa

        from kafkabuf import KafkaProducer

        rows = pa.record_batch({"value": pa.array([VALUE] * ARROW_ROWS, pa.binary())})

        def publish(records: int) -> int:
            for start in range(0, records, ARROW_ROWS):
                producer.send_arrow(rows.slice(0, min(ARROW_ROWS, records - start)), topic)
            producer.flush()
            return records

        merged = {"batch_size": batch_size, "linger_ms": LINGER_MS, "acks": "all"} | dict(settings or {})
        with closing(KafkaProducer(merged, bootstrap_servers=bootstrap)) as producer:
            yield publish

    return open_


def confluent(
    *,
    callback: bool = False,
    full: bool = False,
    values: Values = SAME_VALUE,
    settings: Mapping[str, Any] | None = None,
    module: str = "confluent_kafka",
) -> Client:
    """produce() and poll() in a loop as documented; `full` adds a key and two headers to every record.

    `module` has the class Producer.
    """

    @contextmanager
    def open_(bootstrap: str, topic: str) -> Iterator[Publish]:
        new = importlib.import_module(module).Producer

        delivered = Delivered()

        def publish(records: int) -> int:
            produce, poll = producer.produce, producer.poll
            options: dict[str, Any] = {"on_delivery": delivered.on_confluent} if callback or full else {}
            if full:
                options |= {"key": KEY, "headers": HEADERS}
            left = iter(values(records))
            for _ in range(0, records, POLL_EVERY):
                for value in islice(left, POLL_EVERY):
                    try:
                        if options:
                            produce(topic, value, **options)
                        else:
                            produce(topic, value)
                    except BufferError:
                        _produce_later(partial(produce, topic, value, **options), poll)
                poll(0)
            producer.flush()
            delivered.check(records if callback or full else 0)
            return records

        producer = new(confluent_settings(bootstrap) | dict(settings or {}))
        yield publish
        producer.flush()

    return open_


def _produce_later(produce: Callable[[], None], poll: Callable[[float], int]) -> None:
    """The queue is full: serve delivery reports until it has room."""
    while True:
        poll(0.01)
        try:
            produce()
            return
        except BufferError:
            continue


def _config(bootstrap: str, batch_size: int) -> ProducerConfig:
    """What every peer is opened with."""
    given = {"batch_size": batch_size, "linger_ms": LINGER_MS, "acks": "all"}
    return ProducerConfig.from_mapping({"bootstrap_servers": bootstrap, **given})


def confluent_settings(bootstrap: str) -> dict[str, Any]:
    settings = peers.confluent_settings(_config(bootstrap, BATCH_LARGE))
    del settings["queue.buffering.max.kbytes"]  # librdkafka's default does not bound it
    return settings | {"queue.buffering.max.messages": 1_000_000}


def confluent_batches(settings: Mapping[str, Any]) -> Client:
    """produce_batch() of a thousand messages at a time. Each message is a dict; headers are not supported."""

    @contextmanager
    def open_(bootstrap: str, topic: str) -> Iterator[Publish]:
        from confluent_kafka import Producer

        def publish(records: int) -> int:
            for start in range(0, records, PRODUCE_BATCH):
                messages = [{"value": VALUE} for _ in range(min(PRODUCE_BATCH, records - start))]
                while producer.produce_batch(topic, messages) != len(messages):
                    messages = [{"value": VALUE} for message in messages if "_error" in message]
                    producer.poll(0.01)
                producer.poll(0)
            producer.flush()
            return records

        producer = Producer(confluent_settings(bootstrap) | dict(settings))
        yield publish
        producer.flush()

    return open_


def aiokafka(batch_size: int, *, batches: bool = False) -> Client:
    """send() in a loop, or with `batches` create_batch() and send_batch()."""

    @contextmanager
    def open_(bootstrap: str, topic: str) -> Iterator[Publish]:
        from aiokafka import AIOKafkaProducer

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(**peers.aiokafka_settings(_config(bootstrap, batch_size)))
            await producer.start()
            return producer

        async def send(records: int) -> int:
            for _ in range(records):
                await producer.send(topic, VALUE)
            await producer.flush()
            return records

        async def send_batches(records: int) -> int:
            left, sent = records, []
            while left:
                batch = producer.create_batch()
                while left and batch.append(key=None, value=VALUE, timestamp=None) is not None:
                    left -= 1
                sent.append(await producer.send_batch(batch, topic, partition=0))
            await asyncio.gather(*sent)
            return records

        with asyncio.Runner() as runner:
            producer = runner.run(start())
            yield lambda records: runner.run(send_batches(records) if batches else send(records))
            runner.run(producer.stop())

    return open_


def kafka_python(batch_size: int, module: str = "kafka") -> Client:
    """send() in a loop. `module` has the class KafkaProducer."""

    @contextmanager
    def open_(bootstrap: str, topic: str) -> Iterator[Publish]:
        new = importlib.import_module(module).KafkaProducer

        def publish(records: int) -> int:
            send = producer.send
            for _ in range(records):
                send(topic, VALUE)
            producer.flush()
            return records

        with closing(new(**peers.kafka_python_settings(_config(bootstrap, batch_size)))) as producer:
            yield publish

    return open_


def replay(batch_size: int, wrap: Callable[[socket.socket], socket.socket] = lambda plain: plain) -> Client:
    """The limit: one socket sends a ready-made batch over and over, with five requests in flight. `wrap` may put TLS
    around the socket."""

    @contextmanager
    def open_(bootstrap: str, topic: str) -> Iterator[Publish]:
        frame, batch_records = _ready_made(topic, batch_size)
        host, _, port = bootstrap.rpartition(":")
        plain = socket.create_connection((host, int(port)))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with wrap(plain) as connection, connection.makefile("rb") as responses:

            def publish(records: int) -> int:
                in_flight: deque[None] = deque()
                batches = -(-records // batch_records)
                for _ in range(batches):
                    if len(in_flight) == REPLAY_IN_FLIGHT:
                        _take_response(responses)
                        in_flight.pop()
                    connection.sendall(frame)
                    in_flight.append(None)
                for _ in in_flight:
                    _take_response(responses)
                return batches * batch_records

            yield publish

    return open_


def _ready_made(topic: str, batch_size: int) -> tuple[bytes, int]:
    """A Produce v7 request with one full batch for partition 0, and the number of its records."""
    from kafkabuf import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(write_limit=batch_size)
    while builder.append(0, None, VALUE) is not None:
        pass
    records, name = builder.close(), topic.encode()
    body = struct.pack(">hhih", 0, 7, 0, -1) + struct.pack(">hhi", -1, -1, 30_000)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, 0, len(records)) + records
    return struct.pack(">i", len(body)) + body, builder.count


def _take_response(responses: Any) -> None:
    (size,) = struct.unpack(">i", responses.read(4))
    response = responses.read(size)
    (name_size,) = struct.unpack_from(">h", response, 8)
    (error,) = struct.unpack_from(">h", response, 8 + 2 + name_size + 4 + 4)
    if error:
        raise RuntimeError(f"the broker responded with error code {error}")
