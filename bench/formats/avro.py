"""Rows of an Arrow table become Avro, or JSON: the 19 columns of the flights, on one thread, without a broker."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.batches import flights
from bench.claim import Case, Claim, Goal, Job, Measurement
from bench.formats.rows import (
    COLUMNS,
    CONFLUENT_NOTE,
    IN_C,
    IN_C_NOTE,
    LIST,
    ORJSON,
    PER_FIELD,
    RATE,
    ROWS_NOTE,
    SLOW,
    dicts,
    in_c,
    measured,
    orjson_dicts,
    table,
    to_list,
)

if TYPE_CHECKING:
    from kafkabuf.formats.rows.format import Format

DICT_ROWS = 1_000
OBJECTS, DICTS, FASTAVRO, POLARS, CONFLUENT = (
    "kafkabuf, a dict for each row",
    "fastavro, a dict for each row",
    "fastavro",
    "polars, in Rust, a file in memory",
    "confluent-kafka's AvroSerializer",
)


def _avro() -> Format:
    from kafkabuf.formats import Avro

    return Avro()


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


def _polars(job: Job) -> Measurement:
    os.environ["POLARS_MAX_THREADS"] = "1"
    import polars

    def encode(batch: Any, rounds: int) -> int:
        # It cannot write a time with a zone.
        frame = polars.DataFrame(batch).with_columns(polars.col(polars.Datetime).cast(polars.Int64))
        written = 0
        for _ in range(rounds):
            target = io.BytesIO()
            frame.write_avro(target)
            written += target.tell()
        return written

    return measured(job, encode)


def _confluent(job: Job) -> Measurement:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    serialize = AvroSerializer(SchemaRegistryClient.new_client({"url": "mock://"}), json.dumps(_schema()))
    context = SerializationContext("flights", MessageField.VALUE)
    return measured(job, lambda batch, rounds: sum(len(serialize(row, context)) for row in dicts(batch, rounds)))


def _schema() -> Any:
    from kafkabuf.formats import Avro

    return json.loads(Avro().schema_for(table()))


CLAIM = Claim(
    name="formats",
    title="A row of a table becomes Avro at a hundredth of confluent-kafka's cost",
    cases=[
        Case(IN_C, partial(in_c, _avro), check=flights.prepare),
        Case(LIST, partial(to_list, _avro), share=0.2),
        Case(OBJECTS, _objects, share=0.2),
        Case(DICTS, _dicts_by_fastavro, share=SLOW),
        Case(FASTAVRO, _fastavro, share=SLOW),
        Case(POLARS, _polars, share=0.2),
        Case(CONFLUENT, _confluent, share=SLOW),
        Case(ORJSON, orjson_dicts, share=SLOW),
    ],
    metrics=[RATE, PER_FIELD],
    baseline=CONFLUENT,
    amount=2_000_000,
    seconds=22,
    goals=[
        Goal("rows encoded, against confluent-kafka's AvroSerializer", IN_C, RATE.name, 100, CONFLUENT),
        Goal("rows encoded, against polars", IN_C, RATE.name, 2, POLARS),
        Goal("dicts encoded, against fastavro", OBJECTS, RATE.name, 4, DICTS),
        Goal("ns for a field", IN_C, PER_FIELD.name, 15, at_most=True),
    ],
    needs_kafka=False,
    notes=[
        ROWS_NOTE,
        f"{IN_C_NOTE} Its schema is derived from the columns, and the others use the same schema.",
        "The others get a dict for each row from pyarrow's to_pylist(), which is part of their time.",
        "The two cases with a dict for each row encode dicts that exist, each with the flight once more as a nested "
        "record: what send() costs with a serializer.",
        CONFLUENT_NOTE,
        "polars gets the columns, too. It writes a file in memory, in which times are numbers. "
        "No package for Python has the arrow-avro of Rust.",
        "orjson writes JSON, not Avro: it shows what dicts for each row cost at least.",
    ],
)
