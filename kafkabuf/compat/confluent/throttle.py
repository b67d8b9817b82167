"""The setting `throttle_cb`: poll() and flush() tell it which broker has asked this client for a pause (KIP-219)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from kafkabuf.errors import host_port
from kafkabuf.network.client import NetworkClient
from kafkabuf.network.connection_state import NodeConnection

# At most this number of events wait for poll(); newer events push the oldest out.
MOST_EVENTS = 100


class ThrottleEvent:
    """A request that a broker has throttled, for `throttle_time` seconds; 0: the broker throttles no longer."""

    def __init__(self, broker_name: str, broker_id: int, throttle_time: float) -> None:
        self.broker_name = broker_name
        self.broker_id = broker_id
        self.throttle_time = throttle_time

    def __str__(self) -> str:
        return f"{self.broker_name}/{self.broker_id} throttled for {int(self.throttle_time * 1000)} ms"


class Throttles:
    """The events of one producer that poll() has not told yet."""

    def __init__(self, throttle_cb: Callable[[ThrottleEvent], object]) -> None:
        self._throttle_cb = throttle_cb
        self._events: deque[ThrottleEvent] = deque(maxlen=MOST_EVENTS)
        self._throttled = False  # the newest response had a throttle time

    def watch(self, client: NetworkClient) -> None:
        """Hear of the client's responses. Holds its nodes and not the client, which would be a cycle."""
        client.requests.on_throttle = partial(self._note, client.requests.nodes)

    def _note(self, nodes: Mapping[int, NodeConnection], node_id: int, throttle_ms: int) -> None:
        """Thread: Sender. As librdkafka does: every throttle time, and the first response without one after that."""
        throttled = throttle_ms > 0
        if not throttled and not self._throttled:
            return
        self._throttled = throttled
        node = nodes.get(node_id)
        name = "" if node is None else host_port(node.host, node.port)
        self._events.append(ThrottleEvent(name, node_id, throttle_ms / 1000))

    def serve(self) -> int:
        """Call the callback for each event, and return how often."""
        served = 0
        while self._events:
            self._throttle_cb(self._events.popleft())
            served += 1
        return served
