"""Replication under a random schedule of trouble, in virtual time.

`python -m tests.broker.replica.simulation --seed 17` replays one seed.

The simulation runs a cluster of a few nodes on one loop, without sockets. Idempotent clients write with acks=all. Each
client has one record at a time under way to each partition, and sends it again to the leader that a node names, until
the record is acknowledged. Another client writes with acks=1 to any node that accepts the record, so that logs diverge.
Requests to a paused or isolated node wait there until the node goes on; by then the client has long sent the record
again elsewhere. Meanwhile the simulation kills, stops, pauses, isolates, slows down and brings back nodes, and moves
leaders, between any two turns of the loop.

After each step:

- every record that was acknowledged, or was below the high watermark of any replica, is at its offset in the log of
  each replica in sync, and in every other replica up to that replica's high watermark;
- the leader is in the ISR, every node of the ISR is alive, and epochs never fall.

At the end all trouble is over: every record that was sent is acknowledged once, in each client's order, and all
replicas are in sync and equal.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kafkabuf.broker.apis.records import produce
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.replica.replication import Partition, Replica
from kafkabuf.broker.replica.state import NO_LEADER
from kafkabuf.broker.wire.produce import ProduceRequest
from kafkabuf.errors import KafkaError, error_for_code
from kafkabuf.protocol import messages
from kafkabuf.protocol.messages import RequestHeader
from tests.broker.raw_client import batch
from tests.broker.replica.replication_support import TOPIC, Parked, Rig, result

STEPS = 500
PARTITIONS = 2
CLIENTS = 3
_HEADER = RequestHeader(messages.PRODUCE, 9, 1, "simulated", 0)
_REQUEST_TIMEOUT = 2.0


class Violation(AssertionError):
    """A broken promise, with the steps that led to it."""


@dataclass
class Sent:
    """A request under way. `life` shows whether the node has died since the client sent the request."""

    node: Node
    life: int
    request: ProduceRequest
    sent_at: float
    parked: Parked | None = None


@dataclass
class Writer:
    """One client's records for one partition. `epoch` is the latest leader epoch that it knows: it never returns to the
    leader of an earlier epoch (KIP-320)."""

    name: str
    producer_id: int
    partition: int
    number: int = 0
    epoch: int = -1
    sent: Sent | None = None
    acknowledged: list[int] = field(default_factory=list)

    def value(self, number: int) -> bytes:
        return b"<%s:%d>" % (self.name.encode(), number)

    def request(self) -> ProduceRequest:
        records = bytearray(batch([self.value(self.number)], producer=(self.producer_id, 0, self.number)))
        return ProduceRequest(None, -1, 1_500, [(TOPIC, [(self.partition, records)])])


class Simulation:
    def __init__(self, seed: int, steps: int = STEPS) -> None:
        self.seed = seed
        self.steps = steps
        self.history: deque[str] = deque(maxlen=40)
        self.done: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._rig = Rig(
            self._random.choice((2, 3, 3, 4)),
            partitions=PARTITIONS,
            configs={"min.insync.replicas": str(self._random.choice((1, 2)))},
            replica_lag_time_max_ms=self._random.choice((1_000, 5_000)),
            broker_session_timeout_ms=3_000,
        )
        self._cluster = self._rig.cluster
        self._nodes = list(self._cluster.nodes.values())
        self._lives: Counter[int] = Counter()
        self._partitions = self._cluster.catalogue.topic(TOPIC).partitions
        self._writers = [
            Writer(f"{client}-{partition.index}", client, partition.index)
            for client in range(1, CLIENTS + 1)
            for partition in self._partitions
        ]
        # Requests to nodes that do not answer at present.
        self._undelivered: list[Sent] = []
        # The batches that were below a high watermark, by partition, with one record each; and the offset up to which
        # each replica was compared with them.
        self._committed: list[list[Any]] = [[] for _ in self._partitions]
        self._compared: Counter[Replica] = Counter()
        self._epochs: Counter[int] = Counter()
        self._noise = 0

    # ---- the schedule

    def run(self) -> None:
        """Raises Violation if a promise does not hold."""
        try:
            for step in range(self.steps):
                name, action = self._choose()
                self.history.append(f"{step} at {self._rig.clock.monotonic():.3f}: {name}")
                self.done[name.split()[0]] += 1
                action()
                for _ in range(self._random.randrange(6)):
                    self._rig.loop.turn()
                self._check()
            self._recover()
            self._check_end()
        finally:
            self._rig.close()

    def _choose(self) -> tuple[str, Callable[[], Any]]:
        """Chooses a step: most write or pass time, some mend a node, some make trouble."""
        roll = self._random.random()
        node = self._random.choice(self._nodes)
        where = f"node {node.node_id}"
        if roll < 0.55:
            return "write", self._write
        if roll < 0.78:
            return "time", partial(self._advance, self._random.choice((0.001, 0.01, 0.1, 0.5, 2.0)))
        if roll < 0.88:
            return f"mend {where}", partial(self._mend, node)
        trouble: list[tuple[str, Callable[[], Any]]] = [
            ("kill", partial(self._end, node, node.kill)),
            ("stop", partial(self._end, node, node.stop)),
            ("pause", node.pause),
            ("isolate", partial(node.isolate, self._random.random() < 0.5)),
            ("lag", partial(node.lag_by, self._random.choice((0.05, 1.0, 8.0)))),
            ("move to", partial(self._move, node)),
            ("loose write to", partial(self._write_loosely, node)),
            ("loose write to", partial(self._write_loosely, node)),
        ]
        name, action = self._random.choice(trouble)
        return f"{name} {where}", action

    def _advance(self, seconds: float) -> None:
        self._rig.clock.advance(seconds)
        self._cluster.timer.advance()

    def _end(self, node: Node, how: Callable[[], Any]) -> None:
        self._lives[node.node_id] += 1
        self._rig.loop.create_task(how())

    def _mend(self, node: Node) -> None:
        if not node.running:
            node.start()
        elif node.paused:
            node.resume()
        elif node.isolated:
            node.heal()
        else:
            node.lag_by(0)
        for sent in [waiting for waiting in self._undelivered if waiting.node is node and node.answers]:
            self._undelivered.remove(sent)
            if sent.life == self._lives[node.node_id]:
                self._deliver(sent)

    def _move(self, node: Node) -> None:
        self._cluster.controller.move(self._random.choice(self._partitions), node.node_id)

    # ---- clients

    def _write(self) -> None:
        for writer in self._random.sample(self._writers, 2):
            if writer.sent is None:
                self._send(writer)
        for writer in self._writers:
            self._check_response(writer)

    def _send(self, writer: Writer) -> None:
        """Sends the writer's record to the node that a random node names as the leader."""
        asked = self._random.choice(self._nodes)
        seen = self._partitions[writer.partition].seen_by(asked.node_id)
        leader = seen.leader
        if not asked.answers or seen.epoch < writer.epoch or leader == NO_LEADER:
            return
        writer.epoch = seen.epoch
        if not self._cluster.nodes[leader].running:
            return
        node = self._cluster.nodes[leader]
        writer.sent = Sent(node, self._lives[leader], writer.request(), self._rig.clock.monotonic())
        self._deliver(writer.sent)

    def _deliver(self, sent: Sent) -> None:
        if sent.node.answers:
            sent.parked = Parked(produce.handle(sent.node, _HEADER, sent.request), self._rig.loop)
        else:
            self._undelivered.append(sent)

    def _check_response(self, writer: Writer) -> None:
        sent = writer.sent
        if sent is None:
            return
        if sent.life != self._lives[sent.node.node_id]:
            writer.sent = None
        elif sent.parked is not None and sent.parked.done and sent.node.answers:
            writer.sent = None
            self._take(writer, result(sent.parked))
        elif self._rig.clock.monotonic() - sent.sent_at > _REQUEST_TIMEOUT:
            writer.sent = None

    def _take(self, writer: Writer, answer: Any) -> None:
        if answer.error_code:
            error: KafkaError = error_for_code(answer.error_code)
            if not getattr(error, "retriable", False):
                self._fail(f"{writer.name} cannot go on: {error!r}, {answer.error_message}")
            return
        self.done["acknowledged"] += 1
        writer.acknowledged.append(answer.base_offset)
        writer.number += 1
        committed = self._committed[writer.partition]
        self._collect(self._partitions[writer.partition])
        if answer.base_offset >= len(committed):
            self._fail(f"{writer.name} {writer.number - 1} is acknowledged at {answer.base_offset}, not replicated")
        if writer.value(writer.number - 1) not in committed[answer.base_offset]:
            self._fail(f"{writer.name} {writer.number - 1} is acknowledged at {answer.base_offset}, but not there")

    def _write_loosely(self, node: Node) -> None:
        """Writes with acks=1 and never again: the record is lost when its leader loses the lead."""
        self._noise += 1
        records = bytearray(batch([b"loose %d" % self._noise]))
        index = self._random.randrange(PARTITIONS)
        if node.answers:
            produce.handle(node, _HEADER, ProduceRequest(None, 1, 1_000, [(TOPIC, [(index, records)])]))

    # ---- the promises

    def _check(self) -> None:
        for partition in self._partitions:
            self._collect(partition)
            self._check_copies(partition)
            self._check_leader(partition)

    def _collect(self, partition: Partition) -> None:
        """Collects the batches that are below a high watermark now."""
        committed = self._committed[partition.index]
        for replica in partition.replicas.values():
            if replica.log.high_watermark > len(committed):
                batches = replica.log.segments.batches(len(committed))
                committed += [stored.data for stored in batches if stored.base_offset < replica.log.high_watermark]

    def _check_copies(self, partition: Partition) -> None:
        committed = self._committed[partition.index]
        for replica in partition.replicas.values():
            log = replica.log
            must = len(committed) if replica.node.node_id in partition.isr else log.high_watermark
            if not log.high_watermark <= log.end_offset >= must:
                self._fail(f"{replica} does not have all {must} records that are committed")
            begin = self._compared[replica]
            if must < begin:
                # The replica is out of sync by now: its log beyond its high watermark may differ until it is back.
                self._compared[replica] = must
                continue
            for at, stored in zip(range(begin, must), log.segments.batches(begin), strict=False):
                if stored.data is not committed[at]:
                    self._fail(
                        f"{replica} differs at {at}: {bytes(stored.data)!r}, committed is {bytes(committed[at])!r}"
                    )
            self._compared[replica] = must

    def _check_leader(self, partition: Partition) -> None:
        state = partition.state
        if state.leader != NO_LEADER and (state.leader not in state.isr or not self._cluster.nodes[state.leader].alive):
            self._fail(f"partition {partition.index}: {state} with {self._cluster.placement.alive()} alive")
        if not state.isr or state.epoch < self._epochs[partition.index]:
            self._fail(f"partition {partition.index}: {state} after epoch {self._epochs[partition.index]}")
        self._epochs[partition.index] = state.epoch

    def _recover(self) -> None:
        self.history.append("the end")
        for node in self._nodes:
            self._rig.loop.settle()
            if node.running and node.paused:
                node.resume()
            if node.isolated:
                node.heal()
            node.start()
            node.lag_by(0)
        for _ in range(8):
            for writer in self._writers:
                self._check_response(writer)
                if writer.sent is None and len(writer.acknowledged) <= writer.number - 1:
                    self._send(writer)
            self._rig.advance(1.0)
            self._check()

    def _check_end(self) -> None:
        for writer in self._writers:
            self._check_response(writer)
            if writer.sent is not None:
                self._fail(f"{writer.name} {writer.number} is never answered")
        for partition in self._partitions:
            committed = self._committed[partition.index]
            for replica in partition.replicas.values():
                stored = [kept.data for kept in replica.log.batches()]
                if len(stored) != len(committed) or any(a is not b for a, b in zip(stored, committed, strict=True)):
                    self._fail(f"{replica} has {len(stored)} batches, {len(committed)} are committed")
            if sorted(partition.isr) != sorted(partition.replica_nodes):
                self._fail(f"partition {partition.index}: {partition.state} when all trouble is over")
        for writer in self._writers:
            self._check_once(writer)

    def _check_once(self, writer: Writer) -> None:
        """Each acknowledged record is stored once, in order. The last record may be stored without acknowledgement."""
        mark = b"<%s:" % writer.name.encode()
        numbers = [
            int(data.partition(mark)[2].partition(b">")[0])
            for data in map(bytes, self._committed[writer.partition])
            if mark in data
        ]
        if numbers not in (list(range(writer.number)), list(range(writer.number + 1))):
            self._fail(f"{writer.name} had {writer.number} records acknowledged, stored are {numbers}")

    def _fail(self, what: str) -> None:
        replicas = [repr(replica) for partition in self._partitions for replica in partition.replicas.values()]
        nodes = [
            f"node {node.node_id}: running {node.running}, paused {node.paused}, isolated {node.isolated}, "
            f"fenced {node.fenced}, lag {node.replica_lag}"
            for node in self._nodes
        ]
        raise Violation(
            "\n".join(
                (
                    f"seed {self.seed}: {what}",
                    *self.history,
                    *replicas,
                    *nodes,
                    f"replay: {_replay(self.seed, self.steps)}",
                )
            )
        )


def _replay(seed: int, steps: int) -> str:
    return f"python -m tests.broker.replica.simulation --seed {seed} --steps {steps}"


def simulate(seed: int, steps: int = STEPS) -> Counter[str]:
    """Counts of each kind of step, and of acknowledgements. Raises Violation if a promise does not hold."""
    simulation = Simulation(seed, steps)
    simulation.run()
    return simulation.done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="the number of seeds to run")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        try:
            total += simulate(seed, arguments.steps)
        except Violation as violation:
            print(violation, file=sys.stderr)
            sys.exit(1)
    print(", ".join(f"{name} {count}" for name, count in sorted(total.items())))


if __name__ == "__main__":
    main()
