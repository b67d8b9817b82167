"""What a topic takes, by its configs: the driver reads them once a write, and tasks judge their rows before they send.

The broker judges the rows in doubt: these limits refuse only rows that the broker would refuse for certain. A row that
the broker refuses costs its Kafka batch a second way (task.py).

This file loads no extension but the clocks: the driver imports it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from kafkabuf.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    RecordTooLargeError,
    TopicAuthorizationError,
    UnsupportedVersionError,
)
from kafkabuf.process._time import time_ms
from kafkabuf.shown import text

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkabuf.admin.admin import Admin
    from kafkabuf.spark.options.options import SinkOptions

logger = logging.getLogger("kafkabuf.spark")

CLOCKS_DIFFER_MS = 60_000  # the most by which the task's clock may differ from the broker's
_BATCH_HEADER = 61  # bytes; a record is smaller than its batch by at least this number
_FOR_EVER = 2**63 - 1
_CONFIGS = (
    "max.message.bytes",
    "cleanup.policy",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
)

Mask = Any  # a boolean Arrow array by row


@dataclass(frozen=True)
class TopicLimits:
    """What one topic takes. None: there is no limit. Spark pickles the limits to the tasks.

    A row may be `before_max_ms` older and `after_max_ms` newer than the present. A row's key, value and
    headers have at most `max_bytes`.
    """

    topic: str
    needs_key: bool = False
    before_max_ms: int | None = None
    after_max_ms: int | None = None
    max_bytes: int | None = None

    @classmethod
    def from_configs(cls, topic: str, configs: Mapping[str, str], *, compressed: bool) -> TopicLimits:
        """The limits that a topic's configs set. `compressed`: the producer compresses, so no size is known."""
        # Brokers before Kafka 3.6 have one config for both directions.
        difference = configs.get("message.timestamp.difference.max.ms", "")
        checks_timestamps = configs.get("message.timestamp.type", "CreateTime") == "CreateTime"
        before = configs.get("message.timestamp.before.max.ms", difference) if checks_timestamps else ""
        after = configs.get("message.timestamp.after.max.ms", difference) if checks_timestamps else ""
        largest = "" if compressed else configs.get("max.message.bytes", "")
        return cls(
            topic,
            needs_key="compact" in configs.get("cleanup.policy", ""),
            before_max_ms=_limit(before),
            after_max_ms=_limit(after),
            max_bytes=max(int(largest) - _BATCH_HEADER, 0) if largest else None,
        )

    def judge(self, rows: pa.RecordBatch, now_ms: int | None = None) -> dict[int, KafkaError]:
        """The rows that the topic does not take: place in the batch and error. `now_ms` is the present by default."""
        return {place: error(place) for places, error in self._outside(rows, now_ms) for place in places}

    def places_outside(self, rows: pa.RecordBatch) -> list[int]:
        """The places in the batch of the rows that the topic does not take, in order."""
        return sorted({place for places, _ in self._outside(rows, None) for place in places})

    def _outside(
        self, rows: pa.RecordBatch, now_ms: int | None
    ) -> Iterator[tuple[list[int], Callable[[int], KafkaError]]]:
        """By limit the places of the rows outside of it, and the error of such a row."""
        now = time_ms() if now_ms is None else now_ms
        names = rows.schema.names
        if self.max_bytes is not None and rows.nbytes > self.max_bytes:
            yield _places(_too_large(rows, self.max_bytes)), lambda _: self._too_large()
        if "timestamp" in names and (self.before_max_ms is not None or self.after_max_ms is not None):
            oldest, newest = self._oldest_and_newest(now)
            outside = _outside(rows.column("timestamp"), oldest, newest)
            yield _places(outside), lambda place: self._wrong_time(rows, place)
        if self.needs_key and ("key" not in names or rows.column("key").null_count):
            yield _places(_is_null(rows, "key")), lambda _: self._without_key()

    def _oldest_and_newest(self, now: int) -> tuple[int | None, int | None]:
        before, after = self.before_max_ms, self.after_max_ms
        return (
            None if before is None else now - before - CLOCKS_DIFFER_MS,
            None if after is None else now + after + CLOCKS_DIFFER_MS,
        )

    # ---- errors ------------------------------------------------------------------------------------------------------

    def _without_key(self) -> KafkaError:
        return InvalidRecordError(f"topic '{self.topic}' is compacted (cleanup.policy), and takes no row without a key")

    def _wrong_time(self, rows: pa.RecordBatch, place: int) -> KafkaError:
        before, after = self.before_max_ms, self.after_max_ms
        return InvalidTimestampError(
            f"topic '{self.topic}' does not take timestamp {text(rows.column('timestamp')[place])}: "
            f"message.timestamp.before.max.ms is {'unlimited' if before is None else before}, "
            f"message.timestamp.after.max.ms is {'unlimited' if after is None else after}"
        )

    def _too_large(self) -> KafkaError:
        assert self.max_bytes is not None
        return RecordTooLargeError(
            f"topic '{self.topic}' takes batches up to {self.max_bytes + _BATCH_HEADER} bytes (max.message.bytes)"
        )


def read(admin: Admin, options: SinkOptions) -> TopicLimits | None:
    """The limits of the topic that the options name; None where rows name their topics, or where no limit is known.

    Raises what `Admin.topic_configs` raises. Without the right to describe configs, no limit is known.
    """
    if options.topic is None:
        return None
    try:
        configs = admin.topic_configs(options.topic, _CONFIGS)
    except (TopicAuthorizationError, UnsupportedVersionError) as error:
        logger.debug("the limits of topic %s are unknown, so its brokers judge the rows: %s", options.topic, error)
        return None
    compressed = dict(options.producer).get("compression.type", "none") != "none"
    limits = TopicLimits.from_configs(options.topic, configs, compressed=compressed)
    return None if limits == TopicLimits(options.topic) else limits


def _limit(value: str) -> int | None:
    return int(value) if value and int(value) < _FOR_EVER else None


# ---- whole columns ---------------------------------------------------------------------------------------------------


def _places(mask: Mask | None) -> list[int]:
    import pyarrow.compute as pc

    return [] if mask is None else cast("list[int]", pc.indices_nonzero(mask).to_pylist())


def _is_null(rows: pa.RecordBatch, name: str) -> Mask:
    import pyarrow as pa

    return rows.column(name).is_null() if name in rows.schema.names else pa.repeat(True, rows.num_rows)


def _outside(times: pa.Array, oldest: int | None, newest: int | None) -> Mask | None:
    """The times that are older than `oldest` or newer than `newest` (ms since 1970); None: there are no such times.

    Times before 1970 are not among them: no topic takes them, and the producer says so.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    extremes = pc.min_max(times)
    first, last = (_instant(extremes[name], times.type) for name in ("min", "max"))
    if first is None or last is None or (_within(first, oldest, newest) and _within(last, oldest, newest)):
        return None
    millis = times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64())
    too_old = pc.less(millis, -(2**63) if oldest is None else oldest)
    too_new = pc.greater(millis, _FOR_EVER if newest is None else newest)
    return pc.and_(pc.or_(too_old, too_new), pc.greater_equal(millis, 0))


def _instant(scalar: Any, kind: Any) -> int | None:
    """ms since 1970, rounded down."""
    return None if not scalar.is_valid else scalar.value // {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000}[kind.unit]


def _within(time: int, oldest: int | None, newest: int | None) -> bool:
    return (oldest is None or time >= oldest) and (newest is None or time <= newest)


def _too_large(rows: pa.RecordBatch, largest: int) -> Mask | None:
    """The rows whose key and value alone are larger; None: there is no such row."""
    import pyarrow.compute as pc

    columns = [rows.column(name) for name in ("key", "value") if name in rows.schema.names]
    # Two quick passes find that no row is too large, which is the usual case.
    longest = [pc.max(pc.binary_length(column)).as_py() or 0 for column in columns]
    if sum(longest) <= largest:
        return None
    sizes = [pc.fill_null(pc.binary_length(column), 0) for column in columns]
    total = sizes[0] if len(sizes) == 1 else pc.add(*(pc.cast(size, "int64") for size in sizes))
    return pc.greater(total, largest)
