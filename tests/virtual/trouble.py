"""Trouble for the cluster and its network, drawn from the seed, and the end of all trouble."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.replica.replication import Partition
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from tests.virtual.oracle import Archive
from tests.virtual.world import World

# Retriable errors by API, which a healthy cluster returns now and then.
_RETRIABLE = {
    PRODUCE: (3, 5, 6, 7, 19, 56, 74),
    METADATA: (3, 5),
    FIND_COORDINATOR: (14, 15),
    INIT_PRODUCER_ID: (14, 15, 16, 51),
    ADD_PARTITIONS_TO_TXN: (14, 15, 16, 51),
    ADD_OFFSETS_TO_TXN: (14, 15, 16, 51),
    TXN_OFFSET_COMMIT: (14, 15, 16),
    END_TXN: (14, 15, 16, 51),
}
# Errors of Produce although the records are in the log.
_AFTER_APPEND = (7, 20)
_TOO_LARGE = 10
_APIS = tuple(_RETRIABLE)


class Trouble:
    """Strikes the world. It may delete, recreate and grow the topics of these names."""

    def __init__(self, world: World, archive: Archive, topics: list[str]) -> None:
        self._world = world
        self._archive = archive
        self._topics = topics
        self._over = False

    def schedule(self, horizon: float, most: int) -> None:
        """Schedule up to `most` troubles in the next `horizon` seconds. Each may end by itself."""
        random = self._world.random
        for _ in range(random.randrange(most + 1)):
            self._world.at(self._world.now() + horizon * random.random(), self._strike)

    def _strike(self) -> None:
        if self._over:
            return
        random = self._world.random
        node = random.choice(self._world.nodes)
        strike = random.choice(
            (self._kill, self._kill, self._stop, self._pause, self._isolate, self._move, self._recreate, self._recreate,
             self._grow, self._fail, self._fail, self._lose, self._slow, self._cut, self._block, self._double,
             self._drop, self._throttle, self._doubt, self._refuse)
        )  # fmt: skip
        strike(node)
        if random.random() < 0.7:
            lasting = random.choice((0.05, 1.0, 8.0, 40.0, 120.0))
            self._world.at(self._world.now() + lasting, partial(self._end_by_itself, node))

    def _end_by_itself(self, node: Node) -> None:
        if not self._over:
            self._mend(node)

    def _note(self, event: str) -> None:
        self._world.note(event)

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def _kill(self, node: Node, *, silently: bool | None = None) -> None:
        if silently is None:
            silently = self._world.random.random() < 0.5
        self._note(f"kill node {node.node_id}{' silently' if silently else ''}")
        if silently:
            self._world.silent.add(node.node_id)
            for link in self._world.links_to(node):
                link.to_client.block(True)
        self._world.loop.create_task(node.kill())

    def _stop(self, node: Node) -> None:
        self._note(f"stop node {node.node_id}")
        self._world.loop.create_task(node.stop())

    def _pause(self, node: Node) -> None:
        self._note(f"pause node {node.node_id}")
        node.pause()

    def _isolate(self, node: Node) -> None:
        from_clients = self._world.random.random() < 0.5
        self._note(f"isolate node {node.node_id}, from clients too: {from_clients}")
        node.isolate(from_clients)

    def _mend(self, node: Node) -> None:
        self._note(f"mend node {node.node_id}")
        self._world.silent.discard(node.node_id)
        for link in self._world.links_to(node):
            link.to_client.block(False)
            link.to_node.block(False)
        if node.running and node.paused:
            node.resume()
        if node.isolated:
            node.heal()
        node.start()

    def _move(self, node: Node) -> None:
        topic = self._random_topic()
        if topic is not None:
            partition = self._world.random.choice(topic.partitions)
            self._note(f"move {topic.name}-{partition.index} to node {node.node_id}")
            self._world.cluster.controller.move(partition, node.node_id)

    # ---- topics ------------------------------------------------------------------------------------------------------

    def _random_topic(self) -> Any:
        existing = [name for name in self._topics if name in self._world.cluster.catalogue.topics]
        return self._world.cluster.catalogue.topics[self._world.random.choice(existing)] if existing else None

    def _recreate(self, node: Node) -> None:
        """Delete a topic, and create it again at once or later, with any number of partitions."""
        topic = self._random_topic()
        if topic is None:
            return
        self._delete(topic)
        later = self._world.random.choice((0.0, 0.0, 0.5, 20.0))
        self._world.at(self._world.now() + later, partial(self.create, topic.name))

    def _delete(self, topic: Topic) -> None:
        self._note(f"delete {topic.name}")
        self._archive.keep(topic)
        self._world.cluster.catalogue.delete_topic(topic.name)

    def create(self, name: str) -> None:
        cluster, random = self._world.cluster, self._world.random
        alive = cluster.placement.alive()
        if name in cluster.catalogue.topics or not alive:
            return
        partitions = random.choice((1, 2, 3, 4))
        self._note(f"create {name} with {partitions} partitions")
        cluster.catalogue.create_topic(name, partitions, random.randrange(1, len(alive) + 1),
                             {"min.insync.replicas": random.choice("12")})  # fmt: skip

    def _grow(self, node: Node) -> None:
        topic = self._random_topic()
        if topic is not None and len(topic.partitions) < 6 and self._world.cluster.placement.alive():
            self._note(f"grow {topic.name} to {len(topic.partitions) + 1}")
            self._world.cluster.catalogue.add_partitions(topic.name, len(topic.partitions) + 1)

    # ---- responses ---------------------------------------------------------------------------------------------------

    def _fail(self, node: Node) -> None:
        random = self._world.random
        api = random.choice((PRODUCE, *_APIS))
        code, times = random.choice(_RETRIABLE[api]), random.choice((1, 1, 3))
        self._note(f"fail {times} requests of API {api} with error {code}")
        self._world.cluster.faults.fail(api, code, times, None)

    def _doubt(self, node: Node) -> None:
        code = self._world.random.choice(_AFTER_APPEND)
        self._note(f"doubt a Produce request: append its records, and return error {code}")
        self._world.cluster.faults.fail(PRODUCE, code, 1, None, after=True)

    def _refuse(self, node: Node) -> None:
        """Refuse requests as too large: the producer splits their batches, down to single records, which fail."""
        times = self._world.random.choice((1, 1, 3))
        self._note(f"refuse {times} Produce requests as too large")
        self._world.cluster.faults.fail(PRODUCE, _TOO_LARGE, times, None)

    def _lose(self, node: Node) -> None:
        api = self._world.random.choice(_APIS)
        self._note(f"lose a response of API {api}, and the connection")
        self._world.cluster.faults.drop(api, 1)

    def _slow(self, node: Node) -> None:
        api, seconds = self._world.random.choice(_APIS), self._world.random.choice((0.05, 2.0, 40.0))
        self._note(f"slow API {api} by {seconds} s")
        self._world.cluster.faults.delay(api, seconds, self._world.random.choice((1, 4)))

    def _throttle(self, node: Node) -> None:
        api = self._world.random.choice((PRODUCE, METADATA))
        self._note(f"throttle API {api}")
        self._world.cluster.faults.throttle(api, self._world.random.choice((10, 3_000)), 2)

    # ---- connections -------------------------------------------------------------------------------------------------

    def _random_link(self, node: Node) -> Any:
        links = self._world.links_to(node) or self._world.links
        return self._world.random.choice(links) if links else None

    def _cut(self, node: Node) -> None:
        if (link := self._random_link(node)) is not None:
            self._note(f"cut a connection to node {link.node.node_id}")
            link.abort()

    def _block(self, node: Node) -> None:
        """Block a connection in one direction or in both."""
        if (link := self._random_link(node)) is not None:
            to_node, to_client = self._world.random.choice(((True, False), (False, True), (True, True)))
            self._note(f"block a connection to node {link.node.node_id}: to it {to_node}, from it {to_client}")
            link.to_node.block(to_node)
            link.to_client.block(to_client)

    def _double(self, node: Node) -> None:
        if (link := self._random_link(node)) is not None:
            self._note(f"double a response of node {link.node.node_id}")
            link.doubled += 1

    def _drop(self, node: Node) -> None:
        if (link := self._random_link(node)) is not None:
            self._note(f"drop a response of node {link.node.node_id}")
            link.dropped += 1

    # ---- the end -----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End all trouble. One node may stay dead."""
        self._note("well again: all trouble ends")
        self._over = True
        self._world.threads.end()
        faults: Callable[[], Any] = type(self._world.cluster.faults)
        self._world.cluster.faults = faults()
        for node in self._world.nodes:
            self._world.loop.settle()
            self._mend(node)
        self._world.loop.settle()
        for link in self._world.links:
            link.doubled = link.dropped = 0
            link.to_client.block(False)
            link.to_node.block(False)
        self._leave_one_dead()
        for name in self._topics:
            self.create(name)

    def freeze_a_node(self) -> bool:
        """Freeze a node for good, if the others can lead every partition without it. Returns whether it was frozen.

        No connection to the node's address ends, and none gets a response any more.
        """
        world, node = self._world, self._world.random.choice(self._world.nodes)
        if world.frozen or not all(self._goes_on_without(node, partition) for partition in self._partitions()):
            return False
        if world.random.random() < 0.5:
            self._pause(node)
        else:
            self._kill(node, silently=True)
        return True

    def _goes_on_without(self, node: Node, partition: Partition) -> bool:
        nodes = self._world.cluster.nodes
        others = [number for number in partition.isr if number != node.node_id and nodes[number].running]
        return len(others) >= partition.min_isr

    def _partitions(self) -> list[Partition]:
        return [partition for topic in self._world.cluster.catalogue.topics.values() for partition in topic.partitions]

    def recreate_and_refuse_once(self, name: str) -> None:
        """Replace a topic by one of the same size and replication factor, whose leader refuses the first batch."""
        topic = self._world.cluster.catalogue.topics[name]
        replicas = min(len(topic.partitions[0].replicas), len(self._world.cluster.placement.alive()))
        self._delete(topic)
        self._world.cluster.catalogue.create_topic(name, len(topic.partitions), replicas)
        self._world.cluster.faults.fail(PRODUCE, self._world.random.choice(_RETRIABLE[PRODUCE]), 1, None)

    def _leave_one_dead(self) -> None:
        """Kill a node, perhaps, and mend it again where the others cannot lead all partitions without it."""
        world, node = self._world, self._world.random.choice(self._world.nodes)
        if len(world.nodes) == 1 or world.random.random() < 0.5:
            return
        self._kill(node)
        world.loop.settle()
        leaders = [partition.replicas.get(partition.leader) for partition in self._partitions()]
        if any(leader is None or not leader.enough_in_sync for leader in leaders):
            self._mend(node)
