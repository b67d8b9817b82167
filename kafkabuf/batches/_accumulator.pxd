# cython: language_level=3
"""The queues that records wait in: one queue of batches for each partition, with the open batch at its end.

Locks. The producer's lock guards everything here. It is the GIL: between two points where Python code can run, a thread
has the queues to itself. Without a GIL it is `pool.guard` (_lock.h). The caller holds it for the cdef methods of
PartitionQueue and TopicQueues, and for open_batch, new_batch, claim and remove; all other methods take it themselves.
No thread waits for memory while it holds the lock: `open_batch` tries to allocate, gives the lock up to wait, and then
checks the queue again.

Memory. A batch opens with a slab if the last batch of its partition filled more than half of one, else with a block for
its first record. A full block moves into a larger one (`Batch.move`), so that a batch stays one span: KIP-1332 chains
chunks instead, which spares the copy, and makes compression, CRC, split and frames handle several spans. The copies of
a batch are together no larger than the batch, and a partition with full batches makes none. The memory of an open batch
is at most twice its records. (To open with as much as the last batch had was tried: after crumbs comes plenty, large
blocks then hold one record each, and the batches become crumbs again.)
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from kafkabuf._pool cimport BufferPool
from kafkabuf._records cimport Record
from kafkabuf.batches._batch cimport Batch
from kafkabuf.batches._stored cimport StoredPartition, StoredTables


cdef extern from "<math.h>":
    # The patience, in seconds, of a caller that must not wait for memory in any thread.
    const double NEVER_WAITS "(-INFINITY)"

# The TypeError that a method raises if it is called before its object's __init__.
cdef object uninitialized(object self)


cdef class PartitionQueue:
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef StoredPartition* entry         # in the file's table; NULL until a batch of the partition lies in a file
    cdef Batch open                     # takes the next record; always the last of `batches`; None: no batch is open
    cdef readonly object batches        # deque of Batch, oldest first; the Sender has not taken them yet
    cdef readonly int64_t filled        # bytes of all batches so far that take no further record
    cdef int64_t filled_last            # bytes of the newest of these batches: they decide with how much the next opens
    # ---- thread: Sender
    cdef readonly int32_t leader        # node id; -1: metadata has forgotten the topic, or names no leader
    cdef readonly int32_t leader_epoch  # -1: unknown
    cdef public int32_t in_flight       # requests in flight that carry a batch of this partition
    cdef public bint proven             # the leader has lately taken a batch, and has refused no batch since
    cdef double drained_at              # Clock.monotonic() of the last drain; infinite before the first drain
    cdef public object last_error       # the error of the newest attempt; None once an attempt has succeeded
    cdef public bint muted              # the Sender sends nothing more until the batches in flight are answered
    cdef public bint doubted            # nor until the cluster was asked which of them it has (spool.settling)
    # ---- thread: Sender; idempotence (_sequences.pyx)
    cdef readonly int64_t producer_id   # the id under which the partition's batches are numbered; -1: no id yet
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t next_sequence
    cdef readonly int32_t last_acked    # number of the last record that the broker is known to have; -1: no record
    cdef readonly int64_t last_acked_offset  # the highest offset that the broker has named; -1: no offset yet
    cdef readonly list in_sequence      # batches with numbers and without an outcome, by number
    cdef Batch asked                    # the Sender sends this batch before the first of `in_sequence`, to learn
    #                                     whether the broker has it; None once it is drained
    cdef readonly bint unresolved       # numbers were lost: no new batch goes until it is known whether the broker has
    #                                     taken them
    cdef readonly bint goes_on          # the batches in line go under the file's id (_sequences.pxd)

    cdef int close_open_batch(self) except -1
    cdef int count_filled(self, Batch batch) except -1      # the batch takes no further record
    cpdef int follow(self, int leader, int leader_epoch=*) except -1
    cdef int begin_again(self) except -1


cdef class TopicQueues:
    cdef readonly str name
    cdef readonly object topic_id       # UUID; None: the brokers are too old to name it
    # PartitionQueue by partition number. The list never shrinks, so that a thread that knows an older number of
    # partitions may index it: a topic that was deleted and made again with fewer partitions keeps the queues of the
    # lost partitions behind the others, without leaders. The Sender fails the batches in them.
    cdef readonly list queues
    cdef readonly int32_t partitions    # the topic's number of partitions now
    cdef PartitionQueue sticky          # takes records without key and partition, until it was given batch_size bytes
    cdef int64_t sticky_from            # the sticky queue's `filled` at the time when it became sticky
    cdef uint64_t random                # xorshift state
    # ---- fixed at construction
    cdef int64_t batch_size
    cdef bint adaptive                  # partitioner.adaptive.partitioning.enable
    cdef set slow_nodes                 # the accumulator's
    cdef set near_nodes                 # the accumulator's

    # A record of `size` bytes finds no open batch with room in `queue`: the sticky partition changes if `queue` is
    # sticky and was given batch_size bytes. The change comes only here, between two batches: no batch stays half full.
    cdef int leave(self, PartitionQueue queue, int64_t size) except -1
    cdef int next_sticky(self) except -1
    cdef list able(self)
    cdef uint64_t weight(self, PartitionQueue queue, Py_ssize_t longest) except 0


cdef class Shortcut:
    # Send the batch from the thread that has just opened it. False: the caller wakes the Sender.
    cdef bint send_now(self, Batch batch) noexcept


cdef class AccumulatorCore:
    # ---- fixed at construction
    cdef readonly BufferPool pool
    cdef readonly object clock
    cdef readonly object wakeup         # callable that wakes the Sender: a queue may be ready
    cdef public Shortcut shortcut       # None: only the Sender sends
    cdef readonly int magic
    cdef readonly Py_ssize_t batch_size
    cdef readonly object codec          # codec.Codec, or None
    cdef public object on_acknowledged  # the setting: callable(BatchOutcome), or None
    # Where a codec works, and a split of a batch in a file: in slabs of the pool until the accumulator is closed, or
    # in the file, because the next process may have other codecs, and another process's batches lie in the slabs.
    cdef uint8_t* scratch               # NULL: no scratch
    cdef Py_ssize_t scratch_size        # bytes of each thread that compresses
    cdef Py_ssize_t scratch_slab, scratch_slabs     # of the pool, of all threads; 0 slabs: the scratch lies elsewhere
    cdef readonly int scratches         # 1: the Sender's; 2: the compression thread's lies behind the Sender's
    cdef readonly double availability_timeout   # seconds after which a node that takes nothing is slow; 0: never
    # Ident of a thread that must never wait for memory -> callable(nbytes), which returns a run of at least that many
    # bytes as (slab, extent), or raises.
    cdef readonly dict nonwaiting_allocators
    # The same for a caller that must not wait in any thread: its patience is NEVER_WAITS. An event loop may go on in
    # another thread, and a thread of its pool may get the ident of a thread that has ended. None: no such caller.
    cdef public object loop_allocator
    cdef readonly StoredTables tables   # of the file in which batches outlive the process; None: there is no file
    cdef public bint transactional      # the batches belong to transactions
    cdef public bint idempotent         # no batch is sent before it has numbers
    cdef public bint refuses_when_full  # a record for which there is no memory is refused at once
    cdef public bint since_send         # delivery.timeout.ms of an adopted batch counts from its first record on
    # ---- guarded by the producer's lock
    cdef readonly set slow_nodes        # nodes that get no records without key and partition (KIP-794)
    cdef readonly set near_nodes        # with any, records without key and partition go to no other node while one of
    #                                     these takes requests (KIP-1123)
    cdef readonly dict waits_since      # node id -> time since which the node has taken no batch that was ready
    cdef readonly dict topics           # name -> TopicQueues
    cdef readonly dict active           # PartitionQueues that hold a batch, as keys; least recently drained first. A
    #                                     dict, because every turn copies its keys
    cdef readonly object incomplete     # OrderedDict of Batch without an outcome, oldest first
    cdef readonly bint closed
    cdef public str closed_because      # None: the user has closed the producer
    cdef public object refusal          # callable, returns the error that forbids to open a batch now; None: allowed
    cdef int64_t opened                 # batches opened so far
    # ---- thread: Sender
    cdef public object on_failed        # callable(batch, refused), called at each failure, before callbacks; or None.
    #                                     It is called again after a MemoryError
    cdef Batch uncounted                # thread: Sender; failed batches that on_failed has not heard of yet; or None

    # Count the failed batches that `fail` had no memory to count.
    cdef int count_failed(self) except -1
    cdef void count_later(self, Batch batch, bint refused) noexcept
    # Every method that may be called before __init__ calls this first.
    cdef int require_pool(self) except -1
    cdef int require_open(self) except -1
    # The batch that has room for `r`: the open batch, which may grow, or a new one. Raises BufferExhaustedError after
    # `patience` seconds. The caller appends before anything that could let another thread run, and then wakes the
    # Sender if the record is the batch's first: a Sender that wakes earlier could drain an empty batch. An open batch
    # that waits for a larger block stays open, and the Sender may take it meanwhile. If it were closed for lack of
    # memory, two small batches would stand in the queue. A bulk append cannot wait so: it gives its claims back.
    cdef Batch open_batch(self, PartitionQueue queue, Record* r, double patience)
    # Wait for a run of this extent without the lock. Another thread may then have opened a batch in the queue, or the
    # Sender may have taken the open batch. May return a larger run, and changes the extent then.
    cdef Py_ssize_t await_run(self, Py_ssize_t* extent, double patience) except -1
    # The extent with which a batch would have room for `r`, for which it has no room now; 0 if the batch is full.
    cdef Py_ssize_t grown(self, Batch batch, Record* r) noexcept
    # Grow so, if the memory is free. Runs no Python code. The caller holds the lock, and the batch is open or its own.
    cdef bint try_grow(self, Batch batch, Record* r) noexcept
    # The extent of the run that `r` needs: for the open batch, or for a new one. Closes the open batch if it is full.
    cdef Py_ssize_t next_extent(self, PartitionQueue queue, Record* r) except 0
    # Use a run for the open batch or for a new one, or give it back if the open batch has room for `r` by now.
    cdef Batch use_run(self, PartitionQueue queue, Record* r, Py_ssize_t slab, Py_ssize_t extent)
    cdef int take_scratches(self, int scratches) except -1
    # Thread: Sender. No other thread uses the first scratch.
    cdef int compress(self, Batch batch) except -1
    cdef Batch new_batch(self, PartitionQueue queue, Py_ssize_t slab, Py_ssize_t extent)
    # Have the file keep the batch. Raises KafkaError if the table of batches is full. Else it runs no Python code.
    cdef int keep(self, PartitionQueue queue, Batch batch) except -1
    # Raises KeyError for a batch of another accumulator.
    cdef bint set_apart(self, Batch part) noexcept
    cdef PartitionQueue queue_for(self, Batch batch)
    cdef int remove(self, PartitionQueue queue, Batch batch) except -1
    cdef Batch first_incomplete(self)
    cdef int enlist(self, PartitionQueue queue, Batch batch) except -1
    cdef list active_queues(self)
    # Fail the batch and take it out of its queue. The rest is `fail`'s.
    cdef bint decide(
        self, PartitionQueue queue, Batch batch, object error, dict record_errors, object error_of_others
    ) except -1
    # From `claim` to `unclaim` one bulk append alone writes to the open batch. Other threads find no open batch and
    # start a new one. Neither method runs Python code. The claimant wakes the Sender after `unclaim`.
    cdef int claim(self, PartitionQueue queue) except -1
    cdef int unclaim(self, PartitionQueue queue, Batch batch) except -1
