"""The header of a batch of magic 2, checked on arrival."""

from typing import final

from kafkabuf.broker.records.batch import Data
from kafkabuf.broker.records.config import Limits

@final
class BatchInfo:
    """The facts of a batch that the log keeps beside its bytes. Its records have the offsets base to base + `count` -
    1. `append_time`: the header says that the leader set the timestamps."""

    def __init__(
        self,
        count: int,
        max_timestamp: int,
        magic: int,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        append_time: bool = False,
    ) -> None: ...
    max_timestamp: int
    @property
    def count(self) -> int: ...
    @property
    def magic(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def transactional(self) -> bool: ...
    @property
    def append_time(self) -> bool: ...
    @property
    def last_sequence(self) -> int:
        """The sequence of the batch's last record. After the greatest sequence comes 0."""

def check_batch(records: Data, version: int, limits: Limits) -> BatchInfo:
    """Checks the one magic 2 batch of a Produce request, version 3 or later. Raises the error of the response.

    CorruptMessageError for a wrong length or CRC, InvalidRecordError for a header that contradicts itself,
    RecordTooLargeError, UnsupportedCompressionTypeError.
    """

def stamp(data: bytearray, base_offset: int, leader_epoch: int) -> int:
    """Writes the two fields of a magic 2 batch that the leader sets. The CRC covers neither. Raises ValueError for
    fewer bytes than a header has."""
