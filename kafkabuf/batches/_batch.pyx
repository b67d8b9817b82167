# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Completing a batch: once, then its callbacks, its waiting threads, and its slab back to the pool."""

cimport cython

import logging
import threading

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject, PyTypeObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport int64_t, uint8_t

from kafkabuf._pool cimport CLOSED, IN_FLIGHT, BufferPool
from kafkabuf._records cimport RecordsBuilder, builder_init, records_start, wrap, wrap_overhead
from kafkabuf._sealed cimport seal

from kafkabuf.batches.compression import DoesNotFit
from kafkabuf.batches.ending import ends_here
from kafkabuf.clock import SystemClock
from kafkabuf.errors import ClosedError, KafkaError, TimeoutError
from kafkabuf.record_metadata import RecordMetadata

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject* type, Py_ssize_t items)

cdef extern from * nogil:
    bint __sync_bool_compare_and_swap(int* where, int expected, int wanted)

cdef object logger = logging.getLogger("kafkabuf.producer")
cdef object system_clock = SystemClock()

# By a thread's ident the innermost bulk append that it is in: a Walker, which names the one outside it.
cdef dict bulk_appends = {}


cdef object enter_bulk_append(object bulk_append):
    cdef object thread = PyThread_get_thread_ident()
    cdef object outer = bulk_appends.get(thread)
    bulk_appends[thread] = bulk_append
    return outer


cdef int leave_bulk_append(object outer) except -1:
    cdef object thread = PyThread_get_thread_ident()
    if outer is None:
        del bulk_appends[thread]
    else:
        bulk_appends[thread] = outer
    return 0


cpdef int give_back_claims() except -1:
    if bulk_appends:
        found = bulk_appends.get(PyThread_get_thread_ident())
        while found is not None:
            found.give_back_claims()
            found = found.outer
    return 0


@cython.final
cdef class Batch:
    """Records of one partition in one run of slabs (Kafka's ProducerBatch). Made by the accumulator only."""

    def __cinit__(self, str topic, int partition, double created, BufferPool pool not None, Py_ssize_t slab,
                  Py_ssize_t n_slabs, Py_ssize_t write_limit, int magic, incomplete):
        if slab < 0 or n_slabs < 1 or n_slabs > pool.slab_count - slab:
            raise ValueError(f"the pool has {pool.slab_count} slabs, and no {n_slabs} from number {slab} on")
        self.topic = topic
        self.partition = partition
        self.created = created
        self.pool = pool
        self.slab = slab
        self.n_slabs = n_slabs
        self.generation = pool.generation(slab)
        self.base_offset = self.log_append_time = -1
        self.producer_id = self.producer_epoch = self.base_sequence = self.leader_epoch = -1
        self.incomplete = incomplete
        self.compression = 1.0
        builder_init(&self.builder, pool.address(slab), n_slabs * pool.slab_size, write_limit, magic)

    @property
    def count(self):
        """Records in the batch."""
        return self.builder.count

    @property
    def size(self):
        """Encoded bytes, the batch header included."""
        return self.builder.position

    @property
    def magic(self):
        return self.builder.magic

    @property
    def done(self):
        """Whether the outcome is decided."""
        return self.outcome != PENDING

    @property
    def waiting(self):
        """Threads that wait for the end."""
        return 0 if self.sleepers is None else len(self.sleepers)

    @property
    def callbacks(self):
        """Callbacks that wait for the end."""
        return 0 if self.thunks is None else len(self.thunks) // 2

    @property
    def succeeded(self):
        return self.outcome == SUCCEEDED

    def __repr__(self):
        return f"Batch({self.topic}-{self.partition}, {self.count} records, {self.size} bytes)"

    # ---- the way to the socket ---------------------------------------------------------------------------------------

    cdef bint owns_slab(self) noexcept:
        return self.pool.generation(self.slab) == self.generation

    cdef int close(self) except -1:
        """No record after this one. Further calls do nothing."""
        if not self.closed:
            self.closed = True
            self.pool.set_state(self.slab, self.n_slabs, CLOSED)
        return 0

    cdef int compress(self, object codec, uint8_t* scratch, Py_ssize_t scratch_size) except -1:
        cdef RecordsBuilder* b = &self.builder
        cdef size_t begin = records_start(b)
        cdef size_t plain = b.position - begin
        cdef Py_ssize_t size
        # Views of memory that is ours for the length of the call; a codec keeps neither.
        source = PyMemoryView_FromMemory(<char*>b.base + begin, plain, PyBUF_READ)
        target = PyMemoryView_FromMemory(<char*>scratch, scratch_size, PyBUF_WRITE)
        try:
            size = codec.compress(source, target)
            if not 0 <= size <= scratch_size:
                raise ValueError(f"the codec wrote {size} bytes, it says, where {scratch_size} have room")
        except DoesNotFit:
            return 0
        except Exception:
            logger.exception("compression failed for %r; its records are sent plain", self)
            return 0
        if <size_t>size + wrap_overhead(b) < plain:
            wrap(b, scratch, <size_t>size, codec.id)
            self.compression = <double>b.position / <double>(begin + plain)
        return 0

    cdef int start_read(self) except -1:
        """A request now carries the batch: the slab stays until `end_read`."""
        if not self.owns_slab():
            raise AssertionError(f"{self!r} no longer owns its slab")
        self.readers += 1
        self.pool.set_state(self.slab, self.n_slabs, IN_FLIGHT)
        return 0

    def end_read(self):
        """The request is over and no socket reads the slab (Thread: Sender)."""
        self.readers -= 1
        if self.outcome != PENDING:
            self.give_back()
        elif self.readers == 0:
            self.pool.set_state(self.slab, self.n_slabs, CLOSED)

    cdef int claim(self) except -1:
        """A bulk append takes the batch for itself, to write without the GIL; as a reader it keeps the slab alive."""
        self.claimed = True
        self.readers += 1
        return 0

    cdef int unclaim(self) except -1:
        self.claimed = False
        self.readers -= 1
        if self.outcome != PENDING:
            self.give_back()
        return 0

    cdef int give_back(self) except -1:
        """Done and read by nobody: the slab goes back to the pool, or from a part to the one behind it."""
        cdef Batch behind
        if self.readers:
            return 0
        if self.whole is not None:
            behind, self.behind = self.behind, None
            if behind is not None:
                behind.unclaim()
        elif self.owns_slab():
            if self.pool.release(self.slab, self.n_slabs) != 0:
                raise AssertionError(f"{self!r} was released twice")
        return 0

    # ---- the outcome -------------------------------------------------------------------------------------------------

    cpdef bint complete(self, int64_t base_offset, int64_t log_append_time) except -1:
        """The broker has it. False when another outcome was first."""
        if not __sync_bool_compare_and_swap(&self.outcome, PENDING, SUCCEEDED):
            return False
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.announce()
        return True

    def fail(self, error, record_errors=None, error_of_others=None):
        """It will not be delivered, because of `error`. False when another outcome was first.

        `record_errors`: what some records failed with, by place in the batch; the other records then with
        `error_of_others`.
        """
        if not self.decide(error, record_errors, error_of_others):
            return False
        self.announce()
        return True

    cdef bint decide(self, object error, dict record_errors, object error_of_others) except -1:
        if not __sync_bool_compare_and_swap(&self.outcome, PENDING, FAILED):
            return False
        self.error = error
        self.record_errors = record_errors
        self.error_of_others = error_of_others
        return True

    cdef int announce(self) except -1:
        # The slab first, so that a callback that sends finds it; the callbacks next, so that flush() returns after
        # them; the sleeping threads last, whatever went wrong before.
        self.closed = True
        try:
            self.give_back()
            if self.thunks is not None:
                self.run_callbacks()
        finally:
            self.end()
        return 0

    cdef int end(self) except -1:
        cdef list sleepers
        self.incomplete.pop(self, None)
        self.announced = True
        sleepers, self.sleepers = self.sleepers, None
        if sleepers is not None:
            for lock, _ in sleepers:
                try:
                    lock.release()
                except Exception as error:
                    report_unraisable(error, lock)
        return 0

    cdef int note_error_seen(self) except -1:
        """The user has the error now: through a future, a report or a callback."""
        watcher, self.error_watcher = self.error_watcher, None
        if watcher is not None:
            watcher.seen(self)
        return 0

    def read_error(self):
        """`error`, for the user: from now on it counts as seen."""
        self.note_error_seen()
        return self.error

    def why_pending(self):
        """The end of the text of an error that says that there is no outcome yet; \"\" where nothing is known."""
        return self.pool.why(self)

    cdef object error_of(self, RecordFuture future):
        """What the future's record failed with."""
        if self.record_errors is None:
            return self.error
        return self.record_errors.get(future.index - self.first, self.error_of_others)

    cdef int run_callbacks(self) except -1:
        cdef list thunks
        cdef Py_ssize_t i
        thunks, self.thunks = self.thunks, None
        for i in range(0, len(thunks), 2):
            if self.pool.disowned:  # by a callback that forked: in the child the others are not ours to call
                break
            self.call_back(thunks[i], <RecordFuture>thunks[i + 1])
        return 0

    cdef int call_back(self, callback, RecordFuture future) except -1:
        try:
            if type(callback) is DoneCallback:
                (<DoneCallback>callback).fn(future)
            else:
                callback(future.metadata(), self.error_of(future))
        except BaseException as error:  # even SystemExit: other callbacks and waiting threads must have their turn
            logger.error("a callback raised for a record of %s-%d: %r", self.topic, self.partition, error)
            report_unraisable(error, callback)
        return 0

    def wait(self, timeout=None, clock=system_clock, RecordFuture future=None):
        """Wait until the outcome is decided and the callbacks have run; False when `timeout` seconds pass first.

        With a `future` of the batch, the outcome of its record: a batch that was split has several. Raises KafkaError
        in a callback, whose thread would have to bring what it waits for.
        """
        cdef Batch part = self if future is None else future.part()
        if part.announced:
            return True
        if (timeout is None or timeout > 0) and ends_here(self.incomplete):
            raise KafkaError("to wait for a record in a callback would be to wait for itself: the thread that runs it "
                             "is the one that brings the outcome. Use add_done_callback(), or wait in another thread")
        if self.pool.disowned:
            raise ClosedError("the record was sent before a fork: the parent process learns what becomes of it")
        give_back_claims()
        lock = threading.Lock()
        lock.acquire()
        if not self.add_sleeper(lock, future):
            return True
        sleeper = (lock, future)
        try:
            if clock.wait(lock, timeout):
                return True
        finally:  # served, out of time or interrupted
            part = self if future is None else future.part()
            if part.sleepers is not None and sleeper in part.sleepers:
                part.sleepers.remove(sleeper)
        return bool(part.announced)

    def add_sleeper(self, lock, RecordFuture future=None):
        """Have `lock.release()` called at the end, after the callbacks; False where the end has come.

        With a `future` of the batch, at the end of its record. The thread that brings the end calls: it must not raise.
        """
        cdef Batch part
        sleeper = (lock, future)
        fresh = []
        # Making an object may let another thread run, as the garbage collector may. From this look to the append no
        # object is made.
        part = self if future is None else future.part()
        if part.announced:
            return False
        if part.sleepers is None:
            part.sleepers = fresh
        part.sleepers.append(sleeper)
        return True

    cdef int add_callback(self, callback, RecordFuture future) except -1:
        """Call `callback(metadata, error)` at the end, or now where the end has come."""
        cdef Batch part
        cdef list fresh = [] if self.thunks is None else None
        # As in `wait`: nothing between this look and the appends lets another thread run.
        part = holder(self, future.index)
        if part.outcome != PENDING:
            part.note_error_seen()
            return part.call_back(callback, future)
        if part.thunks is None:  # then no split gave it a list, and it is the batch itself
            part.thunks = fresh
        part.thunks.append(callback)
        part.thunks.append(future)
        return 0


cdef int report_unraisable(object error, object culprit) except -1:
    """To sys.unraisablehook, where Python sends what nobody is there to catch."""
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(culprit)
    return 0


seal(Batch)


@cython.final
cdef class DoneCallback:
    """Among a batch's callbacks, one that takes the future itself."""
    cdef object fn

    def __cinit__(self, fn):
        self.fn = fn


# ---- what the garbage collector visits -------------------------------------------------------------------------------

# A RecordFuture costs the collector nothing, which therefore does not see that it leads to its batch. Where a record
# waits for ever, as one of a MockProducer does that nobody completes, a callback that leads back to the producer would
# thus keep both. So the batch answers for its future where it has callbacks of one only, and these alone hold it. Those
# of a batch with more records need no such thing: a Sender will end it.
cdef extern from *:
    """
    static traverseproc kb_traverse_fields;
    static PyObject *(*kb_thunks_of)(PyObject *batch);

    static int kb_owns_its_future(PyObject *thunks) {
        Py_ssize_t i, n;
        PyObject *future;
        if (!PyList_CheckExact(thunks) || Py_REFCNT(thunks) != 1) return 0;
        n = PyList_GET_SIZE(thunks);
        if (n < 2 || n % 2) return 0;
        future = PyList_GET_ITEM(thunks, 1);
        for (i = 3; i < n; i += 2) {
            if (PyList_GET_ITEM(thunks, i) != future) return 0;
        }
        return Py_REFCNT(future) == n / 2;
    }

    static int kb_traverse(PyObject *batch, visitproc visit, void *arg) {
        int answer = kb_traverse_fields(batch, visit, arg);
        if (answer == 0 && kb_owns_its_future(kb_thunks_of(batch))) answer = visit(batch, arg);
        return answer;
    }

    static void kb_answer_for_futures(PyObject *type, PyObject *(*thunks_of)(PyObject *)) {
        kb_thunks_of = thunks_of;
        kb_traverse_fields = ((PyTypeObject *)type)->tp_traverse;
        ((PyTypeObject *)type)->tp_traverse = kb_traverse;
    }
    """
    void answer_for_futures "kb_answer_for_futures"(object type, PyObject* (*thunks_of)(PyObject*) noexcept)


cdef PyObject* thunks_of(PyObject* batch) noexcept:
    return <PyObject*>(<Batch>batch).thunks


answer_for_futures(Batch, thunks_of)


cdef object new_metadata(object topic, object partition, object offset, object timestamp, object key_size,
                         object value_size):
    """What NamedTuple's constructor does, without its Python frame and the tuple it copies from, for every callback."""
    # All fields are objects by now: from here on none is made, so that no collector sees the tuple half filled.
    metadata = PyType_GenericAlloc(<PyTypeObject*>RecordMetadata, 6)
    set_field(metadata, 0, topic)
    set_field(metadata, 1, partition)
    set_field(metadata, 2, offset)
    set_field(metadata, 3, timestamp)
    set_field(metadata, 4, key_size)
    set_field(metadata, 5, value_size)
    return metadata


cdef inline void set_field(object fresh, Py_ssize_t place, object value) noexcept:
    Py_INCREF(value)  # the tuple's own
    PyTuple_SET_ITEM(fresh, place, value)


@cython.final
@cython.no_gc
@cython.freelist(4096)
cdef class RecordFuture:
    """The pending result of one send(), with the methods of `concurrent.futures.Future`.

    Nothing is done for it when its batch is acknowledged: it points at the batch and asks when it is asked.
    """

    def __init__(self):
        raise TypeError("a RecordFuture comes from KafkaProducer.send()")

    def done(self):
        """Whether the outcome is known."""
        return self.part().outcome != PENDING

    def cancel(self):
        """Always False: a record handed over cannot be called back."""
        return False

    def cancelled(self):
        return False

    def running(self):
        return self.part().outcome == PENDING

    def result(self, timeout=None):
        """The RecordMetadata once the broker has acknowledged the record.

        Waits up to `timeout` seconds (None: for ever). Raises TimeoutError when they pass, or the error that kept the
        record from being delivered.
        """
        cdef Batch part = self._await(timeout)
        if part.outcome == FAILED:
            part.note_error_seen()
            # All records of the batch share the error: it must not collect the traceback, and the frames, of each.
            raise part.error_of(self).with_traceback(None)
        return self.metadata()

    def exception(self, timeout=None):
        """The error that kept the record from being delivered, or None. Waits as `result` does."""
        cdef Batch part = self._await(timeout)
        if part.outcome == FAILED:
            part.note_error_seen()
        return part.error_of(self)

    def add_done_callback(self, fn):
        """Call `fn(future)` in the Sender's thread at the end, or here and now where the end has come."""
        self.batch.add_callback(DoneCallback.__new__(DoneCallback, fn), self)

    def _await(self, timeout):
        if self.part().outcome == PENDING and not self.batch.wait(timeout, future=self):
            raise TimeoutError(f"no acknowledgement for a record of {self.batch.topic}-{self.batch.partition} within "
                               f"{timeout} s{self.part().why_pending()}")
        return self.part()

    cdef Batch part(self):
        return holder(self.batch, self.index)

    cdef object metadata(self):
        cdef Batch batch = self.part()
        offset = batch.base_offset + self.index - batch.first if batch.base_offset >= 0 else -1
        timestamp = batch.log_append_time if batch.log_append_time >= 0 else self.timestamp
        return new_metadata(batch.topic, batch.partition, offset, timestamp, self.key_size, self.value_size)

    def __repr__(self):
        cdef Batch part = self.part()
        state = "pending" if part.outcome == PENDING else "done" if part.error is None else "failed"
        return f"RecordFuture({self.batch.topic}-{self.batch.partition}, {state})"


seal(RecordFuture)
