"""Producers side by side: each publishes the same records to the same broker in a process of its own.

`python -m bench.peers NAME BOOTSTRAP TOPIC RECORDS` runs one and prints its wall and CPU seconds as JSON. The clock
starts when the producer is connected and has sent its first record, and stops when every record is acknowledged.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

VALUE_SIZE = 100
BATCH_SMALL = 16 * 1024
BATCH_LARGE = 128 * 1024
# Every peer waits for all replicas and lingers as Java does by default.
LINGER_MS = 5
REPLAY_IN_FLIGHT = 5

Run = Callable[[int], None]
Peer = Callable[[str, str, bytes], tuple[Run, Callable[[], Any]]]


def _kafkabuf(batch_size: int, *, callback: bool = False) -> Peer:
    def open_(bootstrap: str, topic: str, value: bytes) -> tuple[Run, Callable[[], Any]]:
        from kafkabuf import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=bootstrap, batch_size=batch_size, linger_ms=LINGER_MS, acks="all")
        delivered = _Counter()

        def run(records: int) -> None:
            send = producer.send
            if callback:
                on_delivery = delivered.on_kafkabuf
                for _ in range(records):
                    send(topic, value, callback=on_delivery)
            else:
                for _ in range(records):
                    send(topic, value)
            producer.flush()
            delivered.check(records if callback else 0)

        return run, producer.close

    return open_


def _kafkabuf_arrow(batch_size: int) -> Peer:
    def open_(bootstrap: str, topic: str, value: bytes) -> tuple[Run, Callable[[], Any]]:
        import pyarrow as pa

        from kafkabuf import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=bootstrap, batch_size=batch_size, linger_ms=LINGER_MS, acks="all")

        def run(records: int) -> None:
            rows = pa.record_batch({"value": pa.array([value] * min(records, 10_000), pa.binary())})
            for start in range(0, records, 10_000):
                producer.send_arrow(rows.slice(0, min(10_000, records - start)), topic)
            producer.flush()

        return run, producer.close

    return open_


def _confluent(batch_size: int, *, callback: bool) -> Peer:
    def open_(bootstrap: str, topic: str, value: bytes) -> tuple[Run, Callable[[], Any]]:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": LINGER_MS,
                "batch.size": batch_size,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        delivered = _Counter()

        def run(records: int) -> None:
            produce, poll = producer.produce, producer.poll
            on_delivery = delivered.on_confluent if callback else None
            for number in range(records):
                while True:
                    try:
                        produce(topic, value, on_delivery=on_delivery)
                        break
                    except BufferError:
                        poll(0.01)
                if not number & 1023:
                    poll(0)
            producer.flush()
            delivered.check(records if callback else 0)

        return run, producer.flush

    return open_


def _replay(batch_size: int) -> Peer:
    """The limit: a batch made once, sent over and over through one socket with five requests in flight."""

    def open_(bootstrap: str, topic: str, value: bytes) -> tuple[Run, Callable[[], Any]]:
        from kafkabuf import MemoryRecordsBuilder

        builder = MemoryRecordsBuilder(write_limit=batch_size)
        while builder.append(0, None, value) is not None:
            pass
        records = builder.close()
        name = topic.encode()
        body = struct.pack(">hhih", 0, 7, 0, -1) + struct.pack(">hhi", -1, -1, 30_000)
        body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, 0, len(records)) + records
        frame = struct.pack(">i", len(body)) + body
        host, _, port = bootstrap.rpartition(":")
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = connection.makefile("rb")

        def run(count: int) -> None:
            in_flight: deque[None] = deque()
            for _ in range(-(-count // builder.count)):
                if len(in_flight) == REPLAY_IN_FLIGHT:
                    _take_answer(answers)
                    in_flight.pop()
                connection.sendall(frame)
                in_flight.append(None)
            for _ in in_flight:
                _take_answer(answers)

        return run, connection.close

    return open_


def _take_answer(answers: Any) -> None:
    (size,) = struct.unpack(">i", answers.read(4))
    answer = answers.read(size)
    (name_size,) = struct.unpack_from(">h", answer, 8)
    (error,) = struct.unpack_from(">h", answer, 8 + 2 + name_size + 4 + 4)
    if error:
        raise RuntimeError(f"the broker answered with error code {error}")


class _Counter:
    """Callbacks that count deliveries, and no peer may lose one."""

    def __init__(self) -> None:
        self._delivered = 0

    def on_kafkabuf(self, metadata: object, error: object) -> None:
        if error is None:
            self._delivered += 1

    def on_confluent(self, error: object, message: object) -> None:
        if error is None:
            self._delivered += 1

    def check(self, records: int) -> None:
        if self._delivered != records:
            raise RuntimeError(f"{self._delivered} of {records} records were delivered")
        self._delivered = 0


PEERS: dict[str, Peer] = {
    "replay 16 KiB": _replay(BATCH_SMALL),
    "replay 128 KiB": _replay(BATCH_LARGE),
    "kafkabuf send 16 KiB": _kafkabuf(BATCH_SMALL),
    "kafkabuf send 128 KiB": _kafkabuf(BATCH_LARGE),
    "kafkabuf send 128 KiB, callback": _kafkabuf(BATCH_LARGE, callback=True),
    "kafkabuf send_arrow 128 KiB": _kafkabuf_arrow(BATCH_LARGE),
    "confluent-kafka, callback": _confluent(BATCH_LARGE, callback=True),
    "confluent-kafka, no callback": _confluent(BATCH_LARGE, callback=False),
}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(name: str, bootstrap: str, topic: str, records: int) -> dict[str, float]:
    """Wall and CPU seconds of the whole process for `records` records, after a warm-up of one in fifty."""
    run, close = PEERS[name](bootstrap, topic, os.urandom(VALUE_SIZE))
    run(max(records // 50, 1))
    cpu, wall = _cpu(), time.perf_counter()
    run(records)
    result = {"wall": time.perf_counter() - wall, "cpu": _cpu() - cpu}
    close()
    return result


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))))
