# cython: language_level=3
"""Lines of a text become values, for `kafkabuf produce`. It takes the GIL only where a batch begins or ends."""

from libc.stdint cimport int64_t, uint8_t

from kafkabuf.append._bulk cimport BulkAppend, Stop


cdef class LinesWalker:
    cdef BulkAppend bulk
    cdef bytes text                 # keeps the bytes of `begin` alive
    cdef int64_t lines              # a line feed stands between two lines
    # ---- the line that is read next: its number, where it begins, and the end of the text
    cdef int64_t line
    cdef const uint8_t* begin
    cdef const uint8_t* end

    cdef int append_all(self) except -1
    cdef Stop walk(self, BulkAppend bulk) noexcept nogil
    cdef const uint8_t* end_of_line(self) noexcept nogil
