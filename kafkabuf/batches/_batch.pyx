# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A batch gets its outcome once: it gives its slab back, runs its callbacks and wakes the waiting threads."""

cimport cython


from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.exc cimport PyErr_Clear, PyErr_SetObject, PyErr_WriteUnraisable
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject, PyTypeObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from kafkabuf.cpython._hints cimport put_hint, refuse_await
from kafkabuf.process._lock cimport enter_lock, leave_lock
from kafkabuf.memory._order cimport kb_in_order
from kafkabuf._pool cimport CLOSED, IN_FLIGHT, BufferPool
from kafkabuf._records cimport RecordsBuilder, builder_init, records_start, wrap, wrap_overhead
from kafkabuf.batches._stored cimport (
    IN_LINE, IN_NO_LINE, StoredBatch, StoredTables, cast_shadow, life_of, pack_run, put_numbers, seal_records, unseal,
    unshadow,
)
from kafkabuf.cpython._sealed cimport seal

from kafkabuf.batches.codec import DoesNotFit
from kafkabuf.batches.ending import ends_here
from kafkabuf.clock import SystemClock
from kafkabuf.errors import ClosedError, KafkaError, TimeoutError
from kafkabuf.hints import FUTURE, hints
from kafkabuf.process.producer_log import producer_log
from kafkabuf.record_metadata import BatchOutcome, RecordMetadata
from kafkabuf.process.threads import new_waiter

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject* type, Py_ssize_t items)
    bint PyFunction_Check(object)
    int push "PyList_Append"(list, object) noexcept  # -1: no memory, and an exception is set
    size_t PY_VECTORCALL_ARGUMENTS_OFFSET
    object PyObject_Vectorcall(object, PyObject** arguments, size_t count, PyObject* names)

cdef extern from * nogil:
    bint __sync_bool_compare_and_swap(int* where, int expected, int wanted)

cdef extern from *:
    """
    /* list.pop() may shrink the list, which takes memory. */
    static void kb_drop_last(PyObject *list) {
        Py_ssize_t last = PyList_GET_SIZE(list) - 1;
        PyObject *item = PyList_GET_ITEM(list, last);
        Py_SET_SIZE((PyVarObject *)list, last);
        Py_DECREF(item);
    }
    """
    void drop_last "kb_drop_last"(list) noexcept

cdef object logger = producer_log("kafkabuf.producer")
cdef object system_clock = SystemClock()

# Ident of a thread -> the bulk appends that run in it, oldest first. Its greenlets may end theirs in any order.
cdef dict bulk_appends = {}


cdef object this_thread():
    return PyThread_get_thread_ident()


cdef int enter_bulk_append(object thread, object bulk_append) except -1:
    cdef list running = bulk_appends.get(thread)
    if running is None:
        bulk_appends[thread] = [bulk_append]
    else:
        running.append(bulk_append)
    return 0


cdef int leave_bulk_append(object thread, object bulk_append) except -1:
    cdef list running = bulk_appends[thread]
    cdef Py_ssize_t place
    if len(running) == 1:
        del bulk_appends[thread]
    else:
        # list.remove() may shrink the list, which takes memory.
        for place in range(running.index(bulk_append), len(running) - 1):
            running[place] = running[place + 1]
        drop_last(running)
    return 0


cpdef int give_back_claims() except -1:
    if bulk_appends:
        running = bulk_appends.get(PyThread_get_thread_ident())
        if running is not None:
            for bulk_append in tuple(running):
                bulk_append.give_back_claims()
    return 0


@cython.final
cdef class Batch:
    """Records of one partition in one run of slabs (Kafka's ProducerBatch). Only kafkabuf makes batches."""

    def __cinit__(self, str topic, int partition, double created, BufferPool pool not None, Py_ssize_t slab,
                  Py_ssize_t extent, Py_ssize_t write_limit, int magic, incomplete):
        if not pool.exists(slab, extent):
            raise ValueError(f"the pool has {pool.slab_count} slabs: a run of extent {extent} from {slab} on lies "
                             f"outside")
        self.topic = topic
        self.partition = partition
        self.created = created
        self.pool = pool
        self.slab = slab
        self.extent = extent
        self.generation = pool.generation(slab, extent)
        self.base_offset = self.log_append_time = -1
        self.leader_epoch = -1
        self.stored = &self.own
        self.stored.run = pack_run(slab, extent)
        self.stored.other_run = ~self.stored.run
        put_numbers(self.stored, -1, -1, -1)
        self.incomplete = incomplete
        self.compression = 1.0
        builder_init(&self.stored.builder, pool.address(slab, extent), pool.size_of(extent), write_limit, magic)

    @property
    def number(self):
        """It rises in the order in which the accumulator opens batches."""
        return self.stored.number

    @property
    def first(self):
        """The index of the first record, as its future counts: 0 except in parts."""
        return self.stored.first

    @property
    def producer_id(self):
        return self.stored.producer_id

    @property
    def producer_epoch(self):
        return self.stored.producer_epoch

    @property
    def base_sequence(self):
        """The number of its first record; -1: it has no numbers yet."""
        return self.stored.base_sequence

    @property
    def in_line(self):
        """Whether a recovered batch goes under the file's id (`Line` in _stored.pxd)."""
        return self.stored.line == IN_LINE

    @property
    def renumbered(self):
        """Whether the header, and the request in flight, still have the old numbers."""
        return bool(self.stored.renumbered)

    @property
    def count(self):
        """The number of records in the batch."""
        return self.stored.builder.count

    @property
    def size(self):
        """Encoded bytes, the batch header included."""
        return self.stored.builder.position

    @property
    def magic(self):
        return self.stored.builder.magic

    @property
    def done(self):
        """Whether the outcome is decided."""
        return self.outcome != PENDING

    @property
    def waiting(self):
        """The number of threads and event loops that wait for the end."""
        return 0 if self.sleepers is None else len(self.sleepers)

    @property
    def unwatched(self):
        """The number of records whose outcome no callback gets; all of them, once the callbacks have run."""
        if self.on_acknowledged is not None:
            return 0
        return max(0, self.stored.builder.count - (0 if self.thunks is None else len(self.thunks) // 2))

    @property
    def succeeded(self):
        return self.outcome == SUCCEEDED

    def __repr__(self):
        return f"Batch({self.topic}-{self.partition}, {self.count} records, {self.size} bytes)"

    # ---- the way to the socket ---------------------------------------------------------------------------------------

    cdef bint owns_slab(self) noexcept:
        return self.pool.generation(self.slab, self.extent) == self.generation

    cdef bint outlive(
        self, StoredTables tables, int32_t partition, int64_t created_ms, bint transactional, bint idempotent
    ) noexcept:
        cdef StoredBatch* entry = tables.take()
        if entry == NULL:
            return False
        entry[0] = self.own
        entry.partition = partition
        entry.created_ms = created_ms
        entry.transactional = transactional
        entry.idempotent = idempotent
        kb_in_order()
        entry.live = life_of(entry)
        self.stored = entry
        self.tables = tables
        return True

    cdef void come_home(self) noexcept:
        cdef StoredBatch* entry = self.stored
        if entry != &self.own:
            self.own = entry[0]
            self.own.live = False
            self.stored = &self.own
            self.tables.give_back(entry)

    cdef void leave(self, bint unsent) noexcept:
        cdef StoredBatch* entry = self.stored
        if entry != &self.own and self.outcome == PENDING:
            self.own = entry[0]
            self.own.live = False
            self.stored = &self.own
            if unsent:
                entry.line = IN_NO_LINE
                put_numbers(entry, -1, -1, -1)
            self.left = True

    cdef int stand_behind(self, Batch ahead) except -1:
        cdef Batch part
        self.parts = [ahead] if ahead.parts is None else ahead.parts
        ahead.parts = None
        for part in self.parts:
            part.whole = self
        self.parts.append(self)
        ahead.behind = self
        ahead.stored.builder.capacity = <size_t>(
            self.stored.offset + <int64_t>records_start(&self.stored.builder) - ahead.stored.offset)
        self.claim()
        return 0

    cdef void move(self, Py_ssize_t slab, Py_ssize_t extent, size_t write_limit) noexcept:
        cdef RecordsBuilder* b = &self.stored.builder
        cdef Py_ssize_t old_slab = self.slab, old_extent = self.extent
        cdef uint8_t* base = self.pool.address(slab, extent)
        memcpy(base, b.base, b.position)
        b.base = base
        b.capacity = <size_t>self.pool.size_of(extent)
        b.write_limit = min(write_limit, b.capacity)
        b.limit = b.write_limit if b.count else b.capacity
        kb_in_order()
        self.stored.run = pack_run(slab, extent)
        kb_in_order()
        self.stored.other_run = ~self.stored.run
        kb_in_order()
        self.slab = slab
        self.extent = extent
        self.generation = self.pool.generation(slab, extent)
        self.pool.release(old_slab, old_extent)

    cdef int close(self) except -1:
        """Take no further record. A second call does nothing."""
        if not self.closed:
            self.closed = True
            self.pool.set_state(self.slab, self.extent, CLOSED)
            if self.tables is not None:
                seal_records(self.stored)
        return 0

    cdef int compress(self, object codec, uint8_t* scratch, Py_ssize_t scratch_size) except -1:
        cdef RecordsBuilder* b = &self.stored.builder
        cdef size_t begin = records_start(b)
        cdef size_t plain = b.position - begin
        cdef Py_ssize_t size = 0
        cdef bint fits = False
        self.tried = True
        # Both views are of memory that the batch owns during the call. A codec keeps neither view.
        source = PyMemoryView_FromMemory(<char*>b.base + begin, plain, PyBUF_READ)
        target = PyMemoryView_FromMemory(<char*>scratch, scratch_size, PyBUF_WRITE)
        try:
            size = codec.compress(source, target)
            if not 0 <= size <= scratch_size:
                raise ValueError(f"the codec reports {size} bytes written, and the scratch has {scratch_size}")
            fits = True
        except DoesNotFit:
            pass
        except Exception:
            logger.exception("compression failed for %r; its records are sent plain", self)
        # The Sender may have left the batch to the next process while the codec let others run: `b` is that process's.
        if fits and not self.left and <size_t>size + wrap_overhead(b) < plain:
            if self.tables is not None:
                cast_shadow(self.stored, scratch - self.pool.base, size, codec.id)
                unseal(self.stored)
            wrap(b, scratch, <size_t>size, codec.id)
            if self.tables is not None:
                seal_records(self.stored)
                unshadow(self.stored)
            self.compression = <double>b.position / <double>(begin + plain)
        return 0

    cdef int start_read(self) except -1:
        """A request now carries the batch: the batch keeps its slab until `end_read`."""
        if not self.owns_slab():
            raise AssertionError(f"{self!r} no longer owns its slab")
        enter_lock(&self.pool.guard)
        self.readers += 1
        leave_lock(&self.pool.guard)
        self.pool.set_state(self.slab, self.extent, IN_FLIGHT)
        return 0

    def end_read(self):
        """The request has ended, and no socket reads the slab for it any more (Thread: Sender)."""
        enter_lock(&self.pool.guard)
        try:
            self.readers -= 1
            if self.outcome != PENDING:
                self.give_back()
            elif self.readers == 0:
                self.pool.set_state(self.slab, self.extent, CLOSED)
        finally:
            leave_lock(&self.pool.guard)

    cdef int claim(self) except -1:
        """A thread claims the batch, to write without the GIL. It counts as a reader, so that the slab stays."""
        self.claimed = True
        self.readers += 1
        return 0

    cdef int unclaim(self) except -1:
        enter_lock(&self.pool.guard)
        try:
            self.claimed = False
            self.readers -= 1
            if self.outcome != PENDING:
                self.give_back()
        finally:
            leave_lock(&self.pool.guard)
        return 0

    cdef int give_back(self) except -1:
        """The batch is done: if it has no reader, give its slab to the pool, or from a part to the part behind it.

        Where a part stays in the file, it has a slab of its own (`AccumulatorCore.set_apart`), or all parts stay.
        """
        cdef Batch behind
        if self.readers:
            return 0
        if self.left and (self.whole is None or (self.slab == self.whole.slab and self.extent == self.whole.extent)):
            return 0
        if self.whole is not None:
            self.come_home()  # first: the header of the part behind overwrites the end of this part
            behind, self.behind = self.behind, None
            if behind is not None:
                behind.unclaim()
        elif self.owns_slab():
            self.come_home()  # first: the next owner of the slab may overwrite it at once
            if self.pool.release(self.slab, self.extent) != 0:
                raise AssertionError(f"{self!r} was released twice")
        return 0

    # ---- the outcome -------------------------------------------------------------------------------------------------

    cpdef bint complete(self, int64_t base_offset, int64_t log_append_time) except -1:
        """The broker has the batch. False when another outcome came first."""
        enter_lock(&self.pool.guard)
        cdef bint first = __sync_bool_compare_and_swap(&self.outcome, PENDING, SUCCEEDED)
        if first:
            self.stored.live = False
            self.base_offset = base_offset
            self.log_append_time = log_append_time
        leave_lock(&self.pool.guard)
        if first:
            self.announce()
        return first

    def fail(self, error, record_errors=None, error_of_others=None):
        """Fail the batch with `error`. False when another outcome came first.

        `record_errors` are the errors of some records, by place in the batch. The other records then fail with
        `error_of_others`.
        """
        if not self.decide(error, record_errors, error_of_others):
            return False
        self.announce()
        return True

    cdef bint decide(self, object error, dict record_errors, object error_of_others) except -1:
        enter_lock(&self.pool.guard)
        cdef bint first = __sync_bool_compare_and_swap(&self.outcome, PENDING, FAILED)
        if first:
            self.stored.live = False
            self.error = error
            self.record_errors = record_errors
            self.error_of_others = error_of_others
        leave_lock(&self.pool.guard)
        return first

    cdef int announce(self) except -1:
        # The slab goes back first, so that a callback that sends finds memory. The callbacks run next, so that flush()
        # returns after them. The waiting threads wake last, whatever failed before.
        cdef list thunks, opaques
        try:
            enter_lock(&self.pool.guard)
            try:
                self.closed = True
                thunks, self.thunks = self.thunks, None
                opaques, self.opaques = self.opaques, None
                self.give_back()
            finally:
                leave_lock(&self.pool.guard)
            if thunks is not None and not self.pool.disowned:  # in a forked child: the parent runs the callbacks
                self.run_callbacks(thunks)
            if self.on_acknowledged is not None and self.stored.builder.count and not self.pool.disowned:
                self.tell(opaques)
        finally:
            # The garbage collector does not look into a RecordFuture. It would never free an object that has futures,
            # and whose method an ended batch still knows.
            self.on_acknowledged = None
            self.end()
        return 0

    cdef int end(self) except -1:
        cdef list sleepers
        enter_lock(&self.pool.guard)
        try:
            self.incomplete.pop(self, None)
            self.announced = True
            sleepers, self.sleepers = self.sleepers, None
        finally:
            leave_lock(&self.pool.guard)
        if sleepers is not None:
            for lock, _ in sleepers:
                try:
                    lock.release()
                except Exception as error:
                    report_unraisable(error, lock)
        return 0

    cdef int note_error_seen(self) except -1:
        """The user gets the error now, from a future, a report or a callback."""
        enter_lock(&self.pool.guard)
        watcher, self.error_watcher = self.error_watcher, None
        leave_lock(&self.pool.guard)
        if watcher is not None:
            watcher.seen(self)
        return 0

    def read_error(self):
        """Return `error` to the user. From now on the error counts as seen."""
        self.note_error_seen()
        return self.error

    def why_pending(self):
        """Why there is no outcome yet: the end of an error's text; \"\" if no reason is known."""
        return self.pool.why(self)

    cdef object error_of(self, RecordFuture future):
        """The error of the future's record."""
        if self.record_errors is None:
            return self.error
        return self.record_errors.get(future.index - self.stored.first, self.error_of_others)

    cdef int run_callbacks(self, list thunks) except -1:
        cdef Py_ssize_t done = 0
        cdef bint disowned = self.pool.disowned
        # A callback that forks returns here in the child too: the parent runs the other callbacks.
        while done < len(thunks) and self.pool.disowned == disowned:
            try:
                self.run_until_raised(thunks, &done)
            except BaseException as error:
                self.report_raised(thunks[done - 2], error)
        return 0

    cdef int run_until_raised(self, list thunks, Py_ssize_t* done) except -1:
        """Run callbacks from `done` on. The records of a batch share most of what their metadata says."""
        cdef RecordFuture future
        cdef PyObject* arguments[3]
        cdef int64_t last_timestamp = self.log_append_time
        cdef int32_t last_key_size = -1, last_value_size = -1
        cdef object partition = self.partition, timestamp = self.log_append_time, key_size = -1, value_size = -1
        cdef object metadata, error = self.error
        cdef bint disowned = self.pool.disowned
        while done[0] < len(thunks) and self.pool.disowned == disowned:
            callback = thunks[done[0]]
            future = <RecordFuture>thunks[done[0] + 1]
            done[0] += 2
            if not PyFunction_Check(callback) and isinstance(callback, FutureCallback):
                (<FutureCallback>callback).ended(future)
                continue
            if timestamp_in(self, future) != last_timestamp:
                timestamp = last_timestamp = timestamp_in(self, future)
            if future.key_size != last_key_size:
                key_size = last_key_size = future.key_size
            if future.value_size != last_value_size:
                value_size = last_value_size = future.value_size
            metadata = new_metadata(
                self.topic, partition, offset_in(self, future), timestamp, key_size, value_size)
            if self.record_errors is not None:
                error = self.error_of(future)
            arguments[1] = <PyObject*>metadata
            arguments[2] = <PyObject*>error
            PyObject_Vectorcall(callback, arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
        return 0

    cdef int tell(self, list opaques) except -1:
        """Call `on_acknowledged`."""
        cdef bint by_broker = self.log_append_time >= 0
        try:
            if opaques:
                opaques.extend([None] * (self.stored.builder.count - len(opaques)))
            self.on_acknowledged(BatchOutcome(
                self.topic, self.partition, self.base_offset, self.stored.builder.count,
                self.log_append_time if by_broker else self.stored.builder.first_timestamp,
                self.log_append_time if by_broker else self.stored.builder.max_timestamp,
                self.error if self.record_errors is None else self.error_of_others,
                dict(self.record_errors or ()), opaques or []))
        except BaseException as error:  # even SystemExit: the waiting threads must wake
            self.log_raised("on_acknowledged raised for a batch of %s-%d: %r", error)
            report_unraisable(error, self.on_acknowledged)
        return 0

    cdef int report_raised(self, callback, error) except -1:
        """A callback has raised, even SystemExit: the other callbacks must run, and the waiting threads wake."""
        self.log_raised("a callback raised for a record of %s-%d: %r", error)
        return report_unraisable(error, callback)

    cdef int log_raised(self, str text, error) except -1:
        try:
            logger.error(text, self.topic, self.partition, error)
        except BaseException as trouble:  # a handler of the user's, or the error's own __repr__
            report_unraisable(trouble, logger)
        return 0

    def wait(self, timeout=None, clock=system_clock, RecordFuture future=None):
        """Wait until the outcome is decided and the callbacks have run; False when `timeout` seconds pass first.

        With a `future` of the batch, wait for the outcome of its record: the parts of a split batch have an outcome
        each. Raises KafkaError in a callback: its thread is the thread that decides the outcome.
        """
        cdef Batch part = self if future is None else future.part()
        if part.announced:
            return True
        if (timeout is None or timeout > 0) and ends_here(self.incomplete):
            raise KafkaError("a callback cannot wait for a record: the thread that runs callbacks would wait for "
                             "itself. Use add_done_callback(), or wait in another thread")
        give_back_claims()
        lock = new_waiter()
        if not self.add_sleeper(lock, future):
            return True
        sleeper = (lock, future)
        try:
            if clock.wait(lock, timeout):
                return True
        finally:  # woken, timed out or interrupted
            self.remove_sleeper(sleeper)
        part = self if future is None else future.part()
        return bool(part.announced)

    def add_sleeper(self, lock, RecordFuture future=None):
        """Have `lock.release()` called at the batch's end, after the callbacks; False if the batch has ended already.

        With a `future` of the batch, the call comes at the end of the future's record. The thread that decides the
        outcome calls `release`, which must not raise. In a forked child no thread would: this raises ClosedError there.
        """
        cdef Batch part
        sleeper = (lock, future)
        new_list = []
        # Making an object may run the garbage collector, and with it another thread. The code makes no object between
        # the check of the part and the append.
        enter_lock(&self.pool.guard)
        try:
            part = self if future is None else holder(self, future.index)
            if part.announced:
                return False
            if self.pool.disowned:
                raise ClosedError("the record was sent before a fork: only the parent process learns its outcome")
            if part.sleepers is None:
                part.sleepers = new_list
            part.sleepers.append(sleeper)
            return True
        finally:
            leave_lock(&self.pool.guard)

    cdef int remove_sleeper(self, tuple sleeper) except -1:
        cdef RecordFuture future = sleeper[1]
        cdef Batch part
        enter_lock(&self.pool.guard)
        try:
            part = self if future is None else holder(self, future.index)
            if part.sleepers is not None and sleeper in part.sleepers:
                part.sleepers.remove(sleeper)
        finally:
            leave_lock(&self.pool.guard)
        return 0

    cdef int keep(self, object callback, object opaque, RecordFuture future) except -1:
        if opaque is not None:
            while len(self.opaques) < future.index:
                self.opaques.append(None)
            self.opaques.append(opaque)
        if callback is not None and (push(self.thunks, callback) < 0 or push(self.thunks, future) < 0):
            PyErr_Clear()
            if len(self.thunks) % 2:
                drop_last(self.thunks)
            if opaque is not None:
                drop_last(self.opaques)
            raise MemoryError("no memory for a callback")
        return 0

    cdef int add_callback(self, callback, RecordFuture future) except -1:
        """Call `callback(metadata, error)` at the record's end, or now if it has an outcome already."""
        cdef Batch part
        cdef list new_list = [] if self.thunks is None else None
        # As in add_sleeper: no other thread can run between the check of the part and the appends.
        enter_lock(&self.pool.guard)
        try:
            part = holder(self, future.index)
            if part.outcome == PENDING:
                if part.thunks is None:  # `part` is the batch itself: a split gives each part a list
                    part.thunks = new_list
                part.thunks.append(callback)
                part.thunks.append(future)
                return 0
        finally:
            leave_lock(&self.pool.guard)
        part.note_error_seen()
        return part.run_callbacks([callback, future])


cdef int report_unraisable(object error, object culprit) except -1:
    """Give an exception that no caller can catch to sys.unraisablehook."""
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(culprit)
    return 0


seal(Batch)


cdef class FutureCallback:
    def __call__(self, RecordFuture future not None):
        self.ended(future)

    cdef int ended(self, RecordFuture future) except -1:
        raise NotImplementedError


@cython.final
cdef class DoneCallback(FutureCallback):
    cdef object fn

    def __cinit__(self, fn):
        self.fn = fn

    cdef int ended(self, RecordFuture future) except -1:
        self.fn(future)
        return 0


# ---- what the garbage collector visits -------------------------------------------------------------------------------

# The collector does not track RecordFutures, to save time, and so does not see that a future refers to its batch. A
# record of a MockProducer may wait for ever, because the test does not complete it. A callback that refers to the
# producer would then keep both alive. So the batch visits itself on behalf of its future if all callbacks belong to one
# future and only they hold the future. A batch with callbacks of several futures needs no such visit: a Sender ends it.
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


cdef PyTypeObject* metadata_type = <PyTypeObject*>RecordMetadata


cdef inline object new_metadata(object topic, object partition, object offset, object timestamp, object key_size,
                                object value_size):
    """Make a RecordMetadata as NamedTuple's constructor does, without a Python frame and a second tuple."""
    # All fields are objects already. The code makes no object below, so that no collector sees a half filled tuple.
    metadata = PyType_GenericAlloc(metadata_type, 6)
    set_field(metadata, 0, topic)
    set_field(metadata, 1, partition)
    set_field(metadata, 2, offset)
    set_field(metadata, 3, timestamp)
    set_field(metadata, 4, key_size)
    set_field(metadata, 5, value_size)
    return metadata


cdef inline void set_field(object new_tuple, Py_ssize_t place, object value) noexcept:
    Py_INCREF(value)  # PyTuple_SET_ITEM takes over a reference
    PyTuple_SET_ITEM(new_tuple, place, value)


@cython.final
@cython.no_gc
@cython.freelist(4096)
cdef class RecordFuture:
    """The pending result of one send(), with the methods of `concurrent.futures.Future`.

    An acknowledgement does no work for each future: a future reads the outcome from its batch when the user asks.
    """

    def __init__(self):
        raise TypeError("a RecordFuture comes from KafkaProducer.send()")

    def done(self):
        """Whether the record has an outcome."""
        return self.part().outcome != PENDING

    def cancel(self):
        """Always False: a record that was sent cannot be taken back."""
        return False

    def cancelled(self):
        return False

    def running(self):
        return self.part().outcome == PENDING

    def result(self, timeout=None):
        """The RecordMetadata once the broker has acknowledged the record.

        Waits up to `timeout` seconds (None: for ever). Raises TimeoutError after that time, or the error with which the
        record failed.
        """
        cdef Batch part = self._await(timeout)
        if part.outcome == FAILED:
            part.note_error_seen()
            # All records of the batch share the error: it must not keep the traceback, and the frames, of each raise.
            raise part.error_of(self).with_traceback(None)
        return self.metadata()

    def exception(self, timeout=None):
        """The error with which the record failed, or None. Waits as `result` does."""
        cdef Batch part = self._await(timeout)
        if part.outcome == FAILED:
            part.note_error_seen()
        return part.error_of(self)

    def add_done_callback(self, fn):
        """Call `fn(future)` in the Sender's thread at the record's end, or at once if it has an outcome already.

        Raises TypeError if `fn` is not callable.
        """
        if not callable(fn):
            raise TypeError(f"fn must be callable with (future), found {type(fn).__name__}: {fn!r}")
        self.batch.add_callback(DoneCallback.__new__(DoneCallback, fn), self)

    def _await(self, timeout):
        if self.part().outcome == PENDING and not self.batch.wait(timeout, future=self):
            raise TimeoutError(f"no acknowledgement for a record of {self.batch.topic}-{self.batch.partition} within "
                               f"{timeout} s{self.part().why_pending()}")
        return self.part()

    cdef Batch part(self):
        enter_lock(&self.batch.pool.guard)
        cdef Batch part = holder(self.batch, self.index)
        leave_lock(&self.batch.pool.guard)
        return part

    cdef object metadata(self):
        # The caller has found an outcome, and from then on the fields of the outcome do not change.
        cdef Batch batch = self.part()
        return new_metadata(batch.topic, batch.partition, offset_in(batch, self), timestamp_in(batch, self),
                            self.key_size, self.value_size)

    def __repr__(self):
        cdef Batch part = self.part()
        state = "pending" if part.outcome == PENDING else "done" if part.error is None else "failed"
        return f"RecordFuture({self.batch.topic}-{self.batch.partition}, {state})"


seal(RecordFuture)
refuse_await(RecordFuture)
for _name, _hint in hints("RecordFuture", FUTURE).items():
    put_hint(RecordFuture, _name, _hint)
