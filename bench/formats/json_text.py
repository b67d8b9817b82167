"""Rows of an Arrow table become JSON: the 19 columns of the flights, on one thread, without a broker."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.batches import flights
from bench.claim import Case, Claim, Goal, Job, Measurement
from bench.formats.rows import (
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

SPARK, JSON, PANDAS = "kafkabuf, Spark's dialect, loop in C", "json of the standard library", "pandas, to_json"


def _format() -> Format:
    from kafkabuf.formats import Json

    return Json()


def _spark_format() -> Format:
    from kafkabuf.formats import Json

    return Json(dialect="spark")


def _in_c(job: Job) -> Measurement:
    _check_bytes()
    return in_c(_format, job)


def _check_bytes() -> None:
    """The bytes are those of orjson for every row."""
    import orjson

    if _format().encode(table()) != [orjson.dumps(row) for row in table().to_pylist()]:
        raise RuntimeError("kafkabuf and orjson write different bytes")


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
        Case(SPARK, partial(in_c, _spark_format)),
        Case(LIST, partial(to_list, _format), share=0.5),
        Case(ORJSON, orjson_dicts, share=5 * SLOW),
        Case(JSON, _json, share=SLOW),
        Case(PANDAS, _pandas, share=5 * SLOW),
    ],
    metrics=[RATE, PER_FIELD],
    baseline=ORJSON,
    amount=2_000_000,
    seconds=20,
    goals=[
        Goal("rows encoded, against orjson", IN_C, RATE.name, 20, ORJSON),
        Goal("ns for a field", IN_C, PER_FIELD.name, 30, at_most=True),
    ],
    needs_kafka=False,
    notes=[
        ROWS_NOTE,
        f"{IN_C_NOTE} Its bytes are compared with orjson's first.",
        "orjson and json get a dict for each row from pyarrow's to_pylist(), which is part of their time.",
        "pandas writes lines of the whole table, converted from Arrow, which are split into rows.",
    ],
)
