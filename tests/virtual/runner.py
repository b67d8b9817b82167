"""A KafkaProducer whose Sender has no thread: the world calls the Sender's turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kafkabuf import KafkaProducer
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock
from kafkabuf.network.client import NetworkClient
from kafkabuf.sending.lifetime import Running
from kafkabuf.sending.sender import Sender
from tests.virtual.network import VirtualPoller, resolve
from tests.virtual.proof import VirtualProof

if TYPE_CHECKING:
    from tests.virtual.world import World

NEVER = float("inf")


class Mortal(Protocol):
    """The user of a process that crashes."""

    @property
    def dies_later(self) -> bool: ...
    def die(self) -> None: ...


class Crashed(BaseException):
    """The process crashes here: what runs is to be left at once."""

    def __init__(self, user: Mortal) -> None:
        super().__init__()
        self.user = user


class VirtualRunning(Running):
    """A Sender without a thread. `due_at` is the time of its next turn if no event comes before."""

    def __init__(self, world: World, accumulator: RecordAccumulator, sender: Sender, poller: VirtualPoller) -> None:
        super().__init__(accumulator, sender, "virtual")
        sender.core.many_queues = 1
        self._world = world
        self.poller = poller
        self.pauses_until = 0.0
        self.over = False
        self.interrupt: Callable[[], object] = bool  # the action of another thread in the middle of a turn

    def __repr__(self) -> str:
        batches = [
            f"{batch!r} attempts {batch.attempts} at {batch.producer_id, batch.producer_epoch, batch.base_sequence}"
            for batch in self.accumulator.incomplete
        ]
        state = self.accumulator.producer_state
        transactions = self.sender.transactions
        where = "" if transactions is None else f" {transactions.state}, next {transactions.queue.first}"
        when = "ended" if self.over else f"next turn in {self.due_at - self._world.now():.3f} s"
        return f"<{when}: {state}{where} {batches}>"

    @property
    def due_at(self) -> float:
        if self.over:
            return NEVER
        return max(0.0 if self.poller.stirred else self.poller.sleeps_until, self.pauses_until)

    def start(self, producer: Any) -> None:
        self._world.running.append(self)

    def vanish(self) -> None:
        """End as a process does that is killed: no step follows."""
        self.over = True
        self._world.running.remove(self)
        self._world.cut(self.poller)

    def runs_here(self) -> bool:
        return self._world.turning is self

    def turn(self) -> None:
        allocators, mine = self.accumulator.nonwaiting_allocators, threading.get_ident()
        self._world.turning = self
        allocators[mine] = self.accumulator.refuse_callback
        try:
            with self._world.threads.interrupted(self._let_in, self.locked):
                self.over = not self.sender.step()
            if self.over:
                self.sender._end()
                self.accumulator.pool.forget_hooks()
                self.at_end()
            elif self._lingers:
                self._world.fail(f"the Sender sleeps although it is closing and all its work is done: {self}")
        except Crashed as crashed:
            if crashed.user.dies_later:
                raise
            self._world.turning = None
            crashed.user.die()
        finally:
            allocators.pop(mine, None)
            self._world.turning = None

    @property
    def _lingers(self) -> bool:
        transactions = self.sender.transactions
        left = self.accumulator.incomplete or (transactions is not None and transactions.has_ongoing_transaction)
        return self.sender.core.closing and not left and self.due_at > self._world.now()

    def _let_in(self) -> None:
        allocators, mine = self.accumulator.nonwaiting_allocators, threading.get_ident()
        self._world.turning = None
        del allocators[mine]
        try:
            self.interrupt()
        finally:
            allocators[mine] = self.accumulator.refuse_callback
            self._world.turning = self

    def locked(self) -> bool:
        """Whether this thread holds a lock for which another thread would wait."""
        transactions = self.sender.transactions
        locks: list[Any] = [self.sender._metadata._lock, *([] if transactions is None else [transactions._lock])]
        return any(lock._is_owned() for lock in locks)

    def wait(self, timeout: float | None) -> bool:
        until = NEVER if timeout is None else self._world.now() + timeout
        return self._world.run(until, lambda: self.over)


def _begin_late(state: Any, beginning: int) -> None:
    """Let the numbers of a new producer id begin at `beginning`, near their end: after the largest comes 0.

    A broker takes any first number of an id that it does not know. A new epoch of a known id must begin at 0.
    """
    begin = state.start_sequences_at_beginning

    def begin_late(queue: Any) -> None:
        is_new = queue.producer_id != state.producer_id and state.producer_epoch == 0
        begin(queue, beginning if is_new else 0)

    state.start_sequences_at_beginning = begin_late


class VirtualProducer(KafkaProducer):
    """A producer of the world, whose clock it takes."""

    def __init__(self, world: World, **settings: Any) -> None:
        self._world = world
        self._poller = VirtualPoller(world)
        super().__init__({"bootstrap_servers": world.bootstrap(), **settings}, clock=world.clock)
        if world.random.random() < 0.3:
            _begin_late(self._accumulator.producer_state, 2**31 - world.random.choice((1, 2, 7, 40)))

    def _connect(self, clock: Clock) -> NetworkClient:
        connector = self._world.connector(self._poller)
        return NetworkClient(self.config, clock, self._metadata, self._poller, connector=connector, resolver=resolve)

    def _runner(self, accumulator: RecordAccumulator) -> Running:
        self.virtual = VirtualRunning(self._world, accumulator, self._sender, self._poller)
        return self.virtual

    def _assemble(self, client: NetworkClient, state: Any) -> None:
        super()._assemble(client, state)
        self.proof = None if self._spool is None else VirtualProof(self._world, self._spool, self.config)
        if self._spool is not None and self.proof is not None:
            self._spool.start = self.proof.start  # type: ignore[method-assign]

    def vanish(self) -> None:
        """The process is killed. Its file stays as it is: the caller has a copy, which nothing here can change."""
        self._finalizer.detach()
        self.virtual.vanish()
        if self.proof is not None and not self.proof.over:
            self.proof.vanish()
