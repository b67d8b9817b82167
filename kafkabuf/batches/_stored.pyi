from typing import Final, final
from uuid import UUID

from kafkabuf.memory.buffers import Buffer

SIZE_OF_TOPIC: Final[int]  # bytes of an entry in each table
SIZE_OF_PARTITION: Final[int]
SIZE_OF_BATCH: Final[int]

@final
class StoredTables:
    """The tables of a file in three writable buffers. An entry that is not used, or not live, is free."""

    def __new__(cls, topics: Buffer, partitions: Buffer, batches: Buffer) -> StoredTables: ...
    @property
    def topic_count(self) -> int: ...
    @property
    def partition_count(self) -> int: ...
    @property
    def batch_count(self) -> int: ...
    def note_topic(self, name: str, partitions: int, topic_id: UUID | None = None) -> None: ...
    def noted_topics(self) -> list[tuple[str, int, UUID | None]]: ...
