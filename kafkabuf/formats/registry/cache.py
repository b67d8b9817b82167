"""What a client remembers of the registry's responses, and until when."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from kafkabuf.clock import Clock
from kafkabuf.errors import KafkaError
from kafkabuf.process.producer_log import producer_log
from kafkabuf.process.threads import Lock

T = TypeVar("T")

_log = producer_log("kafkabuf.formats")


class ResponseCache:
    """Responses by request, at most `capacity`; the least recently used response goes first.

    A response is stale when its lifetime is over. Then the registry is asked again. While it gives no answer, the stale
    response serves for `grace` more seconds before the next attempt, and the log says so. Errors are not remembered.
    """

    def __init__(self, capacity: int, grace: float, clock: Clock) -> None:
        self._capacity = capacity
        self._grace = grace
        self._clock = clock
        self._lock = Lock()
        self._entries: OrderedDict[Hashable, tuple[Any, float]] = OrderedDict()  # the response, and when it is stale

    def get(self, key: Hashable, ask: Callable[[], T], lifetime: float) -> T:
        """The remembered response, or that of `ask`. A lifetime is in seconds. Raises what `ask` raises."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        if entry is not None and self._clock.monotonic() < entry[1]:
            response: T = entry[0]
            return response
        try:
            response = ask()  # outside the lock: other requests must not wait for this one
        except KafkaError as error:
            if entry is None or not error.retriable:
                raise
            _log.warning("the Schema Registry gives no answer, its last answer serves meanwhile: %s", error)
            response, lifetime = entry[0], self._grace
        self._put(key, response, lifetime)
        return response

    def forget(self, unusable: Callable[[Any], bool]) -> None:
        """Forget the responses for which `unusable` is true: the next call asks again."""
        with self._lock:
            for key in [key for key, (response, _) in self._entries.items() if unusable(response)]:
                del self._entries[key]

    def _put(self, key: Hashable, response: Any, lifetime: float) -> None:
        with self._lock:
            self._entries[key] = response, self._clock.monotonic() + lifetime
            self._entries.move_to_end(key)
            while len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
