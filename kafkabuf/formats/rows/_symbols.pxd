# cython: language_level=3
"""Searches an enum's symbols in the table that symbols.py makes."""

from libc.stdint cimport int64_t
from libc.string cimport memcmp, memcpy

from kafkabuf.wire._wire cimport Field
from kafkabuf.formats.rows._program cimport Step


# The number of a symbol. False: the text is no symbol. The table is sorted by size, then by bytes.
cdef inline bint find_symbol(const Step* step, const Field* text, int64_t* number) noexcept nogil:
    cdef int64_t[3] entry  # size, number, offset of the text in the table
    cdef int64_t low = 0, high = step.to_width, middle
    cdef int order
    while low < high:
        middle = (low + high) // 2
        memcpy(entry, step.constant + middle * <int64_t>sizeof(entry), sizeof(entry))
        if entry[0] != text.size:
            order = 1 if entry[0] > text.size else -1
        else:
            order = memcmp(step.constant + entry[2], text.data, <size_t>text.size)
        if order == 0:
            number[0] = entry[1]
            return True
        if order > 0:
            high = middle
        else:
            low = middle + 1
    return False
