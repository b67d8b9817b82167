"""Methods of `EmbeddedCluster` for nodes and their replicas of partitions. Any thread may call them."""

from __future__ import annotations

from kafkabuf.broker.configs.arguments import require_seconds
from kafkabuf.broker.controls import Caller
from kafkabuf.errors import ConfigError


class NodeControls(Caller):
    """A method that gets a node's id raises ConfigError if the cluster has no such node."""

    def in_sync(self, topic: str, partition: int) -> tuple[int, ...]:
        """The nodes whose replicas are in sync (the ISR)."""
        return self._ask(topic, partition, lambda p: p.isr)

    def high_watermark(self, topic: str, partition: int) -> int:
        """Consumers may read the records before this offset: all replicas in sync have them."""
        return self._ask(topic, partition, lambda p: p.log.high_watermark)

    def replica_end_offsets(self, topic: str, partition: int) -> dict[int, int]:
        """{node id: the end offset of the log of its replica}"""
        return self._ask(
            topic, partition, lambda p: {node_id: replica.log.end_offset for node_id, replica in p.replicas.items()}
        )

    # ---- faults on purpose

    def stop_node(self, node_id: int) -> None:
        """Stops a node as an orderly shutdown does: other nodes lead its partitions before its connections are cut."""
        self._await(self._running().node(node_id).stop())

    def kill_node(self, node_id: int) -> None:
        """Kills a node: its connections are cut in the middle of requests, and other nodes lead its partitions."""
        self._await(self._running().node(node_id).kill())

    def start_node(self, node_id: int) -> None:
        """Brings a node back on its old port, with its old logs.

        The node cuts off the records that the leaders do not have, and leads only partitions without a leader.
        """
        self._call(lambda c: c.node(node_id).start())

    def pause_node(self, node_id: int) -> None:
        """Makes a node stand still: it takes connections, but answers, fetches and notices nothing.

        After `broker_session_timeout_ms` other nodes lead its partitions.
        """
        self._call(lambda c: c.node(node_id).pause())

    def resume_node(self, node_id: int) -> None:
        """Lets a paused node go on. The node then answers the requests that came meanwhile."""
        self._call(lambda c: c.node(node_id).resume())

    def isolate_node(self, node_id: int, *, from_clients: bool = False) -> None:
        """Cuts a node off from the other nodes and the controller.

        The node goes on leading its partitions, as far as it knows. After `broker_session_timeout_ms` other nodes lead
        the partitions, too. With `from_clients` the node's clients do not hear from the node either.
        """
        self._call(lambda c: c.node(node_id).isolate(from_clients))

    def heal_node(self, node_id: int) -> None:
        """Ends an isolation: the node learns the changes that it has missed, and follows the leaders."""
        self._call(lambda c: c.node(node_id).heal())

    def set_replica_lag(self, node_id: int, seconds: float) -> None:
        """From now on delays every response that a node gets from the leaders that it follows.

        Raises ConfigError if `seconds` is negative.
        """
        require_seconds("seconds", seconds)
        self._call(lambda c: c.node(node_id).lag_by(seconds))

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Makes a node the leader. The leader epoch rises, and the old leader answers its parked requests.

        Raises ConfigError unless the node is alive and has a replica that is in sync.
        """
        if not self._call(lambda c: c.controller.move(c.catalogue.topic(topic).partition(partition), node_id)):
            raise ConfigError(
                f"node {node_id} cannot lead {topic}-{partition}: the node is dead, or has no replica that is in sync"
            )

    def elect_preferred(self, topic: str, partition: int) -> bool:
        """Makes the first of a partition's replicas the leader. Returns whether that replica leads.

        The replica must be in sync, and its node alive.
        """
        return self._call(lambda c: c.controller.prefer(c.catalogue.topic(topic).partition(partition)))
