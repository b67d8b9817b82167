# cython: language_level=3
"""Dates, times and timestamps as text, by a pattern.

A pattern's table: an int64 n; n pairs of int64, the second since 1970 from which an offset of the time zone holds, and
the offset's seconds; an int64, the bytes of the operations; and the operations (PatternOp). pattern.py makes it.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from kafkabuf.formats.rows._calendar cimport Date, floor_divide, set_date
from kafkabuf.formats.rows._digits cimport count_digits, put_padded, put_pair, put_unsigned
from kafkabuf.formats.rows._encoder cimport fail, reserve
from kafkabuf.formats.rows._program cimport FAILED_RANGE, Output, Step, read_integer


# Operations of a pattern. Each is a byte, followed by a byte with its argument.
cdef enum PatternOp:
    OP_LITERAL = 0x4C           # L: the argument's number of bytes follows
    OP_DATE = 0x44              # D: yyyy-MM-dd
    OP_CLOCK = 0x43             # C: HH:mm:ss
    OP_YEAR = 0x79              # y; the arguments of this and of the next five are least digits
    OP_MONTH = 0x4D             # M
    OP_DAY = 0x64               # d
    OP_HOUR = 0x48              # H
    OP_MINUTE = 0x6D            # m
    OP_SECOND = 0x73            # s
    OP_FRACTION = 0x53          # S: this number of digits of the second's fraction; the rest is cut off
    OP_SHORT_FRACTION = 0x66    # f: a point and 6 or 9 digits, or nothing
    OP_LEAN_FRACTION = 0x6C     # l: a point and up to 9 digits without zeros at the end, or nothing
    OP_OFFSET_Z = 0x58          # X: Z, or as the next
    OP_OFFSET = 0x78            # x: 1: +HH[mm], 2: +HHmm, 3: +HH:mm, 4: +HH:mm[:ss],
    #                             5: +HH:mm, rounded


cdef enum:
    DAY_SECONDS = 86400
    SECOND_NANOS = 1000000000


cdef extern from * nogil:
    """
    /* The calendar repeats itself after 400 years. A zone's rules do too, after the end of its table, in 2500. */
    #define KB_CYCLE_SECONDS (146097LL * 86400)
    #define KB_TABLE_END 16725225600LL
    """
    int64_t CYCLE_SECONDS "KB_CYCLE_SECONDS"
    int64_t TABLE_END "KB_TABLE_END"


cdef struct Moment:
    int64_t days                # since 1970, in the zone
    Date date
    int second                  # of the day
    int64_t nanos               # of the second
    int64_t offset              # of the zone, in seconds


# The offset of the zone at a second; `table` has `count` pairs in ascending order, or none.
cdef inline int64_t offset_of(const int64_t* table, int64_t count, int64_t second) noexcept nogil:
    cdef int64_t low = 0, high = count, middle
    if count == 0:
        return 0
    if second >= TABLE_END:
        second -= ((second - TABLE_END) // CYCLE_SECONDS + 1) * CYCLE_SECONDS
    while high - low > 1:
        middle = (low + high) // 2
        if table[2 * middle] <= second:
            low = middle
        else:
            high = middle
    return table[2 * low + 1]


# `step.factor` are units a second, or if negative, seconds a unit. False: the value is not between the step's first and
# last day.
cdef inline bint read_moment(const Step* step, int64_t place, const int64_t* zone, Moment* moment) noexcept nogil:
    cdef int64_t number = read_integer(step, place), seconds, rest = 0
    if step.factor < 0:
        seconds = number * -step.factor
    else:
        seconds = floor_divide(number, step.factor)
        rest = number % step.factor
        rest = (rest + step.factor if rest < 0 else rest) * (SECOND_NANOS // step.factor)
    moment.nanos = rest
    # A day more or less: an offset moves a second over its bound, and back.
    if not (step.low - 1) * DAY_SECONDS <= seconds < (step.high + 2) * DAY_SECONDS:
        return False
    moment.offset = offset_of(zone + 1, zone[0], seconds)
    seconds += moment.offset
    moment.days = floor_divide(seconds, DAY_SECONDS)
    moment.second = <int>(seconds - moment.days * DAY_SECONDS)
    return step.low <= moment.days <= step.high


# Java's "yyyy" and its siblings: "yy" is the year's last two digits; a year of more digits than the pattern's has a
# sign, but not with "y".
cdef inline uint8_t* put_year(uint8_t* p, int64_t year, int width) noexcept nogil:
    cdef uint64_t magnitude = <uint64_t>(-year if year < 0 else year)
    cdef int digits = count_digits(magnitude)
    if width == 2:
        return put_pair(p, magnitude % 100)
    if year < 0 or digits > width > 1:
        p[0] = b"-" if year < 0 else b"+"
        p += 1
    return put_padded(p, magnitude, max(digits, width))


cdef inline uint8_t* put_date(uint8_t* p, const Moment* moment) noexcept nogil:
    p = put_year(p, moment.date.year, 4)
    p[0] = p[3] = b"-"
    put_pair(p + 1, <uint64_t>moment.date.month)
    return put_pair(p + 4, <uint64_t>moment.date.day)


cdef inline uint8_t* put_clock(uint8_t* p, int second) noexcept nogil:
    p = put_pair(p, <uint64_t>(second // 3600))
    p[0] = p[3] = b":"
    put_pair(p + 1, <uint64_t>(second // 60 % 60))
    return put_pair(p + 4, <uint64_t>(second % 60))


cdef inline uint8_t* put_fraction(uint8_t* p, int64_t nanos, int width) noexcept nogil:
    cdef int _
    for _ in range(9 - width):
        nanos //= 10
    return put_padded(p, <uint64_t>nanos, width)


cdef inline uint8_t* put_lean_fraction(uint8_t* p, int64_t nanos) noexcept nogil:
    if nanos == 0:
        return p
    p[0] = b"."
    p = put_padded(p + 1, <uint64_t>nanos, 9)
    while p[-1] == b"0":
        p -= 1
    return p


cdef inline uint8_t* put_offset(uint8_t* p, int64_t offset, int form) noexcept nogil:
    cdef int seconds = <int>(-offset if offset < 0 else offset), minutes
    if form == 5:
        seconds = (seconds + 30) // 60 * 60
    minutes = seconds // 60 % 60
    p[0] = b"-" if offset < 0 else b"+"
    p = put_pair(p + 1, <uint64_t>(seconds // 3600))
    if form == 1 and minutes == 0:
        return p
    if form >= 3:
        p[0] = b":"
        p += 1
    p = put_pair(p, <uint64_t>minutes)
    if form == 4 and seconds % 60:
        p[0] = b":"
        p = put_pair(p + 1, <uint64_t>(seconds % 60))
    return p


cdef inline uint8_t* put_part(uint8_t* p, const Moment* moment, uint8_t op, int argument) noexcept nogil:
    """At most 20 bytes."""
    cdef int number
    if op == OP_DATE:
        return put_date(p, moment)
    elif op == OP_CLOCK:
        return put_clock(p, moment.second)
    elif op == OP_YEAR:
        return put_year(p, moment.date.year, argument)
    elif op == OP_FRACTION:
        return put_fraction(p, moment.nanos, argument)
    elif op == OP_SHORT_FRACTION:
        if moment.nanos == 0:
            return p
        p[0] = b"."
        return put_fraction(p + 1, moment.nanos, 9 if moment.nanos % 1000 else 6)
    elif op == OP_LEAN_FRACTION:
        return put_lean_fraction(p, moment.nanos)
    elif op == OP_OFFSET or op == OP_OFFSET_Z:
        if op == OP_OFFSET_Z and moment.offset == 0:
            p[0] = b"Z"
            return p + 1
        return put_offset(p, moment.offset, argument)
    elif op == OP_MONTH:
        number = moment.date.month
    elif op == OP_DAY:
        number = moment.date.day
    elif op == OP_HOUR:
        number = moment.second // 3600
    elif op == OP_MINUTE:
        number = moment.second // 60 % 60
    else:
        number = moment.second % 60
    return put_padded(p, <uint64_t>number, max(argument, count_digits(<uint64_t>number)))


cdef inline uint8_t* put_pattern(
    Output* out, const Step* step, const uint8_t* table, int64_t place, uint8_t* p
) noexcept nogil:
    """Text in quotes. Before each part Output.slack bytes are free."""
    cdef Moment moment
    cdef const int64_t* zone = <const int64_t*>table
    cdef const int64_t* sizes = zone + 1 + 2 * zone[0]
    cdef const uint8_t* op = <const uint8_t*>(sizes + 1)
    cdef const uint8_t* end = op + sizes[0]
    if not read_moment(step, place, zone, &moment):
        return fail(out, FAILED_RANGE, step, place)
    set_date(&moment.date, moment.days)
    p[0] = b'"'
    p += 1
    while op < end:
        if op[0] == OP_LITERAL:
            p = reserve(out, p, op[1])
            if p == NULL:
                return NULL
            memcpy(p, op + 2, op[1])
            p += op[1]
            op += op[1]
        else:
            p = reserve(out, p, 0)
            if p == NULL:
                return NULL
            p = put_part(p, &moment, op[0], op[1])
        op += 2
    p[0] = b'"'
    return p + 1


# ---- durations -------------------------------------------------------------------------------------------------------

# ISO 8601 in seconds: "PT1.5S".
cdef inline uint8_t* put_duration(uint8_t* p, uint64_t seconds, int64_t nanos, bint negative) noexcept nogil:
    p[0] = b'"'
    p += 1
    if negative:
        p[0] = b"-"
        p += 1
    memcpy(p, b"PT", 2)
    p = put_lean_fraction(put_unsigned(p + 2, seconds), nanos)
    memcpy(p, b'S"', 2)
    return p + 2


# Spark's DayTimeIntervalType: "INTERVAL '1 02:03:04.5' DAY TO SECOND".
cdef inline uint8_t* put_interval(uint8_t* p, uint64_t seconds, int64_t nanos, bint negative) noexcept nogil:
    memcpy(p, b"\"INTERVAL '", 11)
    p += 11
    if negative:
        p[0] = b"-"
        p += 1
    p = put_unsigned(p, seconds // DAY_SECONDS)
    p[0] = b" "
    p = put_clock(p + 1, <int>(seconds % DAY_SECONDS))
    # Spark's unit is the microsecond.
    p = put_lean_fraction(p, nanos - nanos % 1000)
    memcpy(p, b"' DAY TO SECOND\"", 16)
    return p + 16
