"""A task knows whether the JVM has sent all its rows: a connection that ends is no proof."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from kafkabuf.errors import IllegalStateError
from kafkabuf.spark.worker import whole_rows

MARK = b"\xff\xff\xff\xfc"  # the JVM's -4
BATCHES = [pa.record_batch({"value": pa.array([f"{number}-{row}" for row in range(5)])}) for number in range(3)]


def stream() -> bytes:
    """The rows of a task as the JVM sends them."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, BATCHES[0].schema) as writer:
        for batch in BATCHES:
            writer.write_batch(batch)
    return out.getvalue() + MARK


def called_in_worker(function: Any, infile: Any, **names: str) -> Any:
    """Call from a function `main` as PySpark's worker has it."""
    names = {"__name__": "pyspark.worker", **names}
    space: dict[str, Any] = {**names, "function": function}
    exec("def main(infile):\n    return function()", space)
    return space["main"](infile)


def received(sent: bytes) -> list[pa.RecordBatch]:
    """What a task gets of these bytes. They are the last that come."""
    infile = io.BufferedReader(io.BytesIO(sent), 64)

    def task() -> list[pa.RecordBatch]:
        return list(whole_rows.whole(iter(pa.ipc.open_stream(infile))))

    batches: list[pa.RecordBatch] = called_in_worker(task, infile)
    assert infile.read() == sent[-len(MARK) :], "PySpark's worker must find the mark"
    return batches


def test_rows_that_end_with_the_mark_are_whole() -> None:
    assert received(stream()) == BATCHES


def test_rows_that_are_cut_off_at_any_byte_fail_the_task() -> None:
    sent = stream()
    refused = 0
    for end in range(len(sent) - len(MARK) + 1):
        with pytest.raises((IllegalStateError, pa.ArrowInvalid, OSError)) as failure:
            received(sent[:end])
        refused += failure.type is IllegalStateError
    assert refused >= len(BATCHES) + 1, "Arrow takes a cut between two batches for the end"


def test_rows_behind_which_the_mark_is_on_its_way_are_whole() -> None:
    infile = io.BufferedReader(io.BytesIO(MARK[:1]))
    assert called_in_worker(whole_rows.has_ended, infile) is True


def test_a_worker_without_spark_or_with_another_input_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert whole_rows.has_ended() is True, "no JVM sends the rows"
    assert called_in_worker(whole_rows.has_ended, object()) is None
    monkeypatch.setattr(TaskContext, "get", lambda: "a task")
    assert whole_rows.has_ended() is None
