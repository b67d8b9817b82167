"""The settings that a running cluster can change: defaults of topics, and a few of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from kafkabuf.broker.configs.kinds import INT, STRING, Kind, at_least, invalid
from kafkabuf.broker.configs.topics import TOPIC_CONFIGS
from kafkabuf.errors import InvalidConfigError

_MIB = 1 << 20
# Enough for every INT.
_DIGITS = 10
MAX_CONNECTIONS = "max.connections"
PER_ADDRESS = "max.connections.per.ip"
PER_ADDRESS_OVERRIDES = "max.connections.per.ip.overrides"
PRODUCER_EXPIRATION = "producer.id.expiration.ms"


def _retention(name: str, value: Any) -> None:
    if value != -1 and value < 1:
        raise InvalidConfigError(f"requirement failed: {name} must be unlimited (-1) or, greater than or equal to 1")


def overrides(name: str, text: str) -> dict[str, int]:
    """The limit of each address in a list such as "127.0.0.1:5,::1:7". Raises InvalidConfigError."""
    limits = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        host, _, count = entry.rpartition(":")
        try:
            address = "127.0.0.1" if host == "localhost" else str(ip_address(host.strip("[]")))
        except ValueError:
            raise invalid(name, entry[:100], "an address and a number are needed, such as 127.0.0.1:5") from None
        if not (count.isascii() and count.isdecimal() and len(count) <= _DIGITS):
            raise InvalidConfigError(f'For input string: "{count[:100]}"')
        limits[address] = int(count)
    return limits


def _check_overrides(name: str, value: Any) -> None:
    overrides(name, value)


def check_together(values: Mapping[str, str]) -> None:
    """Raises InvalidConfigError for settings that are not valid beside each other."""
    if values.get(PER_ADDRESS) == "0" and not values.get(PER_ADDRESS_OVERRIDES):
        raise InvalidConfigError(
            f"requirement failed: {PER_ADDRESS} can be set to zero only if {PER_ADDRESS_OVERRIDES} property is set."
        )


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
# A node of a larger cluster may have its own value.
OF_SINGLE_NODES = {
    MAX_CONNECTIONS: Kind(INT, at_least(0)),
    PER_ADDRESS: Kind(INT, at_least(0)),
    PER_ADDRESS_OVERRIDES: Kind(STRING, _check_overrides),
    PRODUCER_EXPIRATION: Kind(INT, at_least(1)),
}
CHANGEABLE = {**TOPIC_DEFAULTS, **OF_SINGLE_NODES}
