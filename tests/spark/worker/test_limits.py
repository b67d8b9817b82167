"""What a task refuses by the topic's configs, before it sends a row."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf.admin.admin import Admin
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import InvalidRecordError, InvalidTimestampError, RecordTooLargeError, RetriableError
from kafkabuf.protocol.messages import DESCRIBE_CONFIGS
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.worker.limits import CLOCKS_DIFFER_MS, TopicLimits, read

NOW = 1_700_000_000_000
HOUR = 3_600_000


def limits(compressed: bool = False, **configs: str) -> TopicLimits:
    names = {name.replace("_", "."): value for name, value in configs.items()}
    return TopicLimits.from_configs("t", names, compressed=compressed)


def judged(found: TopicLimits, **columns: Any) -> dict[int, str]:
    """The names of the errors, by place."""
    errors = found.judge(pa.record_batch(columns), NOW)
    return {place: type(error).__name__ for place, error in errors.items()}


def times(*millis: int | None, unit: str = "us") -> pa.Array:
    """As Spark gives timestamps."""
    scale = {"s": 0.001, "ms": 1, "us": 1_000, "ns": 1_000_000}[unit]
    return pa.array([None if time is None else int(time * scale) for time in millis], pa.timestamp(unit, "UTC"))


def test_topic_without_limits_judges_no_row() -> None:
    huge = [b"x" * 2**20] * 2
    assert judged(limits(), key=[None, b"k"], value=huge, timestamp=times(0, 2**42)) == {}


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_compacted_topic_takes_no_row_without_key(policy: str) -> None:
    found = limits(cleanup_policy=policy)
    assert judged(found, key=["a", None, "", None], value=["v"] * 4) == dict.fromkeys([1, 3], "InvalidRecordError")
    assert judged(found, key=["a", "b"], value=["v"] * 2) == {}
    assert judged(found, value=["v"] * 2) == dict.fromkeys([0, 1], "InvalidRecordError")
    assert judged(limits(cleanup_policy="delete"), key=["a", None], value=["v"] * 2) == {}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamp_out_of_range_is_refused_and_the_margin_is_the_brokers(unit: str) -> None:
    found = limits(message_timestamp_before_max_ms=str(2 * HOUR), message_timestamp_after_max_ms=str(HOUR))
    oldest, newest = NOW - 2 * HOUR - CLOCKS_DIFFER_MS, NOW + HOUR + CLOCKS_DIFFER_MS
    stamps = times(oldest - 1_000, oldest, NOW, None, newest, newest + 1_000, unit=unit)
    assert judged(found, value=["v"] * 6, timestamp=stamps) == dict.fromkeys([0, 5], "InvalidTimestampError")
    assert judged(found, value=["v"] * 2, timestamp=times(None, None, unit=unit)) == {}
    assert judged(found, value=["v"]) == {}


def test_one_bound_alone_holds() -> None:
    assert judged(limits(message_timestamp_after_max_ms="0"), value=["v"] * 2, timestamp=times(0, 2 * NOW)) == {
        1: "InvalidTimestampError"
    }
    assert judged(limits(message_timestamp_before_max_ms="0"), value=["v"] * 2, timestamp=times(0, 2 * NOW)) == {
        0: "InvalidTimestampError"
    }


def test_time_before_1970_is_left_to_the_producer() -> None:
    assert judged(limits(message_timestamp_before_max_ms="0"), value=["v"], timestamp=times(-HOUR)) == {}


def test_config_of_old_brokers_holds_in_both_directions() -> None:
    found = limits(message_timestamp_difference_max_ms=str(HOUR))
    stamps = times(NOW - 2 * HOUR, NOW, NOW + 2 * HOUR)
    assert judged(found, value=["v"] * 3, timestamp=stamps) == dict.fromkeys([0, 2], "InvalidTimestampError")
    assert limits(message_timestamp_difference_max_ms=str(2**63 - 1)) == TopicLimits("t")


def test_log_append_time_takes_any_timestamp() -> None:
    found = limits(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms="0")
    assert judged(found, value=["v"], timestamp=times(2 * NOW)) == {}


def test_row_that_no_batch_can_hold_is_refused_and_one_in_doubt_is_left_to_the_broker() -> None:
    found = limits(max_message_bytes="1000")
    values = [b"x" * 939, b"x" * 940, None, b"x" * 500]
    assert judged(found, key=[b"", b"", b"x" * 940, b"x" * 440], value=values) == dict.fromkeys(
        [1, 2, 3], "RecordTooLargeError"
    )
    assert judged(found, value=["x" * 500] * 10) == {}
    assert judged(limits(compressed=True, max_message_bytes="1000"), value=[b"x" * 5_000]) == {}


def test_errors_say_what_the_topic_takes() -> None:
    found = limits(cleanup_policy="compact", message_timestamp_after_max_ms="7", max_message_bytes="100")
    rows = {"key": ["a", None, "c"], "value": ["x" * 200, "b", "c"], "timestamp": times(NOW, NOW, NOW + HOUR)}
    errors = found.judge(pa.record_batch(rows), NOW)
    assert isinstance(errors[0], RecordTooLargeError)
    assert str(errors[0]) == "topic 't' takes batches up to 100 bytes (max.message.bytes)"
    assert isinstance(errors[1], InvalidRecordError)
    assert "'t' is compacted" in str(errors[1])
    assert isinstance(errors[2], InvalidTimestampError)
    assert str(errors[2]).endswith("before.max.ms is unlimited, message.timestamp.after.max.ms is 7")


def test_slice_of_a_batch_is_judged_by_its_own_rows() -> None:
    rows = pa.record_batch({"key": [None, "b", None], "value": ["x" * 200, "b", "c"]})
    found = limits(cleanup_policy="compact", max_message_bytes="150")
    assert list(found.judge(rows.slice(1))) == [1]


@pytest.fixture(scope="module")
def cluster() -> Any:
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("t", partitions=1, configs={"cleanup.policy": "compact", "max.message.bytes": "5000"})
        yield cluster


def read_limits(cluster: EmbeddedCluster, **options: str) -> TopicLimits | None:
    settings = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "kafka.max.block.ms": "2000", **options}
    parsed = SinkOptions.parse(settings)
    with Admin(ProducerConfig.from_mapping(dict(parsed.producer))) as admin:
        return read(admin, parsed)


def test_driver_reads_the_limits_and_spark_pickles_them(cluster: EmbeddedCluster) -> None:
    found = read_limits(cluster, topic="t")
    assert found == TopicLimits("t", needs_key=True, after_max_ms=HOUR, max_bytes=5_000 - 61)
    assert pickle.loads(pickle.dumps(found)) == found
    compressing = read_limits(cluster, topic="t", **{"kafka.compression.type": "lz4"})
    assert compressing is not None
    assert compressing.max_bytes is None


def test_rows_that_name_their_topics_have_no_limits(cluster: EmbeddedCluster) -> None:
    asked = cluster.stats().requests
    assert read_limits(cluster) is None
    assert cluster.stats().requests == asked


@pytest.mark.parametrize("code", [29, 35])
def test_no_limit_is_known_without_the_right_to_describe(cluster: EmbeddedCluster, code: int) -> None:
    cluster.fail_next(DESCRIBE_CONFIGS, code)
    assert read_limits(cluster, topic="t") is None


def test_read_waits_for_the_brokers_up_to_max_block_ms(cluster: EmbeddedCluster) -> None:
    cluster.fail_next(DESCRIBE_CONFIGS, 7, times=1_000)
    try:
        with pytest.raises(RetriableError):
            read_limits(cluster, topic="t", **{"kafka.max.block.ms": "300"})
    finally:
        cluster.clear_faults()
