from typing import Final, final
from uuid import UUID

from kafkabuf.memory.buffers import Buffer

SIZE_OF_TOPIC: Final[int]  # bytes of an entry in each table
SIZE_OF_PARTITION: Final[int]
SIZE_OF_BATCH: Final[int]
SIZE_OF_SPLIT: Final[int]
FOR_PARTS: Final[int]  # entries of the table of batches that only a split takes

@final
class StoredTables:
    """The tables of a file in writable buffers. An entry that is not used, or not live, is free."""

    def __new__(
        cls,
        topics: Buffer,
        partitions: Buffer,
        batches: Buffer,
        split: Buffer,
        arena: Buffer,
        scratch: Buffer,
        mapping: Buffer | None = None,
    ) -> StoredTables: ...
    @property
    def topic_count(self) -> int: ...
    @property
    def partition_count(self) -> int: ...
    @property
    def batch_count(self) -> int: ...
    @property
    def live_count(self) -> int: ...
    def note_topic(self, name: str, partitions: int, topic_id: UUID | None = None) -> None: ...
    def remembered(self, place: int) -> tuple[int, int, int, int, int]: ...
    def begin_numbers(self, place: int, producer_id: int) -> None: ...
    def topic_place(self, name: str) -> int: ...
    def topic_id_of(self, place: int) -> UUID | None: ...
    def noted_topics(self) -> list[tuple[str, int, UUID | None]]: ...
