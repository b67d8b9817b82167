"""The pushes that the nodes have accepted. The cluster keeps the last 10,000 of them, and 64 MiB."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from uuid import UUID

from kafkabuf.broker.records.compression import decompress
from kafkabuf.broker.telemetry.otlp import MetricPoint, Value, decode
from kafkabuf.errors import CorruptMessageError

MOST_PUSHES = 10_000
MOST_BYTES = 64 * 1024 * 1024
# What a push may become when it is unpacked.
_MOST_UNPACKED = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Push:
    """A push as it came: `content` is compressed with the codec."""

    client_instance_id: UUID
    client_id: str | None
    node_id: int
    time_ms: int
    terminating: bool
    codec: int
    content: bytes

    @property
    def size(self) -> int:
        """The bytes that the client has sent and that are kept: its id may be as long as a string can be."""
        return len(self.content) + len(self.client_id or "")


@dataclass(frozen=True, slots=True)
class ClientMetrics:
    """What one PushTelemetry request brought. `terminating`: the client has said that it is its last.

    `time_ms` is on the cluster's clock. `labels` are the client's, such as its transactional_id. `error` says why the
    push cannot be read, and is None for one that can; a push with an error has neither labels nor points.
    """

    client_instance_id: UUID
    client_id: str | None
    node_id: int
    time_ms: int
    terminating: bool
    labels: dict[str, Value]
    points: list[MetricPoint]
    error: str | None = None

    def value(self, name: str, **labels: Value) -> float | None:
        """The value of the metric with exactly these labels; None if the client did not push it."""
        return next((point.value for point in self.points if point.name == name and point.labels == labels), None)


def decoded(push: Push) -> ClientMetrics:
    """Any thread. A push that cannot be unpacked or read has the error, so that it does not hide the others."""
    labels, points, error = {}, [], None
    try:
        metrics = decode(decompress(push.codec, push.content, _MOST_UNPACKED))
        labels, points = metrics.labels, metrics.points
    except CorruptMessageError as reason:
        error = f"a push of client {push.client_id!r}, {push.client_instance_id}: {reason}"
    return ClientMetrics(
        push.client_instance_id,
        push.client_id,
        push.node_id,
        push.time_ms,
        push.terminating,
        labels,
        points,
        error,
    )


class Arrived:
    """Thread: the event loop. `count`: how many pushes there ever were."""

    def __init__(self) -> None:
        self.count = 0
        self._pushes: deque[Push] = deque()
        self._size = 0
        self._more: asyncio.Future[None] | None = None

    def add(self, push: Push) -> None:
        self.count += 1
        self._pushes.append(push)
        self._size += push.size
        while len(self._pushes) > MOST_PUSHES or self._size > MOST_BYTES:
            self._size -= self._pushes.popleft().size
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def since(self, count: int) -> tuple[list[Push], int]:
        """The pushes after the first `count` ones, as far as they are kept, and how many there ever were."""
        new = min(self.count - count, len(self._pushes))
        return list(self._pushes)[len(self._pushes) - new :], self.count

    async def wait(self, count: int, seconds: float) -> bool:
        """Waits for more than `count` pushes. Returns False if none has come after `seconds` of real time."""
        while self.count <= count:
            if self._more is None or self._more.done():
                self._more = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.shield(self._more)
            except TimeoutError:
                return False
        return True
