"""The settings of nodes that give topics their defaults, which are those that a running cluster can change."""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.configs.kinds import Kind, at_least
from kafkabuf.broker.configs.topics import TOPIC_CONFIGS
from kafkabuf.errors import InvalidConfigError

_MIB = 1 << 20


def _retention(name: str, value: Any) -> None:
    if value != -1 and value < 1:
        raise InvalidConfigError(f"requirement failed: {name} must be unlimited (-1) or, greater than or equal to 1")


# Where a node takes other values than a topic.
_OTHER_CHECKS = {
    "log.flush.interval.ms": None,
    "log.retention.ms": _retention,
    "log.segment.bytes": at_least(_MIB),
}
TOPIC_DEFAULTS = {
    kind.broker: Kind(kind.type, _OTHER_CHECKS.get(kind.broker, kind.check))
    for kind in TOPIC_CONFIGS.values()
    if kind.broker
}
