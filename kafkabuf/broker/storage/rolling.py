"""The age at which a segment ends (segment.ms).

As in Kafka, the timestamps of the records make a segment old, when the next batch comes. Here the broker's clock makes
it old too, also without another batch, so that a test can move the clock.
"""

from __future__ import annotations

from typing import NamedTuple

from kafkabuf.broker.records.batch import NO_TIMESTAMP
from kafkabuf.broker.records.config import LogConfig


class Age(NamedTuple):
    """`first_timestamp` is that of the segment's first batch, `began_ms` the time of its append by the broker's clock.
    NO_TIMESTAMP: not known."""

    first_timestamp: int = NO_TIMESTAMP
    began_ms: int = NO_TIMESTAMP

    @property
    def known(self) -> bool:
        return self.began_ms != NO_TIMESTAMP

    def over(self, config: LogConfig, now_ms: int, timestamp: int = NO_TIMESTAMP) -> bool:
        """Whether the segment ends before a batch with `timestamp`."""
        since_first = timestamp - self.first_timestamp if min(timestamp, self.first_timestamp) >= 0 else 0
        since_append = now_ms - self.began_ms if self.began_ms >= 0 else 0
        return max(since_first, since_append) > config.max_segment_ms
