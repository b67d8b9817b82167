"""Faults that a test asks for: errors, delays, throttling, lost responses and cut connections.

Thread: the event loop.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(slots=True)
class _Fault:
    value: float
    times: int
    topic: str | None = None
    after: bool = False


@dataclass(frozen=True, slots=True)
class InjectedError:
    """The error for one request. With a `topic` the error concerns only that topic. The `code` 0 is no error."""

    code: int = 0
    topic: str | None = None

    def __bool__(self) -> bool:
        return bool(self.code)

    def code_for(self, topic: str | None) -> int:
        """The error code for the partitions of `topic`; 0 without an error."""
        return self.code if self.topic is None or self.topic == topic else 0


NO_ERROR = InjectedError()


@dataclass(slots=True)
class _Cut:
    """The node closes the connection over which the last of `remaining` bytes passes. `node_id` None: any node."""

    remaining: int
    node_id: int | None


class Faults:
    """One queue per kind and API key. A fault counts requests, not partitions. A fault with a topic waits for a request
    that names the topic, and fails only that topic's partitions. A latency stays until it is set to 0."""

    def __init__(self) -> None:
        self._errors: dict[int, list[_Fault]] = {}
        self._delays: dict[int, list[_Fault]] = {}
        self._drops: dict[int, list[_Fault]] = {}
        self._throttles: dict[int, list[_Fault]] = {}
        # By API key and node; None means all of them.
        self._latencies: dict[tuple[int | None, int | None], float] = {}
        self._received: list[_Cut] = []
        self._sent: list[_Cut] = []

    def fail(self, api_key: int, error_code: int, times: int, topic: str | None, after: bool = False) -> None:
        self._errors.setdefault(api_key, []).append(_Fault(error_code, times, topic, after))

    def delay(self, api_key: int, seconds: float, times: int) -> None:
        self._delays.setdefault(api_key, []).append(_Fault(seconds, times))

    def drop(self, api_key: int, times: int) -> None:
        self._drops.setdefault(api_key, []).append(_Fault(1, times))

    def throttle(self, api_key: int, throttle_ms: int, times: int) -> None:
        self._throttles.setdefault(api_key, []).append(_Fault(throttle_ms, times))

    def set_latency(self, seconds: float, api_key: int | None, node_id: int | None) -> None:
        self._latencies[api_key, node_id] = seconds
        if not seconds:
            del self._latencies[api_key, node_id]

    def cut_after(self, nbytes: int, node_id: int | None, sent: bool) -> None:
        (self._sent if sent else self._received).append(_Cut(nbytes, node_id))

    def clear(self) -> None:
        queues = (self._errors, self._delays, self._drops, self._throttles, self._latencies, self._received, self._sent)
        for queue in queues:
            queue.clear()

    def take_errors(self, api_key: int, topics: Collection[str] = (), *, after: bool = False) -> InjectedError:
        """The next error for a request that names `topics`. With `after`, the next error that the node answers after it
        has carried the request out."""
        for fault in self._errors.get(api_key, ()):
            if fault.after == after and (fault.topic is None or fault.topic in topics):
                _use(self._errors, api_key, fault)
                return InjectedError(int(fault.value), fault.topic)
        return NO_ERROR

    def take_error(self, api_key: int, *, after: bool = False) -> int:
        """The error code for a whole request; 0 without a fault."""
        return self.take_errors(api_key, after=after).code

    def take_delay(self, api_key: int, node_id: int) -> float:
        """Seconds by which the node holds the response back. The latencies of the API and of the node add up."""
        lasting = sum(
            seconds
            for (key, node), seconds in self._latencies.items()
            if key in (None, api_key) and node in (None, node_id)
        )
        return lasting + _next(self._delays, api_key)

    def take_throttle(self, api_key: int) -> int:
        """Milliseconds for which the client must send nothing to the node."""
        return int(_next(self._throttles, api_key))

    def take_drop(self, api_key: int) -> bool:
        """Whether the node closes the connection instead of answering."""
        return bool(_next(self._drops, api_key))

    def take_received(self, node_id: int, nbytes: int) -> int:
        """How many of `nbytes` arrive before the connection is cut."""
        return _pass(self._received, node_id, nbytes) if self._received else nbytes

    def take_sent(self, node_id: int, nbytes: int) -> int:
        """How many of `nbytes` leave before the connection is cut."""
        return _pass(self._sent, node_id, nbytes) if self._sent else nbytes


def _next(queues: dict[int, list[_Fault]], api_key: int) -> float:
    for fault in queues.get(api_key, ()):
        _use(queues, api_key, fault)
        return fault.value
    return 0.0


def _use(queues: dict[int, list[_Fault]], api_key: int, fault: _Fault) -> None:
    fault.times -= 1
    if fault.times <= 0:
        queues[api_key].remove(fault)
        if not queues[api_key]:
            del queues[api_key]


def _pass(cuts: list[_Cut], node_id: int, nbytes: int) -> int:
    """Counts `nbytes` for the first cut that concerns the node. The next cut counts only after the first took
    effect."""
    for cut in cuts:
        if cut.node_id in (None, node_id):
            cut.remaining -= nbytes
            if cut.remaining < 0:
                cuts.remove(cut)
                return nbytes + cut.remaining
            break
    return nbytes
