"""Rows of an Arrow table become Avro, or JSON: the 19 columns of the flights, on one thread, without a broker."""

from __future__ import annotations

import functools
import io
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.batches import flights
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric

ROWS = 20_000
DICT_ROWS = 1_000
COLUMNS = 19
IN_C, LIST, OBJECTS, DICTS, FASTAVRO, CONFLUENT, ORJSON = (
    "kafkabuf, loop in C",
    "kafkabuf, encode() to a list",
    "kafkabuf, a dict for each row",
    "fastavro, a dict for each row",
    "fastavro",
    "confluent-kafka's AvroSerializer",
    "orjson",
)
# The share of the cases that take a hundred times as long.
SLOW = 0.01
RATE = Metric("rows_per_s", "rows/s", ",.0f")
PER_FIELD = Metric("field_ns", "ns/field", ",.1f", more_is_better=False)


@functools.cache
def table() -> Any:
    """The flights as one record batch, with nulls where the CSV has NA; every column is nullable."""
    import pyarrow as pa
    from pyarrow import csv

    flights.prepare()
    read = csv.ReadOptions(autogenerate_column_names=True)
    convert = csv.ConvertOptions(null_values=[flights.MISSING], strings_can_be_null=True)
    rows = csv.read_csv(flights.CSV, read_options=read, convert_options=convert).slice(0, ROWS)
    rows = rows.drop_columns(["f0"]).combine_chunks()  # the number of the row, which the demo adds
    (batch,) = rows.to_batches()
    assert isinstance(batch, pa.RecordBatch)
    assert batch.num_columns == COLUMNS
    return batch


def measured(job: Job, encode: Callable[[Any, int], int]) -> Measurement:
    """The rate of `encode(batch, rounds)`, which encodes each row `rounds` times and returns the bytes."""
    batch, rounds = table(), max(1, job.amount // ROWS)
    encode(batch.slice(0, 100), 1)
    started = time.perf_counter()
    written = encode(batch, rounds)
    seconds = time.perf_counter() - started
    rows = rounds * batch.num_rows
    if written < rows * COLUMNS:
        raise RuntimeError(f"{rows} rows made only {written} bytes")
    return {RATE.name: rows / seconds, PER_FIELD.name: seconds / rows / COLUMNS * 1e9}


def _in_c(job: Job) -> Measurement:
    from kafkabuf.formats import Avro
    from kafkabuf.formats._encoded import bench_rows

    return measured(job, lambda batch, rounds: bench_rows(Avro(), batch, rounds))


def _list(job: Job) -> Measurement:
    from kafkabuf.formats import Avro

    return measured(
        job, lambda batch, rounds: sum(len(row or b"") for _ in range(rounds) for row in Avro().encode(batch))
    )


def dicts(batch: Any, rounds: int) -> Iterator[dict[str, Any]]:
    """Each row of the batch as a dict, `rounds` times."""
    for _ in range(rounds):
        yield from batch.to_pylist()


def _dicts(job: Job, encode: Callable[[dict[str, Any]], int]) -> Measurement:
    """The dicts are made before: only their encoding is measured, as in send(). Each has a nested record, too."""
    rows = [row | {"nested": dict(row)} for row in table().slice(0, DICT_ROWS).to_pylist()]
    count = max(1, job.amount // len(rows))
    sum(map(encode, rows))
    started = time.perf_counter()
    written = sum(encode(row) for _ in range(count) for row in rows)
    seconds = time.perf_counter() - started
    if written < count * len(rows) * 2 * COLUMNS:
        raise RuntimeError(f"{count * len(rows)} rows made only {written} bytes")
    return {RATE.name: count * len(rows) / seconds, PER_FIELD.name: seconds / count / len(rows) / 2 / COLUMNS * 1e9}


def _nested_schema() -> Any:
    schema = _schema()
    return schema | {"fields": [*schema["fields"], {"name": "nested", "type": schema | {"name": "Nested"}}]}


def _objects(job: Job) -> Measurement:
    from kafkabuf.formats import Avro

    serialize = Avro(_nested_schema()).object_serializer("value")
    return _dicts(job, lambda row: len(serialize(row) or b""))


def _dicts_by_fastavro(job: Job) -> Measurement:
    import fastavro

    schema = fastavro.parse_schema(_nested_schema())

    def encode(row: dict[str, Any]) -> int:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, schema, row)
        return len(target.getvalue())

    return _dicts(job, encode)


def _fastavro(job: Job) -> Measurement:
    import fastavro

    schema = fastavro.parse_schema(_schema())

    def encode(batch: Any, rounds: int) -> int:
        written = 0
        for row in dicts(batch, rounds):
            target = io.BytesIO()
            fastavro.schemaless_writer(target, schema, row)
            written += len(target.getvalue())
        return written

    return measured(job, encode)


def _confluent(job: Job) -> Measurement:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    serialize = AvroSerializer(SchemaRegistryClient.new_client({"url": "mock://"}), json.dumps(_schema()))
    context = SerializationContext("flights", MessageField.VALUE)
    return measured(job, lambda batch, rounds: sum(len(serialize(row, context)) for row in dicts(batch, rounds)))


def _orjson(job: Job) -> Measurement:
    import orjson

    return measured(job, lambda batch, rounds: sum(len(orjson.dumps(row)) for row in dicts(batch, rounds)))


def _schema() -> Any:
    from kafkabuf.formats import Avro

    return json.loads(Avro().schema_for(table()))


CLAIM = Claim(
    name="formats",
    title="A row of a table becomes Avro at a hundredth of confluent-kafka's cost",
    cases=[
        Case(IN_C, _in_c, check=flights.prepare),
        Case(LIST, _list, share=0.2),
        Case(OBJECTS, _objects, share=0.2),
        Case(DICTS, _dicts_by_fastavro, share=SLOW),
        Case(FASTAVRO, _fastavro, share=SLOW),
        Case(CONFLUENT, _confluent, share=SLOW),
        Case(ORJSON, _orjson, share=SLOW),
    ],
    metrics=[RATE, PER_FIELD],
    baseline=CONFLUENT,
    amount=2_000_000,
    goals=[
        Goal("rows encoded, against confluent-kafka's AvroSerializer", IN_C, RATE.name, 100, CONFLUENT),
        Goal("dicts encoded, against fastavro", OBJECTS, RATE.name, 4, DICTS),
        Goal("ns for a field", IN_C, PER_FIELD.name, 15, at_most=True),
    ],
    needs_kafka=False,
    notes=[
        f"{ROWS:,} flights with {COLUMNS} nullable columns (14 numbers, 4 texts, a timestamp), again and again.",
        "kafkabuf reads the Arrow table: the loop in C calls for each row what send_arrow() calls, without the copy "
        "into a batch. Its schema is derived from the columns, and the others use the same schema.",
        "The others get a dict for each row from pyarrow's to_pylist(), which is part of their time.",
        "The two cases with a dict for each row encode dicts that exist, each with the flight once more as a nested "
        "record: what send() costs with a serializer.",
        "confluent-kafka's serializer works with its own mock of a Schema Registry, in the process.",
        "orjson writes JSON, not Avro: it shows what dicts for each row cost at least.",
    ],
)
