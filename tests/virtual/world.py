"""One world: a clock, a cluster, producers, and the connections between them, all drawn from one seed.

Time moves only when nothing is left to do at the present moment, and then to the next event. The users' calls are the
program. Where a call waits, the world runs on until the wait is over (`VirtualClock.wait`). A run is therefore the same
each time, however slow the machine is.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import logging
import random
import socket
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from kafkabuf import backoff
from kafkabuf.broker import apis
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.nodes.node import Node
from kafkabuf.clock import Lockable, ManualClock
from kafkabuf.network.resolve import Address
from tests.virtual.loop import VirtualLoop
from tests.virtual.network import Link, VirtualPoller, black_hole
from tests.virtual.proof import VirtualProof
from tests.virtual.runner import NEVER, VirtualRunning
from tests.virtual.threads import Threads

PORT = 9092
# So many rounds at one moment count as a loop without an end.
_ENDLESS = 20_000
# Seconds.
_TICK = 1e-6


class Violation(AssertionError):
    """A promise that does not hold. The message has the events before."""


class VirtualClock(ManualClock):
    """The world's time. The world runs on while a caller waits."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait(self, lock: Lockable, timeout: float | None) -> bool:
        return self._world.wait(lock, NEVER if timeout is None else self.monotonic() + timeout)


class LoggedErrors(logging.Handler):
    """Makes an exception that the client logs as an error a violation."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None:
            self._world.broken = self._world.broken or logging.Formatter().format(record)


class VirtualListener:
    """A node's listener without a socket."""

    port = PORT

    def __init__(self, node: Node) -> None:
        pass

    async def close(self) -> None:
        pass


class World:
    """Every choice is drawn from `random`, the seed's generator."""

    def __init__(self, seed: int, nodes: int, **settings: Any) -> None:
        apis.load()
        self.seed = seed
        self.random = random.Random(seed)
        self._backoff_generator, backoff.generator = backoff.generator, random.Random(seed + 1)
        self.history: deque[str] = deque(maxlen=60)
        self.done: Counter[str] = Counter()
        self.broken: str | None = None
        self.clock = VirtualClock(self)
        self.loop = VirtualLoop(self.clock)
        config = ClusterConfig(
            brokers=nodes,
            auto_create_topics=False,
            max_message_bytes=1 << 20,
            host="10.0.0.1",
            ports=(PORT,) * nodes,
            **settings,
        )
        self.cluster = Cluster(config, self.clock, self.loop, VirtualListener)
        self.cluster.network_clock = self.clock
        for node in self.cluster.nodes.values():
            node.host = _host(node.node_id)
        self.nodes = list(self.cluster.nodes.values())
        self.silent: set[int] = set()  # dead nodes whose connections stay open, and which refuse no new connection
        self.threads = Threads(self.random, self.random.choice((0.0,) * 7 + (0.003,)))
        self.slowness = self.random.choice((0.0, 0.001, 0.02))
        self.running: list[VirtualRunning | VirtualProof] = []
        self.turning: VirtualRunning | None = None
        self.dead: list[object] = []  # producers that crashed: what their end runs must not come into a run
        self.links: list[Link] = []
        self._holes: list[socket.socket] = []
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._log = LoggedErrors(self)
        logging.getLogger("kafkabuf").addHandler(self._log)
        self.loop.enter()
        self.loop.do(self.cluster.start)

    def close(self) -> None:
        logging.getLogger("kafkabuf").removeHandler(self._log)
        backoff.generator = self._backoff_generator
        for link in self.links:
            link.dispose()
        for hole in self._holes:
            hole.close()
        self.loop.do(self.cluster.stop)
        self.loop.close()
        # Futures keep their pool, and the pool this world's clock, where the garbage collector does not look.
        self.running.clear()
        if self.dead:
            self.dead.clear()
            gc.collect()

    def note(self, event: str) -> None:
        """Add an event to the history, and count it under its first word."""
        self.history.append(f"{self.now() - 1000:10.3f}  {event}")
        self.done[event.split()[0]] += 1

    def fail(self, problem: str) -> None:
        raise Violation("\n".join((f"seed {self.seed}: {problem}", *self.history, *self._state())))

    def _state(self) -> list[str]:
        nodes = [
            f"node {node.node_id}: running {node.running}, paused {node.paused}, isolated {node.isolated}, "
            f"silent {node.node_id in self.silent}"
            for node in self.nodes
        ]
        leaders = [repr(replica) for topic in self.cluster.catalogue.topics.values() for partition in topic.partitions
                   for replica in partition.replicas.values() if replica.leads]  # fmt: skip
        return [*nodes, *leaders, *map(repr, self.running)]

    # ---- time --------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self.clock.monotonic()

    def at(self, when: float, call: Callable[[], object]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), call))

    def latency(self) -> float:
        return 0.0002 + self.slowness * self.random.random()

    def rest(self, seconds: float) -> None:
        """Let so many seconds pass, in which the users make no call."""
        self.run(self.now() + seconds, lambda: False)

    def wait(self, lock: Lockable, until: float) -> bool:
        if self.threads.inside:
            return lock.acquire(blocking=False)
        if self.turning is not None:
            # Only the Sender pauses; the world runs on.
            if lock.acquire(blocking=False):
                return True
            self.turning.pauses_until = until
            return False
        return self.run(until, lambda: lock.acquire(blocking=False))

    def run(self, until: float, over: Callable[[], bool]) -> bool:
        """Run on until `over()`, or until the time `until`. Returns whether it is over."""
        while True:
            self._settle()
            if over():
                return True
            if self.now() >= until:
                return False
            then = min(until, self._next_event())
            if then == NEVER:
                self.fail("everything waits, and no event will come")
            # A tick more: no thread ever wakes exactly on time.
            self.clock.advance(then - self.now() + _TICK)

    def _next_event(self) -> float:
        when = self._events[0][0] if self._events else NEVER
        when = min(when, self.loop.next_due())
        return min([when, *(running.due_at for running in self.running)])

    def _settle(self) -> None:
        """Do everything that is due at this moment."""
        for _ in range(_ENDLESS):
            if not self._round():
                return
        self.fail(f"the work at this moment does not end after {_ENDLESS} rounds")

    def _round(self) -> bool:
        stirred = False
        now = self.now()
        while self._events and self._events[0][0] <= now:
            heapq.heappop(self._events)[2]()
            stirred = True
        self.loop.settle()
        for running in list(self.running):
            if not running.over and running.due_at <= now:
                running.turn()
                stirred = True
                if self.broken is not None:
                    self.fail(self.broken)
        for link in self.links:
            stirred |= link.pump()
        for running in self.running:
            running.poller.polled = False
        if any(link.over for link in self.links):
            self.links = [link for link in self.links if not link.over]
        return stirred

    # ---- the network -------------------------------------------------------------------------------------------------

    def connector(self, poller: VirtualPoller) -> Callable[[Address], socket.socket]:
        def connect(address: Address) -> socket.socket:
            node = self.cluster.nodes[int(address.sockaddr[0].rpartition(".")[2])]
            if node.node_id in self.silent:
                near, far = black_hole()
                self._holes.append(far)
                return near
            if not node.running:
                raise ConnectionRefusedError(111, "Connection refused")
            link = Link(self, node, poller, self.loop)
            self.links.append(link)
            poller.stirred = True
            return link.near

        return connect

    def cut(self, poller: VirtualPoller) -> None:
        """A process ends: the kernel closes its connections."""
        for link in self.links:
            if link.poller is poller:
                link.near.close()
                poller.polled = True

    def links_to(self, node: Node) -> list[Link]:
        return [link for link in self.links if link.node is node]

    @property
    def frozen(self) -> bool:
        """Whether the connections to some node neither end nor bring a response: only a time-out shows that."""
        return bool(self.silent) or any(node.paused for node in self.nodes)

    def bootstrap(self) -> str:
        return ",".join(f"{_host(node.node_id)}:{PORT}" for node in self.nodes)


def _host(node_id: int) -> str:
    return f"10.0.0.{node_id}"
