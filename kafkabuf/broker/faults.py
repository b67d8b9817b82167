"""Faults on demand: error codes, delays and lost answers for the next requests of an API. Thread: the event loop."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(slots=True)
class _Fault:
    value: float
    times: int
    topic: str | None = None
    after: bool = False


class Faults:
    """One queue per kind and API key. A fault counts requests, not partitions: one with a topic waits for a request
    that names the topic, and then fails that topic's partitions only."""

    def __init__(self) -> None:
        self._errors: dict[int, list[_Fault]] = {}
        self._delays: dict[int, list[_Fault]] = {}
        self._drops: dict[int, list[_Fault]] = {}

    def fail(self, api_key: int, error_code: int, times: int, topic: str | None, after: bool = False) -> None:
        self._errors.setdefault(api_key, []).append(_Fault(error_code, times, topic, after))

    def delay(self, api_key: int, seconds: float, times: int) -> None:
        self._delays.setdefault(api_key, []).append(_Fault(seconds, times))

    def drop(self, api_key: int, times: int) -> None:
        self._drops.setdefault(api_key, []).append(_Fault(0, times))

    def clear(self) -> None:
        self._errors.clear()
        self._delays.clear()
        self._drops.clear()

    def take_errors(self, api_key: int, topics: Collection[str] = (), *, after: bool = False) -> dict[str | None, int]:
        """The next error for a request that names `topics`: {topic: code}, or {None: code} for all of the request.
        `after`: of those to be told once the request has been carried out."""
        for fault in self._errors.get(api_key, ()):
            if fault.after == after and (fault.topic is None or fault.topic in topics):
                _use(self._errors, api_key, fault)
                return {fault.topic: int(fault.value)}
        return {}

    def take_error(self, api_key: int, *, after: bool = False) -> int:
        """The error code for a whole request, 0 for none."""
        return next(iter(self.take_errors(api_key, after=after).values()), 0)

    def take_delay(self, api_key: int) -> float:
        """Seconds by which to hold back the answer."""
        for fault in self._delays.get(api_key, ()):
            _use(self._delays, api_key, fault)
            return fault.value
        return 0.0

    def take_drop(self, api_key: int) -> bool:
        """Whether to close the connection instead of answering."""
        for fault in self._drops.get(api_key, ()):
            _use(self._drops, api_key, fault)
            return True
        return False


def _use(queues: dict[int, list[_Fault]], api_key: int, fault: _Fault) -> None:
    fault.times -= 1
    if fault.times <= 0:
        queues[api_key].remove(fault)
        if not queues[api_key]:
            del queues[api_key]
