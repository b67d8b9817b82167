"""The settings of groups, and the subscriptions to the metrics of clients (KIP-714), as clients change and list them.

Groups of KIP-848 follow consumer.session.timeout.ms and consumer.heartbeat.interval.ms.

Deviation: the settings of share groups and of streams groups have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from kafkabuf.broker.configs.kinds import INT, LIST, STRING, Check, Kind, at_least, invalid, one_of
from kafkabuf.broker.configs.setting import DEFAULT, OF_CLIENT_METRICS, OF_GROUP, Setting
from kafkabuf.errors import InvalidConfigError, InvalidRequestError

_LONGEST_INTERVAL_MS = 3_600_000
_LONGEST_READ = 2000
_CLIENT_KEYS = {
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
}
_DURATION = re.compile(r"by_duration:[+-]?P(?=.)(?:[+-]?\d+D)?(?:T(?=.)(?:[+-]?\d+H)?(?:[+-]?\d+M)?(?:[+-]?[\d.]+S)?)?")

# The parser of `re`, without its compiler.
_read: Callable[[str], object] = import_module("re._parser").parse

# Stores the settings of a resource.
Keep = Callable[[str, Mapping[str, str]], None]


class NodeConfigs(Protocol):
    """What the settings of groups need of the settings of the nodes."""

    def value(self, name: str) -> str: ...


@dataclass(frozen=True, slots=True)
class GroupKind(Kind):
    """A setting of groups. `default`, `least`, `most`: the settings of the nodes that have these values."""

    default: str = ""
    least: str = ""
    most: str = ""


def _bounded(kind: str, name: str, least: int = 1) -> GroupKind:
    bounds = (f"group.{kind}.min.{name}", f"group.{kind}.max.{name}")
    return GroupKind(INT, at_least(least), f"group.{kind}.{name}", *bounds)


def _offset_reset(name: str, value: str) -> None:
    if value not in ("earliest", "latest") and not _DURATION.fullmatch(value):
        raise invalid(name, value, "earliest, latest, or by_duration: with an ISO 8601 duration is needed")


GROUP_CONFIGS = {
    "consumer.session.timeout.ms": _bounded("consumer", "session.timeout.ms"),
    "consumer.heartbeat.interval.ms": _bounded("consumer", "heartbeat.interval.ms"),
    "share.session.timeout.ms": _bounded("share", "session.timeout.ms"),
    "share.heartbeat.interval.ms": _bounded("share", "heartbeat.interval.ms"),
    "share.record.lock.duration.ms": _bounded("share", "record.lock.duration.ms", 1000),
    "share.auto.offset.reset": GroupKind(STRING, _offset_reset),
    "share.isolation.level": GroupKind(STRING, one_of("read_committed", "read_uncommitted")),
    "streams.session.timeout.ms": _bounded("streams", "session.timeout.ms"),
    "streams.heartbeat.interval.ms": _bounded("streams", "heartbeat.interval.ms"),
    "streams.num.standby.replicas": GroupKind(
        INT, at_least(0), "group.streams.num.standby.replicas", "", "group.streams.max.standby.replicas"
    ),
}
_GROUP_DEFAULTS = {"share.auto.offset.reset": "latest", "share.isolation.level": "read_uncommitted"}


def _interval(name: str, value: int) -> None:
    if not 100 <= value <= _LONGEST_INTERVAL_MS:
        raise InvalidRequestError(
            f"Invalid value {value} for {name}, interval must be between 100 and {_LONGEST_INTERVAL_MS} (1 hour)"
        )


def _patterns(name: str, value: list[str]) -> None:
    # telemetry/subscriptions.py does not use long expressions.
    short = sum(map(len, value)) <= _LONGEST_READ
    for pattern in value:
        key, equals, expression = pattern.partition("=")
        if not equals or key.strip() not in _CLIENT_KEYS or (short and not _is_expression(expression.strip())):
            raise InvalidConfigError(f"Illegal client matching pattern: {pattern}")


def _is_expression(text: str) -> bool:
    """As Python reads it. To compile it takes long: ten milliseconds for each set such as [\x01-\uffff]."""
    try:
        _read(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


_METRICS_CHECKS: dict[str, tuple[int, str, Check | None]] = {
    "interval.ms": (INT, "300000", _interval),
    "match": (LIST, "", _patterns),
    "metrics": (LIST, "", None),
}
METRICS_CONFIGS = {name: Kind(kind, check) for name, (kind, _, check) in _METRICS_CHECKS.items()}


class _NamedConfigs:
    """The settings of things by their names. `names` are the things that ever had settings, in this run of the
    cluster."""

    def __init__(self, keep: Keep = lambda name, configs: None) -> None:
        self._keep = keep
        self._configs: dict[str, dict[str, str]] = {}

    @property
    def names(self) -> list[str]:
        return list(self._configs)

    def of(self, name: str) -> Mapping[str, str]:
        """The settings of a thing, without those that it takes from elsewhere."""
        return self._configs.get(name, {})

    def restore(self, name: str, configs: Mapping[str, str]) -> None:
        self._configs[name] = dict(configs)


class GroupConfigs(_NamedConfigs):
    """What a group does not set it takes from the nodes."""

    def __init__(self, nodes: NodeConfigs, keep: Keep = lambda name, configs: None) -> None:
        super().__init__(keep)
        self._nodes = nodes

    def describe(self, name: str) -> Iterator[Setting]:
        if not name:
            raise InvalidRequestError("Group name must not be empty")
        for setting, kind in GROUP_CONFIGS.items():
            value, source = self._value(name, setting)
            yield Setting(setting, value, kind.type, source, ((setting, value, source),))

    def _value(self, name: str, setting: str) -> tuple[str, int]:
        if setting in self.of(name):
            return self.of(name)[setting], OF_GROUP
        return _GROUP_DEFAULTS.get(setting) or self._nodes.value(GROUP_CONFIGS[setting].default), DEFAULT

    def replace(self, name: str, configs: Mapping[str, str], *, dry_run: bool) -> None:
        """Raises InvalidRequestError without a name, and InvalidConfigError for a setting that is not valid."""
        if not name:
            raise InvalidRequestError("Default group resources are not allowed.")
        if unknown := configs.keys() - GROUP_CONFIGS.keys():
            raise InvalidConfigError(f"Unknown group config name: {min(unknown)}")
        checked = {
            setting: kind.canonical(setting, configs[setting])
            for setting, kind in GROUP_CONFIGS.items()
            if setting in configs
        }
        for setting, value in checked.items():
            self._check_bounds(setting, int(value) if GROUP_CONFIGS[setting].type == INT else 0)
        for kind in ("consumer", "share", "streams"):
            self._check_order(checked, f"{kind}.heartbeat.interval.ms", f"{kind}.session.timeout.ms")
        if not dry_run:
            self._keep(name, checked)
            self._configs[name] = checked

    def _check_order(self, configs: Mapping[str, str], lower: str, upper: str) -> None:
        """Raises InvalidConfigError if the value of `upper`, which may be the nodes', is not above that of `lower`."""
        if not configs.keys() & {lower, upper}:
            return
        low, high = (
            int(configs.get(name) or self._nodes.value(GROUP_CONFIGS[name].default)) for name in (lower, upper)
        )
        if high <= low:
            raise InvalidConfigError(f"{upper} must be greater than {lower}")

    def _check_bounds(self, setting: str, value: int) -> None:
        kind = GROUP_CONFIGS[setting]
        if kind.least and value < int(self._nodes.value(kind.least)):
            raise InvalidConfigError(f"{setting} must be greater than or equal to {kind.least}")
        if kind.most and value > int(self._nodes.value(kind.most)):
            raise InvalidConfigError(f"{setting} must be less than or equal to {kind.most}")


class MetricsConfigs(_NamedConfigs):
    """The subscriptions. `version` grows with each change."""

    version = 0

    def describe(self, name: str) -> Iterator[Setting]:
        if not name:
            raise InvalidRequestError("Client metrics subscription name must not be empty")
        configs: Any = self.of(name)
        for setting, (kind, default, _) in _METRICS_CHECKS.items():
            if setting in configs:
                level = (setting, configs[setting], OF_CLIENT_METRICS)
                yield Setting(setting, configs[setting], kind, OF_CLIENT_METRICS, (level,))
            else:
                yield Setting(setting, default, kind, DEFAULT)

    def replace(self, name: str, configs: Mapping[str, str], *, dry_run: bool) -> None:
        """A subscription without settings ends. Raises InvalidRequestError or InvalidConfigError."""
        if not name:
            raise InvalidRequestError("Subscription name can't be empty")
        if unknown := configs.keys() - METRICS_CONFIGS.keys():
            raise InvalidRequestError(f"Unknown client metrics configuration: {min(unknown)}")
        checked = {setting: METRICS_CONFIGS[setting].canonical(setting, value) for setting, value in configs.items()}
        if not dry_run:
            self._keep(name, checked)
            self.version += 1
            self._configs.pop(name, None)
            if checked:
                self._configs[name] = checked
