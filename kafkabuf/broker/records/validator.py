"""The checks of a batch's records, for which the leader may have to read them (Kafka's LogValidator).

A topic whose cleanup.policy contains `compact` refuses a record without a key. A topic with
message.timestamp.type=CreateTime refuses a record whose timestamp is too far from the broker's clock; a record without
a timestamp passes. A topic with LogAppendTime replaces the timestamps, and refuses a batch that claims to have
timestamps of the broker. One bad record refuses the whole batch: the response names each bad record (KIP-467).

Deviation: the leader reads the records only if the topic's configs or the newest timestamp of the header ask for it,
because that takes time, most of all where they are compressed. So a header that hides a newer timestamp passes, unless
`verify_records` is set.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkabuf.broker.records._batch import BatchInfo
from kafkabuf.broker.records.batch import NO_TIMESTAMP, Data
from kafkabuf.broker.records.config import UNBOUNDED_MS, Limits
from kafkabuf.broker.records.records import Wanted, find_refused
from kafkabuf.errors import InvalidRecordError, InvalidTimestampError, KafkaError

# A timestamp beyond every other.
_NEVER = 2**64


class RefusedRecordsError(Exception):
    """The leader refuses a batch for some of its records. `error` is the error of the response, `records` has (index
    in the batch, text) of each refused record (Kafka's RecordValidationException)."""

    def __init__(self, error: KafkaError, records: Sequence[tuple[int, str]]) -> None:
        super().__init__(str(error))
        self.error = error
        self.records = records


def check_records(data: Data, info: BatchInfo, limits: Limits, now_ms: int, most: int) -> int:
    """The greatest timestamp that the stored batch must have. The error names at most `most` bad records.
    `most` is at least 1.

    Raises RefusedRecordsError; InvalidRecordError and CorruptMessageError if it cannot read the records.
    """
    newest = info.max_timestamp
    if _must_read(info, limits, now_ms):
        newest = _check(memoryview(data), info, limits, now_ms, most)
    return now_ms if limits.log_append_time else newest


def _must_read(info: BatchInfo, limits: Limits, now_ms: int) -> bool:
    if limits.compacted:
        return True
    if limits.log_append_time:
        return info.append_time
    return limits.timestamp_before_max_ms != UNBOUNDED_MS or info.max_timestamp > now_ms + limits.timestamp_after_max_ms


def _check(data: memoryview, info: BatchInfo, limits: Limits, now_ms: int, most: int) -> int:
    """Returns the greatest timestamp of the records. The key comes before the timestamp. As in Kafka, one wrong
    timestamp makes the error of the batch INVALID_TIMESTAMP."""
    append_time = info.append_time
    newest, number, records = find_refused(data, _wanted(append_time, limits, now_ms), limits.max_message_bytes, most)
    refused: list[tuple[int, str]] = []
    kind: type[KafkaError] = InvalidRecordError
    for record in records:
        if limits.compacted and not record.has_key:
            refused.append((record.index, "the record has no key: a topic with cleanup.policy=compact needs a key"))
        elif (fault := _timestamp_fault(record.timestamp, append_time, limits, now_ms)) is not None:
            refused.append((record.index, fault))
            kind = InvalidTimestampError
    if refused:
        index, fault = refused[0]
        text = f"{number} of the {info.count} records of the batch are refused; record {index}: {fault}"
        raise RefusedRecordsError(kind(text), refused)
    return newest


def _wanted(append_time: bool, limits: Limits, now_ms: int) -> Wanted:
    least, greatest = now_ms - limits.timestamp_before_max_ms, now_ms + limits.timestamp_after_max_ms
    if limits.log_append_time:
        # Either all timestamps are wrong or none.
        least, greatest = (_NEVER, -_NEVER) if append_time else (-_NEVER, _NEVER)
    return Wanted(least, greatest, not append_time, limits.compacted)


def _timestamp_fault(timestamp: int, append_time: bool, limits: Limits, now_ms: int) -> str | None:
    if limits.log_append_time or timestamp == NO_TIMESTAMP:
        return "a producer may not set the timestamp type LogAppendTime" if append_time else None
    if now_ms - timestamp > limits.timestamp_before_max_ms:
        return (
            f"timestamp {timestamp} is {now_ms - timestamp} ms before the broker's clock, "
            f"message.timestamp.before.max.ms is {limits.timestamp_before_max_ms}"
        )
    if timestamp - now_ms > limits.timestamp_after_max_ms:
        return (
            f"timestamp {timestamp} is {timestamp - now_ms} ms after the broker's clock, "
            f"message.timestamp.after.max.ms is {limits.timestamp_after_max_ms}"
        )
    return None
