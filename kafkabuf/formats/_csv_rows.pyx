# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Where the rows of CSV end: a quoted field may hold line feeds.

A row ends as for pyarrow: at a line feed, or at a carriage return without one. A quote opens a field only at its start.
A delimiter is one ASCII character.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memchr

# Where a byte stands: at the start of a field, in a field, in a quoted field, behind a quote in a quoted field.
cdef enum Place:
    START = 0
    FIELD = 1
    QUOTED = 2
    QUOTE = 3


cdef struct Row:
    const uint8_t* end  # behind the bytes that end the row
    bint blank
    bint torn           # a quoted field goes on behind its closing quote


def whole_rows(bytes text not None, int place, int delimiter=44):
    """The length of the whole rows at the start of a text, and the place behind the text, for the call with what
    follows it. The first text begins at place 0.

    A carriage return that is the text's last byte ends no row: a line feed may follow.
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
            elif byte == delimiter:
                place = START
            elif byte == 10 or byte == 13:
                place = START
                # Behind the last byte stands a zero.
                if byte == 10 or (at < end and at[0] != 10):
                    row = at
            else:
                place = FIELD
    return row - begin, place


def is_open(int place):
    """Whether a text that ends at this place ends within a quoted field."""
    return place == QUOTED


def first_row(bytes text not None, int delimiter=44):
    """Where the first row that is not blank begins and ends. A text without such a row gives its length twice."""
    cdef const uint8_t* begin = <const uint8_t*><const char*>text
    cdef const uint8_t* end = begin + len(text)
    cdef const uint8_t* at = begin
    cdef Row row
    while at < end:
        row = row_from(at, end, delimiter)
        if not row.blank:
            return at - begin, row.end - begin
        at = row.end
    return len(text), len(text)


def count_rows(bytes text not None, int delimiter=44):
    """The rows of a text that are not blank."""
    cdef const uint8_t* at = <const uint8_t*><const char*>text
    cdef const uint8_t* end = at + len(text)
    cdef Py_ssize_t count = 0
    cdef Row row
    while at < end:
        row = row_from(at, end, delimiter)
        count += not row.blank
        at = row.end
    return count


def torn_rows(bytes text not None, int delimiter=44):
    """The rows in which a quoted field goes on behind its closing quote: the number of each among the rows that are not
    blank, from 0, and where it begins and ends."""
    cdef const uint8_t* begin = <const uint8_t*><const char*>text
    cdef const uint8_t* end = begin + len(text)
    cdef const uint8_t* at = begin
    cdef Py_ssize_t count = 0
    cdef Row row
    cdef list found = []
    while at < end:
        row = row_from(at, end, delimiter)
        if row.torn:
            found.append((count, at - begin, row.end - begin))
        count += not row.blank
        at = row.end
    return found


cdef Row row_from(const uint8_t* at, const uint8_t* end, int delimiter) noexcept nogil:
    """The row that begins here. The text ends its last row."""
    cdef Row row
    cdef int place = START
    cdef uint8_t byte
    row.blank, row.torn = True, False
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
        if byte == 10 or byte == 13:
            if byte == 10 or at == end or at[0] != 10:
                row.end = at
                return row
            continue
        row.blank = False
        if byte == 34 and place != FIELD:
            place = QUOTED
        elif byte == delimiter:
            place = START
        else:
            row.torn = row.torn or place == QUOTE
            place = FIELD
    row.end = end
    return row
