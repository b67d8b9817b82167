"""The settings of a cluster, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kafkabuf.broker.configs.arguments import require_int, require_text
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.guards.limits import ConnectionLimits
from kafkabuf.broker.guards.security import Security
from kafkabuf.broker.records.config import PRODUCER_EXPIRATION_MS
from kafkabuf.errors import ConfigError

_POSITIVE = (
    "default_partitions",
    "min_insync_replicas",
    "replica_lag_time_max_ms",
    "broker_session_timeout_ms",
    "log_cleaner_backoff_ms",
    "producer_id_expiration_ms",
    "producer_id_expiration_check_interval_ms",
    "transaction_max_timeout_ms",
    "telemetry_max_bytes",
)
_PARTS = {"limits": ConnectionLimits, "security": Security, "groups": GroupSettings}
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """`replication_factor` applies to topics that are created without a replication factor. `retention_bytes` is per
    partition (None keeps everything); the configs retention.bytes and min.insync.replicas of a topic override the
    settings of the cluster. `replica_lag_time_max_ms`, `broker_session_timeout_ms`, `log_cleaner_backoff_ms`,
    `producer_id_expiration_ms` and `producer_id_expiration_check_interval_ms` are Kafka's settings of these names.
    `transaction_version` is the level of Kafka's feature transaction.version that the nodes tell clients: 2 for
    KIP-890. `request_log` is the number of requests that the cluster remembers. The cluster keeps its logs, and
    everything else that outlives the cluster, in `data_dir` (None: in memory). With `client_metrics` the nodes tell
    clients that they take metrics (KIP-714), of up to `telemetry_max_bytes` a push; `client_subscriptions` are the
    subscriptions at the start. `topic_defaults` are settings of nodes that give topics their defaults, by Kafka's names
    (configs/node_kinds.py)."""

    brokers: int = 1
    auto_create_topics: bool = True
    default_partitions: int = 1
    retention_bytes: int | None = None
    max_message_bytes: int = 1_048_588
    host: str = "127.0.0.1"
    ports: tuple[int, ...] | None = None
    racks: tuple[str | None, ...] | None = None
    verify_records: bool = False
    transaction_version: int = 2
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    security: Security = field(default_factory=Security)
    groups: GroupSettings = field(default_factory=GroupSettings)
    request_log: int = 10_000
    data_dir: Path | None = None
    replication_factor: int = 1
    min_insync_replicas: int = 1
    replica_lag_time_max_ms: int = 30_000
    broker_session_timeout_ms: int = 9_000
    log_cleaner_backoff_ms: int = 15_000
    producer_id_expiration_ms: int = PRODUCER_EXPIRATION_MS
    producer_id_expiration_check_interval_ms: int = 600_000
    transaction_max_timeout_ms: int = 900_000
    telemetry_max_bytes: int = 1024 * 1024
    client_metrics: bool = False
    client_subscriptions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    topic_defaults: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_int("brokers", self.brokers)
        if self.brokers < 1:
            raise ConfigError(f"brokers={self.brokers}: a cluster has at least one node")
        for name in _POSITIVE:
            require_int(name, getattr(self, name), 1)
        for name in ("max_message_bytes", "request_log"):
            require_int(name, getattr(self, name), 0)
        for name, kind in _PARTS.items():
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(f"{name}: {kind.__name__} is needed, found {type(getattr(self, name)).__name__}")
        if self.retention_bytes is not None:
            require_int("retention_bytes", self.retention_bytes, -1)
        require_int("replication_factor", self.replication_factor)
        require_text("host", self.host)
        if not self.host:
            raise ConfigError("host is empty, which would open the cluster to the network: name an address")
        self._check_ports()
        self._check_racks()
        if not 1 <= self.replication_factor <= self.brokers:
            raise ConfigError(
                f"replication_factor={self.replication_factor}: 1 to {self.brokers} (the number of brokers) is allowed"
            )
        if self.transaction_version not in (0, 1, 2):
            raise ConfigError(f"transaction_version={self.transaction_version!r}: 0, 1 and 2 are known")

    def _check_racks(self) -> None:
        if self.racks is None:
            return
        if len(self.racks) != self.brokers:
            raise ConfigError(
                f"{len(self.racks)} racks for {self.brokers} brokers: give each broker a rack or None, or no racks"
            )
        for rack in self.racks:
            if rack is not None:
                require_text("racks", rack)

    def rack_of(self, node_id: int) -> str | None:
        return None if self.racks is None else self.racks[node_id - 1]

    def _check_ports(self) -> None:
        if self.ports is None:
            return
        if len(self.ports) != self.brokers:
            raise ConfigError(
                f"{len(self.ports)} ports for {self.brokers} brokers: give a port for each broker, or no ports"
            )
        for port in self.ports:
            require_int("ports", port, 0, _LAST_PORT)

    @property
    def session_timeout(self) -> float:
        """Seconds after which the controller fences a node that it does not hear from."""
        return self.broker_session_timeout_ms / 1000

    @property
    def max_lag(self) -> float:
        """Seconds by which a follower may be behind and still be in sync."""
        return self.replica_lag_time_max_ms / 1000
