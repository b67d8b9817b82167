# cython: language_level=3
"""send_arrow: encodes rows of Arrow data into claimed batches. It takes the GIL only where a batch begins or ends.

An array's way: append_array binds its columns; without the GIL, a walk goes from row to row (read_row, encode_row,
append_record); where it stops, serve removes the obstacle, and the walk goes on with the same row.
"""

from libc.stdint cimport int64_t, uint8_t

from kafkabuf._records cimport Record
from kafkabuf.wire._wire cimport Field
from kafkabuf.arrow._array cimport ArrowArray, ArrowSchema, Columns
from kafkabuf.append._bulk cimport BulkAppend, Stop
from kafkabuf.formats.rows._encoder cimport RowEncoder


cdef class ArrowWalker:
    # ---- fixed before the first chunk
    cdef BulkAppend bulk
    cdef object formats             # a Formats; None: there are none
    cdef bint by_topic              # a registry says what the formats of a topic are
    cdef dict encodings             # a tuple for use_formats() by topic; all topics share "" without a registry
    cdef dict encoders              # RowEncoders by field and program: topics with one schema share them
    # ---- set with the first chunk, whose schema is that of all
    cdef object sources             # a Sources; None until then
    cdef str key_column             # None: the key has no column of bytes
    cdef bint encodes               # a format makes the key, the value, or both
    # ---- the present chunk of rows, borrowed from the caller
    cdef const ArrowSchema* schema
    cdef ArrowArray* array
    cdef Columns* columns
    cdef bint only_values           # the chunk has no column but `value` that matters
    cdef set bound                  # encoders that are bound to the chunk
    # ---- the formats of the current topic
    cdef RowEncoder value_encoder   # None: the value is a column of bytes. The key too
    cdef RowEncoder key_encoder
    cdef tuple schema_headers       # keeps the bytes of the next two alive
    cdef Field[2] value_header      # name and value of the header that names the schema; no name: there is none
    cdef Field[2] key_header
    # ---- the present row
    cdef Field* header_fields       # the row's headers: key, value, key, value, ...
    cdef int64_t header_room        # the number of the row's own headers that fit there
    # ---- the current topic
    cdef bytes topic_bytes          # keeps the bytes of `name` alive
    cdef const uint8_t* name        # compared with the topic column; NULL if the call has one topic for all rows
    cdef int64_t name_size

    cdef int append_array(self, ArrowSchema* schema, ArrowArray* array) except -1
    cdef int prepare(self, const ArrowSchema* schema) except -1
    cdef int serve(self, Stop stop) except -1
    cdef int enter_topic(self) except -1
    cdef int use_formats(self, str topic) except -1
    cdef tuple encoding(self, str field, str topic)

    # ---- without the GIL; `bulk` is the walker's own, which no step has to fetch anew
    # A walk appends rows until all are appended, or until a row needs `serve`.
    cdef Stop walk_rows(self, BulkAppend bulk) noexcept nogil
    cdef Stop walk_values(self, BulkAppend bulk) noexcept nogil
    cdef Stop walk_encoded(self, BulkAppend bulk) noexcept nogil
    cdef Stop read_row(self, BulkAppend bulk) noexcept nogil
    cdef Stop encode_row(self, BulkAppend bulk) noexcept nogil
    cdef int64_t read_headers(self, BulkAppend bulk) noexcept nogil
    cdef bint make_header_room(self, int64_t headers) noexcept nogil
    cdef void add_schema_header(self, Record* r, const Field* header, const Field* encoded) noexcept nogil
