"""Encoding without sending: records with 16-byte keys and 100-byte values, 16 KiB batches, both formats, with CRCs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench import compiled, java
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.measure import BATCH_SMALL, VALUE_SIZE

KEY = os.urandom(16)
VALUE = os.urandom(VALUE_SIZE)
TIMESTAMP = 1_700_000_000_000
IN_C, FROM_PYTHON, JAVA, AIOKAFKA, KAFKA_PYTHON = (
    "kafkabuf, loop in C",
    "kafkabuf, loop in Python",
    "Java, warm",
    "aiokafka, loop in Python",
    "kafka-python, loop in Python",
)
MAGIC_2, MAGIC_1 = (Metric(f"magic{n}_ns", f"ns/record, magic {n}", ".1f", more_is_better=False) for n in (2, 1))
# Appends the benchmark's record as number `offset` of its batch. Returns False if the batch has no room for it.
Append = Callable[[int], bool]
# Opens a batch of a magic; returns the functions that append to it, and that close it and return its bytes.
Open = Callable[[int], tuple[Append, Callable[[], Any]]]


def _in_c(job: Job) -> Measurement:
    def seconds(magic: int) -> float:
        append = compiled.load("core").append_records
        elapsed: float = append(magic, bytearray(BATCH_SMALL), TIMESTAMP, KEY, VALUE, job.amount)[0]
        return elapsed

    return _both_formats(seconds, job.amount)


def _java(job: Job) -> Measurement:
    def seconds(magic: int) -> float:
        figures = java.run("Encode.java", magic, BATCH_SMALL, len(KEY), len(VALUE), job.amount)
        return figures["ns"] * job.amount / 1e9

    return _both_formats(seconds, job.amount)


def _from_python(open_: Open, job: Job) -> Measurement:
    return _both_formats(lambda magic: _fill_batches(open_, magic, job.amount), job.amount)


def _fill_batches(open_: Open, magic: int, records: int) -> float:
    """The seconds that so many records take. The last batch may be short."""
    started = time.perf_counter()
    append, close = open_(magic)
    offset = written = 0
    for _ in range(records):
        if not append(offset):
            written += len(close())
            append, close = open_(magic)
            offset = 0
            append(0)
        offset += 1
    written += len(close())
    elapsed = time.perf_counter() - started
    if written < records * (len(KEY) + len(VALUE)):
        raise RuntimeError(f"{records} records made only {written} bytes")
    return elapsed


def _both_formats(seconds: Callable[[int], float], records: int) -> Measurement:
    return {metric.name: seconds(magic) / records * 1e9 for magic, metric in ((2, MAGIC_2), (1, MAGIC_1))}


def _kafkabuf(magic: int) -> tuple[Append, Callable[[], Any]]:
    from kafkabuf import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(magic, BATCH_SMALL)
    append = builder.append
    return lambda _: append(TIMESTAMP, KEY, VALUE) is not None, builder.close


def _aiokafka(magic: int) -> tuple[Append, Callable[[], Any]]:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder
    from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

    if magic == 1:
        old = LegacyRecordBatchBuilder(1, 0, BATCH_SMALL)
        return lambda offset: old.append(offset, TIMESTAMP, KEY, VALUE) is not None, old.build
    new = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, BATCH_SMALL)
    return lambda offset: new.append(offset, TIMESTAMP, KEY, VALUE, []) is not None, new.build


def _kafka_python(magic: int) -> tuple[Append, Callable[[], Any]]:
    from kafka.record.default_records import DefaultRecordBatchBuilder
    from kafka.record.legacy_records import LegacyRecordBatchBuilder

    if magic == 1:
        old = LegacyRecordBatchBuilder(1, 0, BATCH_SMALL)
        return lambda offset: old.append(offset, TIMESTAMP, KEY, VALUE) is not None, old.build
    new = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, BATCH_SMALL)
    return lambda offset: new.append(offset, TIMESTAMP, KEY, VALUE, []) is not None, new.build


CLAIM = Claim(
    name="encode",
    title="A record is encoded faster than by Java's and aiokafka's builders",
    cases=[
        Case(IN_C, _in_c),
        Case(FROM_PYTHON, partial(_from_python, _kafkabuf), share=0.2),
        Case(JAVA, _java, check=java.require_compiler),
        Case(AIOKAFKA, partial(_from_python, _aiokafka), share=0.2),
        Case(KAFKA_PYTHON, partial(_from_python, _kafka_python), share=0.02),
    ],
    metrics=[MAGIC_2, MAGIC_1],
    baseline=JAVA,
    amount=5_000_000,
    seconds=18,
    goals=[
        Goal(f"encode, magic {magic}, against {peer}", IN_C, metric.name, bound, peer, at_most=True)
        for peer, bound in ((JAVA, 1 / 4), (AIOKAFKA, 1 / 8))
        for magic, metric in ((2, MAGIC_2), (1, MAGIC_1))
    ],
    needs_kafka=False,
    notes=[
        "kafkabuf's loop in C does the same with a record as its producer. Java's loop calls hasRoomFor, append and "
        "build, as its producer does.",
        "Only Python can call aiokafka's and kafka-python's builders, as their producers do. kafkabuf's loop in Python "
        "is comparable with them.",
        "Every case writes batches of at most 16 KiB, with CRCs and headers, from keys and values that are bytes.",
    ],
)
