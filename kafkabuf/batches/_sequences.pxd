# cython: language_level=3
"""Producer id, epoch and sequence numbers: what is done for every batch. All else is idempotence.py's.

The broker takes the batches of a producer and partition in the order of their numbers only, and takes none twice, as
far as its memory of the last five of them reaches. Hence:

- A batch gets its numbers when it is first drained and keeps them, until it is known that no broker took it under them.
- What has numbers goes again only when all before it have an outcome.
- Numbers of a batch that failed are not used again under the same epoch: a new epoch counts from 0.

A partition's state is in its PartitionQueue, a batch's in the Batch. Thread: Sender, for all of it.
"""

from libc.stdint cimport int16_t, int32_t, int64_t

from kafkabuf.batches._accumulator cimport PartitionQueue
from kafkabuf.batches._batch cimport Batch


cdef enum:
    LARGEST_SEQUENCE = 0x7FFFFFFF           # the next one is 0


cdef class SequenceCore:
    cdef readonly int64_t producer_id       # -1: none, nothing may be sent
    cdef readonly int16_t producer_epoch
    cdef public bint needs_update           # `update` is due before the next drain: there is no producer id yet, or
    #                                         sequences are in doubt
    cdef readonly bint transactional        # batches say that they belong to a transaction
    cdef public object send_allowed         # callable(topic, partition) -> bool, asked before each drain; None: always

    cdef bint may_send(self, PartitionQueue queue, Batch head) except -1
    cdef bint is_current(self, PartitionQueue queue) noexcept
    cdef int number(self, PartitionQueue queue, Batch batch) except -1
    cdef int unnumber(self, PartitionQueue queue, Batch batch) except -1
    cdef int completed(self, PartitionQueue queue, Batch batch, int64_t base_offset) except -1
    cdef int close_gap(self, PartitionQueue queue, Batch batch, Py_ssize_t place) except -1


cdef inline int32_t sequence_after(int32_t sequence, int64_t count) noexcept nogil:
    return <int32_t>((sequence + count) & LARGEST_SEQUENCE)


# Whether `one` comes after `other`, where numbers start anew at 0. -1, none, comes before all.
cdef inline bint is_later(int32_t one, int32_t other) noexcept nogil:
    return other < 0 or (one != other and ((<int64_t>one - other) & LARGEST_SEQUENCE) <= LARGEST_SEQUENCE // 2)
