"""The flights go to Kafka as Avro or JSON: made by send_arrow() on the way, ready-made before, or by a serializer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.batches import flights
from bench.claim import Case, Claim, Goal
from bench.formats.rows import ROWS, table
from bench.measure import BATCH_LARGE, CPU, LINGER_MS, RATE, Client, Delivered, Publish, measure

if TYPE_CHECKING:
    from kafkabuf.formats.rows.format import Format

AVRO, AVRO_READY = "send_arrow(value_format=Avro())", "send_arrow() of Avro made before"
JSON, JSON_READY = "send_arrow(value_format=Json())", "send_arrow() of JSON made before"
CONFLUENT = "confluent-kafka, AvroSerializer, callback"
# The share of the case that takes a hundred times as long.
SLOW = 0.02
POLL_EVERY = 1024


def _format(name: str) -> Format:
    from kafkabuf.formats import Avro, Json

    return Avro() if name == "avro" else Json()


def _kafkabuf(name: str, *, ready: bool) -> Client:
    @contextmanager
    def open_(bootstrap: str, topic: str) -> Iterator[Publish]:
        import pyarrow as pa

        from kafkabuf import KafkaProducer

        rows, encoding = table(), _format(name)
        options: dict[str, Any] = {"value_format": encoding}
        if ready:
            rows, options = pa.record_batch({"value": pa.array(encoding.encode(rows), pa.binary())}), {}

        def publish(records: int) -> int:
            for start in range(0, records, ROWS):
                producer.send_arrow(rows.slice(0, min(ROWS, records - start)), topic, **options)
            producer.flush()
            return records

        settings = {"batch_size": BATCH_LARGE, "linger_ms": LINGER_MS, "acks": "all"}
        with closing(KafkaProducer(settings, bootstrap_servers=bootstrap)) as producer:
            yield publish

    return open_


@contextmanager
def _confluent(bootstrap: str, topic: str) -> Iterator[Publish]:
    from confluent_kafka import Producer
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    from kafkabuf.formats import Avro

    rows = table()
    schema = json.dumps(json.loads(Avro().schema_for(rows)))
    serialize = AvroSerializer(SchemaRegistryClient.new_client({"url": "mock://"}), schema)
    context = SerializationContext(topic, MessageField.VALUE)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": LINGER_MS,
         "batch.size": BATCH_LARGE, "queue.buffering.max.messages": 1_000_000}
    )  # fmt: skip
    delivered = Delivered()

    def publish(records: int) -> int:
        for start in range(0, records, ROWS):
            for number, row in enumerate(rows.slice(0, min(ROWS, records - start)).to_pylist()):
                producer.produce(topic, serialize(row, context), on_delivery=delivered.on_confluent)
                if number % POLL_EVERY == 0:
                    producer.poll(0)
        producer.flush()
        delivered.check(records)
        return records

    yield publish


CLAIM = Claim(
    name="formats-send",
    title="send_arrow() makes Avro and JSON on the way at half the rate of bytes made before, or more",
    cases=[
        Case(AVRO, partial(measure, _kafkabuf("avro", ready=False)), check=flights.prepare),
        Case(AVRO_READY, partial(measure, _kafkabuf("avro", ready=True))),
        Case(JSON, partial(measure, _kafkabuf("json", ready=False))),
        Case(JSON_READY, partial(measure, _kafkabuf("json", ready=True))),
        Case(CONFLUENT, partial(measure, _confluent), share=SLOW),
    ],
    metrics=[RATE, CPU],
    baseline=CONFLUENT,
    amount=1_000_000,
    seconds=20,
    goals=[
        Goal("Avro, of the rate with the same bytes made before", AVRO, RATE.name, 0.5, AVRO_READY),
        Goal("JSON, of the rate with the same bytes made before", JSON, RATE.name, 0.5, JSON_READY),
    ],
    notes=[
        f"{ROWS:,} flights with 19 nullable columns, again and again, into one partition; acks=all, idempotent, "
        "linger.ms 5, batch.size 128 KiB.",
        "A row takes 65 bytes as Avro, without a registry's prefix, and 213 as JSON; the columns have short names.",
        "confluent-kafka gets dicts from to_pylist() and a fiftieth of the records; rates and costs are per record.",
    ],
)
