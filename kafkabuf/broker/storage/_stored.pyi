"""A batch in a log."""

from typing import final

from kafkabuf.broker.records.batch import Data

@final
class StoredBatch:
    """A batch of magic 2, or a set of messages of magic 0 and 1. `data` is never changed once it is stored."""

    def __init__(
        self, base_offset: int, last_offset: int, max_timestamp: int, leader_epoch: int, data: Data
    ) -> None: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def data(self) -> Data: ...
