# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""AIORecordFuture: an awaitable that points at its batch, so that an acknowledgement does no work for each record.

A task that awaits it wakes in the one call of the loop that BatchEnds schedules, without a handle of the loop for each
task.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from kafkabuf._lock cimport enter_lock, leave_lock
from kafkabuf._sealed cimport seal
from kafkabuf.batches._batch cimport PENDING, SUCCEEDED, Batch, RecordFuture

import asyncio
from collections import deque
from contextvars import copy_context

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
        self.due = deque()
        self.ended = []

    def future_of(self, RecordFuture record not None):
        """The future of a record."""
        return new_aio_future(record, self)

    def wait_for(self, Batch batch not None):
        """An asyncio.Future that is done once the batch has ended.

        If the batch was split, the future may be done when only a part has ended: the caller then calls again.
        """
        waiter = self.loop.create_future()
        if not self.add(batch, waiter, None):
            waiter.set_result(None)
        return waiter

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
        self.ended.append(end)
        schedule, self.scheduled = not self.scheduled, True
        leave_lock(&self.guard)
        closed = self.loop.is_closed()
        if schedule and not closed:
            try:
                self.loop.call_soon_threadsafe(self._wake_waiters)
            except RuntimeError:
                closed = True
        if closed:
            # It has no waiting tasks. The Sender must go on, and what waited must not stay: neither this batch nor
            # those of a wake that the loop took on and did not run.
            self.forget()
            self.ended = []
        return 0

    def _wake_waiters(self):
        cdef BatchEnd end
        cdef list ended, none = []
        # Cleared before the ends are read: a batch that ends during or after the loop below schedules another call.
        enter_lock(&self.guard)
        ended, self.ended, self.scheduled = self.ended, none, False
        leave_lock(&self.guard)
        for end in ended:
            if self._awaited.get(end.batch) is end:
                del self._awaited[end.batch]
            for waiter in end.waiters:
                if type(waiter) is AIORecordFuture:
                    (<AIORecordFuture>waiter).move_steps(self.due)
                else:
                    self.due.append(waiter)
        if len(self.due) > 1:
            # A step may end this call, by KeyboardInterrupt, or run the loop itself, as nest_asyncio allows: the other
            # steps then run in the next call.
            self.loop.call_soon(self._wake_waiters)
        while self.due:
            self.run(self.due.popleft())

    cdef int run(self, object step) except -1:
        cdef Awaiting awaiting
        if type(step) is Awaiting:
            awaiting = <Awaiting>step
            if awaiting.state == WAITING:
                awaiting.state = LEFT
                wakeup, awaiting.wakeup = awaiting.wakeup, None
                if wakeup is not None:
                    self.call(awaiting.context, wakeup, awaiting)
        elif type(step) is tuple:
            fn, context, future = <tuple>step
            self.call(context, fn, future)
        elif not step.done():
            step.set_result(None)
        return 0

    cdef int call(self, object context, object fn, object argument) except -1:
        try:
            context.run(fn, argument)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.loop.call_exception_handler(
                {"message": f"Exception in callback {fn!r}", "exception": error, "future": argument})
        return 0


@cython.final
cdef class BatchEnd:
    def release(self):
        """Called by the thread that ends the batch."""
        self.ends.batch_ended(self)


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
        cdef Awaiting awaiting = Awaiting.__new__(Awaiting)
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
        steps, self.steps = self.steps, None
        for step in steps or ():
            self.ends.loop.call_soon(run_step, self.ends, step)
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
        if context is None:
            context = copy_context()
        if self.has_outcome() or not self.add_step((fn, context, self)):
            self.ends.loop.call_soon(fn, self, context=context)

    def remove_done_callback(self, fn):
        """Remove every entry of `fn` and return the number of removed entries."""
        cdef list steps = self.steps or []
        kept = [step for step in steps if type(step) is not tuple or step[0] != fn]
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

    cdef int add_step(self, object step) except -1:
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

    cdef int move_steps(self, object due) except -1:
        if self.steps is None:
            return 0
        # A part of a batch that was split may have ended, and not the part that holds this record.
        if self.has_outcome() or not self.ends.add(self.record.batch, self, self.record):
            steps, self.steps = self.steps, None
            due.extend(steps)
        return 0

    cdef object outcome(self):
        if self.given_up:
            raise cancelled_error(self.message)
        if self.ends.outcomes is not None:
            return self.ends.outcomes.result(self.record)
        if self.record.part().outcome == SUCCEEDED:
            return self.record.metadata()
        return self.record.result(0)


cdef AIORecordFuture new_aio_future(RecordFuture record, BatchEnds ends):
    cdef AIORecordFuture future = AIORecordFuture.__new__(AIORecordFuture)
    future.record, future.ends = record, ends
    PyObject_GC_UnTrack(future)
    return future


cdef object cancelled_error(object message):
    return asyncio.CancelledError() if message is None else asyncio.CancelledError(message)


def run_step(BatchEnds ends not None, step):
    ends.run(step)


# Made and freed by each `await` of a record.
@cython.final
@cython.freelist(256)
cdef class Awaiting:
    """The iterator of one `await`, and the future for which its task waits: it ends with the record, or with the task.

    A task that is cancelled cancels it, and not the record's future, which other tasks may await.
    """

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
        if value is None:
            value = kind() if isinstance(kind, type) else kind
        elif not isinstance(value, BaseException):
            value = kind(value)
        raise value if traceback is None else value.with_traceback(traceback)

    def close(self):
        self.leave()

    # ---- as the task's future ----------------------------------------------------------------------------------------

    def get_loop(self):
        return self.future.ends.loop

    def add_done_callback(self, fn, *, context=None):
        if self.wakeup is not None:
            raise RuntimeError("a task awaits this already")
        context = copy_context() if context is None else context
        if self.state == WAITING:
            self.wakeup, self.context = fn, context
        else:
            self.future.ends.loop.call_soon(fn, self, context=context)

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
        wakeup, self.wakeup = self.wakeup, None
        if wakeup is not None:
            self.future.ends.loop.call_soon(wakeup, self, context=self.context)
        return True

    def result(self):
        if self.state == GIVEN_UP:
            raise cancelled_error(self.message)

    def exception(self):
        self.result()

    cdef int leave(self) except -1:
        if self.state == WAITING:
            self.state = LEFT
            if self.future.steps is not None and self in self.future.steps:
                self.future.steps.remove(self)
        return 0

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
    if not self.future.has_outcome() and self.future.add_step(self):
        self.state = WAITING
        self._asyncio_future_blocking = True
        Py_INCREF(self)
        result[0] = <PyObject*>self
        return PYGEN_NEXT
    self.state = LEFT
    given = self.future.outcome()
    Py_INCREF(given)
    result[0] = <PyObject*>given
    return PYGEN_RETURN


cdef PySendResult send_slot(PyObject* awaiting, PyObject* value, PyObject** result) except PYGEN_ERROR:
    return send_to_awaiting(<Awaiting>awaiting, <object>value, result)


seal(BatchEnd)
seal(AIORecordFuture)
seal(Awaiting)
set_am_send(Awaiting, <sendfunc>send_slot)
