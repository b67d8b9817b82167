"""The kernels of the performance gate: pieces of the producer's work, without a network.

`python -m bench.kernels` runs all kernels, one after the other. It works only if bench/callgrind.py starts it.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pyarrow as pa

from bench import compiled
from kafkabuf._pool import BufferPool
from kafkabuf._records import MemoryRecordsBuilder, crc32, crc32c
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import SystemClock
from kafkabuf.config import ProducerConfig
from kafkabuf.formats import Avro, Json, Protobuf
from kafkabuf.formats.rows.format import Format
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.network.client import Completion, NetworkClient, Request
from kafkabuf.sending.sender import Sender
from kafkabuf.transactions.idempotence import producer_state
from rigs.fake_client import Answer, FakeClient, encode_answer
from rigs.producer import TOPIC, Appender

NODE = 1
VALUE = bytes(100)
KEYS = [b"%016d" % number for number in range(64)]
HEADERS = [("trace", b"0123456789abcdef"), ("origin", b"bench")]
PARTITIONS = 6  # partitions of a topic whose records have keys

ROUNDS = 3  # runs of each kernel; the gate takes the smallest count

Run = Callable[[int], object]  # does so many units of a kernel's work


class Broker(FakeClient):
    """Stores nothing, and responds at once with ready-made bytes, since a broker's work is not the producer's."""

    answer_bytes: bytes = b""

    def send(self, node_id: int, request: Request) -> None:
        request.build(1)
        self._completions.append(Completion(request, node_id, self.answer_bytes, None, 0.0))

    def poll(self, timeout: float) -> list[Completion]:
        return self._taken()


class Producer:
    """A producer without threads and sockets. Each request carries batches of `busy` partitions."""

    def __init__(self, partitions: int = 1, busy: int = 1, **others: object) -> None:
        settings = {"bootstrap_servers": "localhost:9", "linger_ms": 0, "max_in_flight_requests_per_connection": 5}
        config = ProducerConfig.from_mapping(settings | others)
        clock = SystemClock()  # the real clock for its cost, although callgrind.c stops its time
        broker = Broker()
        client = cast(NetworkClient, broker)
        version = client.api_version(NODE, 0, (0, 12))
        broker.answer_bytes = encode_answer(version, 1, {(TOPIC, partition): Answer() for partition in range(busy)})
        pool = BufferPool(config.buffer_memory, config.slab_size, clock=clock)
        self.accumulator = RecordAccumulator(config, pool, clock, client.wakeup, producer_state=producer_state(config))
        self.turn = Sender(config, self.accumulator, Metadata(config, clock), client, clock).run_once
        appender = Appender(self.accumulator, config, clock)
        self.send = appender.send
        self.send_arrow = appender.send_arrow
        self.accumulator.topic_queues(TOPIC, [NODE] * partitions)

    def finish(self) -> None:
        """Run turns until every record has its outcome."""
        while self.accumulator.incomplete:
            self.turn()


# ---- the reference, without kafkabuf's code --------------------------------------------------------------------------


def reference() -> Run:
    """Calls, small objects, dictionaries, attributes: the work of the interpreter in the other kernels."""

    class Holder:
        value = b""

        def hold(self, value: bytes) -> int:
            self.value = value
            return len(value)

    def run(n: int) -> None:
        holder = Holder()
        seen: dict[bytes, list[int]] = {}
        for number in range(n):
            key = KEYS[number & 63]
            seen.setdefault(key, []).append(holder.hold(key + VALUE))
            if len(seen[key]) > 3:
                del seen[key]

    return run


# ---- append ----------------------------------------------------------------------------------------------------------


def send() -> Run:
    send = Producer().send

    def run(n: int) -> None:
        for _ in range(n):
            send(TOPIC, VALUE)

    return run


def send_key() -> Run:
    send = Producer(PARTITIONS).send

    def run(n: int) -> None:
        for number in range(n):
            send(TOPIC, VALUE, KEYS[number & 63])

    return run


def send_key_headers() -> Run:
    send = Producer(PARTITIONS).send

    def run(n: int) -> None:
        for number in range(n):
            send(TOPIC, VALUE, key=KEYS[number & 63], headers=HEADERS)

    return run


def send_callback() -> Run:
    """With the call of the callback, and therefore with the Sender's turn."""
    producer = Producer()
    results: list[Any] = []

    def run(n: int) -> None:
        results.clear()
        for _ in range(n):
            producer.send(TOPIC, VALUE, callback=lambda metadata, error: results.append(metadata))
        producer.finish()
        assert len(results) == n

    return run


def send_by_detour() -> Run:
    """What send() does for a producer with a serializer, beside the call of the serializer."""
    send = Producer(value_serializer=lambda value: value).send

    def run(n: int) -> None:
        for _ in range(n):
            send(TOPIC, VALUE)

    return run


def future_result() -> Run:
    """result() of an acknowledged record, at most 5,000 times."""
    producer = Producer()
    futures = [producer.send(TOPIC, VALUE) for _ in range(5_000)]
    producer.finish()

    def run(n: int) -> None:
        for _ in range(n):
            futures.pop().result()

    return run


def send_arrow(*, key: bool) -> Run:
    producer = Producer(PARTITIONS if key else 1)
    columns: dict[str, Any] = {"value": pa.array([VALUE] * 1_000, pa.binary())}
    if key:
        columns["key"] = pa.array([KEYS[number & 63] for number in range(1_000)], pa.binary())
    rows = pa.record_batch(columns)

    def run(n: int) -> None:
        for _ in range(0, n, 1_000):
            producer.send_arrow(rows, TOPIC)

    return run


def columns() -> pa.RecordBatch:
    """Eight nullable columns for the formats."""
    numbers = [None if number % 7 == 0 else number * number for number in range(1_000)]
    return pa.record_batch({
        **{f"long{n}": pa.array(numbers, pa.int64()) for n in range(4)},
        "double": pa.array(numbers, pa.float64()),
        "text": pa.array([f"text {number}" for number in range(1_000)]),
        "time": pa.array(numbers, pa.timestamp("us", "UTC")),
        "list": pa.array([[number] * (number % 3) for number in range(1_000)]),
    })  # fmt: skip


def send_formatted(make_format: Callable[[], Format]) -> Run:
    """send_arrow with a format: the columns become the value."""
    producer, value_format, rows = Producer(), make_format(), columns()

    def run(n: int) -> None:
        for _ in range(0, n, 1_000):
            producer.send_arrow(rows, TOPIC, value_format=value_format)

    return run


def serialize(make_format: Callable[[], Any]) -> Run:
    """What send() calls for a dict of the columns with a format as serializer. The unit is a dict."""
    serializer, rows = make_format().object_serializer("value"), columns().to_pylist()

    def run(n: int) -> None:
        for row in rows[:n]:
            serializer(row)

    return run


def avro() -> Format:
    """Avro with the schema of the columns: objects have none to derive it from."""
    return Avro(Avro().schema_for(columns()))


def protobuf() -> Format:
    """A message of the columns."""
    from google.protobuf import descriptor_pb2, timestamp_pb2

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="rows.proto", dependency=[timestamp_pb2.DESCRIPTOR.name])
    names = [*((f"long{n}", field.TYPE_INT64) for n in range(4)), ("double", field.TYPE_DOUBLE)]
    fields = [field(name=name, number=number, type=kind) for number, (name, kind) in enumerate(names, 1)]
    fields.append(field(name="text", number=6, type=field.TYPE_STRING))
    fields.append(field(name="time", number=7, type_name=".google.protobuf.Timestamp"))
    fields.append(field(name="list", number=8, type=field.TYPE_INT64, label=field.LABEL_REPEATED))
    file.message_type.add(name="Row", field=fields)
    imported = descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    files = descriptor_pb2.FileDescriptorSet(file=[imported, file])
    return Protobuf.from_descriptor_set(files.SerializeToString(), "Row")


# ---- encode ----------------------------------------------------------------------------------------------------------


def encode(magic: int) -> Run:
    def run(n: int) -> None:
        builder = MemoryRecordsBuilder(magic, 128 * 1024)
        for number in range(n):
            builder.append(number, KEYS[number & 63], VALUE)
        builder.close()

    return run


def checksum(function: Callable[[bytes], int]) -> Run:
    """A checksum of 128 KiB at a time. The unit is a KiB."""
    data = bytes(128 * 1024)

    def run(n: int) -> None:
        for _ in range(0, n, 128):
            function(data)

    return run


# ---- pool ------------------------------------------------------------------------------------------------------------


def pool_slab() -> Run:
    return partial(compiled.load("core").allocate_pairs, BufferPool(1 << 20, 16 * 1024, clock=SystemClock()))


def pool_run() -> Run:
    """A run of three slabs for 40,000 bytes, through the pool's Python methods."""
    pool = BufferPool(1 << 20, 16 * 1024, clock=SystemClock())

    def run(n: int) -> None:
        for _ in range(n):
            pool.allocate(40_000, 0).release()

    return run


# ---- drain -----------------------------------------------------------------------------------------------------------


def drain(*, busy: int, idle: int = 0) -> Run:
    """The Sender's turn with a record in each of `busy` partitions. The unit is a batch, including its send()."""
    producer = Producer(busy + idle, busy)

    def run(n: int) -> None:
        for _ in range(0, n, busy):
            for partition in range(busy):
                producer.send(TOPIC, VALUE, partition=partition)
            producer.finish()

    return run


# ---- trials of the gate: kernels with a deliberate fault -------------------------------------------------------------


def send_a_tenth_more() -> Run:
    run = send()
    return lambda n: run(n + n // 10)


def send_by_way_of_python() -> Run:
    """A further Python call, without a further instruction of our extensions."""
    send = Producer().send

    def step(topic: str, value: bytes) -> Any:
        return send(topic, value)

    def run(n: int) -> None:
        for _ in range(n):
            step(TOPIC, VALUE)

    return run


@dataclass(frozen=True)
class Kernel:
    make: Callable[[], Run]
    units: int  # units of work in a run: so many that work done once a run does not show


REFERENCE = "reference"
KERNELS = {
    REFERENCE: Kernel(reference, 1_000),
    "send: value": Kernel(send, 1_000),
    "send: value, key": Kernel(send_key, 1_000),
    "send: value, key, 2 headers": Kernel(send_key_headers, 500),
    "send: value, callback, and its call": Kernel(send_callback, 1_000),
    "send: value through a serializer": Kernel(send_by_detour, 1_000),
    "future.result()": Kernel(future_result, 500),
    "send_arrow: value": Kernel(lambda: send_arrow(key=False), 5_000),
    "send_arrow: value, key": Kernel(lambda: send_arrow(key=True), 5_000),
    "send_arrow: Avro of 8 columns": Kernel(lambda: send_formatted(Avro), 5_000),
    "send_arrow: Protobuf of 8 columns": Kernel(lambda: send_formatted(protobuf), 5_000),
    "send_arrow: JSON of 8 columns": Kernel(lambda: send_formatted(Json), 5_000),
    "serializer: a dict to Avro": Kernel(lambda: serialize(avro), 1_000),
    "serializer: a dict to Protobuf": Kernel(lambda: serialize(protobuf), 1_000),
    "serializer: a dict to JSON": Kernel(lambda: serialize(Json), 1_000),
    "encode: magic 2": Kernel(lambda: encode(2), 500),
    "encode: magic 1": Kernel(lambda: encode(1), 500),
    "CRC-32C, 1 KiB": Kernel(lambda: checksum(crc32c), 256),
    "CRC-32, 1 KiB": Kernel(lambda: checksum(crc32), 256),
    "pool: a slab and back": Kernel(pool_slab, 2_000),
    "pool: 40,000 bytes and back": Kernel(pool_run, 500),
    "drain: 1 partition": Kernel(lambda: drain(busy=1), 100),
    "drain: 1 partition, 10,000 idle": Kernel(lambda: drain(busy=1, idle=10_000), 100),
    "drain: 100 partitions": Kernel(lambda: drain(busy=100), 1_000),
}
# Every run of the gate compares these kernels with SOUND. EXPECTED_LOSSES in bench/gate.py has the right verdicts.
SOUND = "send: value"
TRIALS = {
    "the same again": Kernel(send, 1_000),
    "a tenth more records": Kernel(send_a_tenth_more, 1_000),
    "a Python call more": Kernel(send_by_way_of_python, 1_000),
}
ALL = KERNELS | TRIALS


def main() -> None:
    process = ctypes.CDLL(None)
    begins, ends = process.kernel_begins, process.kernel_ends
    gc.disable()
    for name, kernel in ALL.items():
        mark = name.encode()
        run = kernel.make()
        for _ in range(ROUNDS):
            # Types get new tags, so that other attributes collide in the interpreter's cache.
            sys._clear_type_cache()
            run(kernel.units)  # the interpreter specialises its instructions, and free lists fill
            begins()
            run(kernel.units)
            ends(mark)
        del run
        gc.collect()


if __name__ == "__main__":
    main()
