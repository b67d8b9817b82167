# cython: language_level=3
"""produce(), poll() and the messages of delivery reports with the names of confluent-kafka, over a kafkabuf producer.

The Sender's thread ends messages, and the user's threads serve them. The GIL guards all fields, or `guard` where there
is no GIL.
"""

from libc.stdint cimport int32_t, int64_t

from kafkabuf.process._lock cimport kb_lock
from kafkabuf.append._producer cimport ProducerCore
from kafkabuf.batches._batch cimport Batch, FutureCallback, RecordFuture


cdef class Message(FutureCallback):
    # ---- set while the record is in a batch
    cdef ProduceCore producer
    cdef object on_delivery         # callable(error, message), or None
    # ---- fixed at construction
    cdef double produced_at         # seconds since the epoch
    cdef double since               # seconds of the monotonic clock; set for a record that waits for its topic
    # ---- what the methods return; a callback may set some of them
    cdef object message_topic, message_value, message_key, message_headers
    cdef int32_t number             # the partition; -1: none is chosen yet
    cdef int64_t offset_there       # -1: unknown
    cdef int64_t time               # ms; -1: no time is set yet
    cdef int kind_of_time
    # ---- the outcome; set before the message is in `reports`
    cdef object failure             # a kafkabuf error, or None
    cdef object peers_error         # `failure` as a KafkaError, once the user has asked; or what set_error() was given
    cdef double seconds             # from produce() to the outcome; -1: there is no outcome yet


cdef class ProduceCore:
    cdef ProducerCore core          # its send() never waits: it raises MustWait. None: not open in this process
    cdef public object _reopen      # callable; opens the producer in a forked child. None: it is open, or closed
    cdef object clock
    cdef object on_delivery         # of records that have no callback of their own, or None
    cdef bint only_errors           # delivery.report.only.error
    cdef list sources               # of events that poll() reports besides delivery reports (Source)
    cdef int64_t max_messages       # queue.buffering.max.messages
    # Messages whose outcome the user has not been told, and records that wait for their topic. Records without callback
    # have no message: buffer.memory bounds them.
    cdef kb_lock guard
    cdef readonly int64_t held
    # Messages with an outcome, in order, each with its callback behind it. Those before `next_report` are served; from
    # `end_report` on the list has room for the reports of all other records that are held.
    cdef list reports
    cdef Py_ssize_t next_report, end_report
    cdef double ended_at            # seconds since the epoch, when the records of `ended_batch` had their outcome
    cdef Batch ended_batch
    cdef object line_up             # callable(Message, on_delivery); adds the message to its line, or raises KafkaError
    cdef dict lines                 # by topic that is not known yet, its Messages in order
    cdef object expire              # callable; fails the messages that have stood in a line for too long
    cdef list waiters               # locks of threads in poll(); a new report releases them

    # The core; opens it in a forked child. Raises RuntimeError after close(), which any Python code may have called.
    cdef ProducerCore opened(self)
    # Raises what produce() raises.
    cdef int queue(self, Message message, object on_delivery) except -1
    cdef int send(self, Message message, object on_delivery) except -1
    cdef int stand_in_line(self, Message message, object on_delivery) except -1
    # The message has its outcome. Any thread.
    cdef int report(self, Message message, object on_delivery) except -1
    # Count a message in, or raise BufferError; and count it out.
    cdef int hold(self) except -1
    cdef void let_go(self) noexcept
    # Call the first callback that is due. 0: there is none. Any code may run in it, poll() too.
    cdef int serve_next(self) except -1
    # Advance `next_report` by one report. The caller holds the message, the callback and the lock.
    cdef void drop_first(self) noexcept
    cdef object next_waiter(self)   # take a waiter off the list; None: there is none
    # Have `waiter.release()` called at the next report. False if there is a report now.
    cdef bint add_waiter(self, object waiter) except -1
    cdef int remove_waiter(self, object waiter) except -1
