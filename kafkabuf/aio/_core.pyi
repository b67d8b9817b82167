from asyncio import AbstractEventLoop
from typing import Any

from kafkabuf.aio._futures import AIORecordFuture, BatchEnds
from kafkabuf.append._producer import ProducerCore

TURN: int

class MustWait(Exception):
    args: tuple[int]

class LoopCore(ProducerCore):
    sent: int
    def _enter(self, loop: AbstractEventLoop, ends: BatchEnds, lines: dict[str, Any], users_objects: bool) -> None: ...
    def queue(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        partition: int | None,
        timestamp_ms: int | None,
        opaque: object,
    ) -> AIORecordFuture | None: ...
