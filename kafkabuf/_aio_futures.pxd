# cython: language_level=3
"""The futures of records for an event loop. Only the loop's thread uses them, except for BatchEnd.release().

A task that awaits a record without an outcome, and a callback that waits for one, is a step of the record's future. The
first step adds the future to the BatchEnd of its batch. The Sender releases the BatchEnd, and the loop then runs the
steps of all batches that have ended.
"""

from kafkabuf._lock cimport kb_lock
from kafkabuf.batches._batch cimport Batch, RecordFuture


cdef class BatchEnds:
    cdef readonly object loop
    cdef object outcomes                # result(record) and exception(record) in place of RecordFuture's; or None
    cdef readonly dict _awaited         # batch: its BatchEnd
    cdef int era                        # rises with each forget()
    cdef object due                     # deque of steps whose records have an outcome
    # ---- guarded by `guard`: the Sender's thread writes here
    cdef kb_lock guard
    cdef list ended                     # released BatchEnds
    cdef bint scheduled                 # the loop will run _wake_waiters

    # Add a waiter, an AIORecordFuture or an asyncio.Future, to the end of a batch. With a record of the batch, the end
    # is that of the part that holds the record. 0: the batch has ended.
    cdef int add(self, Batch batch, object waiter, RecordFuture record) except -1
    cdef int batch_ended(self, BatchEnd end) except -1
    cdef int run(self, object step) except -1
    # Call `fn(argument)` in the context, and report what it raises to the loop.
    cdef int call(self, object context, object fn, object argument) except -1


# The one sleeper on a batch, for all that wait for the batch in the loop.
cdef class BatchEnd:
    cdef BatchEnds ends
    cdef Batch batch
    cdef list waiters


cdef class AIORecordFuture:
    cdef RecordFuture record
    cdef BatchEnds ends
    # Awaiting objects, and (fn, context, self) of callbacks. None: no BatchEnd has this future. The collector tracks a
    # future from its first step on: before, nothing that the future refers to leads back to it.
    cdef list steps
    cdef int era                        # of the steps: those of an earlier era are forgotten
    cdef bint given_up
    cdef object message                 # of cancel()

    cdef bint has_outcome(self)
    # Wait for the outcome with this step. 0: the outcome is known already. Raises ClosedError in a forked child.
    cdef int add_step(self, object step) except -1
    # The batch, or a part of it, has ended: move the steps to the end of `due`, or wait again.
    cdef int move_steps(self, object due) except -1
    cdef object outcome(self)


cdef enum AwaitState:
    IDLE
    WAITING                             # a step of the future
    GIVEN_UP                            # the task was cancelled, and will throw that into its coroutine
    LEFT


# The iterator of one `await` of a future. A task waits for it as for an asyncio.Future.
cdef class Awaiting:
    cdef AIORecordFuture future
    cdef public bint _asyncio_future_blocking
    cdef AwaitState state
    cdef object wakeup, context         # of the task
    cdef object message                 # of the cancellation

    cdef int leave(self) except -1
    cdef object next_value(self)


cdef AIORecordFuture new_aio_future(RecordFuture record, BatchEnds ends)
