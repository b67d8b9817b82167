# cython: language_level=3
"""The futures of records for an event loop. Only the loop's thread uses them, except for BatchEnd.release().

A task that awaits a record without an outcome, and a callback that waits for one, is a step of the record's future. The
first step adds the future to the BatchEnd of its batch. The Sender releases the BatchEnd, and the loop then runs the
steps of all batches that have ended.
"""

from kafkabuf.process._lock cimport kb_lock
from kafkabuf.batches._batch cimport Batch, RecordFuture


cdef class BatchEnds:
    cdef readonly object loop
    cdef object outcomes                # result(record) and exception(record) in place of RecordFuture's; or None
    cdef readonly dict _awaited         # batch: its BatchEnd
    cdef int era                        # rises with each forget()
    # Batches that have ended and whose waiters are not due yet: rows that the objects themselves link.
    cdef BatchEnd first_taken, last_taken
    cdef Awaiting first_due, last_due   # steps whose records have an outcome, and waits that are over
    # ---- guarded by `guard`: other threads write here
    cdef kb_lock guard
    cdef BatchEnd first_ended, last_ended   # released by the Sender's thread
    cdef Awaiting first_wait, last_wait     # ended by any thread
    cdef bint scheduled                 # the loop will run _wake_waiters
    cdef double renewed_at              # from then on the next end schedules _wake_waiters again

    # Add a waiter, an AIORecordFuture or an Awaiting, to the end of a batch. With a record of the batch, the end
    # is that of the part that holds the record. 0: the batch has ended.
    cdef int add(self, Batch batch, object waiter, RecordFuture record) except -1
    # Neither needs memory, and neither raises: where the loop cannot be woken for want of memory, the thread waits.
    cdef int batch_ended(self, BatchEnd end) except -1
    cdef int wait_ended(self, Awaiting wait) except -1
    cdef bint must_schedule(self) noexcept
    cdef int wake_loop(self, bint schedule, bint other_thread) except -1
    cdef int drop_ended(self) except -1
    cdef int take_ended(self) except -1
    cdef int collect(self) except -1
    cdef void end_wait(self, Awaiting wait) noexcept
    cdef void add_due(self, Awaiting step) noexcept
    cdef Awaiting next_due(self)
    cdef int run(self, Awaiting step) except -1
    # Call `fn(argument)` in the context, and report what it raises to the loop.
    cdef int call(self, object context, object fn, object argument) except -1


# The one sleeper on a batch, for all that wait for the batch in the loop.
cdef class BatchEnd:
    cdef BatchEnds ends
    cdef Batch batch
    cdef list waiters
    cdef Py_ssize_t handled             # the number of waiters that are due, or wait for another part of the batch
    cdef BatchEnd next_ended


cdef class Line:
    cdef BatchEnds ends
    cdef object waiting                 # deque of turns that have not come yet
    cdef bint taken                     # a record has the turn
    cdef readonly Py_ssize_t length


cdef class AIORecordFuture:
    cdef RecordFuture record            # None: the record is not queued yet, and nobody has this future
    cdef BatchEnds ends
    # Awaiting objects, those of callbacks too. None: no BatchEnd has this future. The collector tracks a future from
    # its first step on: before, nothing that the future refers to leads back to it.
    cdef list steps
    cdef int era                        # of the steps: those of an earlier era are forgotten
    cdef bint given_up
    cdef object message                 # of cancel()

    cdef bint has_outcome(self)
    # Wait for the outcome with this step. 0: the outcome is known already. Raises ClosedError in a forked child.
    cdef int add_step(self, Awaiting step) except -1
    # The batch, or a part of it, has ended: make the steps due, or wait again.
    cdef int move_steps(self) except -1
    # Make the steps due.
    cdef void let_go(self) noexcept
    cdef object outcome(self)


cdef enum AwaitState:
    IDLE
    WAITING                             # a step of the future
    GIVEN_UP                            # the task was cancelled, and will throw that into its coroutine
    LEFT
    CALLBACK                            # `wakeup` is a callback of the future


# The iterator of one `await` of a future. A task waits for it as for an asyncio.Future.
cdef class Awaiting:
    cdef BatchEnds ends
    cdef AIORecordFuture future         # None: a wait of its own
    cdef public bint _asyncio_future_blocking
    cdef AwaitState state
    cdef object wakeup, context         # of the task
    cdef object message                 # of the cancellation
    cdef Awaiting next_due
    cdef bint is_due
    # ---- of a wait of its own: any thread writes here, once, and `is_over` last
    cdef object value, error
    cdef bint is_over
    cdef readonly bint taken            # the task has the value or the error
    cdef Awaiting next_ended            # guarded by the guard of `ends`

    cdef int leave(self) except -1
    cdef int be_due(self) except -1
    cdef object outcome(self)
    cdef object next_value(self)


# A future without a record.
cdef AIORecordFuture new_aio_future(BatchEnds ends)
cdef Awaiting new_wait(BatchEnds ends)
