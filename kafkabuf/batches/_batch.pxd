# cython: language_level=3
"""A batch of records on its way (open, closed, in flight, done), and the futures that point at it.

Ownership. The slab, or run of slabs, or block, belongs to the batch from `__cinit__` on. It goes back to the pool when
the batch is done *and* no socket reads it any more (`readers` is 0): an expired batch keeps its slab while a socket
still writes its bytes (KAFKA-19012). A claim counts as a reader, because a batch may fail while a bulk append or the
compression thread writes to it. A part of a batch that was split has no slab of its own. It lies in the slab of
the whole, and each part claims the part behind it.

The producer's lock (_accumulator.pxd) guards everything here except the bytes of a claimed batch, which its claimant
writes without the GIL.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kafkabuf._pool cimport BufferPool
from kafkabuf.batches._stored cimport StoredBatch, StoredTables


cdef enum Outcome:
    PENDING
    SUCCEEDED
    FAILED


cdef class Batch:
    # ---- fixed at construction
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly double created            # Clock.monotonic() of the first record; delivery.timeout.ms counts from it
    cdef BufferPool pool
    cdef object incomplete                  # the accumulator's OrderedDict of batches without an outcome

    # ---- all that the next process needs, if the batch lies in a file (_stored.pxd), with the fields' owners below:
    #      builder     the appending threads while the batch is open, the Sender once it is closed, and the claimant
    #                  while it is claimed
    #      number      the accumulator, once
    #      first       thread: Sender (_split.pyx); the lock guards reads
    #      numbers     thread: Sender (_sequences.pyx)
    cdef StoredBatch* stored
    cdef StoredBatch own                    # where `stored` lies if no file has it, and once its slab went back
    cdef StoredTables tables                # the file's; None: `stored` lies in `own`
    cdef readonly bint left                 # its run and its entry in the file are the next process's
    cdef readonly bint recovered            # a process before this one has left it, or its whole, in the file

    # ---- the memory, a run of the pool. `move` changes these fields and the builder's base, while the batch is open or
    # for its claimant. Nobody else has the address then.
    cdef Py_ssize_t slab, extent
    cdef uint32_t generation                # the run's generation while the batch owns the run

    # ---- the records: owned by the appending threads while the batch is open, by the Sender once it is closed, and by
    #      the claimant while it is claimed
    cdef readonly bint closed               # takes no further record
    cdef double compression                 # compressed bytes divided by plain bytes; 1: the records went plain
    cdef bint tried                         # the codec has run; the records may be plain still
    cdef readonly bint claimed              # a bulk append, or the compression thread, writes here without the GIL: no
    #                                         other thread may

    # ---- thread: Sender
    cdef public int attempts
    cdef public double retry_at             # the Sender does not send the batch before this time; 0: first attempt
    cdef int32_t leader_epoch               # newest leader epoch under which the batch was drained; -1: unknown
    cdef int readers                        # requests whose bytes a socket may still read, and the claimant

    # ---- thread: Sender; the batch's numbers (_sequences.pyx)
    cdef public bint unseen                 # the broker refused the newest attempt because of the batch's number
    cdef public bint doubtful               # an attempt ended, and it is not certain that the broker did not append it
    cdef readonly bint whole_doubtful       # it was so when the batch was split: a broker may have the records of this
    #                                         part under numbers of the whole, and refuses the part's own numbers

    # ---- a batch that was refused as too large, and its parts (_split.pyx): the Sender writes, the lock guards reads
    cdef readonly list parts                # the parts of a whole in order, the whole itself last; None: never split
    cdef readonly Batch whole               # the batch in whose slab this part lies; None: this batch is no part
    cdef Batch behind                       # the part behind; this part claims it until this part is done

    # ---- the outcome, set once
    cdef int outcome                        # an Outcome; leaves PENDING by compare-and-swap
    cdef readonly bint announced            # callbacks have run, waiters are awake
    cdef readonly int64_t base_offset       # -1: unknown (acks=0, failure)
    cdef readonly int64_t log_append_time   # ms; -1: the records' own timestamps hold
    cdef readonly object error
    cdef readonly dict record_errors        # place in the batch: error, for records that the broker named; None: all
    #                                         records failed with `error`
    cdef readonly object error_of_others    # the error of the records that record_errors does not name
    cdef list thunks                        # callback, RecordFuture, callback, ...; None before the batch is opened,
    #                                         and after its end
    cdef list opaques                       # by record, up to the last that has one; None without on_acknowledged
    cdef object on_acknowledged             # callable(BatchOutcome); the accumulator sets it. None after the end
    cdef list sleepers                      # (lock, RecordFuture or None); the end calls lock.release(); or None
    cdef public object error_watcher        # its seen(batch) is called when the user reads the error; or None
    cdef Batch next_uncounted               # thread: Sender; the next in AccumulatorCore.uncounted
    cdef bint refused                       # what AccumulatorCore.count_failed passes on

    cdef bint owns_slab(self) noexcept
    # From now on `stored` lies in a file's table: the next process finds the batch. The caller holds the producer's
    # lock. False, and no change, if the table is full.
    cdef bint outlive(
        self, StoredTables tables, int32_t partition, int64_t created_ms, bint transactional, bint idempotent
    ) noexcept
    # `stored` lies in `own` again. The entry is free.
    cdef void come_home(self) noexcept
    # `stored` lies in `own` again. The entry and the run are the next process's, for as long as this process lives.
    # `unsent`: the entry loses its numbers, because no broker has the batch. The caller holds the producer's lock.
    cdef void leave(self, bint unsent) noexcept
    # The batches come from a file. This one becomes the whole of which `ahead`, and all parts before that, are parts.
    cdef int stand_behind(self, Batch ahead) except -1
    # Go on in a larger run, which the batch takes over, and give the present run back. The caller holds the producer's
    # lock. Runs no Python code.
    cdef void move(self, Py_ssize_t slab, Py_ssize_t extent, size_t write_limit) noexcept
    cdef int close(self) except -1
    # Compress the records of a closed batch into the scratch, and copy them back into place if they are fewer bytes.
    cdef int compress(self, object codec, uint8_t* scratch, Py_ssize_t scratch_size) except -1
    cdef int start_read(self) except -1
    cdef int claim(self) except -1
    cdef int unclaim(self) except -1
    cpdef bint complete(self, int64_t base_offset, int64_t log_append_time) except -1
    # Make failure the outcome. False when another outcome came first. After True the caller must call `announce`,
    # whatever fails in between. Runs no Python code.
    cdef bint decide(self, object error, dict record_errors, object error_of_others) except -1
    # Run the callbacks and wake the waiting threads.
    cdef int announce(self) except -1
    cdef int end(self) except -1
    cdef int note_error_seen(self) except -1
    cdef int give_back(self) except -1
    cdef object error_of(self, RecordFuture future)
    cdef int run_callbacks(self, list thunks) except -1
    cdef int tell(self, list opaques) except -1
    cdef int remove_sleeper(self, tuple sleeper) except -1
    cdef int run_until_raised(self, list thunks, Py_ssize_t* done) except -1
    cdef int report_raised(self, object callback, object error) except -1
    cdef int log_raised(self, str text, object error) except -1
    cdef int add_callback(self, object callback, RecordFuture future) except -1
    # Keep the user's objects (or None) for the record that is appended next to the open batch. Runs no Python code. If
    # it raises, the record must not be appended. It comes before the append and after all else that may fail, so that
    # a send() that raises has queued no record, and no callback is lost. The caller holds the producer's lock.
    cdef int keep(self, object callback, object opaque, RecordFuture future) except -1


cdef class RecordFuture:
    cdef readonly Batch batch
    cdef int32_t index
    cdef int32_t key_size
    cdef int32_t value_size
    cdef int64_t timestamp

    cdef Batch part(self)
    cdef object metadata(self)


# A callback that takes the future of its record, instead of metadata and error.
cdef class FutureCallback:
    # The record has an outcome. Thread: the thread that has decided the outcome. May raise.
    cdef int ended(self, RecordFuture future) except -1


# A bulk append of this thread begins and ends to claim batches.
# A thread that is about to wait calls `give_back_claims` first: its own bulk appends, in frames below a signal handler
# or a serializer, may hold batches. The Sender must be able to send these batches, or the thread would wait for itself.
# The same goes for bulk appends of the thread's other greenlets, which may wait for what this greenlet does next.
# The bulk appends claim again when they go on.
# Both take `this_thread()`, made before: the end needs no memory.
cdef object this_thread()
cdef int enter_bulk_append(object thread, object bulk_append) except -1
cdef int leave_bulk_append(object thread, object bulk_append) except -1
cpdef int give_back_claims() except -1


# The batch that holds the record now: a part of `batch` if `batch` was split, else `batch` itself. Makes no object.
cdef inline Batch holder(Batch batch, int32_t index):
    cdef Py_ssize_t low = 0, high, middle
    if batch.parts is None:
        return batch
    high = len(batch.parts)
    while high - low > 1:
        middle = (low + high) // 2
        if (<Batch>batch.parts[middle]).stored.first <= index:
            low = middle
        else:
            high = middle
    return <Batch>batch.parts[low]


# The offset of a record of `part`, the batch that holds the record now; -1: the broker has named no offset.
cdef inline int64_t offset_in(Batch part, RecordFuture future) noexcept:
    return part.base_offset + future.index - part.stored.first if part.base_offset >= 0 else -1


# Milliseconds: the broker's, if the broker has set the timestamps of the batch.
cdef inline int64_t timestamp_in(Batch part, RecordFuture future) noexcept:
    return future.timestamp if part.log_append_time < 0 else part.log_append_time


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
