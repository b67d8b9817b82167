# cython: language_level=3
"""The base of all bulk appends: a Walker fills batches without a lock.

The walker *claims* the open batch of each partition that its rows go to. A claimed batch stays in its queue, but no
other thread finds it open and the Sender leaves it alone, so the walker writes to it without a lock. The walker gives a
batch back when the batch is full, before it waits for memory (the Sender must be able to send its batches), and at
the end.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t

from kafkabuf._partition cimport KeyRule, partition_by_key
from kafkabuf._records cimport Record, RecordsBuilder, append, has_room, size_upper_bound
from kafkabuf.append._producer cimport ProducerCore
from kafkabuf.batches._accumulator cimport AccumulatorCore, PartitionQueue, TopicQueues
from kafkabuf.batches._batch cimport Batch


cdef enum Stop:
    # Why walk() stopped at a row. END: it appended all rows; append_record() returns END after its row.
    RAISED = -1
    END
    NEW_TOPIC
    NO_ROOM
    TOO_LARGE
    BAD_PARTITION
    BAD_TIMESTAMP
    BAD_HEADERS
    NO_MEMORY
    # Only where a format makes key or value: it cannot, or the bytes are more than max.request.size.
    BAD_KEY
    BAD_VALUE
    ENCODED_LARGE


cdef struct Cursor:
    # The claim on one partition of the current topic.
    RecordsBuilder* builder         # of the claimed batch; NULL: no batch is claimed
    int32_t segment                 # the number of the claim's Segment in the report


cdef class Segment:
    """Neighbouring records of one batch that one bulk append wrote."""
    cdef readonly Batch batch
    cdef readonly int32_t first_index   # of the first record in the batch
    cdef readonly int32_t rows          # 0 while the batch is claimed
    cdef readonly int64_t bytes         # encoded
    # The Segment holds all rows of the call from first_row to end_row - 1 that went to its topic and partition.
    cdef readonly int64_t first_row, end_row
    cdef PartitionQueue queue


cdef class Walker:
    # ---- fixed at construction
    cdef ProducerCore producer
    cdef AccumulatorCore accumulator
    cdef object report              # a BulkReport
    cdef int8_t magic
    cdef int64_t max_request_size
    cdef KeyRule key_rule
    cdef bint row_aligned           # the report keeps every row's place
    # ---- the present chunk of rows
    cdef int64_t first_row          # the number of the chunk's first row in the whole call
    cdef int64_t now                # ms, for rows without a timestamp
    cdef int32_t* row_segment       # by row, the number of its Segment (-1: no segment); NULL: no array is needed
    cdef int64_t* row_timestamp     # by row, in ms; NULL: no array is needed, or all rows have `now`
    # ---- the present row
    cdef int64_t row                # counted in the chunk
    cdef Record record
    cdef int32_t partition
    cdef double waited              # seconds that the row has waited for metadata; 0 once a batch has room for it
    cdef object too_large           # the error of the row that was left out last
    # ---- the current topic
    cdef TopicQueues topic
    # The topic may gain and lose partitions at any time. The next four fields describe it as use_topic saw it, and no
    # row goes to a partition without a cursor; make_room checks for a change.
    cdef Cursor* cursors            # by partition
    cdef int32_t room               # number of cursors; a new sticky partition may lie past `partitions`
    cdef int32_t partitions         # the number of partitions among which keys choose
    cdef int32_t sticky             # the partition of rows without key and partition
    # ---- claims
    cdef list segments              # the report's own list
    cdef Py_ssize_t fold_at         # the number of segments at which the report folds the segments that have ended
    cdef dict claimed               # Segments whose batch is claimed now, by partition of the current topic

    # ---- methods that a subclass overrides
    # Append rows from `row` on, until all rows are appended or a row needs `serve`; `row` is then its number.
    cdef Stop walk(self) except RAISED
    # Make the present row's topic the current topic.
    cdef int enter_topic(self) except -1

    # Append all rows of a chunk. If it raises, the report has the rows before the faulty row, and no batch is claimed.
    cdef int append_rows(self, int64_t rows, bint timestamps) except -1
    cdef int use_topic(self, TopicQueues topic) except -1
    cdef bint has_changed(self) noexcept
    cdef int follow_topic(self) except -1
    cdef int give_back_all(self) except -1

    cdef int serve(self, Stop stop) except -1
    cdef int leave_out(self, str reason) except -1
    cdef int refuse(self, Stop stop) except -1
    cdef int make_room(self) except -1
    cdef bint grow(self) except -1
    cdef int give_back_full(self) except -1
    cdef int claim_room(self, Segment segment) except -1
    cdef int claim(self, PartitionQueue queue, Segment segment) except -1
    cdef int give_back(self, Segment segment) except -1


# Sets the partition of walker.record: `wanted`; if that is negative, the key's partition, or the sticky partition.
cdef inline void choose_partition(Walker walker, int32_t wanted) noexcept nogil:
    if wanted < 0:
        wanted = partition_by_key(walker.key_rule, &walker.record.key, walker.partitions)
    walker.partition = wanted if wanted >= 0 else walker.sticky


# Set `rows_queued` and `report` of the error with which a bulk append ends.
cdef int tell_error(object error, object report) except -1


# Append walker.record to the claimed batch of its partition, and advance to the next row.
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
