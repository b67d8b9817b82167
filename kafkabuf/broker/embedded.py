"""`EmbeddedCluster`: a Kafka cluster in a daemon thread of this process."""

from __future__ import annotations

import asyncio
import os
import threading  # a greenlet where a program is patched, as its selector is  # noqa: TID251
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from kafkabuf.broker import apis, schemas
from kafkabuf.broker.acl_controls import AclControls
from kafkabuf.broker.client_metrics_controls import ClientMetricsControls
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.cluster.creation import create_topic
from kafkabuf.broker.cluster.upkeep import compact, tick
from kafkabuf.broker.configs.arguments import require_int, require_text
from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.configs.given import Value, subscriptions_of, texts_of, with_values
from kafkabuf.broker.controls import FaultControls, TrafficControls
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.guards.limits import ConnectionLimits
from kafkabuf.broker.guards.security import Security
from kafkabuf.broker.message_controls import MessageControls
from kafkabuf.broker.node_controls import NodeControls
from kafkabuf.broker.overview import OverviewControls
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.errors import ClosedError, ConfigError, IllegalStateError, KafkaError
from kafkabuf.process._time import monotonic

T = TypeVar("T")


class _RealTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose timers run also while a test of the user's has frozen `time`."""

    def time(self) -> float:
        return monotonic()


class EmbeddedCluster(
    FaultControls,
    MessageControls,
    NodeControls,
    OverviewControls,
    TrafficControls,
    AclControls,
    ClientMetricsControls,
):
    """Kafka nodes on loopback, in one background thread. Use it as a context manager, or call `start` and `stop`.

        with EmbeddedCluster(brokers=3) as cluster:
            producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)

    Topics, records and groups live in memory. They outlive the nodes, but not the cluster. With a `data_dir` they lie
    in that folder, in Kafka's format, and the next cluster with this folder goes on with them. Nodes are numbered from
    1. Any thread may call the methods: the cluster's thread runs them, and the caller waits for the result.

    Every replica of a partition has a log of its own. Followers fetch, acks=all waits for the ISR, and the controller
    elects another leader from the ISR when a leader dies. A topic that is created without a replication factor has
    `replication_factor` replicas of each partition. The default is 3, or the number of nodes if that is less (Kafka's
    default.replication.factor is 1, with which no topic outlives a node).
    `min_insync_replicas`, `replica_lag_time_max_ms`, `broker_session_timeout_ms`, `log_cleaner_backoff_ms` and
    `producer_id_expiration_check_interval_ms` are Kafka's settings. `racks` has the broker.rack of each node, which
    clients are told; replicas are placed without a look at it.

    `retention_bytes` is per partition. With `verify_records` a node reads every magic 2 batch record by record on
    arrival, as Kafka does; that costs a few microseconds for each batch. `transaction_version` is the level of Kafka's
    feature transaction.version: with 2 the clients that know KIP-890 use it, with 0 they do not. With a `ManualClock`,
    call `tick` after each move of the clock. `security` sets up TLS, SASL and ACLs. `limits` are the limits of
    connections and requests. `groups` are the settings of groups: time-outs, sizes and assignors. `request_log` is the
    number of requests that `requests` can return.

    With `client_metrics` the nodes take the metrics of clients (KIP-714), and tell the clients so: the method
    `client_metrics` returns what has arrived. A mapping has the subscriptions at the start, under Kafka's names:
    {"all": {"metrics": "*", "interval.ms": 100}}. True stands for no subscription: (Incremental)AlterConfigs and
    kafka-client-metrics.sh make and change subscriptions.

    `config` sets more, under the names that Kafka's server.properties has: {"log.retention.ms": 1000}. Raises
    ConfigError for a name that Kafka does not have, for a setting that the cluster does not follow, and for an argument
    of a wrong type or value.
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
        racks: Sequence[str | None] | None = None,
        verify_records: bool = False,
        transaction_version: int = 2,
        security: Security | None = None,
        limits: ConnectionLimits | None = None,
        groups: GroupSettings | None = None,
        request_log: int = 10_000,
        data_dir: str | PathLike[str] | None = None,
        replication_factor: int | None = None,
        min_insync_replicas: int = 1,
        replica_lag_time_max_ms: int = 30_000,
        broker_session_timeout_ms: int = 9_000,
        log_cleaner_backoff_ms: int = 15_000,
        producer_id_expiration_check_interval_ms: int = 600_000,
        client_metrics: bool | Mapping[str, Mapping[str, Value]] = False,
        config: Mapping[str, Value] | None = None,
        clock: Clock | None = None,
    ) -> None:
        require_int("brokers", brokers)  # `min` below needs it
        if data_dir is not None and not os.fspath(data_dir):
            raise ConfigError("data_dir is empty: name a folder, or None to keep everything in memory")
        arguments = ClusterConfig(
            brokers=brokers,
            auto_create_topics=auto_create_topics,
            default_partitions=default_partitions,
            retention_bytes=retention_bytes,
            max_message_bytes=max_message_bytes,
            host=host,
            ports=_ports(ports),
            racks=None if racks is None else tuple(racks),
            verify_records=verify_records,
            transaction_version=transaction_version,
            limits=ConnectionLimits() if limits is None else limits,
            security=Security() if security is None else security,
            groups=GroupSettings() if groups is None else groups,
            request_log=request_log,
            data_dir=Path(data_dir) if data_dir is not None else None,
            replication_factor=min(brokers, 3) if replication_factor is None else replication_factor,
            min_insync_replicas=min_insync_replicas,
            replica_lag_time_max_ms=replica_lag_time_max_ms,
            broker_session_timeout_ms=broker_session_timeout_ms,
            log_cleaner_backoff_ms=log_cleaner_backoff_ms,
            producer_id_expiration_check_interval_ms=producer_id_expiration_check_interval_ms,
            client_metrics=client_metrics is not False,
            client_subscriptions=subscriptions_of(client_metrics),
        )
        self._config = arguments if config is None else with_values(arguments, config)
        self._clock = clock or SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._cluster: Cluster | None = None
        self._pid = os.getpid()
        # The work that ends the cluster and its loop, once `stop` has handed it over.
        self._ending: Future[None] | None = None
        # Held while a call is handed to the loop: after the call that stops the loop comes no other. Held by `start`
        # too: of several threads one starts the cluster.
        self._handover = threading.RLock()

    # ---- lifecycle

    def start(self) -> Self:
        """Starts the cluster. Returns when every node listens.

        Raises OSError if a port is taken, ConfigError if the TLS files cannot be used, KafkaStorageError if the disk
        refuses, and ClosedError if the cluster is running or belongs to the parent process.
        """
        if self._thread is not None and self._in_forked_child():
            raise ClosedError("the cluster belongs to the parent process: make another cluster in the forked child")
        with self._handover:
            if self._thread is not None:
                raise ClosedError("the cluster is running; stop it before starting it again")
            cluster = self._start_thread()
        try:
            self._await(cluster.start())
        except BaseException:
            self.stop()
            raise
        return self

    def _start_thread(self) -> Cluster:
        schemas.load_early()
        apis.load()
        # Not the loop of the program's policy: the transports of uvloop are not those of asyncio.
        loop = _RealTimeLoop()
        try:
            cluster = Cluster(self._config, self._clock, loop)
        except BaseException:
            loop.close()
            raise
        thread = threading.Thread(target=self._run, args=(loop,), name="kafkabuf-broker", daemon=True)
        self._cluster, self._loop, self._thread, self._pid = cluster, loop, thread, os.getpid()
        try:
            thread.start()
        except BaseException:
            # After Ctrl-C in start() the thread runs all the same: it ends with its loop.
            self._cluster = self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            raise
        return cluster

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
        """Cuts all connections and ends the thread. A second call does nothing.

        After an interrupt, such as Ctrl-C, the cluster goes on stopping; a further call waits for its end. A later
        `start` has nothing but the contents of the data_dir. In a forked child `stop` does nothing: the parent's
        cluster goes on.
        """
        if self._thread is None or self._in_forked_child():
            return
        self._refuse_own_thread()
        with self._handover:
            thread, cluster, loop = self._thread, self._cluster, self._loop
            if thread is None:
                return
            if cluster is not None and loop is not None and not loop.is_closed():
                self._ending = asyncio.run_coroutine_threadsafe(_end(cluster, loop), loop)
            self._cluster = self._loop = None
            ending = self._ending
        thread.join()
        with self._handover:
            if self._thread is thread:
                self._thread = self._ending = None
        if ending is not None and ending.done() and not ending.cancelled():
            ending.result()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        if "_config" not in vars(self) or "_cluster" not in vars(self):  # the constructor has raised
            return f"<{type(self).__name__}, not made yet>"
        state = "stopped" if self._cluster is None else f"at {self.bootstrap_servers}"
        return f"{type(self).__name__}({self._config.brokers} brokers, {state})"

    # ---- nodes, topics, records

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
        configs: Mapping[str, Value] | None = None,
    ) -> None:
        """Creates a topic. A replication factor of -1 stands for the cluster's `replication_factor`.

        The broker acts on the configs of `LogConfig`, max.message.bytes, min.insync.replicas and
        unclean.leader.election.enable. Raises TopicExistsError, InvalidTopicError, InvalidPartitionsError,
        InvalidReplicationFactorError or InvalidConfigError, and ConfigError for an argument of a wrong type. One call
        may ask for more partitions than one request of a client, which may create 9,999.
        """
        require_text("name", name)
        require_int("partitions", partitions)
        require_int("replication_factor", replication_factor)
        texts = texts_of("configs", {} if configs is None else configs)
        self._await(create_topic(self._running(), name, partitions, replication_factor, texts))

    def topics(self) -> dict[str, int]:
        """{name: number of partitions}, without Kafka's internal topics"""
        return self._call(lambda c: {t.name: len(t.partitions) for t in c.catalogue.topics.values() if not t.internal})

    def end_offset(self, topic: str, partition: int) -> int:
        """The offset that the next record will get."""
        return self._ask(topic, partition, lambda p: p.log.end_offset)

    def end_offsets(self, topic: str) -> dict[int, int]:
        """{partition: the offset that its next record will get}"""
        return self._call(lambda c: {p.index: p.log.end_offset for p in c.catalogue.topic(topic).partitions})

    def log_start_offset(self, topic: str, partition: int) -> int:
        """The first offset that retention has left."""
        return self._ask(topic, partition, lambda p: p.log.log_start_offset)

    def records(self, topic: str, partition: int) -> list[bytes]:
        """The stored bytes, one item for each batch (magic 2) or message set (magic 0 and 1), in offset order."""
        return self._ask(topic, partition, lambda p: [bytes(batch.data) for batch in p.log.batches()])

    def leader(self, topic: str, partition: int) -> tuple[int, int]:
        """(node id, leader epoch); the node is -1 while the partition has no leader."""
        state = self._ask(topic, partition, lambda p: p.state)
        return state.leader, state.epoch

    def compact(self, topic: str, partition: int | None = None) -> int:
        """Compacts a topic, or one of its partitions, now. Returns how many records are gone.

        It does not wait for log.cleaner.backoff.ms and min.cleanable.dirty.ratio. It ends the active segment of each
        log first, so that the newest records are compacted too. Records younger than min.compaction.lag.ms, records of
        open transactions and tombstones that delete.retention.ms protects stay. Raises ConfigError unless the topic's
        cleanup.policy contains `compact`.
        """
        return self._await(compact(self._running(), topic, partition))

    def tick(self) -> None:
        """Runs the timers that are due after a move of the `ManualClock`, and drops the records that have expired.

        A compaction that is due has ended when `tick` returns.
        """
        self._await(tick(self._running()))

    # ---- calls into the cluster's thread

    def _running(self) -> Cluster:
        if self._cluster is None:
            raise ClosedError("the cluster is not running: call start(), or use it in a with statement")
        return self._cluster

    def _call(self, function: Callable[[Cluster], T]) -> T:
        cluster = self._running()

        async def call() -> T:
            return function(cluster)

        return self._await(call())

    def _in_forked_child(self) -> bool:
        """A forked child does not have the cluster's thread, and the fork may have happened in the middle of a change
        of the cluster's state."""
        return self._pid != os.getpid()

    def _refuse_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise IllegalStateError(
                "the cluster's thread runs this function and cannot wait for itself: call the cluster in another thread"
            )

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            if self._in_forked_child():
                raise ClosedError(
                    "the cluster was started before a fork and belongs to the parent process: use it there"
                )
            self._refuse_own_thread()
        except KafkaError:
            work.close()
            raise
        with self._handover:
            if self._loop is None:
                work.close()
                raise ClosedError("the cluster was stopped meanwhile")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClosedError("the cluster was stopped meanwhile") from None
        finally:
            # After Ctrl-C nobody waits for the result any more.
            future.cancel()


async def _end(cluster: Cluster, loop: asyncio.AbstractEventLoop) -> None:
    """Ends the cluster and its loop, whether or not a caller still waits."""
    try:
        await cluster.stop()
    finally:
        loop.stop()


def _ports(ports: Any) -> tuple[int, ...] | None:
    if ports is None:
        return None
    if isinstance(ports, str | bytes) or not isinstance(ports, Iterable):
        raise ConfigError(f"ports={ports!r}: a list with a port for each broker is needed, such as [9092]")
    return tuple(ports)
