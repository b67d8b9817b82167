# cython: language_level=3
"""Appending the rows of an Arrow batch without the GIL.

The walker *claims* the open batch of each partition it meets: the batch stays in its queue, but no other thread finds
it open and the Sender leaves it, so it can be written to without a lock. A batch goes back when it is full, before the
walker waits for memory (what it holds must be sendable then), and at the end.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from kafkabuf._accumulator cimport AccumulatorCore, PartitionQueue, TopicQueues
from kafkabuf._arrow cimport ArrowArray, ArrowSchema, Columns
from kafkabuf._batch cimport Batch
from kafkabuf._producer cimport ProducerCore
from kafkabuf._records cimport Record, RecordsBuilder
from kafkabuf._wire cimport Field


cdef enum Stop:
    # Why walk() wants the GIL at a row.
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
    """Neighbouring records of one batch that one send_arrow put there."""
    cdef readonly Batch batch
    cdef readonly int32_t first_index
    cdef readonly int32_t rows
    cdef readonly int64_t bytes     # encoded
    cdef PartitionQueue queue


cdef class Walker:
    # ---- fixed at construction
    cdef ProducerCore producer
    cdef AccumulatorCore accumulator
    cdef int8_t magic
    cdef int64_t max_request_size
    cdef bint ignore_keys
    # ---- the batch of rows being walked, borrowed
    cdef Columns* columns
    cdef int32_t* row_segment       # by row: which Segment it went to,
    cdef int32_t* row_index         # its place in that batch,
    cdef int64_t* row_timestamp     # and its timestamp in ms
    cdef int64_t now                # ms, for rows without a timestamp
    # ---- the row that walk() is at
    cdef Record record
    cdef int32_t partition
    cdef Field* header_fields       # its headers: key, value, key, value, ...
    cdef int64_t header_room        # headers that fit there
    # ---- the current topic
    cdef TopicQueues topic
    cdef bytes topic_bytes          # keeps name alive
    cdef const uint8_t* name        # compared with the column's; NULL where one topic is given for all rows
    cdef int64_t name_size
    cdef Cursor* cursors            # by partition
    cdef int32_t partitions
    cdef int32_t sticky             # partition for rows without key and partition
    # ---- the report
    cdef readonly list segments
    cdef dict claimed               # Segments whose batch is claimed now, by partition of the current topic

    cdef Stop walk(self, int64_t* row) noexcept nogil
    cdef Stop read_row(self, int64_t row) noexcept nogil
    cdef Stop read_partition(self, int64_t row) noexcept nogil
    cdef int64_t read_headers(self, int64_t row) noexcept nogil
    cdef int append_rows(self, Columns* columns) except -1
    cdef int serve(self, Stop stop, int64_t row) except -1
    cdef int refuse(self, Stop stop, int64_t row) except -1
    cdef int enter_topic(self, int64_t row) except -1
    cdef int use_topic(self, TopicQueues topic) except -1
    cdef int make_room(self) except -1
    cdef int claim(self, PartitionQueue queue, Segment segment) except -1
    cdef int give_back(self, Segment segment) except -1
    cdef int give_back_all(self) except -1
    cdef append_array(self, ArrowSchema* schema, ArrowArray* array)
