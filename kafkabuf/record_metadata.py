"""What the broker says of a record it has taken."""

from __future__ import annotations

from typing import NamedTuple


class RecordMetadata(NamedTuple):
    """Where a record went (Kafka's RecordMetadata).

    `offset` is -1 when the broker did not say (acks=0) or the record was not delivered; `timestamp` is in ms, the
    broker's where the topic uses LogAppendTime; a size is -1 for a null key or value.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int
