# cython: language_level=3
"""Finds the batches that may go now. The Sender does so in every turn. The rare steps are in accumulator.py.

A batch may go when it is full, when another batch stands behind it, when it has lingered, when it is retried and its
back-off is over, when a thread waits for memory, on flush and on close. The cost of a turn grows with the number of
partitions that hold a batch, not with the number of all partitions.
"""

from libc.stdint cimport int64_t

from kafkabuf.batches._accumulator cimport AccumulatorCore, PartitionQueue
from kafkabuf.batches._batch cimport Batch
from kafkabuf.batches._sequences cimport SequenceCore


cdef class Ready:
    cdef readonly dict queues_by_node       # node id of the leader -> [PartitionQueue with a batch that may go now]
    cdef readonly set leaderless_topics     # topics with a batch for which no leader is known
    cdef readonly set left_out              # node ids of the leaders that had no room for a queue
    cdef readonly double next_check         # seconds until another batch may become ready by time alone


cdef class Room:
    cdef int64_t any_batches                # bytes, not yet promised, of the requests that may go now
    cdef int64_t full_batches               # the same of requests that may wait behind these, of closed batches only


cdef class OpenShare:
    cdef int64_t in_flight                  # bytes of the open batches that went while memory was scarce
    cdef int64_t promised                   # bytes that this turn lets go
    cdef int64_t turn                       # the turn that `promised` belongs to

    cdef int begin_turn(self, int64_t turn) except -1


cdef class DrainCore(AccumulatorCore):
    # ---- fixed at construction
    cdef readonly double linger             # seconds
    cdef double delivery_timeout            # seconds
    cdef int64_t max_request_size
    cdef readonly SequenceCore producer_state   # None: idempotence is off
    cdef public object wake_compression     # wakes the compression thread; None: there is no such thread
    # ---- guarded by the producer's lock
    cdef readonly set flushes               # one token for each flush under way

    # ---- thread: Sender
    cdef dict open_shares                   # node id -> OpenShare
    cdef int leaders                        # nodes that led a queue when shares were last counted; at least 1
    cdef int64_t turns                      # calls of find_ready that counted shares
    cdef int64_t open_drained               # bytes that OpenShare.in_flight has to count for the newest drain
    cdef list returning                     # batches of a drain that failed, which go back to their queues; None: none

    # `ready`, `drain` and `time_to_expiry` for Cython callers: in each call a cpdef method would check whether a
    # Python subclass overrides it.
    # `rooms`: node id -> Room, or None. A queue that finds no room at its leader is left out, unless it is the leader's
    # first: with ten thousand busy partitions a turn would else look at the batches of all, to send those of a few
    # hundred. A leader without a Room gets all queues.
    cdef Ready find_ready(self, double now, dict rooms)
    cdef list drain_from(self, list queues, double now, bint full)
    cdef int put_back_all(self) except -1
    cdef double until_expiry(self, double now) except? -1
    # Take the oldest batch out of its queue; then close, compress and number it.
    cdef Batch take(self, PartitionQueue queue)
    cdef int make_ready(self, PartitionQueue queue, Batch batch) except -1
    # Thread: compression. Claim the batch to compress next, or None. The caller holds the producer's lock. Runs no
    # Python code after it has made an iterator.
    cdef Batch claim_ahead(self)
    # Called only where partitioner.availability.timeout.ms is set. A node has batches that are ready. `taken`:
    # the node takes batches in this turn. Nodes that `queues_by_node` does not name have no batches to take.
    cdef int note_taken(self, object node_id, bint taken, double now) except -1
    cdef int forget_idle(self, dict queues_by_node) except -1
    cdef double time_until_sendable(self, PartitionQueue queue, double now, bint exhausted) except? -1
    cdef OpenShare open_share(self, object node_id)
    # Whether the queue holds nothing but the batch that takes the next record.
    cdef bint is_open(self, PartitionQueue queue) noexcept
    # Whether a leader that has other queues to serve takes no batch of this queue in this turn. Touches no batch.
    cdef bint finds_no_room(self, PartitionQueue queue, Room room) noexcept
    cdef int take_room(self, PartitionQueue queue, Room room, OpenShare share, bint exhausted) except -1
    # What a batch takes of max.request.size: its bytes; but the memory that it holds if that is a part of a slab, or
    # while a thread waits for memory.
    cdef int64_t cost(self, Batch batch, bint exhausted) noexcept
