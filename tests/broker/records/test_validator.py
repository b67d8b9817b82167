"""Records that a topic's configs refuse, and timestamps that the leader sets. Kafka's answers: tests/conformance."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from unittest import mock

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.records import batch as batches
from kafkabuf.broker.records import validator
from kafkabuf.broker.records._batch import check_batch
from kafkabuf.broker.records.config import UNBOUNDED_MS, Limits
from kafkabuf.broker.records.validator import RefusedRecordsError, check_records
from kafkabuf.clock import ManualClock
from kafkabuf.errors import InvalidRecordError, InvalidTimestampError
from kafkabuf.protocol.messages import INCREMENTAL_ALTER_CONFIGS
from tests.broker.raw_client import NOW, RawClient, batch, message, varint

HOUR = 3_600_000
NARROW = Limits(timestamp_before_max_ms=1000, timestamp_after_max_ms=1000)


def check(data: bytes, limits: Limits) -> int:
    view = memoryview(data)
    return check_records(view, check_batch(view, 9, limits), limits, NOW, 100)


def times(*offsets: int, codec: int = 0, keys: list[bytes | None] | None = None) -> bytes:
    """A batch with timestamps relative to NOW."""
    values = [b"v"] * len(offsets)
    stamps = [NOW + offset for offset in offsets]
    plain = batch(values, timestamps=stamps, keys=keys)
    return batch(values, timestamps=stamps, attributes=1, body=gzip.compress(plain[61:])) if codec else plain


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize(
    ("offsets", "refused"),
    [((-1000, 0, 1000), []), ((0, -1001, 0), [1]), ((1001, 0, -1001), [0, 2]), ((0, 0, 1001), [2])],
)
def test_each_record_out_of_the_topics_time_is_named(codec: int, offsets: tuple[int, ...], refused: list[int]) -> None:
    data = times(*offsets, codec=codec)
    if not refused:
        assert check(data, NARROW) == NOW + max(offsets)
        return
    with pytest.raises(RefusedRecordsError) as caught:
        check(data, NARROW)
    assert [index for index, _ in caught.value.records] == refused
    assert isinstance(caught.value.error, InvalidTimestampError)
    assert f"{len(refused)} of the 3 records" in str(caught.value.error)


def test_timestamp_beyond_64_bits_wraps_around_as_in_java() -> None:
    """A record's timestamp is a sum of two numbers of 64 bits. The header of the stored batch has room for one."""
    limits = Limits(timestamp_before_max_ms=UNBOUNDED_MS - 1, timestamp_after_max_ms=UNBOUNDED_MS)
    fields = b"\0" + varint(UNBOUNDED_MS) + varint(0) + varint(-1) + varint(1) + b"v" + varint(0)
    data = batch([b"v"], timestamps=[NOW], body=varint(len(fields)) + fields)
    assert check(data, limits) == NOW - 2**63 - 1


@pytest.mark.parametrize("codec", [0, 1])
def test_compacted_topic_names_each_record_without_a_key(codec: int) -> None:
    limits = Limits(compacted=True)
    assert check(times(0, 1, codec=codec, keys=[b"k", b""]), limits) == NOW + 1
    with pytest.raises(RefusedRecordsError) as caught:
        check(times(0, 0, 0, codec=codec, keys=[None, b"k", None]), limits)
    assert [index for index, _ in caught.value.records] == [0, 2]
    assert isinstance(caught.value.error, InvalidRecordError)


def test_missing_key_comes_before_a_wrong_timestamp_but_does_not_give_the_batch_its_error() -> None:
    limits = Limits(timestamp_after_max_ms=1000, compacted=True)
    with pytest.raises(RefusedRecordsError) as caught:
        check(times(2000, 2000, 0, keys=[None, b"k", None]), limits)
    assert ["key" in text for _, text in caught.value.records] == [True, False, True]
    assert isinstance(caught.value.error, InvalidTimestampError)


def test_record_without_a_timestamp_passes() -> None:
    assert check(batch([b"v"], timestamps=[-1]), NARROW) == -1


def test_default_limits_allow_any_past_and_one_hour_ahead() -> None:
    assert check(times(-NOW, HOUR), Limits()) == NOW + HOUR
    with pytest.raises(RefusedRecordsError):
        check(times(0, HOUR + 1), Limits())


def test_leader_reads_no_record_that_the_header_clears() -> None:
    with mock.patch.object(validator, "find_refused", side_effect=AssertionError):
        check(times(-NOW, HOUR, codec=1), Limits())
        check(times(0, 9 * HOUR), Limits(log_append_time=True))


def test_log_append_time_refuses_only_a_batch_that_claims_the_leaders_timestamps() -> None:
    limits = Limits(timestamp_before_max_ms=0, timestamp_after_max_ms=0, log_append_time=True)
    assert check(times(-5, 5), limits) == NOW
    with pytest.raises(RefusedRecordsError) as caught:
        check(batch([b"v"] * 2, attributes=batches.LOG_APPEND_TIME), limits)
    assert [index for index, _ in caught.value.records] == [0, 1]
    assert isinstance(caught.value.error, InvalidTimestampError)


def test_header_that_claims_a_newer_timestamp_than_its_records_gets_theirs() -> None:
    data = bytearray(times(0, 5))
    batches.stamp_timestamps(data, NOW + 9 * HOUR, append_time=False)
    assert check(bytes(data), NARROW) == NOW + 5


# ---- over the wire


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_ms=NOW)


@pytest.fixture
def cluster(clock: ManualClock) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(clock=clock) as cluster:
        yield cluster


def stored(client: RawClient, topic: str = "t") -> bytes:
    return bytes(client.fetch(topic, 0).records)


def test_response_names_the_refused_records_and_the_log_stays_empty(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    cluster.create_topic("t", configs={"cleanup.policy": "compact"})
    answer = client.produce("t", times(0, 0, 0, keys=[b"k", None, None]))
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (87, -1, 0)
    assert [error.batch_index for error in answer.record_errors] == [1, 2]
    assert all("key" in error.batch_index_error_message for error in answer.record_errors)
    assert cluster.end_offset("t", 0) == 0
    assert client.produce("t", times(0, keys=[b"k"])).error_code == 0


@pytest.mark.parametrize(
    ("configs", "data", "code"),
    [
        ({"message.timestamp.after.max.ms": "10"}, message(b"v", time=NOW + 11), 32),
        ({"message.timestamp.before.max.ms": "10"}, message(b"v", time=NOW - 11), 32),
        ({"message.timestamp.before.max.ms": "10"}, message(b"v", magic=0), 0),
        ({"cleanup.policy": "compact"}, message(b"v"), 87),
        ({"cleanup.policy": "compact"}, message(b"v", key=b""), 0),
        (
            {},
            message(gzip.compress(message(b"v", time=NOW + 2 * HOUR), mtime=0), attributes=1, time=NOW + 2 * HOUR),
            32,
        ),
    ],
    ids=["too new", "too old", "magic 0 has no time", "no key", "empty key", "compressed"],
)
def test_limits_hold_for_message_sets(
    cluster: EmbeddedCluster, client: RawClient, configs: dict[str, str], data: bytes, code: int
) -> None:
    cluster.create_topic("t", configs=configs)
    assert client.produce_v2("t", data)[0] == code


def test_leader_stamps_its_time_with_log_append_time(cluster: EmbeddedCluster, client: RawClient) -> None:
    cluster.create_topic("t", configs={"message.timestamp.type": "LogAppendTime"})
    answer = client.produce("t", times(-5, -9))
    assert (answer.error_code, answer.log_append_time.timestamp() * 1000) == (0, NOW)
    data = stored(client)
    info = check_batch(data, 9, Limits())
    assert (info.max_timestamp, info.append_time) == (NOW, True)


def test_leader_clears_the_type_that_a_producer_may_not_set(cluster: EmbeddedCluster, client: RawClient) -> None:
    cluster.create_topic("t")
    assert client.produce("t", batch([b"v"], attributes=batches.LOG_APPEND_TIME)).log_append_time is None
    data = stored(client)
    info = check_batch(data, 9, Limits())
    assert (info.max_timestamp, info.append_time) == (NOW, False)


def test_duplicate_has_the_append_time_of_its_first_arrival(
    clock: ManualClock, cluster: EmbeddedCluster, client: RawClient
) -> None:
    cluster.create_topic("t", configs={"message.timestamp.type": "LogAppendTime"})
    data = batch([b"v"], producer=(5, 0, 0))
    first = client.produce("t", data).log_append_time
    clock.advance(7)
    assert client.produce("t", data).log_append_time == first


def test_changed_limits_hold_at_once(cluster: EmbeddedCluster, client: RawClient) -> None:
    cluster.create_topic("t")
    assert client.produce("t", times(-5)).error_code == 0
    configs = [{"name": "message.timestamp.before.max.ms", "value": "4", "config_operation": 0}]
    client.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=[{"resource_type": 2, "resource_name": "t", "configs": configs}])
    assert client.produce("t", times(-5)).error_code == 32
