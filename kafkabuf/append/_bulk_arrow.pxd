# cython: language_level=3
"""send_arrow: encodes rows of Arrow data into claimed batches. It takes the GIL only where a batch begins or ends."""

from libc.stdint cimport int64_t, uint8_t

from kafkabuf._wire cimport Field
from kafkabuf.append._arrow cimport ArrowArray, ArrowSchema, Columns
from kafkabuf.append._bulk cimport Stop, Walker
from kafkabuf.formats._encoder cimport RowEncoder


cdef class ArrowWalker(Walker):
    # ---- set with the first chunk, whose schema is that of all
    cdef object formats             # a Formats until then; None: there are no formats, or they are compiled
    cdef RowEncoder value_encoder   # None: the value is a column of bytes; so is the key
    cdef RowEncoder key_encoder
    cdef str key_column             # None: the key has no column of bytes
    cdef bint encodes               # there is an encoder
    # ---- the present chunk of rows, borrowed from the caller
    cdef Columns* columns
    cdef bint only_values           # the chunk has no column but `value` that matters
    # ---- the present row
    cdef Field* header_fields       # the row's headers: key, value, key, value, ...
    cdef int64_t header_room        # the number of headers that fit there
    # ---- the current topic
    cdef bytes topic_bytes          # keeps the bytes of `name` alive
    cdef const uint8_t* name        # compared with the topic column; NULL if the call has one topic for all rows
    cdef int64_t name_size

    cdef Stop walk_rows(self) noexcept nogil
    cdef Stop walk_values(self) noexcept nogil
    cdef Stop walk_encoded(self) noexcept nogil
    cdef Stop read_row(self) noexcept nogil
    cdef Stop encode_row(self) noexcept nogil
    cdef int64_t read_headers(self) noexcept nogil
    cdef int prepare(self, const ArrowSchema* schema) except -1
    cdef int append_array(self, ArrowSchema* schema, ArrowArray* array) except -1
