"""The settings of topics, with the names, types, defaults and ranges of Kafka's LogConfig.

The broker acts on a topic's min.insync.replicas and unclean.leader.election.enable, on max.message.bytes and the
message.timestamp settings, and on the settings of records/config.py. It checks, stores and lists the other settings of
a topic, without an effect. A setting that a topic does not have comes from the nodes (configs/nodes.py).

Deviation: segment.bytes may be as small as 14, so that a test can fill segments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from kafkabuf.broker.configs.kinds import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    STRING,
    Check,
    Kind,
    at_least,
    invalid,
    one_of,
)
from kafkabuf.broker.configs.setting import DEFAULT, OF_TOPIC, Level, Setting
from kafkabuf.errors import InvalidConfigError

_FOR_EVER = str(2**63 - 1)
_REPLICA = re.compile(r"(?:\d+:\d+)?", re.ASCII)


class NodeConfigs(Protocol):
    """What topics need of the settings of the nodes."""

    def levels(self, name: str, node_id: int) -> Iterator[Level]: ...


def _throttled(name: str, value: list[str]) -> None:
    if "".join(value) != "*" and not all(_REPLICA.fullmatch(replica) for replica in value):
        raise invalid(
            name,
            f"[{', '.join(value)}]",
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )


def _gzip_level(name: str, value: int) -> None:
    if value != -1 and not 1 <= value <= 9:
        raise invalid(name, value, "Value must be between 1 and 9 or equal to -1")


@dataclass(frozen=True, slots=True)
class TopicKind(Kind):
    """A setting of topics. `broker`: the setting of the node that applies if the topic does not have the setting; "" if
    there is no such setting."""

    default: str = ""
    broker: str = ""


def _kind(kind: int, default: str, broker: str = "", check: Check | None = None) -> TopicKind:
    return TopicKind(kind, check, default, broker)


_MILLISECONDS = at_least(0)
# In the order in which Kafka checks them, so that the broker names the same fault of several.
TOPIC_CONFIGS = {
    "segment.bytes": _kind(INT, "1073741824", "log.segment.bytes", at_least(14)),
    "segment.ms": _kind(LONG, "604800000", "log.roll.ms", at_least(1)),
    "segment.jitter.ms": _kind(LONG, "0", "log.roll.jitter.ms", _MILLISECONDS),
    "segment.index.bytes": _kind(INT, "10485760", "log.index.size.max.bytes", at_least(4)),
    "flush.messages": _kind(LONG, _FOR_EVER, "log.flush.interval.messages", at_least(1)),
    "flush.ms": _kind(LONG, _FOR_EVER, "log.flush.interval.ms", _MILLISECONDS),
    "retention.bytes": _kind(LONG, "-1", "log.retention.bytes"),
    "retention.ms": _kind(LONG, "604800000", "log.retention.ms", at_least(-1)),
    "max.message.bytes": _kind(INT, "1048588", "message.max.bytes", at_least(0)),
    "index.interval.bytes": _kind(INT, "4096", "log.index.interval.bytes", at_least(0)),
    "delete.retention.ms": _kind(LONG, "86400000", "log.cleaner.delete.retention.ms", _MILLISECONDS),
    "min.compaction.lag.ms": _kind(LONG, "0", "log.cleaner.min.compaction.lag.ms", _MILLISECONDS),
    "max.compaction.lag.ms": _kind(LONG, _FOR_EVER, "log.cleaner.max.compaction.lag.ms", at_least(1)),
    "file.delete.delay.ms": _kind(LONG, "60000", "log.segment.delete.delay.ms", _MILLISECONDS),
    "min.cleanable.dirty.ratio": _kind(DOUBLE, "0.5", "log.cleaner.min.cleanable.ratio", at_least(0, 1)),
    "cleanup.policy": _kind(LIST, "delete", "log.cleanup.policy", one_of("compact", "delete")),
    "unclean.leader.election.enable": _kind(BOOLEAN, "false", "unclean.leader.election.enable"),
    "min.insync.replicas": _kind(INT, "1", "min.insync.replicas", at_least(1)),
    "compression.type": _kind(
        STRING, "producer", "compression.type", one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
    ),
    "compression.gzip.level": _kind(INT, "-1", "compression.gzip.level", _gzip_level),
    "compression.lz4.level": _kind(INT, "9", "compression.lz4.level", at_least(1, 17)),
    "compression.zstd.level": _kind(INT, "3", "compression.zstd.level", at_least(-131072, 22)),
    "preallocate": _kind(BOOLEAN, "false", "log.preallocate"),
    "message.timestamp.type": _kind(
        STRING, "CreateTime", "log.message.timestamp.type", one_of("CreateTime", "LogAppendTime")
    ),
    "message.timestamp.before.max.ms": _kind(LONG, _FOR_EVER, "log.message.timestamp.before.max.ms", _MILLISECONDS),
    "message.timestamp.after.max.ms": _kind(LONG, "3600000", "log.message.timestamp.after.max.ms", _MILLISECONDS),
    "leader.replication.throttled.replicas": _kind(LIST, "", check=_throttled),
    "follower.replication.throttled.replicas": _kind(LIST, "", check=_throttled),
    "remote.storage.enable": _kind(BOOLEAN, "false"),
    "local.retention.ms": _kind(LONG, "-2", "log.local.retention.ms", at_least(-2)),
    "local.retention.bytes": _kind(LONG, "-2", "log.local.retention.bytes", at_least(-2)),
    "remote.log.copy.disable": _kind(BOOLEAN, "false"),
    "remote.log.delete.on.disable": _kind(BOOLEAN, "false"),
}
# A size of segments without the least of segment.bytes, for tests. Kafka lists it only where it is set.
INTERNAL_CONFIGS = {"internal.segment.bytes": _kind(INT, "")}
_ALL = TOPIC_CONFIGS | INTERNAL_CONFIGS


def canonical_configs(configs: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The settings of a topic with the values as Kafka lists them. `defaults` are those of the nodes.

    Raises InvalidConfigError for an unknown setting, an invalid value, or values that contradict each other.
    """
    for name in configs:
        if name not in _ALL:
            raise InvalidConfigError(f"Unknown topic config name: {name}")
    read = {name: kind.canonical(name, configs[name]) for name, kind in _ALL.items() if name in configs}
    if read.get("remote.storage.enable") == "true":
        raise InvalidConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    shortest, longest = (
        int(read.get(name) or defaults.get(name) or TOPIC_CONFIGS[name].default)
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if shortest > longest:
        raise InvalidConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})"
        )
    return {name: read[name] for name in configs}


def topic_settings(nodes: NodeConfigs, node_id: int, configs: Mapping[str, str]) -> Iterator[Setting]:
    """The settings of a topic that has the settings `configs` of its own, as a node describes them."""
    for name, kind in _ALL.items():
        levels = tuple(nodes.levels(kind.broker, node_id)) if kind.broker else ()
        if name in configs:
            levels = ((name, configs[name], OF_TOPIC), *levels)
        elif name in INTERNAL_CONFIGS:
            continue
        _, value, source = levels[0] if levels else (name, kind.default, DEFAULT)
        yield Setting(name, value, kind.type, source, levels)
