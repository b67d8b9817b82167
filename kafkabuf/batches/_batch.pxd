# cython: language_level=3
"""A batch of records on its way: open, closed, in flight, done; and the futures that point at it.

Ownership. The slab belongs to the batch from `__cinit__` on. It goes back to the pool when the batch is done *and* no
socket reads it any more (`readers` is 0), whichever comes last: an expired batch whose bytes are still being written
keeps its slab (KAFKA-19012). A part of a batch that was split has no slab of its own; it lies in that of the whole,
which parts in front keep claimed.

Everything here is guarded by the GIL, but for the bytes of a claimed batch, which its claimant writes without it.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kafkabuf._pool cimport BufferPool
from kafkabuf._records cimport RecordsBuilder


cdef enum Outcome:
    PENDING
    SUCCEEDED
    FAILED


cdef class Batch:
    # ---- fixed at construction
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int64_t number            # set by the accumulator; rises in the order batches are opened in
    cdef readonly double created            # Clock.monotonic() of the first record; delivery.timeout.ms counts from it
    cdef BufferPool pool
    cdef Py_ssize_t slab, n_slabs
    cdef uint32_t generation                # of the slab while it is ours
    cdef object incomplete                  # the accumulator's OrderedDict of batches not done, which this one leaves

    # ---- the records: the appending threads while open, the Sender once closed
    cdef RecordsBuilder builder
    cdef readonly bint closed               # takes no further record
    cdef double compression                 # bytes compressed to bytes plain; 1 where it went plain
    cdef readonly bint claimed              # a bulk append writes here without the GIL: nobody else may

    # ---- thread: Sender
    cdef public int attempts
    cdef public double retry_at             # not to be sent before this time; 0 for a first attempt
    cdef int32_t leader_epoch               # newest of the partition's that it was sent under; -1: none known
    cdef int readers                        # requests whose bytes a socket may still read, and a claimant

    # ---- thread: Sender; the numbers under which it goes (_sequences.pyx), -1 where it has none yet
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence     # of its first record
    cdef readonly bint renumbered           # these are not those in its header, nor those it is in flight with
    cdef public bint unseen                 # the broker has refused it for its number since it was last sent

    # ---- a batch that was refused as too large, and its parts (_split.pyx); moved by the Sender, read under the GIL
    cdef readonly int32_t first             # index of the first record by its future's count; 0 but in parts
    cdef readonly list parts                # of the whole: its parts in order, itself the last; None: was never split
    cdef readonly Batch whole               # of a part: in whose slab it lies; None: is no part
    cdef Batch behind                       # of a part: the next one, claimed until this one is over

    # ---- the outcome, set once
    cdef int outcome                        # an Outcome; leaves PENDING by compare-and-swap
    cdef readonly bint announced            # callbacks have run, waiters are awake
    cdef readonly int64_t base_offset       # -1 where unknown (acks=0, failure)
    cdef readonly int64_t log_append_time   # ms, or -1: the records' own timestamps hold
    cdef readonly object error
    cdef dict record_errors                 # place: error, of records that the broker found at fault; None: all share
    cdef object error_of_others             # `error`; this is the error of the records that record_errors does not name
    cdef list thunks                        # callback, RecordFuture, callback, RecordFuture, ... or None
    cdef list sleepers                      # (lock, RecordFuture or None) of those who wait for the end, or None
    cdef public object error_watcher        # of a failure: seen(batch) is called when the user reads the error; None

    cdef bint owns_slab(self) noexcept
    cdef int close(self) except -1
    # Compress the records into the scratch and from there back into place, if that makes them fewer. Closed only.
    cdef int compress(self, object codec, uint8_t* scratch, Py_ssize_t scratch_size) except -1
    cdef int start_read(self) except -1
    cdef int claim(self) except -1
    cdef int unclaim(self) except -1
    cpdef bint complete(self, int64_t base_offset, int64_t log_append_time) except -1
    # The outcome is failure. The caller must call `announce` next, whatever fails in between. False when another
    # outcome was first. Runs no Python.
    cdef bint decide(self, object error, dict record_errors, object error_of_others) except -1
    # Run the callbacks and wake the waiting threads.
    cdef int announce(self) except -1
    cdef int end(self) except -1
    cdef int note_error_seen(self) except -1
    cdef int give_back(self) except -1
    cdef object error_of(self, RecordFuture future)
    cdef int run_callbacks(self) except -1
    cdef int call_back(self, object callback, RecordFuture future) except -1
    cdef int add_callback(self, object callback, RecordFuture future) except -1


cdef class RecordFuture:
    cdef readonly Batch batch
    cdef int32_t index
    cdef int32_t key_size
    cdef int32_t value_size
    cdef int64_t timestamp

    cdef Batch part(self)
    cdef object metadata(self)


# A bulk append of this thread begins to claim batches. The object returned is given to `leave_bulk_append` at its end.
# A thread that is about to wait calls `give_back_claims` first: its own bulk appends, in frames below a signal handler
# or a serializer, may hold batches, and the Sender must be able to send them, or the thread would wait for itself. The
# bulk appends claim anew when they go on.
cdef object enter_bulk_append(object bulk_append)
cdef int leave_bulk_append(object outer) except -1
cpdef int give_back_claims() except -1


# The batch that holds the record now: a part of `batch` once that was split, else `batch` itself. Makes no object.
cdef inline Batch holder(Batch batch, int32_t index):
    cdef Py_ssize_t low = 0, high, middle
    if batch.parts is None:
        return batch
    high = len(batch.parts)
    while high - low > 1:
        middle = (low + high) // 2
        if (<Batch>batch.parts[middle]).first <= index:
            low = middle
        else:
            high = middle
    return <Batch>batch.parts[low]


cdef inline RecordFuture new_future(
    Batch batch, int32_t index, int64_t timestamp, int64_t key_size, int64_t value_size
):
    cdef RecordFuture future = RecordFuture.__new__(RecordFuture)
    future.batch = batch
    future.index = index
    future.timestamp = timestamp
    future.key_size = <int32_t>key_size
    future.value_size = <int32_t>value_size
    return future
