"""The life of a cluster: it makes its nodes and everything that they share, starts them and stops them.

One event loop serves all nodes. Everything here belongs to that loop; other threads use `EmbeddedCluster`. The
catalogue has the topics (catalogue.py), placement chooses nodes (placement.py), the controller elects leaders
(controller.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.configs.nodes import NodeConfigs
from kafkabuf.broker.configs.resources import GroupConfigs, MetricsConfigs
from kafkabuf.broker.front.listener import Listener
from kafkabuf.broker.groups.groups import OFFSETS_TOPIC, Groups
from kafkabuf.broker.guards.authorizer import Authorizer
from kafkabuf.broker.guards.faults import Faults
from kafkabuf.broker.guards.log_lines import LimitedWarnings, guard_log
from kafkabuf.broker.guards.quotas import Quotas
from kafkabuf.broker.guards.request_log import RequestLog
from kafkabuf.broker.guards.security import Mechanisms
from kafkabuf.broker.internal.topics import InternalTopics
from kafkabuf.broker.log.upkeep.manager import LogManager
from kafkabuf.broker.nodes.catalogue import Catalogue
from kafkabuf.broker.nodes.controller import Controller
from kafkabuf.broker.nodes.memory import ClusterMemory
from kafkabuf.broker.nodes.node import Listening, Node
from kafkabuf.broker.nodes.placement import Placement
from kafkabuf.broker.records.control import Marker
from kafkabuf.broker.replica.state import NO_LEADER
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.broker.telemetry.arrived import Arrived
from kafkabuf.broker.transactions.coordinator import RETRY_SECONDS, Transaction, Transactions
from kafkabuf.broker.waiting.slices import Slices, Work
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.errors import ConfigError, KafkaError, KafkaStorageError

log = logging.getLogger("kafkabuf.broker")
T = TypeVar("T")

# The kinds of settings in the journal.
_NODES, _GROUPS, _METRICS = "nodes", "groups", "metrics"


class Cluster:
    """`listen` opens a node's socket. Tests that call the handlers directly pass a `listen` without a socket."""

    def __init__(
        self,
        config: ClusterConfig,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        listen: Callable[[Node], Listening] = Listener,
    ) -> None:
        self.config = config
        self.cluster_id = "kafkabuf-embedded"
        self.clock = clock
        self.loop = loop
        self.listen = listen
        # The time limits of connections run in real time, whatever the cluster's clock is.
        self.network_clock: Clock = SystemClock()
        self.timer = Timer(loop, clock)
        self.slices = Slices(loop, clock)
        self.faults = Faults()
        self.quotas = Quotas(clock)
        self.request_log = RequestLog(config.request_log)
        guard_log()
        self.warnings = LimitedWarnings(self.timer)
        self.tls = config.security.ssl_context()
        self.mechanisms = Mechanisms(config.security, clock) if config.security.sasl_mechanisms else None
        backoff = config.log_cleaner_backoff_ms / 1000
        self.logs = LogManager(
            self.timer,
            config.data_dir,
            backoff,
            self._in_slices,
            config.producer_id_expiration_check_interval_ms / 1000,
            lambda node_id: self.node_configs.producer_expiration_ms(node_id),
        )
        self.memory = ClusterMemory(config.data_dir)
        self.node_configs = NodeConfigs(config, partial(self.memory.keep_configs, _NODES), self._change_defaults)
        self.group_configs = GroupConfigs(self.node_configs, partial(self.memory.keep_configs, _GROUPS))
        self.metrics_configs = MetricsConfigs(partial(self.memory.keep_configs, _METRICS))
        self.client_metrics = Arrived()
        self.authorizer = self._new_authorizer()
        self.groups = Groups(self.timer, config.groups, self._topics, self._keep_group, self.group_configs.of)
        self.transactions = Transactions(
            self.timer,
            self._in_slices,
            self.memory.next_producer_id,
            self.write_marker,
            config.transaction_version,
            self._keep_transaction,
            config.transaction_max_timeout_ms,
        )
        self.nodes: dict[int, Node] = {}
        self.placement = Placement(config, self.nodes)
        self.controller = Controller(self)
        self.catalogue = Catalogue(
            config,
            self.nodes,
            self.placement,
            self.controller,
            self.logs,
            self.memory,
            self.groups,
            self.node_configs.topic_defaults,
        )
        self.internal_topics = InternalTopics(
            clock,
            self.nodes,
            self.placement,
            self.catalogue,
            self.logs.cleaner,
            self.groups,
            self.transactions,
            config.transaction_version,
        )
        self.groups.changed, self.groups.deleted = (
            self.internal_topics.group_changed,
            self.internal_topics.group_deleted,
        )
        for node_id, port in enumerate(config.ports or (0,) * config.brokers, 1):
            self.nodes[node_id] = Node(self, node_id, config.host, port)

    def _topics(self) -> Mapping[str, Topic]:
        return self.catalogue.topics

    def _keep_group(self, key: tuple[str | int, ...], value: Any) -> None:
        self.memory.keep_group(key, value)
        self.internal_topics.offset_changed(key, value)

    def _keep_transaction(self, transaction: Transaction) -> None:
        self.memory.keep_transaction(transaction)
        self.internal_topics.transaction_changed(transaction)

    def _new_authorizer(self) -> Authorizer | None:
        security = self.config.security
        if not security.authorizer:
            return None
        return Authorizer(security.super_users, security.allow_everyone_if_no_acl_found, self.memory.keep_acl)

    async def start(self) -> None:
        self.logs.start()
        self._restore()
        for name, configs in self.config.client_subscriptions.items():
            self.metrics_configs.replace(name, configs, dry_run=False)
        for node in self.nodes.values():
            node.listen()
        self.controller.admit(*self.nodes.values())

    def _restore(self) -> None:
        """Takes over the topics, offsets and transactions of the last run from the data folder."""
        self.memory.open()
        with self.memory.taking_over():
            self._take_over()
        self.logs.put_strays_aside()

    def _take_over(self) -> None:
        self.cluster_id = self.memory.cluster_id(self.cluster_id)
        restore = {
            _NODES: self.node_configs.restore,
            _GROUPS: self.group_configs.restore,
            _METRICS: self.metrics_configs.restore,
        }
        for kind, name, configs in self.memory.configs():
            restore[kind](name, configs)
        for topic in self.memory.topics():
            self.catalogue.restore_topic(topic)
        for group, key, value in self.memory.groups():
            self.groups.restore(group, key, value)
        self.groups.restored()
        for transaction in self.memory.transactions():
            self.transactions.restore(transaction)
        if self.authorizer is not None:
            for acl in self.memory.acls():
                self.authorizer.restore(acl)

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.close()
        self.slices.close()
        self.warnings.report()
        self.memory.close()
        self.logs.close()
        self.timer.close()

    def _change_defaults(self) -> None:
        self._in_slices(self.catalogue.changing_defaults())

    def _in_slices(self, work: Work[T]) -> T | asyncio.Future[T]:
        """Work of the cluster's own, which no client can end."""
        return self.slices.run(work, goes_on=True)

    def node(self, node_id: int) -> Node:
        """Raises ConfigError if there is no such node."""
        if node_id not in self.nodes:
            raise ConfigError(f"there is no node {node_id!r}: the cluster has nodes {', '.join(map(str, self.nodes))}")
        return self.nodes[node_id]

    def cut_connections(self, node_id: int | None) -> int:
        """Cuts the connections to a node (None: to every node). Returns how many there were."""
        nodes = self.nodes.values() if node_id is None else (self.node(node_id),)
        cut = [connection for node in nodes for connection in node.connections]
        for connection in cut:
            connection.abort()
        return len(cut)

    def refresh_fetchers(self) -> None:
        """Call this when a node has lost or regained its connection to the other nodes."""
        for node in self.nodes.values():
            node.fetchers.refresh()

    def write_marker(self, topic_partition: tuple[str, int], marker: Marker) -> Work[bool]:
        """Ends a transaction in one partition, in steps.

        Returns False if the coordinator must try again: no leader can be reached, or the leader's disk refuses the
        control record. A partition that does not exist any more needs no control record. Neither does a partition to
        which a later producer epoch has written.
        """
        name, index = topic_partition
        try:
            if name == OFFSETS_TOPIC:
                yield from self.groups.end_transaction(marker.producer_id, marker.committed)
                return True
            partition = self.catalogue.topic(name).partition(index)
            if partition.leader == NO_LEADER or not self.nodes[partition.leader].connected:
                return False
            partition.replicas[partition.leader].write_marker(marker, self.clock.time_ms())
        except KafkaStorageError as error:
            log.error("the control record for %s-%d waits for the disk: %s", name, index, error)
            self.timer.after(RETRY_SECONDS, self.transactions.write_held_markers)
            return False
        except KafkaError as error:
            log.info("no control record for %s-%d: %s", name, index, error)
        return True
