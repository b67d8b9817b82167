"""What may happen to the cluster and its network, drawn from the seed; and the end of all of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kafkabuf.broker.cluster.node import Node
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

# Errors that pass, by API: what a healthy cluster answers now and then.
_PASSING = {
    PRODUCE: (3, 5, 6, 7, 19, 56, 74),
    METADATA: (3, 5),
    FIND_COORDINATOR: (14, 15),
    INIT_PRODUCER_ID: (14, 15, 16, 51),
    ADD_PARTITIONS_TO_TXN: (14, 15, 16, 51),
    ADD_OFFSETS_TO_TXN: (14, 15, 16, 51),
    TXN_OFFSET_COMMIT: (14, 15, 16),
    END_TXN: (14, 15, 16, 51),
}
# Those that are told though the records are in the log.
_AFTER = (7, 20)
_APIS = tuple(_PASSING)


class Trouble:
    """`topics` are the names that may be deleted, made again and grow."""

    def __init__(self, world: World, archive: Archive, topics: list[str]) -> None:
        self._world = world
        self._archive = archive
        self._topics = topics
        self._over = False

    def schedule(self, horizon: float, most: int) -> None:
        """Up to so many troubles in the seconds to come, and for each a chance that it ends by itself."""
        random = self._world.random
        for _ in range(random.randrange(most + 1)):
            self._world.at(self._world.now() + horizon * random.random(), self._strike)

    def _strike(self) -> None:
        if self._over:
            return
        random = self._world.random
        node = random.choice(self._world.nodes)
        strike = random.choice(
            (self._die, self._die, self._stop, self._pause, self._isolate, self._move, self._remake, self._remake,
             self._grow, self._fail, self._fail, self._lose, self._slow, self._cut, self._block, self._twice,
             self._never, self._throttle, self._doubt)
        )  # fmt: skip
        strike(node)
        if random.random() < 0.7:
            lasting = random.choice((0.05, 1.0, 8.0, 40.0, 120.0))
            self._world.at(self._world.now() + lasting, partial(self._end_by_itself, node))

    def _end_by_itself(self, node: Node) -> None:
        if not self._over:
            self._mend(node)

    def _note(self, what: str) -> None:
        self._world.note(what)

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def _die(self, node: Node) -> None:
        silently = self._world.random.random() < 0.5
        self._note(f"kill node {node.node_id}{' without a word' if silently else ''}")
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
        topic = self._a_topic()
        if topic is not None:
            partition = self._world.random.choice(topic.partitions)
            self._note(f"move {topic.name}-{partition.index} to node {node.node_id}")
            self._world.cluster.controller.move(partition, node.node_id)

    # ---- topics ------------------------------------------------------------------------------------------------------

    def _a_topic(self) -> Any:
        there = [name for name in self._topics if name in self._world.cluster.catalogue.topics]
        return self._world.cluster.catalogue.topics[self._world.random.choice(there)] if there else None

    def _remake(self, node: Node) -> None:
        """The topic is deleted and, at once or later, made again, with as many partitions, fewer or more."""
        topic = self._a_topic()
        if topic is None:
            return
        self._delete(topic)
        later = self._world.random.choice((0.0, 0.0, 0.5, 20.0))
        self._world.at(self._world.now() + later, partial(self.make, topic.name))

    def _delete(self, topic: Topic) -> None:
        self._note(f"delete {topic.name}")
        self._archive.keep(topic)
        self._world.cluster.catalogue.delete_topic(topic.name)

    def make(self, name: str) -> None:
        cluster, random = self._world.cluster, self._world.random
        alive = cluster.placement.alive()
        if name in cluster.catalogue.topics or not alive:
            return
        partitions = random.choice((1, 2, 3, 4))
        self._note(f"create {name} with {partitions} partitions")
        cluster.catalogue.create_topic(name, partitions, random.randrange(1, len(alive) + 1),
                             {"min.insync.replicas": random.choice("12")})  # fmt: skip

    def _grow(self, node: Node) -> None:
        topic = self._a_topic()
        if topic is not None and len(topic.partitions) < 6 and self._world.cluster.placement.alive():
            self._note(f"grow {topic.name} to {len(topic.partitions) + 1}")
            self._world.cluster.catalogue.add_partitions(topic.name, len(topic.partitions) + 1)

    # ---- answers -----------------------------------------------------------------------------------------------------

    def _fail(self, node: Node) -> None:
        random = self._world.random
        api = random.choice((PRODUCE, *_APIS))
        code, times = random.choice(_PASSING[api]), random.choice((1, 1, 3))
        self._note(f"fail {times} of API {api} with {code}")
        self._world.cluster.faults.fail(api, code, times, None)

    def _doubt(self, node: Node) -> None:
        code = self._world.random.choice(_AFTER)
        self._note(f"doubt Produce, with {code}")
        self._world.cluster.faults.fail(PRODUCE, code, 1, None, after=True)

    def _lose(self, node: Node) -> None:
        api = self._world.random.choice(_APIS)
        self._note(f"lose an answer of API {api}, and the connection")
        self._world.cluster.faults.drop(api, 1)

    def _slow(self, node: Node) -> None:
        api, seconds = self._world.random.choice(_APIS), self._world.random.choice((0.05, 2.0, 40.0))
        self._note(f"slow API {api} by {seconds}")
        self._world.cluster.faults.delay(api, seconds, self._world.random.choice((1, 4)))

    def _throttle(self, node: Node) -> None:
        api = self._world.random.choice((PRODUCE, METADATA))
        self._note(f"throttle API {api}")
        self._world.cluster.faults.throttle(api, self._world.random.choice((10, 3_000)), 2)

    # ---- connections -------------------------------------------------------------------------------------------------

    def _a_link(self, node: Node) -> Any:
        links = self._world.links_to(node) or self._world.links
        return self._world.random.choice(links) if links else None

    def _cut(self, node: Node) -> None:
        if (link := self._a_link(node)) is not None:
            self._note(f"cut a connection to node {link.node.node_id}")
            link.abort()

    def _block(self, node: Node) -> None:
        """One way, or both."""
        if (link := self._a_link(node)) is not None:
            ways = self._world.random.choice(((True, False), (False, True), (True, True)))
            self._note(f"block a connection to node {link.node.node_id}: {ways}")
            link.to_node.block(ways[0])
            link.to_client.block(ways[1])

    def _twice(self, node: Node) -> None:
        if (link := self._a_link(node)) is not None:
            self._note(f"double an answer of node {link.node.node_id}")
            link.twice += 1

    def _never(self, node: Node) -> None:
        if (link := self._a_link(node)) is not None:
            self._note(f"drop an answer of node {link.node.node_id}")
            link.never += 1

    # ---- the end -----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """All is well from here on."""
        self._note("well again")
        self._over = True
        self._world.threads.end()
        faults: Callable[[], Any] = type(self._world.cluster.faults)
        self._world.cluster.faults = faults()
        for node in self._world.nodes:
            self._world.loop.settle()
            self._mend(node)
        self._world.loop.settle()
        self._leave_one_dead()
        for link in self._world.links:
            link.twice = link.never = 0
            link.to_client.block(False)
            link.to_node.block(False)
        for name in self._topics:
            self.make(name)

    def make_again_and_refuse_once(self, name: str) -> None:
        """In peace: the topic is another one, as large and as widely spread, and the first batch has to come again."""
        topic = self._world.cluster.catalogue.topics[name]
        copies = min(len(topic.partitions[0].copies), len(self._world.cluster.placement.alive()))
        self._delete(topic)
        self._world.cluster.catalogue.create_topic(name, len(topic.partitions), copies)
        self._world.cluster.faults.fail(PRODUCE, self._world.random.choice(_PASSING[PRODUCE]), 1, None)

    def _leave_one_dead(self) -> None:
        """Or none, where the others cannot do without it."""
        world, node = self._world, self._world.random.choice(self._world.nodes)
        if len(world.nodes) == 1 or world.random.random() < 0.5:
            return
        self._die(node)
        world.loop.settle()
        topics = world.cluster.catalogue.topics.values()
        leaders = [one.copies.get(one.leader) for topic in topics for one in topic.partitions]
        if any(leader is None or not leader.enough_in_sync for leader in leaders):
            self._mend(node)
