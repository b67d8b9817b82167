"""The rows of the benches of formats: 19 columns of the flights, on one thread, without a broker."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bench import compiled
from bench.batches import flights
from bench.claim import Job, Measurement, Metric

if TYPE_CHECKING:
    from kafkabuf.formats.rows.format import Format

ROWS = 20_000
COLUMNS = 19
IN_C, LIST, ORJSON = "kafkabuf, loop in C", "kafkabuf, encode() to a list", "orjson"
# The share of the cases that take a hundred times as long.
SLOW = 0.01
RATE = Metric("rows_per_s", "rows/s", ",.0f")
PER_FIELD = Metric("field_ns", "ns/field", ",.1f", more_is_better=False)

ROWS_NOTE = f"{ROWS:,} flights with {COLUMNS} nullable columns (14 numbers, 4 texts, a timestamp), again and again."
IN_C_NOTE = (
    "kafkabuf reads the Arrow table: the loop in C calls for each row what send_arrow() calls, without the copy into a "
    "batch."
)
CONFLUENT_NOTE = "confluent-kafka's serializer works with its own mock of a Schema Registry, in the process."


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


def in_c(make_format: Callable[[], Format], job: Job) -> Measurement:
    """The format's encoder alone: nothing is done in Python for a row."""
    encoding, encode = make_format(), compiled.load("core").encode_rows
    return measured(job, lambda batch, rounds: encode(encoding, batch, rounds))


def to_list(make_format: Callable[[], Format], job: Job) -> Measurement:
    """The format's encode(), which makes bytes of each row."""
    encoding = make_format()
    return measured(
        job, lambda batch, rounds: sum(len(row or b"") for _ in range(rounds) for row in encoding.encode(batch))
    )


def dicts(batch: Any, rounds: int) -> Iterator[dict[str, Any]]:
    """Each row of the batch as a dict, `rounds` times."""
    for _ in range(rounds):
        yield from batch.to_pylist()


def orjson_dicts(job: Job) -> Measurement:
    import orjson

    return measured(job, lambda batch, rounds: sum(len(orjson.dumps(row)) for row in dicts(batch, rounds)))
