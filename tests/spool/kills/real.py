"""Trouble of three nodes of Apache Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from rigs.real_cluster import RealCluster
from rigs.real_kafka import KAFKA_4
from tests.spool.kills.trouble import PATIENCE, Trouble

# How often a node looks for producers that it may forget. The setting is internal.
_OPTIONS = {"producer.id.expiration.check.interval.ms": "200"}
_EXPIRATION = "producer.id.expiration.ms"


class RealTrouble(Trouble):
    """Three nodes of Apache Kafka."""

    replicas = 3
    nodes = range(1, 4)
    real = True

    def __init__(self, version: str = KAFKA_4) -> None:
        super().__init__()
        self._cluster = RealCluster(version, options=_OPTIONS)

    def __enter__(self) -> Self:
        self._cluster.start()
        self.bootstrap_servers = self._cluster.bootstrap_servers
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._cluster.stop()

    def _expire(self, topics: Mapping[str, int]) -> None:
        """Only while no producer runs: else a retry could find itself forgotten."""
        for milliseconds in ("1000", "86400000"):
            entry = ConfigEntry(_EXPIRATION, milliseconds, incremental_operation=AlterConfigOpType.SET)
            for node in self.nodes:
                resource = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=[entry])
                self._admin.incremental_alter_configs([resource])[resource].result(PATIENCE)
            if milliseconds == "1000":
                self._await(topics, lambda _, place, answer: answer.producers == {})

    def _move(self, topics: Mapping[str, int], draw: Random) -> None:
        self._cluster.move_leader(draw.choice(list(topics)), 0)

    def _pause(self, node: int) -> None:
        self._cluster.pause(node)
        self._mends.append(lambda: self._cluster.resume(node))

    def _stop(self, node: int) -> None:
        self._cluster.shut_down(node)
        self._mends.append(lambda: self._cluster.restart(node))

    def _kill(self, node: int) -> None:
        self._cluster.kill(node)
        self._mends.append(lambda: self._cluster.restart(node))

    def mend(self) -> None:
        """Nodes start beside each other: one alone has no quorum."""
        mends, self._mends = self._mends, []
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda mend: mend(), mends))
