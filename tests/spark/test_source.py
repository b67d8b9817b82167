"""Records of kafkabuf read back by Spark's own Kafka source, in a Spark of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kafkabuf import KafkaProducer
from rigs.real_kafka import RealKafka
from tests.ground.pool_support import assert_whole
from tests.ground.record_support import SampleRecord
from tests.real.consumers import Partition

PARTITIONS = 3
NOW = 1_700_000_000_000


def read_with_spark(kafka: RealKafka, topic: str) -> list[Partition]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.spark.source_reader", kafka.bootstrap_servers, topic]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: list[Partition] = [{} for _ in range(PARTITIONS)]
    for row in json.loads(done.stdout):
        headers = tuple((header["key"], unhex(header["value"])) for header in row["headers"] or ())
        sample = SampleRecord(row["timestamp"], unhex(row["key"]), unhex(row["value"]), headers)
        found[row["partition"]][row["offset"]] = sample
    return found


def unhex(text: Any) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def test_spark_s_kafka_source_reads_other_records_than_were_sent(kafka_4: RealKafka) -> None:
    kafka_4.create_topic("spark-source", PARTITIONS)
    blobs = [None, b"", b"v", "žluť".encode(), bytes(range(256)), b"large" * 10_000]
    pairs: list[tuple[tuple[str, bytes | None], ...]] = [
        (),
        (("h", b"1"),),
        (("h", None), ("h", b""), ("", b"\xff"), ("ключ", b"x" * 200)),
    ]
    sent: list[Partition] = [{} for _ in range(PARTITIONS)]
    with KafkaProducer(bootstrap_servers=kafka_4.bootstrap_servers, batch_size=4096) as producer:
        futures = []
        for n in range(1500):
            # Times go backwards as often as forwards.
            record = SampleRecord(NOW + n * 7919 % 10_007, blobs[n % 5], blobs[n // 5 % 6 - (n % 50 > 0)], pairs[n % 3])
            future = producer.send("spark-source", record.value, record.key, record.headers, n % 3, record.timestamp)
            futures.append((future, record))
        for future, record in futures:
            metadata = future.result(30)
            sent[metadata.partition][metadata.offset] = record
        assert_whole(producer.pool)
    assert [len(partition) for partition in sent] == [500, 500, 500]
    assert read_with_spark(kafka_4, "spark-source") == sent
