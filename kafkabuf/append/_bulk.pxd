# cython: language_level=3
"""What each bulk append has: a BulkAppend fills batches without a lock.

A bulk append *claims* the open batch of each partition that its rows go to. A claimed batch stays in its queue, but no
other thread finds it open and the Sender leaves it alone, so the bulk append writes to it without a lock. It gives a
batch back when the batch is full, before it waits for memory (the Sender must be able to send its batches), and at
the end.

A walker reads the rows of an Arrow array, of sequences or of a text. It has a BulkAppend, and calls nothing else:

    begin(rows)
        choose_partition(), append_record()     without the GIL, row by row, until all rows are appended
        serve(stop)                             where a row finds no room, is too large, or is refused
    end()
"""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t

from kafkabuf._partition cimport KeyRule, partition_by_key
from kafkabuf._records cimport Record, RecordsBuilder, append, has_room, size_upper_bound
from kafkabuf.append._producer cimport ProducerCore
from kafkabuf.batches._accumulator cimport AccumulatorCore, PartitionQueue, TopicQueues
from kafkabuf.batches._batch cimport Batch


cdef enum Stop:
    # Why a walker stopped at a row. END: it appended all rows; append_record() returns END after its row.
    END
    NO_ROOM
    TOO_LARGE
    BAD_PARTITION
    BAD_TIMESTAMP
    BAD_HEADERS
    NO_MEMORY
    # These are the ArrowWalker's own: the row is of another topic, a format cannot make its key or value, or the bytes
    # that the format made are more than max.request.size.
    NEW_TOPIC
    BAD_KEY
    BAD_VALUE
    ENCODED_LARGE


cdef struct Cursor:
    # The claim on one partition of the current topic.
    RecordsBuilder* builder         # of the claimed batch; NULL: no batch is claimed
    int32_t portion                 # the number of the claim's Portion in the report


cdef class Portion:
    """Neighbouring records of one batch that one bulk append wrote."""
    cdef readonly Batch batch
    cdef readonly int32_t first_index   # of the first record in the batch
    cdef readonly int32_t rows          # 0 while the batch is claimed
    cdef readonly int64_t bytes         # encoded
    # The Portion holds all rows of the call from first_row to end_row - 1 that went to its topic and partition.
    cdef readonly int64_t first_row, end_row
    cdef PartitionQueue queue


cdef class BulkAppend:
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
    cdef int32_t* row_portion       # by row, the number of its Portion (-1: no portion); NULL: no array is needed
    cdef int64_t* row_timestamp     # by row, in ms; NULL: no array is needed, or all rows have `now`
    cdef object portion_array       # the NumPy arrays that the two lie in, for the report, and views that pin them
    cdef object timestamp_array
    cdef object portion_view, timestamp_view
    cdef object thread              # the ident of the thread in which the chunk is appended
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
    cdef list portions              # the report's own list
    cdef Py_ssize_t fold_at         # the number of portions at which the report folds the portions that have ended
    cdef dict claimed               # Portions whose batch is claimed now, by partition of the current topic

    # A chunk of rows begins. After `begin` the caller calls `end` in any case: then the report has the rows before
    # `row`, and no batch is claimed.
    cdef int begin(self, int64_t rows, bint timestamps) except -1
    cdef int end(self) except -1
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
    cdef int claim_room(self, Portion portion) except -1
    cdef int claim(self, PartitionQueue queue, Portion portion) except -1
    cdef int give_back(self, Portion portion) except -1


# Sets the partition of the present row: `wanted`; if that is negative, the key's partition, or the sticky partition.
cdef inline void choose_partition(BulkAppend bulk, int32_t wanted) noexcept nogil:
    if wanted < 0:
        wanted = partition_by_key(bulk.key_rule, &bulk.record.key, bulk.partitions)
    bulk.partition = wanted if wanted >= 0 else bulk.sticky


# Set `rows_queued` and `report` of the error with which a bulk append ends.
cdef int tell_error(object error, object report) except -1


# Append the present row's record to the claimed batch of its partition, and advance to the next row.
cdef inline Stop append_record(BulkAppend bulk) noexcept nogil:
    cdef Cursor* cursor
    if size_upper_bound(bulk.magic, &bulk.record) > bulk.max_request_size:
        return TOO_LARGE
    cursor = &bulk.cursors[bulk.partition]
    if cursor.builder == NULL or not has_room(cursor.builder, &bulk.record):
        return NO_ROOM
    if bulk.row_portion != NULL:
        bulk.row_portion[bulk.row] = cursor.portion
        if bulk.row_timestamp != NULL:
            bulk.row_timestamp[bulk.row] = bulk.record.timestamp
    append(cursor.builder, &bulk.record)
    bulk.row += 1
    return END
