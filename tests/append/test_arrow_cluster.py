"""send_arrow on an embedded cluster, from several threads at once, read back with confluent-kafka."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from kafkabuf.append.offset_range import OffsetRange
from kafkabuf.append.report import BulkReport
from kafkabuf.batches._batch import RecordFuture
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import KafkaError
from kafkabuf.producer import KafkaProducer
from rigs.producer import PATIENCE, assert_whole
from tests.memory.pool_support import in_thread

PARTITIONS = 3
Log = dict[int, list[tuple[bytes | None, bytes | None, int]]]


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2) as running:
        running.create_topic("t", PARTITIONS, replication_factor=2)
        yield running


def read_back(cluster: EmbeddedCluster, topic: str) -> Log:
    """By partition, a list of every record's key, value and timestamp; the list index is the offset."""
    ends = cluster.end_offsets(topic)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "readers", "check.crcs": True})
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        log: Log = {partition: [] for partition in ends}
        while sum(map(len, log.values())) < sum(ends.values()):
            message = consumer.poll(PATIENCE)
            assert message is not None, "records are missing"
            assert message.error() is None
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset == len(log[partition])
            log[partition].append((message.key(), message.value(), message.timestamp()[1]))
    finally:
        consumer.close()
    return log


def table_of(name: str, count: int, partition: int | None) -> pa.Table:
    """Rows for the given partition; None: for the partitions of their keys. The timestamp is the row's number."""
    columns = {
        "key": [f"{name}-{row}" for row in range(count)],
        "value": [f"{name}:{row}:" + "x" * (row % 150) for row in range(count)],
        "timestamp": pa.array(range(count), pa.timestamp("ms")),
    }
    if partition is not None:
        columns["partition"] = pa.array([partition] * count, pa.int32())
    return pa.table(columns)


def assert_rows_are_where_the_report_says(report: BulkReport, table: pa.Table, log: Log) -> None:
    result = report.result(PATIENCE)
    assert not result.error_code.any()
    keys, values = (table[name].to_pylist() for name in ("key", "value"))
    for row, (partition, offset) in enumerate(zip(result.partition.tolist(), result.offset.tolist(), strict=True)):
        assert log[partition][offset][:2] == (keys[row].encode(), values[row].encode())
        assert log[partition][offset][2] == result.timestamp[row] == row
    for one in report.ranges(0):
        offsets = result.offset[result.partition == one.partition]
        assert one == OffsetRange("t", one.partition, offsets.min(), offsets.max(), len(offsets), one.bytes)


def test_bulk_and_single_records_of_several_threads_arrive_as_reported(cluster: EmbeddedCluster) -> None:
    with KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, batch_size=2_048, buffer_memory=32 * 2_048, linger_ms=0
    ) as producer:

        def bulk(name: str) -> list[tuple[BulkReport, pa.Table]]:
            done = []
            for number in range(12):
                table = table_of(f"{name}{number}", 300, number % PARTITIONS if number % 4 else None)
                done.append((producer.send_arrow(table, "t"), table))
            return done

        def single() -> list[tuple[RecordFuture, bytes]]:
            values = [b"single:%d" % number for number in range(3_000)]
            return [(producer.send("t", v, partition=n % PARTITIONS), v) for n, v in enumerate(values)]

        bulks = [in_thread(lambda: bulk("a")), in_thread(lambda: bulk("b"))]
        singles = [in_thread(single), in_thread(single)]
        producer.flush(PATIENCE)
        reports = [one for future in bulks for one in future.result(PATIENCE)]
        futures = [one for future in singles for one in future.result(PATIENCE)]
        producer.flush(PATIENCE)
        log = read_back(cluster, "t")
        assert sum(map(len, log.values())) == 2 * 12 * 300 + 2 * 3_000
        for report, table in reports:
            assert_rows_are_where_the_report_says(report, table, log)
        for record, value in futures:
            metadata = record.result(0)
            assert log[metadata.partition][metadata.offset][1] == value
        places = {(m.partition, m.offset) for m in (record.result(0) for record, _ in futures)}
        for report, _ in reports:
            result = report.result(0)
            places |= set(zip(result.partition.tolist(), result.offset.tolist(), strict=True))
        assert len(places) == sum(map(len, log.values()))
        assert_whole(producer.pool)


def test_no_row_is_lost_when_leaders_move_or_a_broker_dies(cluster: EmbeddedCluster) -> None:
    with KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        batch_size=2_048,
        buffer_memory=16 * 2_048,
        retry_backoff_ms=10,
        reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=50,
    ) as producer:
        tables = [table_of(f"n{number}", 500, None) for number in range(6)]
        reports = []
        for number, table in enumerate(tables):
            reports.append(producer.send_arrow(table, "t"))
            if number == 1:
                cluster.stop_node(1)
            elif number == 3:
                cluster.start_node(1)
                for partition in range(PARTITIONS):
                    cluster.move_leader("t", partition, 1)
        assert [report.exception(PATIENCE) for report in reports] == [None] * 6
        log = read_back(cluster, "t")
        values = {value for records in log.values() for _, value, _ in records}
        assert values == {value.encode() for table in tables for value in table["value"].to_pylist()}
        for report, table in zip(reports, tables, strict=True):
            assert_rows_are_where_the_report_says(report, table, log)
        assert_whole(producer.pool)


def test_report_of_a_cluster_that_went_away_has_errors(cluster: EmbeddedCluster) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0)
    producer.send_arrow(table_of("before", 10, 0), "t").wait(PATIENCE)
    for node in (1, 2):
        cluster.stop_node(node)
    report = producer.send_arrow(table_of("after", 10, 0), "t")
    producer.close(0)
    assert isinstance(report.exception(0), KafkaError)
    assert report.result(0, errors="return").offset.tolist() == [-1] * 10
    assert np.all(report.result(0, errors="return").error_code != 0)
    assert report.ranges(0) == ()
    assert_whole(producer.pool)
