"""Quotas of clients (KIP-13): the node throttles a client that produces faster than producer_byte_rate (KIP-219).

A client may be ahead of its rate by the bytes of one second. Further bytes are its debt; the throttle time is the time
in which its rate pays the debt. Deviations: Kafka averages over eleven windows of a second. Kafka has quotas by user
too, and for fetching and requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafkabuf.clock import Clock
from kafkabuf.protocol.messages import PRODUCE, decode_request_header
from kafkabuf.protocol.schema import Buffer

_AHEAD_SECONDS = 1.0


@dataclass(slots=True)
class _Account:
    """`balance`: the bytes that the client may still send, as of `at` (monotonic)."""

    balance: float
    at: float


class Quotas:
    """Thread: the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rates: dict[str | None, float] = {}
        self._accounts: dict[str, _Account] = {}

    def set_producer_rate(self, client_id: str | None, bytes_per_second: float | None) -> None:
        """Sets the quota of a client. `client_id` None: of each client without its own quota. A rate of None removes
        the quota."""
        self._accounts.clear()
        self._rates.pop(client_id, None)
        if bytes_per_second is not None:
            self._rates[client_id] = bytes_per_second

    def charge(self, api_key: int, frame: Buffer) -> int:
        """Milliseconds by which the request's client is ahead of its quota. Raises InvalidRequestError for a malformed
        header."""
        if not self._rates or api_key != PRODUCE:
            return 0
        client = decode_request_header(frame).client_id or ""
        rate = self._rates.get(client, self._rates.get(None))
        if rate is None:
            return 0
        now, most = self._clock.monotonic(), rate * _AHEAD_SECONDS
        account = self._accounts.setdefault(client, _Account(most, now))
        account.balance = min(most, account.balance + rate * (now - account.at)) - len(frame)
        account.at = now
        return round(max(0.0, -account.balance) / rate * 1000)
