# cython: language_level=3
"""What the bulk appends share: batches that a Walker fills without a lock.

The walker *claims* the open batch of each partition it meets: the batch stays in its queue, but no other thread finds
it open and the Sender leaves it, so it can be written to without a lock. A batch goes back when it is full, before the
walker waits for memory (what it holds must be sendable then), and at the end.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t

from kafkabuf._records cimport Record, RecordsBuilder, append, has_room, size_upper_bound
from kafkabuf._wire cimport partition_of_key
from kafkabuf.append._producer cimport ProducerCore
from kafkabuf.batches._accumulator cimport AccumulatorCore, PartitionQueue, TopicQueues
from kafkabuf.batches._batch cimport Batch


cdef enum Stop:
    # Why walk() cannot go on at a row.
    RAISED = -1
    END
    NEW_TOPIC
    NO_ROOM
    TOO_LARGE
    BAD_PARTITION
    BAD_TIMESTAMP
    BAD_HEADERS
    NO_MEMORY


cdef struct Cursor:
    # A claimed batch, by partition of the current topic.
    RecordsBuilder* builder         # NULL: none is claimed
    int32_t segment                 # its number in the report


cdef class Segment:
    """Neighbouring records of one batch that one call put there."""
    cdef readonly Batch batch
    cdef readonly int32_t first_index   # in the batch
    cdef readonly int32_t rows          # 0 while the batch is claimed
    cdef readonly int64_t bytes         # encoded
    # All rows of the call from first_row on and before end_row that went to this topic and partition are the Segment's.
    cdef readonly int64_t first_row, end_row
    cdef PartitionQueue queue


cdef class Walker:
    # ---- fixed at construction
    cdef ProducerCore producer
    cdef AccumulatorCore accumulator
    cdef object report              # a BulkReport
    cdef int8_t magic
    cdef int64_t max_request_size
    cdef bint ignore_keys
    cdef bint row_aligned           # the report keeps every row's place
    # ---- the chunk of rows being walked
    cdef int64_t first_row          # its first row's number in the whole call
    cdef int64_t now                # ms, for rows without a timestamp
    cdef int32_t* row_segment       # by row, which Segment it went to, -1: none; NULL: not asked for
    cdef int64_t* row_timestamp     # by row, in ms; NULL: not asked for, or all are `now`
    # ---- the row that walk() is at
    cdef int64_t row                # counted in the chunk
    cdef Record record
    cdef int32_t partition
    cdef double waited              # seconds, for metadata; 0 once it has a place
    cdef object too_large           # the error of the row that was left out last
    # ---- the current topic
    cdef TopicQueues topic
    # The topic gains and loses partitions meanwhile. All three counts are of when use_topic looked, and no row is bound
    # for a partition that has no cursor; make_room looks again.
    cdef Cursor* cursors            # by partition
    cdef int32_t room               # how many there are: the sticky partition may be one that the topic is just gaining
    cdef int32_t partitions         # among which keys choose
    cdef int32_t sticky             # partition for rows without key and partition
    # ---- claims
    cdef list segments              # the report's
    cdef Py_ssize_t fold_at         # segments at which the report is to fold those that are over
    cdef dict claimed               # Segments whose batch is claimed now, by partition of the current topic
    cdef readonly object outer      # the bulk append of the same thread that this one came within (_batch.pxd), or None

    # Append rows from `row` on until one cannot go on by itself; `row` is then that row.
    cdef Stop walk(self) except RAISED
    # The topic of the row walk() is at.
    cdef int enter_topic(self) except -1
    # All rows of a chunk. What became of those before an error is in the report, and nothing stays claimed.
    cdef int append_rows(self, int64_t rows, bint timestamps) except -1
    cdef int use_topic(self, TopicQueues topic) except -1
    cdef bint has_changed(self) noexcept
    cdef int follow_topic(self) except -1
    cdef int give_back_all(self) except -1

    cdef int serve(self, Stop stop) except -1
    cdef int leave_out(self, str reason) except -1
    cdef int refuse(self, Stop stop) except -1
    cdef int make_room(self) except -1
    cdef int claim(self, PartitionQueue queue, Segment segment) except -1
    cdef int give_back(self, Segment segment) except -1


# Sets the partition of walker.record: `wanted`, or, where that is negative, by the key or the sticky one.
cdef inline void choose_partition(Walker walker, int32_t wanted) noexcept nogil:
    if wanted >= 0:
        walker.partition = wanted
    elif walker.record.key.size >= 0 and not walker.ignore_keys:
        walker.partition = partition_of_key(
            walker.record.key.data, <size_t>walker.record.key.size, walker.partitions)
    else:
        walker.partition = walker.sticky


# Append walker.record to the batch claimed for it, and go on to the next row.
cdef inline Stop append_record(Walker walker) noexcept nogil:
    cdef Cursor* cursor
    if size_upper_bound(walker.magic, &walker.record) > walker.max_request_size:
        return TOO_LARGE
    cursor = &walker.cursors[walker.partition]
    if cursor.builder == NULL or not has_room(cursor.builder, &walker.record):
        return NO_ROOM
    if walker.row_segment != NULL:
        walker.row_segment[walker.row] = cursor.segment
        if walker.row_timestamp != NULL:
            walker.row_timestamp[walker.row] = walker.record.timestamp
    append(cursor.builder, &walker.record)
    walker.row += 1
    return END
