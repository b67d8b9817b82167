"""The proof of a buffer's file in virtual time: a greenlet asks the cluster, and the world resumes it.

It is the real client of the leaders over the world's network, under the same trouble as the producers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from greenlet import greenlet

from kafkabuf.config import ProducerConfig
from kafkabuf.errors import ClosedError
from kafkabuf.network.client import NetworkClient
from kafkabuf.sending.sender import Sender
from kafkabuf.spool.leaders import Leaders
from kafkabuf.spool.spool import Spool
from tests.virtual.network import VirtualPoller, resolve

if TYPE_CHECKING:
    from tests.virtual.world import World

NEVER = float("inf")


class VirtualLeaders(Leaders):
    """Where the real one waits, it switches to the world."""

    def __init__(self, world: World, poller: VirtualPoller, config: ProducerConfig) -> None:
        super().__init__(config, world.clock)
        self._client.close()
        connector = world.connector(poller)
        self._client = NetworkClient(config, world.clock, self._metadata, poller, connector=connector, resolver=resolve)

    def _poll(self, timeout: float | None) -> list[Any]:
        if self._stopped:
            raise ClosedError("the producer was closed")
        completions = self._client.poll(timeout)
        if not completions:
            greenlet.getcurrent().parent.switch()
        return completions


class VirtualProof:
    """Among the world's `running` from its start to its end."""

    def __init__(self, world: World, spool: Spool, config: ProducerConfig) -> None:
        self._world = world
        self._spool = spool
        self._config = config
        self.poller = VirtualPoller(world)
        self.over = True

    def __repr__(self) -> str:
        return f"<proof of {[str(partition) for partition in self._spool.unproven()]}, over {self.over}>"

    @property
    def due_at(self) -> float:
        if self.over:
            return NEVER
        return 0.0 if self.poller.stirred else self.poller.sleeps_until

    def start(self, sender: Sender) -> None:
        self._spool.begin = self.begin  # type: ignore[method-assign]
        self._spool.attend(sender)

    def begin(self) -> None:
        self._greenlet = greenlet(self._prove)
        self.poller = VirtualPoller(self._world)
        self.over = False
        self._world.running.append(self)

    def turn(self) -> None:
        self._greenlet.parent = greenlet.getcurrent()
        self._greenlet.switch()
        if self._greenlet.dead:
            self.vanish()

    def vanish(self) -> None:
        self.over = True
        self._world.running.remove(self)
        self._world.cut(self.poller)

    def _prove(self) -> None:
        leaders = VirtualLeaders(self._world, self.poller, self._config)
        self._spool._leaders = leaders
        try:
            while missing := self._spool.unproven():
                for errand in self._spool.errands(leaders, missing):
                    self._spool.soon(errand)
        except ClosedError:
            pass
        finally:
            leaders.close()
