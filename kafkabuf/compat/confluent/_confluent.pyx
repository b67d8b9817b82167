# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The per-record path of compat/confluent/__init__.py: Producer.produce(), poll(), and messages."""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_AsUTF8String
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec
from posix.types cimport clockid_t

from kafkabuf.memory._held cimport hold as hold_field
from kafkabuf.process._lock cimport break_lock, enter_lock, leave_lock
from kafkabuf.cpython._sealed cimport seal
from kafkabuf.wire._wire cimport Field
from kafkabuf.append._producer cimport ProducerCore
from kafkabuf.batches._batch cimport SUCCEEDED, Batch, FutureCallback, RecordFuture, offset_in, timestamp_in

from kafkabuf.compat.confluent.errors import record_error, refuse
from kafkabuf.errors import KafkaError
from kafkabuf.process.threads import new_waiter

cdef extern from "Python.h":
    # `del reports[:n]` makes a slice, which may start a collection, and so run any code.
    int set_slice "PyList_SetSlice"(list, Py_ssize_t low, Py_ssize_t high, PyObject* items) except -1
    int PyErr_CheckSignals() except -1

cdef enum:
    NOT_AVAILABLE = 0
    CREATE_TIME = 1
    LOG_APPEND_TIME = 2
    MOST_SERVED = 4096              # poll() drops the served reports when it has served this number of them

# Seconds that poll() and flush() wait at a time while records stand in line or there are sources of events. And at
# most: a signal that another thread has received interrupts poll() then.
SLICE = 0.05
cdef double LONG_SLICE = 0.2


class MustWait(Exception):
    """Raised by a core's send() instead of waiting for metadata."""


cdef double seconds_now(clockid_t clock) noexcept:
    cdef timespec now
    clock_gettime(clock, &now)
    return <double>now.tv_sec + <double>now.tv_nsec * 1e-9


cdef object encoded(object data):
    """confluent-kafka takes str and sends it as UTF-8."""
    return PyUnicode_AsUTF8String(data) if isinstance(data, str) else data


def bytes_of(data, str name not None):
    """A copy of a key or value, or None. Raises SerializationError where send() does."""
    cdef Field field
    cdef Py_buffer view
    cdef bint taken
    data = encoded(data)
    if data is None or type(data) is bytes:
        return data
    taken = hold_field(data, &field, &view, name)
    try:
        return PyBytes_FromStringAndSize(<const char*>field.data, field.size)
    finally:
        if taken:
            PyBuffer_Release(&view)


def pairs_of(headers):
    """Headers as a list of pairs (str, bytes or None). Raises TypeError."""
    cdef list pairs = []
    if not isinstance(headers, (list, dict)):
        raise TypeError(f"headers must be a list of pairs or a dict, found {type(headers).__name__}")
    for pair in (headers.items() if isinstance(headers, dict) else headers):
        if type(pair) is not tuple or len(pair) != 2 or not isinstance(pair[0], (str, bytes)):
            raise TypeError(f"a header must be a pair of str and bytes, str or None, found {pair!r}")
        if not isinstance(pair[1], (str, bytes, bytearray, memoryview)) and pair[1] is not None:
            raise TypeError(f"a header's value must be bytes, str or None, found {pair[1]!r}")
        pairs.append(((<bytes>pair[0]).decode() if isinstance(pair[0], bytes) else pair[0], encoded(pair[1])))
    return pairs


# The collector does not track Messages, to save time. So a Message refers to the producer and to the user's callback
# only while its record is in a batch, which always ends. Before and after, objects that the collector sees hold both.
@cython.final
@cython.no_gc
cdef class Message(FutureCallback):
    """A record of produce(), with its outcome (confluent-kafka's class of that name). Pickles without callback."""

    def __init__(self):
        raise TypeError("a Message comes from a delivery report of Producer")

    def topic(self):
        return self.message_topic

    def partition(self):
        """The record's partition; None if none was chosen."""
        return None if self.number < 0 else self.number

    def offset(self):
        """The record's offset; None if the broker did not return one."""
        return None if self.offset_there < 0 else self.offset_there

    def key(self):
        return self.message_key

    def value(self):
        return self.message_value

    def headers(self):
        """A list of pairs, or None."""
        return self.message_headers

    def timestamp(self):
        """(type, milliseconds): type 1 is CreateTime, 2 LogAppendTime, 0 means that there is no timestamp."""
        return self.kind_of_time, self.time

    def latency(self):
        """Seconds from produce() to the outcome; None before the outcome."""
        return None if self.seconds < 0 else self.seconds

    def leader_epoch(self):
        return None

    def error(self):
        """The KafkaError of a record that failed, else None."""
        if self.peers_error is None and self.failure is not None:
            self.peers_error = record_error(self.failure)
        return self.peers_error

    def set_topic(self, topic):
        self.message_topic = topic

    def set_headers(self, headers):
        self.message_headers = headers

    def set_key(self, key):
        self.message_key = key

    def set_value(self, value):
        self.message_value = value

    def set_error(self, error):
        self.failure = None
        self.peers_error = error

    def __len__(self):
        """Bytes of the value."""
        return 0 if self.message_value is None else len(self.message_value)

    def __bool__(self):
        return True

    def __repr__(self):
        return f"Message({self.message_topic}-{self.number}, offset {self.offset()}, error {self.error()!r})"

    def __reduce__(self):
        fields = (self.message_topic, self.number, self.offset_there, self.message_key, self.message_value,
                  self.message_headers, self.kind_of_time, self.time, self.error(), self.seconds)
        return unpickled, fields

    # ---- for the producer --------------------------------------------------------------------------------------------

    @property
    def age(self):
        """Seconds since the record began to wait for its topic."""
        return seconds_now(CLOCK_MONOTONIC) - self.since

    cdef int ended(self, RecordFuture future) except -1:
        cdef ProduceCore producer = self.producer
        cdef Batch part = future.part()
        if producer is None:
            raise TypeError("a Message is no callback: only the producer that made it may end it")
        on_delivery, self.producer, self.on_delivery = self.on_delivery, None, None
        self.number = part.partition
        if part.base_offset >= 0:
            self.offset_there = offset_in(part, future)
        self.kind_of_time = CREATE_TIME if part.log_append_time < 0 else LOG_APPEND_TIME
        self.time = timestamp_in(part, future)
        if producer.ended_batch is not part:
            producer.ended_batch = part
            producer.ended_at = seconds_now(CLOCK_REALTIME)
        self.seconds = max(producer.ended_at - self.produced_at, 0.0)
        if part.outcome != SUCCEEDED:
            self.failure = part.error_of(future)
        return producer.report(self, on_delivery)


cdef Message new_message(
    object topic, object value, object key, object headers, int32_t partition, int64_t timestamp
):
    cdef Message message = Message.__new__(Message)
    message.produced_at = seconds_now(CLOCK_REALTIME)
    message.message_topic = topic
    message.message_value = value
    message.message_key = key
    message.message_headers = headers
    message.number = partition
    message.offset_there = message.time = -1
    message.seconds = -1
    if timestamp > 0:
        message.kind_of_time, message.time = CREATE_TIME, timestamp
    return message


def unpickled(topic, int32_t number, int64_t offset, key, value, headers, int kind_of_time, int64_t time, error,
              double seconds):
    """A Message without producer."""
    cdef Message message = Message.__new__(Message)
    message.message_topic, message.message_key, message.message_value = topic, key, value
    message.message_headers, message.peers_error = headers, error
    message.number, message.offset_there, message.seconds = number, offset, seconds
    message.kind_of_time, message.time = kind_of_time, time
    return message


seal(Message)


cdef class ProduceCore:
    """Base class of compat.confluent.Producer: the code that runs for every record."""

    def __cinit__(self, *args, **kwargs):
        self.reports = []
        self.lines = {}
        self.waiters = []

    def _open(self, ProducerCore core not None, lines, clock, on_delivery, bint only_errors, list sources not None,
              int64_t max_messages):
        self.line_up, self.lines, self.expire = lines.add, lines.by_topic, lines.expire
        self.clock = clock
        self.on_delivery = on_delivery
        self.only_errors = only_errors
        self.sources = sources
        self.max_messages = max_messages
        self.core = core
        self._reopen = None

    def _shut(self, reopen=None):
        """Let later calls raise, or call `reopen` first."""
        self._reopen = reopen
        self.core = None

    def _is_open(self):
        return self.core is not None

    def _forget(self):
        """Forget all records and reports: they are those of another process.

        Returns what held the records. Drop them when the producer's state is consistent: a callback's __del__ may
        call the producer.
        """
        cdef list reports = []
        forgotten = self.reports, self.lines, self.waiters
        break_lock(&self.guard)
        self.held = self.next_report = self.end_report = 0
        self.reports, self.lines, self.waiters = reports, {}, []
        return forgotten

    cdef ProducerCore opened(self):
        while self.core is None:
            if self._reopen is None:
                raise RuntimeError("Producer has been closed")
            self._reopen()
        return self.core

    def _check_open(self):
        self.opened()

    def produce(self, str topic not None, value=None, key=None, partition=-1, callback=None, on_delivery=None,
                timestamp=0, headers=None):
        """Queue one record; never waits. Arguments: confluent-kafka's Producer.produce().

        Args:
            topic: the topic's name. The records of an unknown topic wait in a line until a broker describes the topic.
            value, key: bytes-like, str (sent as UTF-8) or None.
            partition: a number; -1: the setting `partitioner` chooses.
            callback, on_delivery: `on_delivery(error, message)`; poll() and flush() call it, in their thread.
            timestamp: milliseconds since the epoch; 0: the present time.
            headers: a dict or a list of pairs, of str (or bytes) and bytes, str or None.

        Raises:
            BufferError: the queue is full: call poll() and try again.
            KafkaException: the record is too large, or the producer has failed for good.
            RuntimeError: after close().
        """
        # Cython's own conversion would cut the digits of a float off.
        cdef int32_t number = PyNumber_Index(partition)
        cdef int64_t time = PyNumber_Index(timestamp)
        self.opened()
        if isinstance(value, str):
            value = PyUnicode_AsUTF8String(value)
        if isinstance(key, str):
            key = PyUnicode_AsUTF8String(key)
        if headers is not None:
            headers = pairs_of(headers)
        if callback is not None:
            on_delivery = callback
        elif on_delivery is None:
            on_delivery = self.on_delivery
        if on_delivery is None and not self.lines:
            try:
                self.opened().queue_record(
                    topic, value, key, headers, None if number == -1 else number,
                    time if time > 0 else None, None, None, 0)
                return
            except MustWait:
                pass
            except KafkaError as error:
                refuse(error)
        self.queue(new_message(topic, value, key, headers, number, time), on_delivery)

    cdef int queue(self, Message message, object on_delivery) except -1:
        self.hold()
        try:
            if not self.lines or message.message_topic not in self.lines:
                self.send(message, on_delivery)
                return 0
        except MustWait:
            message.producer = message.on_delivery = None
        except BaseException as error:
            self.let_go()
            if isinstance(error, KafkaError):
                refuse(error)
            raise
        self.stand_in_line(message, on_delivery)
        return 0

    cdef int stand_in_line(self, Message message, object on_delivery) except -1:
        message.since = seconds_now(CLOCK_MONOTONIC)
        try:
            self.line_up(message, on_delivery)
        except BaseException as error:
            self.let_go()
            if isinstance(error, KafkaError):
                refuse(error)
            raise
        return 0

    cdef int hold(self) except -1:
        cdef bint full
        enter_lock(&self.guard)
        try:
            full = self.held >= self.max_messages
            if not full:
                # Room for the report of each record that is held: there may be no memory when the record ends.
                while len(self.reports) - self.next_report < 2 * (self.held + 1):
                    self.reports.append(None)
                self.held += 1
        finally:
            leave_lock(&self.guard)
        if full:
            raise BufferError(f"Local: Queue full: {self.held} messages wait for their delivery report, as many as "
                              "queue.buffering.max.messages allows: call poll()")
        return 0

    cdef void let_go(self) noexcept:
        enter_lock(&self.guard)
        self.held -= 1
        leave_lock(&self.guard)

    cdef int send(self, Message message, object on_delivery) except -1:
        cdef int64_t time = message.time if message.kind_of_time else <int64_t>(message.produced_at * 1000)
        message.producer, message.on_delivery = self, on_delivery
        self.opened().queue_record(
            message.message_topic, message.message_value, message.message_key, message.message_headers,
            None if message.number == -1 else message.number, time, message, None, 0)
        return 0

    def _send(self, Message message not None, on_delivery):
        """Queue the record of a message that stands in line. Raises MustWait and kafkabuf's errors."""
        self.opened()
        try:
            self.send(message, on_delivery)
        except BaseException:
            message.producer = message.on_delivery = None
            raise

    def _fail(self, Message message not None, on_delivery, error):
        """The record of a message ends with a kafkabuf error before it was in a batch."""
        message.failure = error
        message.seconds = max(seconds_now(CLOCK_REALTIME) - message.produced_at, 0.0)
        self.report(message, on_delivery)

    cdef int report(self, Message message, object on_delivery) except -1:
        if on_delivery is None or (message.failure is None and self.only_errors):
            self.let_go()
            return 0
        enter_lock(&self.guard)
        self.reports[self.end_report] = message
        self.reports[self.end_report + 1] = on_delivery
        self.end_report += 2
        leave_lock(&self.guard)
        while self.waiters and (waiter := self.next_waiter()) is not None:
            waiter.release()
        return 0

    cdef object next_waiter(self):
        enter_lock(&self.guard)
        waiter = self.waiters.pop() if self.waiters else None
        leave_lock(&self.guard)
        return waiter

    def poll(self, timeout=-1):
        """Call the callbacks of all records that have an outcome, and return their number.

        If there is no such record, wait for one, up to `timeout` seconds (below 0, or None: for ever). Raises what a
        callback raises; the next call goes on with the next record.
        """
        cdef double left, deadline = INFINITY
        cdef double seconds = -1 if timeout is None else timeout
        self.opened()
        if seconds > 0:
            deadline = self.clock.monotonic() + seconds
        while True:
            served = self._serve()
            if served or seconds == 0:
                return served
            left = deadline - <double>self.clock.monotonic()
            if left <= 0:
                return 0
            self._await_report(min(left, <double>SLICE if self.sources or self.lines else LONG_SLICE))
            PyErr_CheckSignals()

    def _serve(self):
        """Call every callback that is due now, and return how many."""
        cdef int64_t served = 0, events = 0, due
        if self.lines:
            self.expire()
        for source in self.sources:
            events += source.serve()
        due = self._due()
        # A callback, or another thread, may serve reports meanwhile.
        while served < due and self.serve_next():
            served += 1
        return events + served

    def _await_report(self, double seconds):
        """Wait until there is a report, for up to `seconds`."""
        waiter = new_waiter()
        if self.add_waiter(waiter):
            try:
                waiter.acquire(timeout=seconds)
            finally:
                self.remove_waiter(waiter)

    cdef int serve_next(self) except -1:
        cdef Message message = None
        cdef object on_delivery = None
        enter_lock(&self.guard)
        if self.next_report < self.end_report:
            # The locals hold the references: the last one goes after the lock, for its __del__ may call poll().
            message = <Message>self.reports[self.next_report]
            on_delivery = self.reports[self.next_report + 1]
            self.drop_first()
        leave_lock(&self.guard)
        if message is None:
            return 0
        on_delivery(None if message.failure is None else message.error(), message)
        return 1

    cdef void drop_first(self) noexcept:
        self.reports[self.next_report] = self.reports[self.next_report + 1] = None
        self.next_report += 2
        self.held -= 1
        if self.next_report == self.end_report:
            self.next_report = self.end_report = 0
        elif self.next_report >= MOST_SERVED:
            set_slice(self.reports, 0, self.next_report, NULL)
            self.end_report -= self.next_report
            self.next_report = 0

    def _due(self):
        """The number of records that have an outcome which poll() has not reported."""
        enter_lock(&self.guard)
        cdef Py_ssize_t due = (self.end_report - self.next_report) // 2
        leave_lock(&self.guard)
        return due

    cdef bint add_waiter(self, object waiter) except -1:
        enter_lock(&self.guard)
        try:
            if self.next_report < self.end_report:
                return False
            self.waiters.append(waiter)
            return True
        finally:
            leave_lock(&self.guard)

    cdef int remove_waiter(self, object waiter) except -1:
        enter_lock(&self.guard)
        try:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
        finally:
            leave_lock(&self.guard)
        return 0
