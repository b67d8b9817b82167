# cython: language_level=3
"""Which batches may go now. The Sender asks in every turn, so this is compiled; accumulator.py has the rare questions.

A batch goes when it is full or another one stands behind it, when it has lingered, when it is retried and its back-off
is over, when a thread waits for memory, on flush and on close. The cost of a question grows with the partitions that
hold a batch, not with those that exist.
"""

from libc.stdint cimport int64_t

from kafkabuf.batches._accumulator cimport AccumulatorCore, PartitionQueue
from kafkabuf.batches._batch cimport Batch
from kafkabuf.batches._sequences cimport SequenceCore


cdef class Ready:
    cdef readonly dict queues_by_node       # node id of the leader -> [PartitionQueue with a batch that may go now]
    cdef readonly set leaderless_topics     # topics with a batch for which no leader is known
    cdef readonly double next_check         # seconds until another batch may become ready by time alone


cdef class DrainCore(AccumulatorCore):
    # ---- fixed at construction
    cdef readonly double linger             # seconds
    cdef double delivery_timeout            # seconds
    cdef int64_t max_request_size
    cdef readonly SequenceCore producer_state   # None: idempotence is off
    # ---- guarded by the GIL
    cdef readonly set flushes               # one token for each flush under way

    # ---- thread: Sender
    # `ready`, `drain`, `queue_of` and `time_to_expiry` for Cython: a cpdef method would look in each call whether
    # Python replaces it.
    cdef Ready find_ready(self, double now)
    cdef list drain_from(self, list queues, double now, bint full)
    cdef double until_expiry(self, double now) except? -1
    # Out of its queue; then what is done with a batch that was taken, numbering included.
    cdef Batch take(self, PartitionQueue queue)
    cdef int make_ready(self, PartitionQueue queue, Batch batch) except -1
    # Of partitioner.availability.timeout.ms, and only where that is set: whether a node that batches are ready for has
    # taken any in this turn; and that those not named have none to take.
    cdef int note_taken(self, object node_id, bint taken, double now) except -1
    cdef int forget_idle(self, dict queues_by_node) except -1
    cdef double time_until_sendable(self, PartitionQueue queue, double now, bint exhausted) except? -1
