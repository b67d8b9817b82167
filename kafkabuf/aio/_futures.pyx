# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""AIORecordFuture: an awaitable that points at its batch, so that an acknowledgement does no work for each record.

A task that awaits it wakes in the one call of the loop that BatchEnds schedules, without a handle of the loop for each
task.

What has ended, and what is due, is linked by fields of the objects, so that no end is lost where there is no memory.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from posix.unistd cimport usleep

from kafkabuf.process._lock cimport enter_lock, leave_lock
from kafkabuf.cpython._sealed cimport seal
from kafkabuf.process._time cimport kb_monotonic
from kafkabuf.batches._batch cimport PENDING, SUCCEEDED, Batch, RecordFuture

import asyncio
from collections import deque
from contextvars import copy_context

from kafkabuf.process.producer_log import producer_log

# Seconds after which another end schedules the call of the loop again: without memory asyncio may lose a call.
cdef double LONGEST_WAKE = 5.0

cdef object logger = producer_log("kafkabuf.producer")

# Microseconds between two attempts to wake a loop for which there is no memory.
cdef enum:
    SHORTEST_PAUSE = 1_000
    LONGEST_PAUSE = 100_000

cdef extern from *:
    """
    /* Cython has no name for this slot, through which `await` gets the result without a StopIteration around it. */
    static void kb_set_am_send(PyObject *type, sendfunc send) {
        ((PyTypeObject *)type)->tp_as_async->am_send = send;
    }
    static int kb_is_tracked(PyObject *object) { return PyObject_GC_IsTracked(object); }
    """
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    ctypedef PySendResult (*sendfunc)(PyObject*, PyObject*, PyObject**) noexcept
    void set_am_send "kb_set_am_send"(object type, sendfunc send) noexcept
    bint is_tracked "kb_is_tracked"(object) noexcept
    void PyObject_GC_Track(object) noexcept
    void PyObject_GC_UnTrack(object) noexcept


@cython.final
cdef class BatchEnds:
    """The ends of batches that one loop waits for. `outcomes` has other methods result(record) and exception(record)
    than RecordFuture's own. Only the loop's thread calls it."""

    def __cinit__(self, loop, outcomes=None):
        self.loop = loop
        self.outcomes = outcomes
        self._awaited = {}

    def future_of(self, RecordFuture record not None):
        """The future of a record."""
        cdef AIORecordFuture future = new_aio_future(self)
        future.record = record
        return future

    def empty_future(self):
        """A future whose record `fill` sets: made before the record is queued, since then no call may raise."""
        return new_aio_future(self)

    def fill(self, AIORecordFuture future not None, RecordFuture record not None):
        future.record = record

    def new_wait(self):
        """An awaitable, for one task, that ends with `end(value, error)`."""
        return new_wait(self)

    def wait_for(self, Batch batch not None):
        """An awaitable that ends once the batch has ended.

        If the batch was split, it may end when only a part has ended: the caller then calls again.
        """
        cdef Awaiting wait = new_wait(self)
        if not self.add(batch, wait, None):
            wait.is_over = True
        return wait

    def forget(self):
        """In a forked child no batch ends: whatever waits later asks its batch, which raises ClosedError."""
        self._awaited.clear()
        self.era += 1

    cdef int add(self, Batch batch, object waiter, RecordFuture record) except -1:
        cdef BatchEnd end = self._awaited.get(batch)
        if end is None:
            end = BatchEnd.__new__(BatchEnd)
            end.ends, end.batch, end.waiters = self, batch, []
            if not batch.add_sleeper(end, record):
                return 0
            self._awaited[batch] = end
        end.waiters.append(waiter)
        return 1

    cdef int batch_ended(self, BatchEnd end) except -1:
        cdef bint schedule
        enter_lock(&self.guard)
        if self.last_ended is None:
            self.first_ended = end
        else:
            self.last_ended.next_ended = end
        self.last_ended = end
        schedule = self.must_schedule()
        leave_lock(&self.guard)
        return self.wake_loop(schedule, True)

    cdef bint must_schedule(self) noexcept:
        cdef double now = kb_monotonic()
        cdef bint schedule = not self.scheduled or now >= self.renewed_at
        if schedule:
            self.scheduled, self.renewed_at = True, now + LONGEST_WAKE
        return schedule

    cdef int wait_ended(self, Awaiting wait) except -1:
        cdef bint schedule
        enter_lock(&self.guard)
        if self.last_wait is None:
            self.first_wait = wait
        else:
            self.last_wait.next_ended = wait
        self.last_wait = wait
        schedule = self.must_schedule()
        leave_lock(&self.guard)
        return self.wake_loop(schedule, True)

    cdef int wake_loop(self, bint schedule, bint other_thread) except -1:
        """Have the loop call _wake_waiters. Without memory for that, wait: nobody else would wake the tasks."""
        cdef unsigned int pause = SHORTEST_PAUSE
        cdef bint again = True, closed = False
        cdef object failure = None
        while again:
            again = False
            try:
                closed = self.loop.is_closed()
                if schedule and not closed:
                    if other_thread:
                        self.loop.call_soon_threadsafe(self._wake_waiters)
                    else:
                        self.loop.call_soon(self._wake_waiters)
            except MemoryError:
                again = True
            except RuntimeError:
                closed = True
            except Exception as error:
                failure = error
            if again:
                with nogil:
                    usleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        if closed:
            # It has no waiting tasks. The Sender must go on, and what waited must not stay: neither this batch nor
            # those of a wake that the loop took on and did not run.
            self.forget()
            self.drop_ended()
        elif failure is not None:
            self.scheduled = False  # the next end tries again
            logger.error("an event loop cannot be woken", exc_info=failure)
        return 0

    cdef int drop_ended(self) except -1:
        # Not the first alone: a long row would be freed by recursion.
        cdef BatchEnd end, following
        cdef Awaiting wait, later
        enter_lock(&self.guard)
        end, self.first_ended, self.last_ended = self.first_ended, None, None
        wait, self.first_wait, self.last_wait = self.first_wait, None, None
        leave_lock(&self.guard)
        while end is not None:
            following, end.next_ended = end.next_ended, None
            end = following
        while wait is not None:
            later, wait.next_ended = wait.next_ended, None
            wait = later
        return 0

    def _wake_waiters(self):
        cdef bint again = False
        self.take_ended()
        try:
            self.collect()
        except MemoryError:
            again = True
        if again or self.first_due is not self.last_due:
            # A step may end this call, by KeyboardInterrupt, or run the loop itself, as nest_asyncio allows: the other
            # steps then run in the next call.
            self.wake_loop(True, False)
        while self.first_due is not None:
            self.run(self.next_due())

    cdef int take_ended(self) except -1:
        cdef Awaiting wait, following
        # Cleared before the ends are read: a batch that ends during or after the steps schedules another call.
        enter_lock(&self.guard)
        if self.first_ended is not None:
            if self.last_taken is None:
                self.first_taken = self.first_ended
            else:
                self.last_taken.next_ended = self.first_ended
            self.last_taken = self.last_ended
            self.first_ended = self.last_ended = None
        wait, self.first_wait, self.last_wait = self.first_wait, None, None
        self.scheduled = False
        leave_lock(&self.guard)
        while wait is not None:
            following, wait.next_ended = wait.next_ended, None
            self.add_due(wait)
            wait = following
        return 0

    cdef int collect(self) except -1:
        """Make the steps of the batches that have ended due. After a lack of memory the next call goes on."""
        cdef BatchEnd end
        while self.first_taken is not None:
            end = self.first_taken
            if self._awaited.get(end.batch) is end:
                del self._awaited[end.batch]
            while end.handled < len(end.waiters):
                waiter = end.waiters[end.handled]
                if type(waiter) is AIORecordFuture:
                    (<AIORecordFuture>waiter).move_steps()
                else:
                    self.end_wait(<Awaiting?>waiter)
                end.handled += 1
            self.first_taken, end.next_ended = end.next_ended, None
            if self.first_taken is None:
                self.last_taken = None
        return 0

    cdef void end_wait(self, Awaiting wait) noexcept:
        wait.is_over = True
        self.add_due(wait)

    cdef void add_due(self, Awaiting step) noexcept:
        if not step.is_due:
            step.is_due = True
            if self.last_due is None:
                self.first_due = step
            else:
                self.last_due.next_due = step
            self.last_due = step

    cdef Awaiting next_due(self):
        cdef Awaiting step = self.first_due
        self.first_due, step.next_due = step.next_due, None
        if self.first_due is None:
            self.last_due = None
        step.is_due = False
        return step

    cdef int run(self, Awaiting step) except -1:
        if step.state == WAITING:
            step.state = LEFT
        wakeup, step.wakeup = step.wakeup, None
        if wakeup is not None:
            self.call(step.context, wakeup, step.future if step.state == CALLBACK else step)
        return 0

    cdef int call(self, object context, object fn, object argument) except -1:
        cdef object failure = None
        cdef bint again = True
        while again:
            again = False
            try:
                context.run(fn, argument)
            except (SystemExit, KeyboardInterrupt):
                raise
            except MemoryError as error:
                failure = error
                again = still_waits(fn, argument)
            except BaseException as error:
                failure = error
            if again:
                failure = None
                with nogil:
                    usleep(SHORTEST_PAUSE)
        if failure is not None:
            try:
                self.loop.call_exception_handler(
                    {"message": f"Exception in callback {fn!r}", "exception": failure, "future": argument})
            except Exception:  # there is no memory to speak of it: the other steps must run
                pass
        return 0


cdef bint still_waits(object wakeup, object step):
    """Whether a task has not gone on: asyncio needs memory to note which task runs, before the task takes its step."""
    cdef bint waits = False
    try:
        waits = wakeup.__self__._fut_waiter is step
    except (AttributeError, MemoryError):
        pass
    return waits


@cython.final
cdef class BatchEnd:
    def release(self):
        """Called by the thread that ends the batch."""
        self.ends.batch_ended(self)


@cython.final
cdef class Line:
    """The records of one topic that wait in send(), in order. The first of them has the turn."""

    def __cinit__(self, BatchEnds ends not None):
        self.ends = ends
        self.waiting = deque()

    def enter(self):
        """Stand at the end of the line. The awaitable that this returns ends when the turn has come."""
        cdef Awaiting turn = new_wait(self.ends)
        if self.taken:
            self.waiting.append(turn)
        else:
            self.taken = turn.is_over = True
        self.length += 1
        return turn

    def leave(self, Awaiting turn not None):
        """Leave the line, with the turn or before it has come. It needs no memory: the record may be queued."""
        cdef Awaiting following
        self.length -= 1
        if not turn.is_over:
            self.waiting.remove(turn)
        elif self.waiting:
            following = self.waiting.popleft()
            self.ends.end_wait(following)
            self.ends.wake_loop(True, False)
        else:
            self.taken = False


@cython.final
cdef class AIORecordFuture:
    """The pending result of one send(): `await` returns the RecordMetadata or raises the error of a failed delivery.

    It has the methods of an asyncio.Future, so that gather(), wait(), wait_for() and shield() accept it. Several tasks
    may await it, each any number of times. If one of these tasks is cancelled, the other tasks still get the result.
    cancel(), which gather() calls, and before Python 3.12 wait_for(), makes this future raise CancelledError. The
    record is sent in either case. Use it only in the producer's event loop.
    """

    _asyncio_future_blocking = False  # asyncio.isfuture() looks for this attribute

    def __await__(self):
        cdef Awaiting awaiting = new_wait(self.ends)
        awaiting.future = self
        return awaiting

    @property
    def _record(self):
        return self.record

    @property
    def _cancel_message(self):
        """For gather()."""
        return self.message

    def get_loop(self):
        return self.ends.loop

    def done(self):
        """Whether the outcome is known or this future was cancelled."""
        return self.has_outcome()

    def cancel(self, msg=None):
        """Give up waiting; the record is sent all the same. Returns False if the outcome is known already."""
        if self.has_outcome():
            return False
        self.given_up, self.message = True, msg
        if self.steps is not None:
            self.let_go()
            self.ends.wake_loop(True, False)
        return True

    def cancelled(self):
        return self.given_up

    def _make_cancelled_error(self):
        """The error of a cancelled future. gather() calls it too."""
        return cancelled_error(self.message)

    def result(self):
        """Return the RecordMetadata or raise the error. Raises asyncio.InvalidStateError while there is no outcome."""
        self._require_outcome()
        return self.outcome()

    def exception(self):
        """The error, or None. Raises asyncio.InvalidStateError while there is no outcome."""
        self._require_outcome()
        return self.record.exception(0) if self.ends.outcomes is None else self.ends.outcomes.exception(self.record)

    def add_done_callback(self, fn, *, context=None):
        """Have the loop call `fn(self)` once the outcome is known."""
        cdef Awaiting step
        if context is None:
            context = copy_context()
        step = new_wait(self.ends)
        step.future, step.wakeup, step.context, step.state = self, fn, context, CALLBACK
        if self.has_outcome() or not self.add_step(step):
            self.ends.loop.call_soon(fn, self, context=context)

    def remove_done_callback(self, fn):
        """Remove every entry of `fn` and return the number of removed entries."""
        cdef list kept = [], steps = self.steps or []
        cdef Py_ssize_t removed
        cdef Awaiting step
        for step in steps:
            if step.state != CALLBACK or step.wakeup != fn:
                kept.append(step)
        removed = len(steps) - len(kept)
        steps[:] = kept
        return removed

    def _require_outcome(self):
        if self.given_up:
            raise cancelled_error(self.message)
        if not self.has_outcome():
            raise asyncio.InvalidStateError("the record has no outcome yet: await it")

    def __repr__(self):
        return f"AIO{self.record!r}"

    cdef bint has_outcome(self):
        return self.given_up or self.record.part().outcome != PENDING

    cdef int add_step(self, Awaiting step) except -1:
        if self.steps is None or self.era != self.ends.era:
            steps = [step]
            if not self.ends.add(self.record.batch, self, self.record):
                return 0
            self.steps, self.era = steps, self.ends.era
            if not is_tracked(self):
                PyObject_GC_Track(self)
        else:
            self.steps.append(step)
        return 1

    cdef int move_steps(self) except -1:
        if self.steps is None:
            return 0
        # A part of a batch that was split may have ended, and not the part that holds this record.
        if self.has_outcome() or not self.ends.add(self.record.batch, self, self.record):
            self.let_go()
        return 0

    cdef void let_go(self) noexcept:
        cdef list steps
        cdef Awaiting step
        steps, self.steps = self.steps, None
        for step in steps:
            self.ends.add_due(step)

    cdef object outcome(self):
        if self.given_up:
            raise cancelled_error(self.message)
        if self.ends.outcomes is not None:
            return self.ends.outcomes.result(self.record)
        if self.record.part().outcome == SUCCEEDED:
            return self.record.metadata()
        return self.record.result(0)


cdef AIORecordFuture new_aio_future(BatchEnds ends):
    cdef AIORecordFuture future = AIORecordFuture.__new__(AIORecordFuture)
    future.ends = ends
    PyObject_GC_UnTrack(future)
    return future


cdef Awaiting new_wait(BatchEnds ends):
    cdef Awaiting wait = Awaiting.__new__(Awaiting)
    wait.ends = ends
    return wait


cdef object cancelled_error(object message):
    return asyncio.CancelledError() if message is None else asyncio.CancelledError(message)


# Made and freed by each `await` of a record.
@cython.final
@cython.freelist(256)
cdef class Awaiting:
    """The iterator of one `await`, and the future for which its task waits: it ends with the record, or with the task.

    A task that is cancelled cancels it, and not the record's future, which other tasks may await. Without a record it
    is a wait that `end` ends. It also stands for a callback of the record's future.
    """

    def end(self, value, error):
        """Any thread, once: the task gets the value, or raises the error. Needs no memory, and never raises."""
        if self.state != GIVEN_UP:
            self.value, self.error = value, error
        self.is_over = True
        self.ends.wait_ended(self)

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.next_value()

    def send(self, value):
        return self.next_value()

    def throw(self, kind, value=None, traceback=None):
        self.leave()
        self.wakeup = None
        if value is None:
            value = kind() if isinstance(kind, type) else kind
        elif not isinstance(value, BaseException):
            value = kind(value)
        raise value if traceback is None else value.with_traceback(traceback)

    def close(self):
        self.leave()
        self.wakeup = None

    # ---- as the task's future ----------------------------------------------------------------------------------------

    def get_loop(self):
        return self.ends.loop

    def add_done_callback(self, fn, *, context=None):
        if self.wakeup is not None:
            raise RuntimeError("a task awaits this already")
        self.context = copy_context() if context is None else context
        self.wakeup = fn
        if self.state != WAITING:
            self.be_due()

    def remove_done_callback(self, fn):
        if self.wakeup is None or self.wakeup != fn:
            return 0
        self.wakeup = None
        return 1

    def done(self):
        return self.state != WAITING

    def cancelled(self):
        return self.state == GIVEN_UP

    def cancel(self, msg=None):
        if self.state != WAITING:
            return False
        self.leave()
        self.state, self.message = GIVEN_UP, msg
        self.value = self.error = None  # an error that the user keeps holds this object, and must hold no memory
        if self.wakeup is not None:
            self.be_due()
        return True

    def result(self):
        if self.state == GIVEN_UP:
            raise cancelled_error(self.message)

    def exception(self):
        self.result()

    cdef int leave(self) except -1:
        if self.state == WAITING:
            self.state = LEFT
            if self.future is not None and self.future.steps is not None and self in self.future.steps:
                self.future.steps.remove(self)
        return 0

    cdef int be_due(self) except -1:
        self.ends.add_due(self)
        return self.ends.wake_loop(True, False)

    cdef object outcome(self):
        # The error keeps the traceback of its raise, and so this object: neither holds the other.
        self.taken = True
        value, self.value = self.value, None
        error, self.error = self.error, None
        if error is not None:
            raise error
        return value

    cdef object next_value(self):
        cdef PyObject* value = NULL
        if send_to_awaiting(self, None, &value) == PYGEN_NEXT:
            return taken(value)
        raise StopIteration(taken(value))


cdef object taken(PyObject* value):
    """The object of a reference that the caller owns."""
    owned = <object>value
    Py_DECREF(owned)
    return owned


cdef PySendResult send_to_awaiting(Awaiting self, object value, PyObject** result) except PYGEN_ERROR:
    if not self.is_over and (self.future is None or not self.future.has_outcome() and self.future.add_step(self)):
        self.state = WAITING
        self._asyncio_future_blocking = True
        Py_INCREF(self)
        result[0] = <PyObject*>self
        return PYGEN_NEXT
    self.state = LEFT
    given = self.future.outcome() if self.future is not None else self.outcome()
    Py_INCREF(given)
    result[0] = <PyObject*>given
    return PYGEN_RETURN


cdef PySendResult send_slot(PyObject* awaiting, PyObject* value, PyObject** result) except PYGEN_ERROR:
    return send_to_awaiting(<Awaiting>awaiting, <object>value, result)


seal(BatchEnd)
seal(AIORecordFuture)
seal(Awaiting)
set_am_send(Awaiting, <sendfunc>send_slot)
