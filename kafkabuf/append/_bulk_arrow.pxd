# cython: language_level=3
"""send_arrow: rows of Arrow data into claimed batches, with the GIL only where a batch begins or ends."""

from libc.stdint cimport int64_t, uint8_t

from kafkabuf._wire cimport Field
from kafkabuf.append._arrow cimport ArrowArray, ArrowSchema, Columns
from kafkabuf.append._bulk cimport Stop, Walker


cdef class ArrowWalker(Walker):
    # ---- the chunk of rows being walked, borrowed
    cdef Columns* columns
    cdef bint only_values           # no other column counts
    # ---- the row that walk() is at
    cdef Field* header_fields       # its headers: key, value, key, value, ...
    cdef int64_t header_room        # headers that fit there
    # ---- the current topic
    cdef bytes topic_bytes          # keeps name alive
    cdef const uint8_t* name        # compared with the column's; NULL where one topic is given for all rows
    cdef int64_t name_size

    cdef Stop walk_rows(self) noexcept nogil
    cdef Stop walk_values(self) noexcept nogil
    cdef Stop read_row(self) noexcept nogil
    cdef int64_t read_headers(self) noexcept nogil
    cdef int append_array(self, ArrowSchema* schema, ArrowArray* array) except -1
