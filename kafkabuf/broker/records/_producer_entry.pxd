"""What a partition knows of one producer. Thread: the event loop."""

from libc.stdint cimport int32_t, int64_t

from kafkabuf.broker.records._batch cimport BatchInfo

cdef enum:
    REMEMBERED = 5


cdef struct Appended:
    int64_t base_offset
    int64_t max_timestamp
    int32_t base_sequence
    int32_t last_sequence


cdef class ProducerEntry:
    cdef readonly int epoch
    cdef public int coordinator_epoch
    # The newest timestamp of the last batch, or the time of the control record behind it. The producer expires by it.
    cdef public int64_t last_timestamp
    # None, or the offset where the open transaction began.
    cdef public object transaction_start

    # The last batches of `epoch`, in a ring. The oldest is at `first`.
    cdef Appended ring[REMEMBERED]
    cdef int first
    cdef int remembered

    cdef Appended* last(self) noexcept
    cdef void keep(self, Appended batch) noexcept
