"""The settings of groups, under Kafka's names (GroupCoordinatorConfig).

Deviation: group.consumer.session.timeout.ms and group.consumer.heartbeat.interval.ms may lie outside of the bounds that
the settings of single groups have, so that a test lowers one setting and not two.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafkabuf.broker.groups.assignors import ASSIGNORS
from kafkabuf.errors import ConfigError, InvalidSessionTimeoutError

_NO_LIMIT = 2**31 - 1
_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Times are in milliseconds. The defaults are Kafka's.

    A classic member chooses its session time-out between `group_min_session_timeout_ms` and
    `group_max_session_timeout_ms`; a test that waits for a consumer's death lowers the first. The coordinator chooses
    the session time-out and the heartbeat interval of consumers with group.protocol=consumer (KIP-848): a lower
    `group_consumer_heartbeat_interval_ms` makes their rebalances faster. A single group may have its own values
    (consumer.session.timeout.ms and consumer.heartbeat.interval.ms of the resource GROUP), which
    `group_consumer_min_...` and `group_consumer_max_...` bound. A group has at most `group_max_size` (classic)
    or `group_consumer_max_size` members. A group whose members name no assignor uses the first of
    `group_consumer_assignors`. `group_consumer_migration_policy` says which groups with members change their protocol:
    bidirectional, upgrade (to group.protocol=consumer), downgrade, or disabled.
    """

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = _NO_LIMIT
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_max_size: int = _NO_LIMIT
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_migration_policy: str = "bidirectional"

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, int) and not 1 <= value <= _NO_LIMIT:
                raise ConfigError(f"{name}={value}: 1 to {_NO_LIMIT} is allowed")
        self._check_order("group_min_session_timeout_ms", "group_max_session_timeout_ms", 0)
        self._check_order("group_consumer_min_session_timeout_ms", "group_consumer_max_session_timeout_ms", 0)
        self._check_order("group_consumer_min_heartbeat_interval_ms", "group_consumer_max_heartbeat_interval_ms", 0)
        self._check_order("group_consumer_heartbeat_interval_ms", "group_consumer_session_timeout_ms", 1)
        unknown = [name for name in self.group_consumer_assignors if name not in ASSIGNORS]
        if unknown or not self.group_consumer_assignors:
            raise ConfigError(
                f"group_consumer_assignors={self.group_consumer_assignors}: name at least one of {', '.join(ASSIGNORS)}"
            )

        if self.group_consumer_migration_policy.lower() not in _POLICIES:
            raise ConfigError(
                f"group_consumer_migration_policy={self.group_consumer_migration_policy!r}: choose one of "
                f"{', '.join(_POLICIES)}"
            )

    @property
    def upgrades(self) -> bool:
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "upgrade")

    @property
    def downgrades(self) -> bool:
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "downgrade")

    def check_session(self, seconds: float) -> None:
        """Raises InvalidSessionTimeoutError for a session time-out that a classic member may not choose."""
        least, most = self.group_min_session_timeout_ms, self.group_max_session_timeout_ms
        if not least <= round(seconds * 1000) <= most:
            raise InvalidSessionTimeoutError(
                f"the session time-out is {seconds} s: {least} to {most} ms are allowed (group.min.session.timeout.ms, "
                f"group.max.session.timeout.ms)"
            )

    def _check_order(self, lower: str, upper: str, distance: int) -> None:
        low, high = getattr(self, lower), getattr(self, upper)
        if low + distance > high:
            raise ConfigError(f"{lower}={low} and {upper}={high}: the second must be at least {low + distance}")
