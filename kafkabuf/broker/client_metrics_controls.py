"""Methods of `EmbeddedCluster` for the metrics that clients push (KIP-714). Any thread may call them.

The caller's thread decodes the pushes, so that the nodes go on serving their clients.
"""

from __future__ import annotations

from collections.abc import Callable

from kafkabuf.broker.configs.arguments import require_int, require_timeout
from kafkabuf.broker.controls import Caller
from kafkabuf.broker.telemetry.arrived import ClientMetrics, decoded
from kafkabuf.errors import TimeoutError
from kafkabuf.process._time import monotonic


class ClientMetricsControls(Caller):
    def client_metrics(self) -> list[ClientMetrics]:
        """The pushes that the nodes have accepted, oldest first: the last 10,000 of them, and at most 64 MiB.

        A push that cannot be unpacked or read, or that becomes more than 16 MiB, has the `error`.
        """
        return [decoded(push) for push in self._call(lambda c: c.client_metrics.since(0))[0]]

    def wait_for_client_metrics(
        self, n: int = 1, timeout: float = 10.0, *, where: Callable[[ClientMetrics], object] | None = None
    ) -> list[ClientMetrics]:
        """Waits until there are `n` pushes for which `where` is true, and returns those, oldest first.

        Without `where` every push counts that can be read. Pushes before the call count. Raises TimeoutError after
        `timeout` seconds of real time, whatever the cluster's clock is. It names the first push that could not be read.
        """
        require_int("n", n)
        require_timeout("timeout", timeout)
        deadline, count = monotonic() + timeout, 0
        matching: list[ClientMetrics] = []
        unreadable: str | None = None
        while True:
            pushes, count = self._call(lambda c, seen=count: c.client_metrics.since(seen))  # type: ignore[misc]
            for metrics in map(decoded, pushes):
                unreadable = unreadable or metrics.error
                if where(metrics) if where is not None else metrics.error is None:
                    matching.append(metrics)
            if len(matching) >= n:
                return matching
            left = deadline - monotonic()
            if left <= 0 or not self._await(self._running().client_metrics.wait(count, left)):
                why = f"; {unreadable}" if unreadable else ""
                raise TimeoutError(
                    f"{len(matching)} of {n} pushes of metrics came within {timeout:g} s, of {count} in all{why}"
                )
