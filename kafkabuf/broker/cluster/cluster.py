"""The life of a cluster: it makes its nodes and everything that they share, starts them and stops them.

One event loop serves all nodes. Everything here belongs to that loop; other threads use `EmbeddedCluster`. The
catalogue has the topics (catalogue.py), placement chooses nodes (placement.py), the controller elects leaders
(controller.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kafkabuf.broker.cluster.catalogue import Catalogue
from kafkabuf.broker.cluster.cluster_config import ClusterConfig
from kafkabuf.broker.cluster.controller import Controller
from kafkabuf.broker.cluster.memory import ClusterMemory
from kafkabuf.broker.cluster.node import Listening, Node
from kafkabuf.broker.cluster.placement import Placement
from kafkabuf.broker.front.listener import Listener
from kafkabuf.broker.groups.groups import OFFSETS_TOPIC, Groups
from kafkabuf.broker.guards.faults import Faults
from kafkabuf.broker.guards.quotas import Quotas
from kafkabuf.broker.guards.request_log import RequestLog
from kafkabuf.broker.guards.security import Mechanisms
from kafkabuf.broker.log.control import Marker
from kafkabuf.broker.log.manager import LogManager
from kafkabuf.broker.replica.state import NO_LEADER
from kafkabuf.broker.transactions import Transactions
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.errors import KafkaError, KafkaStorageError

log = logging.getLogger("kafkabuf.broker")

# After this pause the cluster tries again to write a control record that the disk has refused.
_MARKER_RETRY_SECONDS = 1.0


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
        self.faults = Faults()
        self.quotas = Quotas(clock)
        self.request_log = RequestLog(config.request_log)
        self.tls = config.security.ssl_context()
        self.mechanisms = Mechanisms(config.security, clock) if config.security.sasl_mechanisms else None
        self.logs = LogManager(self.timer, config.data_dir)
        self.memory = ClusterMemory(config.data_dir)
        self.groups = Groups(self.timer, self.memory.keep_offset)
        self.transactions = Transactions(
            self.timer,
            self.memory.next_producer_id,
            self.write_marker,
            config.transaction_version,
            self.memory.keep_transaction,
        )
        self.nodes: dict[int, Node] = {}
        self.placement = Placement(config, self.nodes)
        self.controller = Controller(self)
        self.catalogue = Catalogue(
            config, self.nodes, self.placement, self.controller, self.logs, self.memory, self.groups
        )
        for node_id, port in enumerate(config.ports or (0,) * config.brokers, 1):
            self.nodes[node_id] = Node(self, node_id, config.host, port)

    async def start(self) -> None:
        self.logs.start()
        self._restore()
        for node in self.nodes.values():
            node.listen()
        self.controller.admit(*self.nodes.values())

    def _restore(self) -> None:
        """Takes over the topics, offsets and transactions of the last run from the data folder."""
        self.memory.open()
        self.cluster_id = self.memory.cluster_id(self.cluster_id)
        for topic in self.memory.topics():
            self.catalogue.restore_topic(topic)
        for group, key, value in self.memory.offsets():
            self.groups.get(group).offsets.restore(key, value)
        for transaction in self.memory.transactions():
            self.transactions.restore(transaction)
        self.logs.put_strays_aside()

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.close()
        self.memory.close()
        self.logs.close()
        self.timer.close()

    def cut_connections(self, node_id: int | None) -> int:
        """Cuts the connections to a node (None: to every node). Returns how many there were."""
        nodes = self.nodes.values() if node_id is None else (self.nodes[node_id],)
        cut = [connection for node in nodes for connection in node.connections]
        for connection in cut:
            connection.abort()
        return len(cut)

    def refresh_fetchers(self) -> None:
        """Call this when a node has lost or regained its connection to the other nodes."""
        for node in self.nodes.values():
            node.fetchers.refresh()

    def write_marker(self, topic_partition: tuple[str, int], marker: Marker) -> bool:
        """Ends a transaction in one partition.

        Returns False if the coordinator must try again: no leader can be reached, or the leader's disk refuses the
        control record. A partition that does not exist any more needs no control record, nor does a partition to which
        a later producer epoch has written.
        """
        name, index = topic_partition
        if name == OFFSETS_TOPIC:
            self.groups.end_transaction(marker.producer_id, marker.committed)
            return True
        try:
            partition = self.catalogue.topic(name).partition(index)
            if partition.leader == NO_LEADER or not self.nodes[partition.leader].connected:
                return False
            partition.copies[partition.leader].write_marker(marker, self.clock.time_ms())
        except KafkaStorageError as error:
            log.error("the control record for %s-%d waits for the disk: %s", name, index, error)
            self.timer.after(_MARKER_RETRY_SECONDS, self.transactions.write_held_markers)
            return False
        except KafkaError as error:
            log.info("no control record for %s-%d: %s", name, index, error)
        return True
