# cython: language_level=3
# distutils: extra_compile_args = -O1
"""The append of a partition's log, by its leader or a follower, and the retention that follows it."""

from libc.stdint cimport INT64_MAX, int64_t

import logging

from kafkabuf.broker.records._batch cimport BatchInfo
from kafkabuf.broker.storage._stored cimport StoredBatch

from kafkabuf.broker.records.batch import NO_TIMESTAMP
from kafkabuf.broker.records.config import UNLIMITED
from kafkabuf.broker.records.producer_state import ProducerStates
from kafkabuf.broker.storage.batches import NO_LIMIT
from kafkabuf.errors import KafkaStorageError

cdef object log = logging.getLogger("kafkabuf.broker")
cdef int64_t unlimited = UNLIMITED


cdef class LogCore:
    """PartitionLog (log.py) without what an append does not need."""

    @property
    def producers(self):
        if self._producers is None:
            self._producers = ProducerStates()
        return self._producers

    @property
    def high_watermark(self):
        return self.end_offset if self._high_watermark is None else self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset):
        if offset != self._high_watermark:
            self._high_watermark = offset
            self._replicated(offset)

    cpdef int _replicated(self, int64_t high_watermark) except -1:
        if self._producers is not None:
            self._producers.replicated(high_watermark)
        return 0

    def append(self, data not None, BatchInfo info not None, int leader_epoch):
        cdef int64_t base = self.end_offset
        cdef StoredBatch batch
        if info.count > INT64_MAX - base:
            raise KafkaStorageError(f"no offsets are left for {info.count} records: the log ends at offset {base}")
        batch = StoredBatch.__new__(StoredBatch)
        batch.base_offset = base
        batch.last_offset = base + info.count - 1
        batch.max_timestamp = info.max_timestamp
        batch.leader_epoch = leader_epoch
        batch.data = data
        self._keep(batch)
        if info.producer_id >= 0:
            self.producers.append(info, base)
        self._appended()
        return base

    cpdef int _keep(self, StoredBatch batch) except -1:
        if self.segments.full(batch, self.config, self.clock):
            self.segments.roll(self.producers)
        self.leader_epochs.assign(batch.leader_epoch, batch.base_offset)
        self.segments.append(batch)
        self.end_offset = batch.last_offset + 1
        return 0

    cpdef int _appended(self) except -1:
        cdef object config = self.config
        cdef int64_t retained = config.retention_bytes
        if self._high_watermark is None:
            self._replicated(self.end_offset)
        if retained != unlimited and self.segments.size > retained:
            try:
                self.retain()
            except KafkaStorageError as error:
                # The batch is in the log, whether or not older batches go.
                log.error("old records stay: %s", error)
        if self.end_offset - <int64_t> self.segments.recovery_point >= <int64_t> config.flush_messages:
            self.segments.flush()
        return 0

    def retain(self):
        """Drops old batches or segments. As in Kafka, the log drops the oldest only if the rest still fills
        retention.bytes, or if its newest record is older than retention.ms. Returns whether it has left some for the
        next call."""
        config = self.config
        if not config.delete:
            return False
        oldest = NO_TIMESTAMP if config.retention_ms == unlimited else self.clock.time_ms() - config.retention_ms
        size = NO_LIMIT if config.retention_bytes == unlimited else config.retention_bytes
        more = self.segments.drop_old(size, oldest, self.high_watermark, self.producers)
        if self.segments.start_offset > self.log_start_offset:
            self._start_at(self.segments.start_offset)
        return more

    def _start_at(self, offset):
        self.log_start_offset = offset
        self.leader_epochs.drop_before(offset)
        if self._producers is not None:
            self._producers.forget_aborted_before(offset)
