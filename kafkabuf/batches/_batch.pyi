from collections.abc import Callable, MutableMapping
from typing import Protocol, final

from kafkabuf._pool import BufferPool
from kafkabuf.clock import Clock
from kafkabuf.errors import KafkaError
from kafkabuf.record_metadata import RecordMetadata

class Releasable(Protocol):
    def release(self) -> object: ...

class ErrorWatcher(Protocol):
    def seen(self, batch: Batch) -> object: ...

def give_back_claims() -> int: ...

@final
class Batch:
    topic: str
    partition: int
    number: int
    created: float
    closed: bool
    claimed: bool
    announced: bool
    attempts: int
    retry_at: float
    producer_id: int
    producer_epoch: int
    base_sequence: int
    renumbered: bool
    unseen: bool
    doubtful: bool
    @property
    def whole_doubtful(self) -> bool: ...
    first: int
    parts: list[Batch] | None
    whole: Batch | None
    base_offset: int
    log_append_time: int
    error: KafkaError | None
    record_errors: dict[int, KafkaError] | None
    error_of_others: KafkaError | None
    error_watcher: ErrorWatcher | None
    def __new__(
        cls,
        topic: str,
        partition: int,
        created: float,
        pool: BufferPool,
        slab: int,
        extent: int,
        write_limit: int,
        magic: int,
        incomplete: MutableMapping[Batch, None],
    ) -> Batch: ...
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def magic(self) -> int: ...
    @property
    def done(self) -> bool: ...
    @property
    def waiting(self) -> int: ...
    @property
    def unwatched(self) -> int: ...
    @property
    def succeeded(self) -> bool: ...
    def end_read(self) -> None: ...
    def read_error(self) -> KafkaError | None: ...
    def why_pending(self) -> str: ...
    def complete(self, base_offset: int, log_append_time: int) -> bool: ...
    def fail(
        self,
        error: KafkaError,
        record_errors: dict[int, KafkaError] | None = None,
        error_of_others: KafkaError | None = None,
    ) -> bool: ...
    def add_sleeper(self, lock: Releasable, future: RecordFuture | None = None) -> bool: ...
    def wait(self, timeout: float | None = None, clock: Clock = ..., future: RecordFuture | None = None) -> bool: ...

@final
class RecordFuture:
    batch: Batch
    def done(self) -> bool: ...
    def cancel(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def running(self) -> bool: ...
    def result(self, timeout: float | None = None) -> RecordMetadata: ...
    def exception(self, timeout: float | None = None) -> KafkaError | None: ...
    def add_done_callback(self, fn: Callable[[RecordFuture], object]) -> None: ...
