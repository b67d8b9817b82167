"""A part of `EmbeddedCluster`'s face: its nodes, their copies of partitions, and trouble with them. Any thread may call
these."""

from __future__ import annotations

from kafkabuf.broker.controls import Caller
from kafkabuf.errors import ConfigError


class NodeControls(Caller):
    def in_sync(self, topic: str, partition: int) -> tuple[int, ...]:
        """The nodes whose copies are in sync (the ISR)."""
        return self._call(lambda c: c.topic(topic).partition(partition).isr)

    def high_watermark(self, topic: str, partition: int) -> int:
        """The offset up to which consumers may read: all copies in sync have what lies before."""
        return self._call(lambda c: c.topic(topic).partition(partition).log.high_watermark)

    def replica_end_offsets(self, topic: str, partition: int) -> dict[int, int]:
        """{node id: where its copy's log ends}"""
        return self._call(
            lambda c: {node: one.log.end_offset for node, one in c.topic(topic).partition(partition).copies.items()}
        )

    # ---- trouble, made on purpose

    def stop_node(self, node_id: int) -> None:
        """Stops a node as an orderly shutdown does: others lead its partitions before its connections are cut."""
        self._await(self._running().nodes[node_id].stop())

    def kill_node(self, node_id: int) -> None:
        """Kills a node: its connections are cut, whatever was under way; others lead its partitions from then on."""
        self._await(self._running().nodes[node_id].kill())

    def start_node(self, node_id: int) -> None:
        """Brings a node back on its old port, with its old logs. It cuts off what the leaders do not have, and leads
        only what nobody leads."""
        self._call(lambda c: c.nodes[node_id].start())

    def pause_node(self, node_id: int) -> None:
        """Has a node stand still: connections are taken, nothing is answered, fetched or noticed. After
        `broker_session_timeout_ms` others lead its partitions."""
        self._call(lambda c: c.nodes[node_id].pause())

    def resume_node(self, node_id: int) -> None:
        """Lets a paused node go on; what came meanwhile is answered then."""
        self._call(lambda c: c.nodes[node_id].resume())

    def isolate_node(self, node_id: int, *, from_clients: bool = False) -> None:
        """Cuts a node off from the other nodes and the controller. What it leads it goes on leading, as far as it
        knows; after `broker_session_timeout_ms` others lead it, too. `from_clients`: these hear nothing from it."""
        self._call(lambda c: c.nodes[node_id].isolate(from_clients))

    def heal_node(self, node_id: int) -> None:
        """Ends an isolation: the node learns what it has missed, and follows."""
        self._call(lambda c: c.nodes[node_id].heal())

    def set_replica_lag(self, node_id: int, seconds: float) -> None:
        """From now on whatever a node fetches from leaders comes late by so much. ConfigError below 0."""
        if seconds < 0:
            raise ConfigError(f"a lag of {seconds} s: 0 and above are allowed")
        self._call(lambda c: c.nodes[node_id].lag_by(seconds))

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Makes a node the leader; the epoch rises, parked requests to the old one are answered. ConfigError unless the
        node is alive and its copy in sync."""
        if not self._call(lambda c: c.controller.move(c.topic(topic).partition(partition), node_id)):
            raise ConfigError(
                f"node {node_id} cannot lead {topic}-{partition}: its copy is not in sync, or it has none"
            )

    def elect_preferred(self, topic: str, partition: int) -> bool:
        """Makes the first of a partition's replicas its leader. Whether it is: it has to be alive and in sync."""
        return self._call(lambda c: c.controller.prefer(c.topic(topic).partition(partition)))
