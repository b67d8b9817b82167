# cython: language_level=3
"""The queues that records wait in: a queue of batches per partition, and the open batch at its end.

Locks. The GIL guards everything here: between two points where Python code could run, a thread has the queues to
itself. No thread waits for memory inside such a stretch: `open_batch` tries, waits outside, and checks the queue again.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t

from kafkabuf._pool cimport BufferPool
from kafkabuf._records cimport Record, size_upper_bound
from kafkabuf.batches._batch cimport Batch


# The TypeError of a method that was called before its object's __init__.
cdef object uninitialized(object self)


cdef class PartitionQueue:
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef Batch open                     # takes the next record; always the last of `batches`; None where none has room
    cdef readonly object batches        # deque of Batch, oldest first, not yet handed to the Sender
    cdef readonly int64_t filled        # bytes of all batches so far that take no further record
    # ---- thread: Sender
    cdef readonly int32_t leader        # node id, or -1 where unknown: metadata has forgotten the topic, or knows none
    cdef readonly int32_t leader_epoch  # -1 where unknown
    cdef public int32_t in_flight       # requests that carry a batch of this partition
    cdef public bint proven             # the leader has taken a batch, and refused none since, and has had some lately
    cdef double drained_at              # Clock.monotonic() of the last drain; infinite: none yet
    cdef public object last_error       # what the newest attempt failed with; None once one has succeeded
    cdef public bint muted              # nothing more is sent until those in flight are answered
    # ---- thread: Sender; idempotence (_sequences.pyx)
    cdef readonly int64_t producer_id   # under which the partition's batches are numbered; -1: none yet
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t next_sequence
    cdef readonly int32_t last_acked    # number of the last record that the broker is known to have; -1: none
    cdef readonly int64_t last_acked_offset  # the highest offset the broker has given; -1: none yet
    cdef readonly list in_sequence      # batches with numbers and without an outcome, by number
    cdef Batch asked                    # stands before the first of these until it is drained, so that the broker says
    #                                     whether it has it; None: nobody is asked for
    cdef readonly bint unresolved       # numbers were lost: nothing new goes before it is known whether they were taken

    cdef int seal(self) except -1
    cpdef int follow(self, int leader, int leader_epoch=*) except -1
    cdef int begin_again(self) except -1


cdef class TopicQueues:
    cdef readonly str name
    cdef readonly object topic_id       # UUID, or None where the brokers are too old to tell
    # PartitionQueue by partition number. It loses none, so that whoever knows an older count may index it: a topic that
    # was deleted and made again with fewer partitions keeps the queues of those that are gone, without leaders, behind
    # the others. What comes into them the Sender fails.
    cdef readonly list queues
    cdef readonly int32_t partitions    # how many there are now
    cdef PartitionQueue sticky          # where records without key and partition go until it was given batch_size bytes
    cdef int64_t sticky_from            # its `filled` when it became so
    cdef uint64_t random                # xorshift state
    # ---- fixed at construction
    cdef int64_t batch_size
    cdef bint adaptive                  # partitioner.adaptive.partitioning.enable
    cdef set slow_nodes                 # the accumulator's

    # A record of `size` bytes finds no open batch with room in `queue`: the sticky partition changes, if it is that one
    # and has had its share. Only here, between two batches, so that none is left half full.
    cdef int leave(self, PartitionQueue queue, int64_t size) except -1
    cdef int next_sticky(self) except -1
    cdef list able(self)
    cdef uint64_t weight(self, PartitionQueue queue, Py_ssize_t longest) except 0


cdef class AccumulatorCore:
    # ---- fixed at construction
    cdef readonly BufferPool pool
    cdef readonly object clock
    cdef readonly object wakeup         # callable: the Sender should look again
    cdef readonly int magic
    cdef readonly Py_ssize_t batch_size
    cdef readonly object codec          # compression.Codec, or None
    cdef Py_ssize_t scratch             # first of the slabs that the codec writes to, for as long as we are open
    cdef Py_ssize_t scratch_slabs       # 0: none
    cdef readonly double availability_timeout   # seconds after which a node that takes nothing is slow; 0: never
    # Ident of a thread that must never wait for memory -> callable(n_slabs): the first slab of a run; or it raises.
    cdef readonly dict nonwaiting_allocators
    # ---- guarded by the GIL
    cdef readonly set slow_nodes        # where no record without key and partition goes (KIP-794)
    cdef readonly dict waits_since      # node id -> when it first did not take what was ready for it
    cdef readonly dict topics           # name -> TopicQueues
    cdef readonly object active         # OrderedDict of PartitionQueue that hold a batch; least recently drained first
    cdef readonly object incomplete     # OrderedDict of Batch without an outcome, oldest first
    cdef readonly bint closed
    cdef public object refusal          # callable: the error with which no batch may be opened now; None: one may
    cdef int64_t opened                 # batches opened so far
    # ---- thread: Sender
    cdef public object on_failed        # callable(batch, refused), called at each failure, before callbacks; or None

    # Every method that may be called before __init__ calls this first.
    cdef int require_pool(self) except -1
    cdef int require_open(self) except -1
    # The batch that has room for `r`: the open one, or a new one. Raises BufferExhaustedError at `deadline`. The caller
    # appends before anything that could let another thread run, then wakes the Sender.
    cdef Batch open_batch(self, PartitionQueue queue, Record* r, object deadline)
    # Thread: Sender, which alone uses the scratch.
    cdef int compress(self, Batch batch) except -1
    cdef Batch new_batch(self, PartitionQueue queue, Py_ssize_t slab, Py_ssize_t n_slabs)
    # Slabs of the batch whose first record is `r`.
    cdef inline Py_ssize_t slabs_for(self, Record* r) noexcept:
        return self.pool.slabs_for(max(self.pool.slab_size, size_upper_bound(self.magic, r)))
    # Raises KeyError for a batch of another accumulator.
    cdef PartitionQueue queue_for(self, Batch batch)
    cdef int remove(self, PartitionQueue queue, Batch batch) except -1
    cdef Batch first_incomplete(self)
    # A bulk append writes to the open batch alone, until unclaim: others find no open batch and start a new one.
    # Neither runs Python code; the claimant wakes the Sender after unclaim.
    cdef int claim(self, PartitionQueue queue) except -1
    cdef int unclaim(self, PartitionQueue queue, Batch batch) except -1
