"""A leader's view of its followers, and the watch over followers that lag. Belongs to the event loop."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from kafkabuf.broker.waiting.timer import Timeout, Timer

NO_OFFSET = -1


@dataclass(slots=True)
class Follower:
    """A follower, as its leader knows it. Times are those of the injected clock, in seconds. `caught_up_at` is the last
    time at which the follower had every record of the leader."""

    caught_up_at: float
    end_offset: int = NO_OFFSET
    _fetched_at: float = -inf
    _leader_end_then: int = NO_OFFSET

    def fetched(self, offset: int, leader_end: int, now: float) -> None:
        """The follower fetches from `offset` on. A follower that now has every record that the leader had at the
        previous fetch counts as caught up at the time of that fetch."""
        if offset >= leader_end:
            self.caught_up_at = now
        elif offset >= self._leader_end_then:
            self.caught_up_at = max(self.caught_up_at, self._fetched_at)
        self.end_offset, self._fetched_at, self._leader_end_then = offset, now, leader_end

    def lags(self, leader_end: int, now: float, allowed: float) -> bool:
        """Whether the follower has lacked a record for more than `allowed` seconds."""
        return self.end_offset != leader_end and now - self.caught_up_at > allowed


class Leader(Protocol):
    """What the watch needs of a replica."""

    @property
    def leads(self) -> bool: ...
    def shrink(self) -> bool: ...


class Node(Protocol):
    """What the watch needs of its node."""

    paused: bool
    max_lag: float


class LagWatch:
    """Checks the followers of the partitions that a node leads, twice in replica.lag.time.max.ms as Kafka does. No
    timer runs while every follower has every record."""

    def __init__(self, node: Node, timer: Timer) -> None:
        self._node = node
        self._timer = timer
        self._behind: dict[Leader, None] = {}
        self._timeout: Timeout | None = None

    def watch(self, leader: Leader) -> None:
        self._behind[leader] = None
        if self._timeout is None:
            self._timeout = self._timer.after(self._node.max_lag / 2, self._check)

    def _check(self) -> None:
        self._timeout = None
        behind, self._behind = self._behind, {}
        for leader in behind:
            # Time stands still for a node that is paused.
            if leader.leads and (self._node.paused or leader.shrink()):
                self.watch(leader)
