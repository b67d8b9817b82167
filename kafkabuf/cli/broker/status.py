"""What `kafkabuf broker` shows while it runs: on a terminal a live table, else a new line now and then."""

from __future__ import annotations

import signal
from collections.abc import Collection

from rich.console import Console
from rich.live import Live

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.controls import Stats
from kafkabuf.cli.broker.tables import Overview, overview_below
from kafkabuf.cli.units import nbytes
from kafkabuf.process import threads
from kafkabuf.process._time import monotonic

_LIVE_SECONDS = 0.5
_PLAIN_SECONDS = 10.0
_NAP_SECONDS = 0.05
# The cluster's address stays on the screen, above the table.
_KEPT_LINES = 3


class Status:
    """Asks the cluster for its numbers. A rate covers the time between two lines."""

    def __init__(self, cluster: EmbeddedCluster, console: Console) -> None:
        self._cluster = cluster
        self._console = console
        self._stats = cluster.stats()
        self._time = monotonic()
        # The sums of end offsets by topic, and when the topics were counted.
        self._end_offsets = {topic.name: topic.end_offsets for topic in cluster.topic_numbers()}
        self._counted = self._time

    def show_until(self, signals: Collection[signal.Signals]) -> None:
        """Show the status until one of these signals comes. The caller has blocked them."""
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            with Live(console=self._console, auto_refresh=False, transient=True) as live:
                while not _arrives(signals, _LIVE_SECONDS):
                    live.update(
                        overview_below(self.line(), self.overview(), self._console.height - _KEPT_LINES), refresh=True
                    )
            return
        last = ""
        while not _arrives(signals, _PLAIN_SECONDS):
            # The log does not grow while nothing changes.
            if (line := self.line()) != last:
                self._console.print(line, highlight=False, soft_wrap=True)
            last = line

    def overview(self) -> Overview:
        before, before_time, self._counted = self._end_offsets, self._counted, monotonic()
        topics = self._cluster.topic_numbers()
        self._end_offsets = {topic.name: topic.end_offsets for topic in topics}
        seconds = max(self._counted - before_time, 1e-9)
        return Overview(topics, self._cluster.group_numbers(), before, seconds)

    def line(self) -> str:
        before, before_time = self._stats, self._time
        self._stats, self._time = self._cluster.stats(), monotonic()
        return describe(self._stats, before, max(self._time - before_time, 1e-9))


def _arrives(signals: Collection[signal.Signals], seconds: float) -> bool:
    """Wait for one of these signals, which are blocked, and take it. macOS has no signal.sigtimedwait."""
    deadline = monotonic() + seconds
    while signal.sigpending().isdisjoint(signals):
        if monotonic() >= deadline:
            return False
        threads.sleep(_NAP_SECONDS)
    signal.sigwait(signals)
    return True


def describe(now: Stats, before: Stats, seconds: float) -> str:
    parts = [
        f"{now.nodes_up}/{now.nodes} nodes up",
        f"{now.connections:,} connections",
        f"{(now.requests - before.requests) / seconds:,.0f} requests/s",
        f"{nbytes((now.bytes_in - before.bytes_in) / seconds)}/s in",
        f"{nbytes((now.bytes_out - before.bytes_out) / seconds)}/s out",
        f"{now.parked:,} parked",
    ]
    return ", ".join(parts)
