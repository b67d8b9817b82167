"""The append of a partition's log, and its retention."""

from kafkabuf.broker.log.leader_epochs import LeaderEpochs
from kafkabuf.broker.records._batch import BatchInfo
from kafkabuf.broker.records.config import LogConfig
from kafkabuf.broker.records.producer_state import ProducerStates
from kafkabuf.broker.storage._stored import StoredBatch
from kafkabuf.broker.storage.batches import Segments
from kafkabuf.clock import Clock

class LogCore:
    """PartitionLog (log.py) without what an append does not need."""

    config: LogConfig
    clock: Clock
    segments: Segments
    leader_epochs: LeaderEpochs
    log_start_offset: int
    end_offset: int
    clean_offset: int
    replicated_offset: int
    closed: bool
    _producers: ProducerStates | None
    _high_watermark: int | None

    @property
    def producers(self) -> ProducerStates: ...
    @property
    def high_watermark(self) -> int:
        """Consumers may read up to here. It is the log's end until it is set, for a partition with a single replica.
        With several replicas replication sets it, never beyond the log's end."""

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None: ...
    def append(self, data: bytes | bytearray, info: BatchInfo, leader_epoch: int) -> int:
        """Takes over `data`. The caller has stamped it with `end_offset` and checked it against `producers`. Returns
        the base offset."""

    def retain(self) -> bool: ...
    def _start_at(self, offset: int) -> None: ...
    def _keep(self, batch: StoredBatch) -> int: ...
    def _appended(self) -> int: ...
    def _replicated(self, high_watermark: int) -> int: ...
