from collections import OrderedDict, deque
from collections.abc import Callable
from typing import final
from uuid import UUID

from kafkabuf._pool import BufferPool
from kafkabuf.batches._batch import Batch
from kafkabuf.batches._stored import StoredTables
from kafkabuf.batches.codec import Codec
from kafkabuf.clock import Clock
from kafkabuf.errors import KafkaError

@final
class PartitionQueue:
    topic: str
    partition: int
    batches: deque[Batch]
    filled: int
    leader: int
    leader_epoch: int
    in_flight: int
    proven: bool
    muted: bool
    doubted: bool
    producer_id: int
    producer_epoch: int
    next_sequence: int
    last_acked: int
    last_acked_offset: int
    in_sequence: list[Batch]
    last_error: KafkaError | None
    unresolved: bool
    goes_on: bool
    def __new__(cls, topic: str, partition: int) -> PartitionQueue: ...
    @property
    def head(self) -> Batch | None: ...
    @property
    def claimed(self) -> bool: ...
    def follow(self, leader: int, leader_epoch: int = -1) -> int: ...

@final
class TopicQueues:
    name: str
    topic_id: UUID | None
    queues: list[PartitionQueue]
    partitions: int
    def __new__(
        cls,
        name: str,
        partitions: int,
        seed: int = ...,
        batch_size: int = ...,
        adaptive: bool = ...,
        slow_nodes: set[int] | None = ...,
        near_nodes: set[int] | None = ...,
    ) -> TopicQueues: ...
    def grow(self, partitions: int) -> None: ...
    def follow(self, leaders: list[int], epochs: list[int], topic_id: UUID | None = None) -> None: ...
    def forget_leaders(self) -> None: ...
    @property
    def sticky_partition(self) -> int: ...

class Shortcut: ...

class AccumulatorCore:
    pool: BufferPool
    clock: Clock
    wakeup: Callable[[], None]
    shortcut: Shortcut | None
    magic: int
    batch_size: int
    availability_timeout: float
    nonwaiting_allocators: dict[int, Callable[[int], tuple[int, int]]]
    loop_allocator: Callable[[int], tuple[int, int]] | None
    @property
    def tables(self) -> StoredTables | None: ...
    transactional: bool
    idempotent: bool
    refuses_when_full: bool
    since_send: bool
    slow_nodes: set[int]
    near_nodes: set[int]
    waits_since: dict[int, float]
    topics: dict[str, TopicQueues]
    active: dict[PartitionQueue, None]
    incomplete: OrderedDict[Batch, None]
    closed: bool
    closed_because: str | None
    refusal: Callable[[], KafkaError] | None
    on_failed: Callable[[Batch, bool], object] | None
    def leave_behind(self, batch: Batch, *, unsent: bool = False) -> list[Batch]: ...
    def adopt(self, queue: PartitionQueue, place: int) -> Batch | None: ...
    def fail(
        self,
        batch: Batch,
        error: KafkaError,
        record_errors: dict[int, KafkaError] | None = None,
        error_of_others: KafkaError | None = None,
        refused: bool = False,
    ) -> bool: ...
    def oldest(self) -> Batch | None: ...
    def refuse_callback(self, nbytes: int) -> tuple[int, int]: ...
    def close_open_batches(self) -> None: ...
    def follow(
        self, topic: TopicQueues, leaders: list[int], epochs: list[int], topic_id: UUID | None = None
    ) -> None: ...
    def forget_leaders(self, topic: TopicQueues) -> None: ...
    def waiting_batches(self, queue: PartitionQueue | None = None) -> list[Batch]: ...
    def incomplete_batches(self) -> list[Batch]: ...
    def __init__(
        self,
        pool: BufferPool,
        clock: Clock,
        *,
        magic: int = 2,
        batch_size: int = 16384,
        wakeup: Callable[[], None] = ...,
    ) -> None: ...
    def put_back(self, queue: PartitionQueue, batch: Batch) -> None: ...
    @property
    def scratches(self) -> int: ...
    def use_codec(self, codec: Codec, scratches: int = 1) -> None: ...
    def use_tables(self, tables: StoredTables) -> None: ...
    def release_scratch(self) -> None: ...
    def discard(self, batch: Batch) -> None: ...
    def close(self) -> None: ...
