# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What a partition knows of one producer (Kafka's ProducerStateEntry).

A cluster may have an entry for each of ten thousand partitions, and reads one for each batch: an entry is one object.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t

from collections import namedtuple

from kafkabuf.broker.log._batch cimport BatchInfo, last_sequence

# Kafka's producer.id.expiration.ms.
EXPIRATION_MS = 86_400_000
NO_EPOCH = -1
NO_SEQUENCE = -1

cdef int64_t expiration_ms = EXPIRATION_MS

AppendedBatch = namedtuple("AppendedBatch", "base_sequence last_sequence base_offset max_timestamp")


@cython.final
cdef class ProducerEntry:
    """It remembers the last five batches of `epoch`."""

    def __init__(
        self,
        int epoch=-1,
        int coordinator_epoch=-1,
        int64_t last_timestamp=-1,
        int64_t seen_ms=-1,
        transaction_start=None,
    ):
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.seen_ms = seen_ms
        self.transaction_start = transaction_start
        self.first = self.remembered = 0

    @property
    def batches(self):
        cdef Appended* batch
        cdef list batches = []
        cdef int number
        for number in range(self.remembered):
            batch = &self.ring[(self.first + number) % REMEMBERED]
            batches.append(
                AppendedBatch(batch.base_sequence, batch.last_sequence, batch.base_offset, batch.max_timestamp)
            )
        return batches

    @property
    def last_sequence(self):
        return self.last().last_sequence if self.remembered else NO_SEQUENCE

    def remember(self, int32_t first_sequence, int32_t final_sequence, int64_t base_offset, int64_t max_timestamp):
        self.keep(Appended(base_offset, max_timestamp, first_sequence, final_sequence))

    def forget_batches(self):
        self.remembered = 0

    def raise_epoch(self, int epoch):
        if epoch != self.epoch:
            self.epoch = epoch
            self.remembered = 0

    def is_next(self, BatchInfo info not None, int64_t now_ms):
        return (
            self.remembered > 0
            and self.epoch == info.producer_epoch
            and info.base_sequence == (self.last().last_sequence + <int64_t> 1) & 0x7FFFFFFF
            and self.transaction_start is None
            and now_ms - self.seen_ms < expiration_ms
        )

    def append(self, BatchInfo info not None, int64_t base_offset, int64_t now_ms):
        self.raise_epoch(info.producer_epoch)
        self.keep(Appended(base_offset, info.max_timestamp, info.base_sequence, last_sequence(info)))
        self.last_timestamp = info.max_timestamp
        self.seen_ms = now_ms

    cdef Appended* last(self) noexcept:
        return &self.ring[(self.first + self.remembered - 1) % REMEMBERED]

    cdef void keep(self, Appended batch) noexcept:
        if self.remembered < REMEMBERED:
            self.remembered += 1
        else:
            self.first = (self.first + 1) % REMEMBERED
        self.last()[0] = batch
