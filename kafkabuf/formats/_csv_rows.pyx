# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Where the rows of CSV end: a quoted field may hold line feeds."""

from libc.stdint cimport uint8_t
from libc.string cimport memchr

# Where a byte stands: at the start of a field, in a field, in a quoted field, behind a quote in a quoted field.
cdef enum Place:
    START = 0
    FIELD = 1
    QUOTED = 2
    QUOTE = 3


def whole_rows(bytes text not None, int place):
    """The length of the whole rows at the start of a text, and the place behind the text, for the call with what
    follows it. The first text begins at place 0.

    A row ends as for pyarrow: at a line feed, or at a carriage return without one. A quote opens a field only at its
    start. A carriage return that is the text's last byte ends no row: a line feed may follow.
    """
    cdef const uint8_t* begin = <const uint8_t*><const char*>text
    cdef const uint8_t* end = begin + len(text)
    cdef const uint8_t* at = begin
    cdef const uint8_t* row = begin
    cdef uint8_t byte
    with nogil:
        while at < end:
            if place == QUOTED:
                at = <const uint8_t*>memchr(at, 34, end - at)
                if at == NULL:
                    break
                place = QUOTE
                at += 1
                continue
            byte = at[0]
            at += 1
            if byte == 34 and place != FIELD:
                place = QUOTED
            elif byte == 44:
                place = START
            elif byte == 10 or byte == 13:
                place = START
                # Behind the last byte stands a zero.
                if byte == 10 or (at < end and at[0] != 10):
                    row = at
            else:
                place = FIELD
    return row - begin, place
