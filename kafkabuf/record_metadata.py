"""RecordMetadata: where the broker appended a record. BatchOutcome: what became of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kafkabuf.errors import KafkaError


class RecordMetadata(NamedTuple):
    """Where the broker appended a record (Kafka's RecordMetadata).

    `offset` is -1 if the broker did not return it (acks=0) or the record was not delivered. `timestamp` is in ms; it is
    the broker's time if the topic uses LogAppendTime. A size is -1 for a null key or value.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int


class BatchOutcome(NamedTuple):
    """What became of a batch: the argument of `on_acknowledged`, which the Sender's thread calls once for each batch.

    `error` is None for a delivered batch. If the broker refused only some records of the batch, `record_errors` has
    the error of each by its place in the batch, and the others failed with `error` (KIP-467).
    """

    topic: str
    partition: int
    first_offset: int
    """-1 if the broker did not return it (acks=0), or the batch was not delivered."""
    record_count: int
    """Records in the batch; their offsets follow each other."""
    first_timestamp: int
    """The timestamp of the first record, in ms; the broker's time if the topic uses LogAppendTime."""
    last_timestamp: int
    """The largest timestamp in the batch, in ms."""
    error: KafkaError | None
    record_errors: Mapping[int, KafkaError]
    opaques: list[Any]
    """By place in the batch the `opaque` of send(), None for a record without; empty if no record has one."""
