"""Clusters for kill tests, and what kills their nodes while a query runs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from kafkabuf.broker import EmbeddedCluster
from rigs.real_cluster import RealCluster
from rigs.real_kafka import KAFKA_3_9, KAFKA_4, RealKafka

# Three nodes each: two must have a record, so the death of one loses none.
THREE_EMBEDDED, THREE_REAL = "embedded-3", f"{KAFKA_4}-3"
BROKERS = ("embedded", KAFKA_4, KAFKA_3_9)
CLUSTERS = (THREE_EMBEDDED, THREE_REAL)
NODES = (1, 2, 3)


class Broker(Protocol):
    """A running cluster, embedded or real."""

    @property
    def bootstrap_servers(self) -> str: ...

    def create_topic(self, name: str, partitions: int = 1) -> None: ...


@dataclass(frozen=True)
class Nodes:
    """How to kill a node of a cluster, and how to start it again."""

    kill: Callable[[int], None]
    start: Callable[[int], None]


@contextmanager
def running(name: str) -> Iterator[tuple[Broker, Nodes | None]]:
    """A cluster, and its nodes if it outlives one of them."""
    if name == "embedded":
        with EmbeddedCluster(brokers=2) as embedded:
            yield embedded, None
    elif name == THREE_EMBEDDED:
        with EmbeddedCluster(brokers=3, min_insync_replicas=2, broker_session_timeout_ms=3_000) as embedded:
            yield embedded, Nodes(embedded.kill_node, embedded.start_node)
    elif name == THREE_REAL:
        with RealCluster(KAFKA_4) as cluster:
            yield cluster, Nodes(cluster.kill, cluster.restart)
    else:
        with RealKafka(name, heap="1g") as kafka:
            yield kafka, None


class NodeKiller:
    """Kills `kills` nodes, one after the other, while a query runs. Each starts again before the next one dies.

    A context manager with a thread of its own, because readers wait for a node that is down. At its end all nodes run.
    """

    def __init__(self, nodes: Nodes, kills: int, seed: int, up: float = 4.0, down: float = 3.0) -> None:
        self._nodes, self._planned, self._rng = nodes, kills, random.Random(seed)
        self._up, self._down = up, down
        """Seconds for which all nodes are up, and for which one is down."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._kill_all)
        self.kills = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _kill_all(self) -> None:
        while self.kills < self._planned and not self._ended.wait(self._up):
            node = self._rng.choice(NODES)
            self._nodes.kill(node)
            self.kills += 1
            self._ended.wait(self._down)
            self._nodes.start(node)
