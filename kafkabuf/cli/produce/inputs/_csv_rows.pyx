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
    cdef uint8_t byte = 0
    with nogil:
        while at < end:
            at = step(at, end, delimiter, &place, &byte)
            if place == START and (byte == 10 or (byte == 13 and at < end and at[0] != 10)):
                row = at
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
    cdef list torn = []
    while at < end:
        row = row_from(at, end, delimiter)
        if row.torn:
            torn.append((count, at - begin, row.end - begin))
        count += not row.blank
        at = row.end
    return torn


cdef Row row_from(const uint8_t* at, const uint8_t* end, int delimiter) noexcept nogil:
    """The row that begins here. The text ends its last row."""
    cdef Row row
    cdef int place = START, before
    cdef uint8_t byte = 0
    row.blank, row.torn = True, False
    while at < end:
        before = place
        at = step(at, end, delimiter, &place, &byte)
        if place == START and byte != delimiter:
            if byte == 10 or at == end or at[0] != 10:
                row.end = at
                return row
        else:
            row.blank = False
            row.torn = row.torn or (before == QUOTE and place == FIELD)
    row.end = end
    return row


cdef inline const uint8_t* step(
    const uint8_t* at, const uint8_t* end, int delimiter, int* place, uint8_t* byte
) noexcept nogil:
    """Go on behind the next byte, in a quoted field behind its next quote, or to the end of the text without one.

    `byte` becomes the byte in front of that, and `place` the place behind it.
    """
    if place[0] == QUOTED:
        at = <const uint8_t*>memchr(at, 34, end - at)
        if at == NULL:
            return end
        place[0] = QUOTE
        byte[0] = 34
        return at + 1
    byte[0] = at[0]
    if byte[0] == 34 and place[0] != FIELD:
        place[0] = QUOTED
    elif byte[0] == delimiter or byte[0] == 10 or byte[0] == 13:
        place[0] = START
    else:
        place[0] = FIELD
    return at + 1
