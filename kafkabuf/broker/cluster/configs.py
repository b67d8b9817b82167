"""The settings of topics and of nodes, as DescribeConfigs lists them, with the names, types, defaults and ranges of
Kafka's LogConfig.

The broker acts on a topic's min.insync.replicas and unclean.leader.election.enable, and on the settings of
log/config.py: max.message.bytes, message.timestamp.type, message.timestamp.before.max.ms,
message.timestamp.after.max.ms, cleanup.policy, retention.bytes, retention.ms, segment.bytes and flush.messages. It
checks, stores and lists the other settings of a topic, without an effect.

Deviation: segments may be smaller than 1 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kafkabuf.broker.cluster.cluster_config import ClusterConfig
from kafkabuf.broker.transactions import MAX_TIMEOUT_MS
from kafkabuf.errors import InvalidConfigError

# Types and sources of values, by the protocol's numbers.
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
OF_TOPIC, OF_BROKER, DEFAULT = 1, 4, 5
_MAX = {INT: 2**31 - 1, LONG: 2**63 - 1, DOUBLE: 1.0}
_NAMES = {BOOLEAN: "BOOLEAN", INT: "INT", LONG: "LONG", DOUBLE: "DOUBLE"}
_FOR_EVER = str(2**63 - 1)
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588


@dataclass(frozen=True, slots=True)
class Kind:
    """A setting of topics. `broker`: the setting of the node that applies if the topic does not have the setting; "" if
    there is no such setting. `allowed`: the words, or the least number. `most`: the greatest number."""

    type: int
    default: str
    broker: str = ""
    allowed: tuple[str, ...] | float | None = None
    most: float | None = None


TOPIC_CONFIGS = {
    "cleanup.policy": Kind(LIST, "delete", "log.cleanup.policy", ("compact", "delete")),
    "compression.gzip.level": Kind(INT, "-1", "compression.gzip.level", -1, 9),
    "compression.lz4.level": Kind(INT, "9", "compression.lz4.level", 1, 17),
    "compression.type": Kind(
        STRING, "producer", "compression.type", ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
    ),
    "compression.zstd.level": Kind(INT, "3", "compression.zstd.level", -131072, 22),
    "delete.retention.ms": Kind(LONG, "86400000", "log.cleaner.delete.retention.ms", 0),
    "file.delete.delay.ms": Kind(LONG, "60000", "log.segment.delete.delay.ms", 0),
    "flush.messages": Kind(LONG, _FOR_EVER, "log.flush.interval.messages", 1),
    "flush.ms": Kind(LONG, _FOR_EVER, "", 0),
    "follower.replication.throttled.replicas": Kind(LIST, ""),
    "index.interval.bytes": Kind(INT, "4096", "log.index.interval.bytes", 0),
    "leader.replication.throttled.replicas": Kind(LIST, ""),
    "local.retention.bytes": Kind(LONG, "-2", "log.local.retention.bytes", -2),
    "local.retention.ms": Kind(LONG, "-2", "log.local.retention.ms", -2),
    "max.compaction.lag.ms": Kind(LONG, _FOR_EVER, "log.cleaner.max.compaction.lag.ms", 1),
    "max.message.bytes": Kind(INT, str(DEFAULT_MAX_MESSAGE_BYTES), "message.max.bytes", 0),
    "message.timestamp.after.max.ms": Kind(LONG, "3600000", "log.message.timestamp.after.max.ms", 0),
    "message.timestamp.before.max.ms": Kind(LONG, _FOR_EVER, "log.message.timestamp.before.max.ms", 0),
    "message.timestamp.type": Kind(STRING, "CreateTime", "log.message.timestamp.type", ("CreateTime", "LogAppendTime")),
    "min.cleanable.dirty.ratio": Kind(DOUBLE, "0.5", "log.cleaner.min.cleanable.ratio", 0),
    "min.compaction.lag.ms": Kind(LONG, "0", "log.cleaner.min.compaction.lag.ms", 0),
    "min.insync.replicas": Kind(INT, "1", "min.insync.replicas", 1),
    "preallocate": Kind(BOOLEAN, "false", "log.preallocate"),
    "remote.log.copy.disable": Kind(BOOLEAN, "false"),
    "remote.log.delete.on.disable": Kind(BOOLEAN, "false"),
    "remote.storage.enable": Kind(BOOLEAN, "false"),
    "retention.bytes": Kind(LONG, "-1", "log.retention.bytes"),
    "retention.ms": Kind(LONG, "604800000", "log.retention.ms", -1),
    "segment.bytes": Kind(INT, "1073741824", "log.segment.bytes", 14),
    "segment.index.bytes": Kind(INT, "10485760", "log.index.size.max.bytes", 4),
    "segment.jitter.ms": Kind(LONG, "0", "", 0),
    "segment.ms": Kind(LONG, "604800000", "", 1),
    "unclean.leader.election.enable": Kind(BOOLEAN, "false", "unclean.leader.election.enable"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """`synonyms`: (name, value, source) of every level that has a value. The first level has the value that applies."""

    name: str
    value: str
    type: int
    source: int
    synonyms: tuple[tuple[str, str, int], ...] = ()
    read_only: bool = False


def check_configs(configs: Mapping[str, str]) -> None:
    """Raises InvalidConfigError for an unknown setting of a topic, or an invalid value."""
    for name, value in configs.items():
        if (kind := TOPIC_CONFIGS.get(name)) is None:
            raise InvalidConfigError(f"Unknown topic config name: {name}")
        if (fault := _fault(kind, value)) is not None:
            raise InvalidConfigError(f"Invalid value {value} for configuration {name}: {fault}")


def _fault(kind: Kind, value: str) -> str | None:
    if isinstance(kind.allowed, tuple):
        words = value.split(",") if kind.type == LIST else [value]
        return None if set(words) <= set(kind.allowed) else f"it must be one of {', '.join(kind.allowed)}"
    if kind.type in (STRING, LIST):
        return None
    if kind.type == BOOLEAN:
        return None if value.lower() in ("true", "false") else "it must be true or false"
    try:
        number = float(value) if kind.type == DOUBLE else int(value)
    except ValueError:
        return f"Not a number of type {_NAMES[kind.type]}"
    least = kind.allowed if kind.allowed is not None else -_MAX[kind.type] - 1
    most = kind.most if kind.most is not None else _MAX[kind.type]
    return None if least <= number <= most else f"Value must be at least {least:.0f} and at most {most:.0f}"


def topic_settings(config: ClusterConfig, configs: Mapping[str, str]) -> Iterator[Setting]:
    """The settings of a topic that was created with `configs`."""
    broker_values = _broker_values(config)
    for name, kind in TOPIC_CONFIGS.items():
        levels = []
        if name in configs:
            levels.append((name, configs[name], OF_TOPIC))
        if kind.broker in broker_values:
            levels.append((kind.broker, broker_values[kind.broker], OF_BROKER))
        if kind.broker:
            levels.append((kind.broker, kind.default, DEFAULT))
        _, value, source = levels[0] if levels else (name, kind.default, DEFAULT)
        yield Setting(name, value, kind.type, source, tuple(levels))


def _broker_values(config: ClusterConfig) -> dict[str, str]:
    """The cluster's settings that differ from Kafka's defaults, by the names of settings of a node."""
    values = {"log.retention.ms": "-1"}
    if config.retention_bytes is not None:
        values["log.retention.bytes"] = str(config.retention_bytes)
    if config.max_message_bytes != DEFAULT_MAX_MESSAGE_BYTES:
        values["message.max.bytes"] = str(config.max_message_bytes)
    if config.min_insync_replicas != 1:
        values["min.insync.replicas"] = str(config.min_insync_replicas)
    return values


def node_settings(config: ClusterConfig, node_id: int) -> Iterator[Setting]:
    retention_bytes = -1 if config.retention_bytes is None else config.retention_bytes
    for name, value, kind, source in (
        ("broker.id", str(node_id), INT, OF_BROKER),
        ("node.id", str(node_id), INT, OF_BROKER),
        ("auto.create.topics.enable", str(config.auto_create_topics).lower(), BOOLEAN, OF_BROKER),
        ("log.retention.bytes", str(retention_bytes), LONG, OF_BROKER),
        ("log.retention.ms", "-1", LONG, OF_BROKER),
        ("message.max.bytes", str(config.max_message_bytes), INT, OF_BROKER),
        ("num.partitions", str(config.default_partitions), INT, OF_BROKER),
        ("default.replication.factor", str(config.replication_factor), INT, OF_BROKER),
        ("min.insync.replicas", str(config.min_insync_replicas), INT, OF_BROKER),
        ("replica.lag.time.max.ms", str(config.replica_lag_time_max_ms), LONG, OF_BROKER),
        ("broker.session.timeout.ms", str(config.broker_session_timeout_ms), INT, OF_BROKER),
        ("transaction.max.timeout.ms", str(MAX_TIMEOUT_MS), INT, DEFAULT),
    ):
        yield Setting(name, value, kind, source, ((name, value, source),), read_only=True)
