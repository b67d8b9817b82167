from collections.abc import Callable
from typing import final

from kafkabuf._pool import BufferPool
from kafkabuf.batches._accumulator import AccumulatorCore, PartitionQueue
from kafkabuf.batches._batch import Batch
from kafkabuf.batches._sequences import SequenceCore
from kafkabuf.clock import Clock

@final
class Ready:
    queues_by_node: dict[int, list[PartitionQueue]]
    leaderless_topics: set[str]
    left_out: set[int]
    next_check: float

@final
class Room:
    def __new__(cls, any_batches: int, full_batches: int) -> Room: ...

class DrainCore(AccumulatorCore):
    producer_state: SequenceCore | None
    flushes: set[object]
    wake_compression: Callable[[], None] | None
    linger: float
    def __init__(
        self,
        pool: BufferPool,
        clock: Clock,
        *,
        linger: float,
        delivery_timeout: float,
        max_request_size: int,
        producer_state: SequenceCore | None = None,
        magic: int = ...,
        batch_size: int = ...,
        wakeup: Callable[[], None] = ...,
        availability_timeout: float = ...,
    ) -> None: ...
    def ready(self, now: float, rooms: dict[int, Room] | None = None) -> Ready: ...
    def drain_one(self, queue: PartitionQueue) -> Batch | None: ...
    def drain(self, queues: list[PartitionQueue], now: float, full: bool = False) -> list[Batch]: ...
    def compress_ahead(self) -> bool: ...
    def holds(self, batch: Batch) -> bool: ...
    def queue_of(self, batch: Batch) -> PartitionQueue: ...
    def time_to_expiry(self, now: float) -> float: ...
