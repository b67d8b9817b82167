"""Rows of an Arrow table become JSON: the 19 columns of the flights, on one thread, without a broker."""

from __future__ import annotations

import json
from typing import Any

from bench.batches import flights
from bench.claim import Case, Claim, Goal, Job, Measurement
from bench.formats.avro import COLUMNS, IN_C, LIST, ORJSON, PER_FIELD, RATE, ROWS, SLOW, dicts, measured, table

SPARK, JSON, PANDAS = "kafkabuf, Spark's dialect, loop in C", "json of the standard library", "pandas, to_json"


def _in_c(job: Job) -> Measurement:
    from kafkabuf.formats import Json
    from kafkabuf.formats._encoded import bench_rows

    _check_bytes()
    return measured(job, lambda batch, rounds: bench_rows(Json(), batch, rounds))


def _check_bytes() -> None:
    """The bytes are those of orjson for every row."""
    import orjson

    from kafkabuf.formats import Json

    if Json().encode(table()) != [orjson.dumps(row) for row in table().to_pylist()]:
        raise RuntimeError("kafkabuf and orjson write different bytes")


def _spark(job: Job) -> Measurement:
    from kafkabuf.formats import Json
    from kafkabuf.formats._encoded import bench_rows

    return measured(job, lambda batch, rounds: bench_rows(Json(dialect="spark"), batch, rounds))


def _list(job: Job) -> Measurement:
    from kafkabuf.formats import Json

    return measured(
        job, lambda batch, rounds: sum(len(row or b"") for _ in range(rounds) for row in Json().encode(batch))
    )


def _orjson(job: Job) -> Measurement:
    import orjson

    return measured(job, lambda batch, rounds: sum(len(orjson.dumps(row)) for row in dicts(batch, rounds)))


def _json(job: Job) -> Measurement:
    dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str).encode
    return measured(job, lambda batch, rounds: sum(len(dumps(row).encode()) for row in dicts(batch, rounds)))


def _pandas(job: Job) -> Measurement:
    def encode(batch: Any, rounds: int) -> int:
        texts = (batch.to_pandas().to_json(orient="records", lines=True, date_format="iso") for _ in range(rounds))
        return sum(len(line.encode()) for text in texts for line in text.splitlines())

    return measured(job, encode)


CLAIM = Claim(
    name="json",
    title="A row of a table becomes JSON at a twentieth of orjson's cost",
    cases=[
        Case(IN_C, _in_c, check=flights.prepare),
        Case(SPARK, _spark),
        Case(LIST, _list, share=0.5),
        Case(ORJSON, _orjson, share=5 * SLOW),
        Case(JSON, _json, share=SLOW),
        Case(PANDAS, _pandas, share=5 * SLOW),
    ],
    metrics=[RATE, PER_FIELD],
    baseline=ORJSON,
    amount=2_000_000,
    goals=[
        Goal("rows encoded, against orjson", IN_C, RATE.name, 20, ORJSON),
        Goal("ns for a field", IN_C, PER_FIELD.name, 30, at_most=True),
    ],
    needs_kafka=False,
    notes=[
        f"{ROWS:,} flights with {COLUMNS} nullable columns (14 numbers, 4 texts, a timestamp), again and again.",
        "kafkabuf reads the Arrow table: the loop in C calls for each row what send_arrow() calls, without the copy "
        "into a batch. Its bytes are compared with orjson's first.",
        "orjson and json get a dict for each row from pyarrow's to_pylist(), which is part of their time.",
        "pandas writes lines of the whole table, converted from Arrow, which are split into rows.",
    ],
)
