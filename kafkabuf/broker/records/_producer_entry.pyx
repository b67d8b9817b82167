# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: extra_compile_args = -O1
"""What a partition knows of one producer (Kafka's ProducerStateEntry).

A cluster may have an entry for each of ten thousand partitions, and reads one for each batch: an entry is one object.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from libc.stdint cimport int32_t, int64_t, uint32_t

from collections import namedtuple

from kafkabuf.broker.records._batch cimport BatchInfo, last_sequence
from kafkabuf.broker.wire._numbers cimport store_int16, store_int64, store_uint32

NO_EPOCH = -1
NO_SEQUENCE = -1

cdef int32_t no_sequence = NO_SEQUENCE

cdef enum:
    NOTHING = -1
    # In a snapshot: storage/snapshot.py has the layout.
    ENTRY_SIZE = 46

AppendedBatch = namedtuple("AppendedBatch", "base_sequence last_sequence base_offset max_timestamp")


cdef unsigned char* grown(bytearray data, Py_ssize_t size) except NULL:
    """`size` new bytes at the end of `data`. They stay there until `data` is changed again."""
    cdef Py_ssize_t before = PyByteArray_GET_SIZE(data)
    PyByteArray_Resize(data, before + size)
    return <unsigned char*> PyByteArray_AS_STRING(data) + before


@cython.final
cdef class ProducerEntry:
    """It remembers the last five batches of `epoch`."""

    def __init__(
        self,
        int epoch=-1,
        int coordinator_epoch=-1,
        int64_t last_timestamp=-1,
        transaction_start=None,
    ):
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
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

    def raise_epoch(self, int epoch):
        if epoch != self.epoch:
            self.epoch = epoch
            self.remembered = 0

    def forget_earlier_batches(self):
        if self.remembered:
            self.first = (self.first + self.remembered - 1) % REMEMBERED
            self.remembered = 1
            self.last().max_timestamp = self.last_timestamp

    def is_next(self, BatchInfo info not None):
        return (
            self.remembered > 0
            and self.epoch == info.producer_epoch
            and info.base_sequence == (self.last().last_sequence + <int64_t> 1) & 0x7FFFFFFF
            and self.transaction_start is None
        )

    def has_expired(self, int64_t newest_ms):
        return self.transaction_start is None and self.last_timestamp <= newest_ms

    def append(self, BatchInfo info not None, int64_t base_offset):
        self.raise_epoch(info.producer_epoch)
        self.keep(Appended(base_offset, info.max_timestamp, info.base_sequence, last_sequence(info)))
        self.last_timestamp = info.max_timestamp

    def encode(self, int64_t producer_id, bytearray out not None):
        cdef Appended* batch
        cdef int32_t delta = 0
        cdef unsigned char* at = grown(out, ENTRY_SIZE)
        store_int64(at, producer_id)
        store_int16(at + 8, self.epoch)
        if self.remembered:
            batch = self.last()
            delta = (batch.last_sequence - batch.base_sequence) & 0x7FFFFFFF
            store_uint32(at + 10, <uint32_t> batch.last_sequence)
            store_int64(at + 14, batch.base_offset + delta)
        else:
            store_uint32(at + 10, <uint32_t> no_sequence)
            store_int64(at + 14, NOTHING)
        store_uint32(at + 22, <uint32_t> delta)
        store_int64(at + 26, self.last_timestamp)
        store_uint32(at + 34, <uint32_t> self.coordinator_epoch)
        store_int64(at + 38, NOTHING if self.transaction_start is None else self.transaction_start)

    cdef Appended* last(self) noexcept:
        return &self.ring[(self.first + self.remembered - 1) % REMEMBERED]

    cdef void keep(self, Appended batch) noexcept:
        if self.remembered < REMEMBERED:
            self.remembered += 1
        else:
            self.first = (self.first + 1) % REMEMBERED
        self.last()[0] = batch
