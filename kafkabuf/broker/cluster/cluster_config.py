"""The settings of a cluster, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.guards.limits import ConnectionLimits
from kafkabuf.broker.guards.security import Security
from kafkabuf.errors import ConfigError

_POSITIVE = (
    "default_partitions",
    "min_insync_replicas",
    "replica_lag_time_max_ms",
    "broker_session_timeout_ms",
    "log_cleaner_backoff_ms",
    "transaction_max_timeout_ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """`replication_factor` applies to topics that are created without a replication factor. `retention_bytes` is per
    partition (None keeps everything); the configs retention.bytes and min.insync.replicas of a topic override the
    settings of the cluster. `replica_lag_time_max_ms`, `broker_session_timeout_ms` and `log_cleaner_backoff_ms` are
    Kafka's replica.lag.time.max.ms, broker.session.timeout.ms and log.cleaner.backoff.ms. `transaction_version` is the
    level of Kafka's feature transaction.version that the nodes tell clients: 2 for KIP-890. `request_log` is the number
    of requests that the cluster remembers. The cluster keeps its logs, and everything else that outlives the cluster,
    in `data_dir` (None: in memory). `topic_defaults` are settings of nodes that give topics their defaults, by Kafka's
    names (configs/node_kinds.py)."""

    brokers: int = 1
    auto_create_topics: bool = True
    default_partitions: int = 1
    retention_bytes: int | None = None
    max_message_bytes: int = 1_048_588
    host: str = "127.0.0.1"
    ports: tuple[int, ...] | None = None
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
    transaction_max_timeout_ms: int = 900_000
    topic_defaults: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.brokers < 1:
            raise ConfigError(f"brokers={self.brokers}: a cluster has at least one node")
        if self.ports is not None and len(self.ports) != self.brokers:
            raise ConfigError(
                f"{len(self.ports)} ports for {self.brokers} brokers: give a port for each broker, or no ports"
            )
        if not 1 <= self.replication_factor <= self.brokers:
            raise ConfigError(
                f"replication_factor={self.replication_factor}: 1 to {self.brokers} (the number of brokers) is allowed"
            )
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: at least 1 is needed")
        if self.transaction_version not in (0, 1, 2):
            raise ConfigError(f"transaction_version={self.transaction_version}: 0, 1 and 2 are known")
        if self.request_log < 0:
            raise ConfigError(f"request_log={self.request_log}: 0 and above are allowed")

    @property
    def session_timeout(self) -> float:
        """Seconds after which the controller fences a node that it does not hear from."""
        return self.broker_session_timeout_ms / 1000

    @property
    def max_lag(self) -> float:
        """Seconds by which a follower may be behind and still be in sync."""
        return self.replica_lag_time_max_ms / 1000
