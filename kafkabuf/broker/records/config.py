"""The configs of a topic that concern its logs and the records that they take, under Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafkabuf.errors import InvalidConfigError

UNLIMITED = -1
_INT32 = 2**31 - 1
_INT64 = 2**63 - 1
# The value of a topic's config in milliseconds that sets no bound.
UNBOUNDED_MS = _INT64
# Kafka's default of producer.id.expiration.ms, a setting of nodes.
PRODUCER_EXPIRATION_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """With -1, `retention_bytes` and `retention_ms` keep everything.

    On disk a file has at most `segment_bytes`, and the log is flushed after `flush_messages` records. In memory
    `flush_messages` has no effect, and only the log of a topic with `compact` has segments. The settings with
    `compaction` and `clean` are those of the cleaner (log/upkeep/cleaner.py).

    Deviations: by default nothing expires; segments may be smaller than 1 MiB; segment.jitter.ms has no effect.
    """

    retention_bytes: int = UNLIMITED
    retention_ms: int = UNLIMITED
    segment_bytes: int = 1 << 30
    flush_messages: int = _INT64
    delete: bool = True
    compact: bool = False
    segment_ms: int = 604_800_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _INT64
    delete_retention_ms: int = 86_400_000
    max_message_bytes: int = 1_048_588

    @property
    def max_segment_ms(self) -> int:
        """The age at which a segment ends."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    @classmethod
    def of(
        cls, configs: Mapping[str, str], retention_bytes: int | None = None, max_message_bytes: int = 1_048_588
    ) -> LogConfig:
        """Raises InvalidConfigError for a value that is not valid. `retention_bytes` and `max_message_bytes` are the
        cluster's defaults."""
        return cls(
            # Every negative size means that the log has no limit.
            max(int_config(configs, "retention.bytes", UNLIMITED if retention_bytes is None else retention_bytes), -1),
            int_config(configs, "retention.ms", UNLIMITED, -1),
            _segment_bytes(configs),
            int_config(configs, "flush.messages", _INT64, 1),
            "delete" in _policies(configs),
            "compact" in _policies(configs),
            int_config(configs, "segment.ms", 604_800_000, 1),
            float(configs.get("min.cleanable.dirty.ratio", 0.5)),
            int_config(configs, "min.compaction.lag.ms", 0, 0),
            int_config(configs, "max.compaction.lag.ms", _INT64, 1),
            int_config(configs, "delete.retention.ms", 86_400_000, 0),
            int_config(configs, "max.message.bytes", max_message_bytes),
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """The records that a topic takes. A timestamp of a producer may be `timestamp_before_max_ms` before the broker's
    clock and `timestamp_after_max_ms` after it (KIP-937). With `log_append_time` the leader replaces the timestamps by
    its own. A `compacted` topic takes no record without a key."""

    max_message_bytes: int = 1_048_588
    timestamp_before_max_ms: int = UNBOUNDED_MS
    timestamp_after_max_ms: int = 3_600_000
    log_append_time: bool = False
    compacted: bool = False

    @classmethod
    def of(cls, configs: Mapping[str, str], max_message_bytes: int) -> Limits:
        """Raises InvalidConfigError for a value that is not valid. `max_message_bytes` is the cluster's default."""
        return cls(
            int_config(configs, "max.message.bytes", max_message_bytes),
            int_config(configs, "message.timestamp.before.max.ms", UNBOUNDED_MS, 0),
            int_config(configs, "message.timestamp.after.max.ms", 3_600_000, 0),
            configs.get("message.timestamp.type", "CreateTime") == "LogAppendTime",
            "compact" in _policies(configs),
        )


def int_config(
    configs: Mapping[str, str], name: str, default: int, least: int = -(2**63), greatest: int = _INT64
) -> int:
    """A number among a topic's configs. Raises InvalidConfigError if the value is not a number, or is out of range."""
    try:
        value = int(configs.get(name, default))
    except ValueError:
        raise InvalidConfigError(f"{name}={configs[name]!r}: a whole number is needed") from None
    if not least <= value <= greatest:
        raise InvalidConfigError(f"{name}={value}: {least} to {greatest} are allowed")
    return value


def _segment_bytes(configs: Mapping[str, str]) -> int:
    """internal.segment.bytes overrides segment.bytes, and may be as small as Kafka's own tests want it."""
    internal = int_config(configs, "internal.segment.bytes", 0)
    return max(internal, 14) if internal else int_config(configs, "segment.bytes", 1 << 30, 14, _INT32)


def _policies(configs: Mapping[str, str]) -> set[str]:
    policies = configs.get("cleanup.policy", "delete")
    # An empty list is legal: the log keeps everything.
    names = {name.strip() for name in policies.split(",")} - {""}
    if not names <= {"delete", "compact"}:
        raise InvalidConfigError(f"cleanup.policy={policies!r}: delete, compact or both are allowed")
    return names
