"""`EmbeddedCluster`: a Kafka cluster in a daemon thread of this process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from kafkabuf.broker import apis
from kafkabuf.broker.cluster.cluster import Cluster, ClusterConfig
from kafkabuf.broker.controls import FaultControls, TrafficControls
from kafkabuf.broker.guards.limits import ConnectionLimits
from kafkabuf.broker.guards.security import Security
from kafkabuf.broker.node_controls import NodeControls
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.errors import ClosedError, ConfigError

T = TypeVar("T")


class EmbeddedCluster(FaultControls, NodeControls, TrafficControls):
    """N Kafka nodes on loopback, in one background thread. A context manager; or call `start` and `stop`.

        with EmbeddedCluster(brokers=3) as cluster:
            producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)

    Topics, records and groups live in memory and outlive the nodes, not the cluster; with a `data_dir` they lie in that
    folder, in Kafka's format, and the next cluster to be given it goes on with them. Nodes are numbered from 1. Methods
    may be called from any thread; they run in the cluster's own and return when done.

    Every copy of a partition has a log of its own; followers fetch, acks=all waits for the ISR, and a leader's death
    has another of the ISR elected. A topic has `replication_factor` copies of each partition if nobody says otherwise:
    3, or as many as there are nodes (Kafka's default.replication.factor is 1, with which no topic outlives a node).
    `min_insync_replicas`, `replica_lag_time_max_ms`, `broker_session_timeout_ms` are Kafka's settings.

    `retention_bytes` is per partition. `verify_records` has every magic 2 batch read record by record on arrival, as
    Kafka does: a few microseconds each. `transaction_version` is Kafka's feature transaction.version: with 2 clients
    that know of KIP-890 do their transactions so, with 0 as of old. With a `ManualClock`, call `tick` after moving it.
    `security` is for TLS and SASL, `limits` for what clients may ask of a node; `request_log` is how many requests
    `requests` looks back on.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        auto_create_topics: bool = True,
        default_partitions: int = 1,
        retention_bytes: int | None = None,
        max_message_bytes: int = 1_048_588,
        host: str = "127.0.0.1",
        ports: Sequence[int] | None = None,
        verify_records: bool = False,
        transaction_version: int = 2,
        security: Security | None = None,
        limits: ConnectionLimits | None = None,
        request_log: int = 10_000,
        data_dir: str | PathLike[str] | None = None,
        replication_factor: int | None = None,
        min_insync_replicas: int = 1,
        replica_lag_time_max_ms: int = 30_000,
        broker_session_timeout_ms: int = 9_000,
        clock: Clock | None = None,
    ) -> None:
        if brokers < 1:
            raise ConfigError(f"brokers={brokers}: a cluster has at least one node")
        if ports is not None and len(ports) != brokers:
            raise ConfigError(f"{len(ports)} ports for {brokers} brokers: give one for each, or none")
        if replication_factor is not None and not 1 <= replication_factor <= brokers:
            raise ConfigError(f"replication_factor={replication_factor}: 1 to {brokers}, the number of brokers")
        if min_insync_replicas < 1:
            raise ConfigError(f"min_insync_replicas={min_insync_replicas}: at least 1 is needed")
        if transaction_version not in (0, 1, 2):
            raise ConfigError(f"transaction_version={transaction_version}: 0, 1 and 2 are known")
        if request_log < 0:
            raise ConfigError(f"request_log={request_log}: 0 and above are allowed")
        self._config = ClusterConfig(
            brokers,
            auto_create_topics,
            default_partitions,
            retention_bytes,
            max_message_bytes,
            host,
            tuple(ports) if ports is not None else None,
            verify_records,
            transaction_version,
            limits or ConnectionLimits(),
            security or Security(),
            request_log,
            Path(data_dir) if data_dir is not None else None,
            replication_factor=replication_factor or min(brokers, 3),
            min_insync_replicas=min_insync_replicas,
            replica_lag_time_max_ms=replica_lag_time_max_ms,
            broker_session_timeout_ms=broker_session_timeout_ms,
        )
        self._clock = clock or SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._cluster: Cluster | None = None
        self._pid = os.getpid()

    # ---- lifecycle

    def start(self) -> Self:
        """Returns when every node listens. OSError if a port is taken, ConfigError if files of TLS will not do,
        KafkaStorageError if the disk refuses."""
        if self._thread is not None:
            raise ClosedError(
                "the cluster is the parent process's: make another in a forked child"
                if self._is_parents()
                else "the cluster is running; stop it before starting it again"
            )
        apis.load()
        loop = asyncio.new_event_loop()
        try:
            self._cluster = Cluster(self._config, self._clock, loop)
        except BaseException:
            loop.close()
            raise
        thread = threading.Thread(target=self._run, args=(loop,), name="kafkabuf-broker", daemon=True)
        self._loop, self._thread, self._pid = loop, thread, os.getpid()
        thread.start()
        try:
            self._await(self._cluster.start())
        except BaseException:
            self.stop()
            raise
        return self

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            for task in (tasks := asyncio.all_tasks(loop)):
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.close()

    def stop(self) -> None:
        """Cuts all connections and ends the thread. Stopping twice is fine; `start` begins anew, with nothing kept but
        what is in the data_dir. In a forked child it does nothing: the cluster is the parent's, and goes on."""
        if self._thread is None or self._loop is None or self._cluster is None or self._is_parents():
            return
        self._await(self._cluster.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._thread = self._loop = self._cluster = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- what is there

    @property
    def bootstrap_servers(self) -> str:
        """host:port of every node, comma-separated, whether it is alive or not."""
        return ",".join(f"{node.host}:{node.port}" for node in self._running().nodes.values())

    def nodes(self) -> dict[int, tuple[str, int, bool]]:
        """{node id: (host, port, alive)}"""
        return self._call(lambda c: {node.node_id: (node.host, node.port, node.alive) for node in c.nodes.values()})

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """TopicExistsError, InvalidTopicError, InvalidPartitionsError, InvalidReplicationFactorError. A replication
        factor of -1 is the cluster's. The configs that matter are those of `LogConfig`, max.message.bytes,
        min.insync.replicas and unclean.leader.election.enable."""
        self._call(lambda c: c.create_topic(name, partitions, replication_factor, configs))

    def topics(self) -> dict[str, int]:
        """{name: number of partitions}"""
        return self._call(lambda c: {topic.name: len(topic.partitions) for topic in c.topics.values()})

    def end_offset(self, topic: str, partition: int) -> int:
        """The offset that the next record will get."""
        return self._call(lambda c: c.topic(topic).partition(partition).log.end_offset)

    def end_offsets(self, topic: str) -> dict[int, int]:
        return self._call(lambda c: {one.index: one.log.end_offset for one in c.topic(topic).partitions})

    def log_start_offset(self, topic: str, partition: int) -> int:
        """The first offset that retention has left."""
        return self._call(lambda c: c.topic(topic).partition(partition).log.log_start_offset)

    def records(self, topic: str, partition: int) -> list[bytes]:
        """The stored bytes, one item for each batch (magic 2) or message set (magic 0 and 1), in offset order."""
        return self._call(lambda c: [bytes(one.data) for one in c.topic(topic).partition(partition).log.batches()])

    def leader(self, topic: str, partition: int) -> tuple[int, int]:
        """(node id, leader epoch); the node is -1 when none leads."""
        found = self._call(lambda c: c.topic(topic).partition(partition).state)
        return found.leader, found.epoch

    def tick(self) -> None:
        """Runs what a moved `ManualClock` has made due."""
        self._call(lambda c: c.timer.advance())

    # ---- into the cluster's thread

    def _running(self) -> Cluster:
        if self._cluster is None:
            raise ClosedError("the cluster is not running: call start(), or use it in a with statement")
        return self._cluster

    def _call(self, function: Callable[[Cluster], T]) -> T:
        cluster = self._running()

        async def call() -> T:
            return function(cluster)

        return self._await(call())

    def _is_parents(self) -> bool:
        """In a forked child: the cluster's thread is not here, and what it was doing at the fork is half done."""
        return self._pid != os.getpid()

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        if self._is_parents():
            work.close()
            raise ClosedError("the cluster was started before a fork and belongs to the parent process: ask it there")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
