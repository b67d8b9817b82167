"""RecordMetadata: where the broker appended a record."""

from __future__ import annotations

from typing import NamedTuple


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
