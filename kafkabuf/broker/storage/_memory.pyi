"""Batches in memory: the append, and what each append asks."""

from kafkabuf.broker.storage._stored import StoredBatch

class MemoryCore:
    """MemorySegments (memory.py) without what an append does not need."""

    start_offset: int
    end_offset: int
    _batches: list[StoredBatch]
    _positions: list[int]
    _first: int
    _appended: int

    @property
    def size(self) -> int: ...
    @property
    def recovery_point(self) -> int: ...
    def append(self, batch: StoredBatch) -> None: ...
