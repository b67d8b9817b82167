# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The part that all bulk appends share: claiming batches, giving them back, and serving rows that do not fit."""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from posix.unistd cimport usleep

import numpy as np

from kafkabuf.process._lock cimport enter_lock, leave_lock
from kafkabuf._records cimport size_upper_bound
from kafkabuf.cpython._sealed cimport seal
from kafkabuf.memory._view cimport items_of, length_of, view_of
from kafkabuf.append._producer cimport ProducerCore
from kafkabuf.batches._accumulator cimport PartitionQueue, TopicQueues, uninitialized
from kafkabuf.batches._batch cimport Batch, enter_bulk_append, leave_bulk_append, this_thread

from kafkabuf.errors import (
    InvalidPartitionsError, InvalidTimestampError, NullHeaderKeyError, RecordTooLargeError, SerializationError,
)

cdef Py_ssize_t FOLD_AT = 256


@cython.final
cdef class Portion:
    """Neighbouring records of one batch that one bulk append wrote."""

seal(Portion)

# Microseconds between two attempts to tell what was queued.
cdef enum:
    PAUSE = 1_000


cdef int add_rows(object report, int64_t rows, object portion, object timestamp, int64_t now) except -1:
    """Tell the report of rows that are queued. Waits for memory: a caller that is not told would send them twice."""
    cdef bint again = True
    while again:
        again = False
        try:
            report.add_rows(rows, portion, timestamp, now)
        except MemoryError:
            again = True
        if again:
            with nogil:
                usleep(PAUSE)
    return 0


cdef int tell_error(object error, object report) except -1:
    """Tell the error which rows are queued all the same. Waits for memory, as add_rows()."""
    cdef bint again = True
    while again:
        again = False
        try:
            error.rows_queued = report.rows
            error.report = report
        except MemoryError:
            again = True
        if again:
            with nogil:
                usleep(PAUSE)
    return 0


@cython.final
cdef class BulkAppend:
    """The claims and the present row of one bulk append."""

    def __cinit__(self, ProducerCore producer not None, report):
        if producer.accumulator is None:
            raise uninitialized(producer)
        self.producer = producer
        self.accumulator = producer.accumulator
        self.report = report
        self.row_aligned = report.row_aligned
        self.portions = report.portions
        self.magic = producer.accumulator.magic
        self.max_request_size = producer.max_request_size
        self.key_rule = producer.key_rule
        self.fold_at = FOLD_AT
        self.claimed = {}

    def __dealloc__(self):
        free(self.cursors)

    # ---- a chunk of rows ---------------------------------------------------------------------------------------------

    cdef int begin(self, int64_t rows, bint timestamps) except -1:
        self.row_portion = NULL
        self.row_timestamp = NULL
        if self.row_aligned and rows:
            self.portion_array = np.empty(rows, np.int32)
            self.portion_view = view_of(self.portion_array, sizeof(int32_t), True)
            self.row_portion = <int32_t*>items_of(self.portion_view)
            if timestamps:
                self.timestamp_array = np.empty(rows, np.int64)
                self.timestamp_view = view_of(self.timestamp_array, sizeof(int64_t), True)
                self.row_timestamp = <int64_t*>items_of(self.timestamp_view)
        self.row = 0
        self.now = self.producer.now_ms()
        self.thread = this_thread()
        enter_bulk_append(self.thread, self)
        return 0

    cdef int end(self) except -1:
        try:
            self.give_back_all()
        finally:
            leave_bulk_append(self.thread, self)
            add_rows(self.report, self.row, self.portion_array, self.timestamp_array, self.now)
            self.first_row += self.row
            self.portion_array = self.timestamp_array = self.portion_view = self.timestamp_view = None
        return 0

    def give_back_claims(self):
        """Called before this thread waits, in code that the bulk append called or that interrupted it."""
        self.give_back_all()

    # ---- rows that append_record() cannot append ---------------------------------------------------------------------

    cdef int serve(self, Stop stop) except -1:
        """Remove the obstacle, leave the row out, or raise."""
        if stop == NO_ROOM:
            try:
                self.make_room()
            except RecordTooLargeError as error:  # larger than buffer.memory
                self.leave_out(str(error))
        elif stop == TOO_LARGE:
            self.leave_out(f"it needs up to {size_upper_bound(self.magic, &self.record)} bytes, more than "
                           f"max.request.size ({self.max_request_size}): raise max.request.size, or send smaller "
                           f"records")
        elif stop == BAD_PARTITION and self.partition >= self.partitions:
            # The partition may be new: fetch metadata once. No batch may be claimed during the wait.
            self.give_back_all()
            self.producer.queue_of_partition(self.topic, self.partition, &self.waited)
            self.use_topic(self.topic)
        else:
            self.refuse(stop)
        return 0

    cdef int leave_out(self, str reason) except -1:
        """Skip the row, which is too large; the other rows are sent."""
        cdef int64_t row = self.first_row + self.row
        self.waited = 0
        self.too_large = RecordTooLargeError(f"row {row}: the record is too large: {reason}")
        self.report.leave_out(row, self.topic.name, self.too_large)
        if self.row_portion != NULL:
            self.row_portion[self.row] = -1
            if self.row_timestamp != NULL:
                self.row_timestamp[self.row] = self.record.timestamp
        self.row += 1
        return 0

    cdef int refuse(self, Stop stop) except -1:
        cdef int64_t row = self.first_row + self.row
        if stop == BAD_PARTITION:
            raise InvalidPartitionsError(f"row {row}: partition {self.partition} is negative")
        if stop == BAD_TIMESTAMP:
            raise InvalidTimestampError(f"row {row}: a record's timestamp must lie between 0 (1970) and 2^63 - 1 ms")
        if stop == BAD_HEADERS and self.magic >= 2:
            raise NullHeaderKeyError(f"row {row}: a header has no key, and Kafka requires a key")
        if stop == BAD_HEADERS:
            raise SerializationError(
                f"row {row}: record.magic is 1, and that format has no headers: send no headers, or set record.magic "
                f"to 2")
        raise MemoryError(f"row {row}: no memory for the row's headers")

    # ---- claims ------------------------------------------------------------------------------------------------------

    cdef int use_topic(self, TopicQueues topic) except -1:
        """Make `topic` the current topic. No batch may be claimed.

        No Python code runs in here, so the number of partitions and the sticky partition fit each other.
        """
        enter_lock(&self.accumulator.pool.guard)
        cdef int32_t partitions = topic.partitions, sticky = topic.sticky.partition
        leave_lock(&self.accumulator.pool.guard)
        cdef int32_t room = max(partitions, sticky + 1)
        cdef Cursor* cursors = <Cursor*>calloc(room, sizeof(Cursor))
        if cursors == NULL:
            raise MemoryError()
        free(self.cursors)
        self.cursors = cursors
        self.room = room
        self.topic = topic
        self.partitions = partitions
        self.sticky = sticky
        return 0

    cdef bint has_changed(self) noexcept:
        """Whether the topic has gained or lost partitions since use_topic: other threads run when Python code runs."""
        return self.topic.partitions != self.partitions or self.topic.sticky.partition >= self.room

    cdef int make_room(self) except -1:
        """Claim a batch with room for the record, in the record's partition."""
        # Created first: an allocation may let another thread run, which must not happen between the check of a batch
        # and its claim.
        cdef Portion portion = Portion.__new__(Portion)
        if len(self.portions) >= self.fold_at and not self.row_aligned:
            self.report.fold()
            self.fold_at = FOLD_AT + 2 * len(self.portions)
        if self.cursors[self.partition].builder != NULL:
            if self.grow():
                return 0
            self.give_back_full()
            self.accumulator.wakeup()
        enter_lock(&self.accumulator.pool.guard)
        try:
            return self.claim_room(portion)
        finally:
            leave_lock(&self.accumulator.pool.guard)

    cdef bint grow(self) except -1:
        """Grow the claimed batch of the record's partition, if there is memory."""
        cdef Portion portion = self.claimed[self.partition]
        enter_lock(&self.accumulator.pool.guard)
        cdef bint grown = self.accumulator.try_grow(portion.batch, &self.record)
        leave_lock(&self.accumulator.pool.guard)
        if grown:
            self.waited = 0
        return grown

    cdef int give_back_full(self) except -1:
        """Give back the batch of the record's partition, which has no room for the record; close it if it is full."""
        cdef Portion portion = self.claimed.pop(self.partition)
        enter_lock(&self.accumulator.pool.guard)
        try:
            self.give_back(portion)
            # Another thread may have opened a batch behind this one, which `give_back` has then closed.
            if portion.queue.open is portion.batch and not self.accumulator.grown(portion.batch, &self.record):
                portion.queue.close_open_batch()
        finally:
            leave_lock(&self.accumulator.pool.guard)
        return 0

    cdef int claim_room(self, Portion portion) except -1:
        """The caller holds the producer's lock, and no batch of the record's partition is claimed."""
        cdef PartitionQueue queue
        if self.has_changed():
            return self.follow_topic()
        queue = self.topic.queues[self.partition]
        if self.partition == self.sticky and queue.open is None:
            self.topic.leave(queue, size_upper_bound(self.magic, &self.record))
            if self.has_changed():
                return self.follow_topic()
            if queue is not self.topic.sticky:
                # Read the row again: a row without key goes to another partition now.
                self.sticky = self.topic.sticky.partition
                return 0
        self.producer.check_still_open(self.accumulator)
        # Gives all claims back before it waits for memory.
        self.accumulator.open_batch(queue, &self.record, self.producer.max_block - self.waited)
        self.waited = 0
        return self.claim(queue, portion)

    cdef int follow_topic(self) except -1:
        """The number of partitions has changed: the caller reads the row again, whose key may choose another."""
        self.give_back_all()
        return self.use_topic(self.topic)

    cdef int claim(self, PartitionQueue queue, Portion portion) except -1:
        portion.queue = queue
        portion.batch = queue.open
        portion.first_index = queue.open.stored.builder.count
        portion.bytes = -<int64_t>queue.open.stored.builder.position
        portion.first_row = self.first_row + self.row
        # The claim comes after the steps that may raise, because only a portion in `claimed` is given back.
        self.portions.append(portion)
        try:
            self.claimed[queue.partition] = portion
        except BaseException:
            self.portions.pop()
            raise
        self.accumulator.claim(queue)
        self.cursors[queue.partition].builder = &portion.batch.stored.builder
        self.cursors[queue.partition].portion = <int32_t>(len(self.portions) - 1)
        return 0

    cdef int give_back(self, Portion portion) except -1:
        """End the claim. The records that were appended since the claim are the portion."""
        cdef Batch batch = portion.batch
        portion.rows = batch.stored.builder.count - portion.first_index
        portion.bytes += batch.stored.builder.position
        portion.end_row = self.first_row + self.row
        self.cursors[batch.partition].builder = NULL
        enter_lock(&self.accumulator.pool.guard)
        try:
            self.producer.records_sent += portion.rows
            self.accumulator.unclaim(portion.queue, batch)
        finally:
            leave_lock(&self.accumulator.pool.guard)
        return 0

    cdef int give_back_all(self) except -1:
        # All claims end, even if the end of a claim raises: the Sender never sends a batch that stays claimed.
        if self.claimed:
            try:
                while self.claimed:
                    self.give_back(self.claimed.popitem()[1])
            finally:
                self.give_back_all()
                self.accumulator.wakeup()
        return 0


seal(BulkAppend)


def places_of(portion, following):
    """By row, its index in the batch of its portion. The value for a row without portion (-1) means nothing.

    `following` holds each portion's first index; the call advances it.
    """
    portions, nexts = view_of(portion, sizeof(int32_t), False), view_of(following, sizeof(int32_t), True)
    result = np.zeros(len(portion), np.int32)
    places = view_of(result, sizeof(int32_t), True)
    cdef const int32_t* portion_of = <const int32_t*>items_of(portions)
    cdef int32_t* next_of = <int32_t*>items_of(nexts)
    cdef int32_t* place_of = <int32_t*>items_of(places)
    cdef Py_ssize_t row, count = length_of(nexts)
    for row in range(length_of(places)):
        if portion_of[row] >= count:
            raise IndexError(f"row {row} has portion {portion_of[row]}, and there are {count} portions")
        if portion_of[row] >= 0:
            place_of[row] = next_of[portion_of[row]]
            next_of[portion_of[row]] += 1
    return result
