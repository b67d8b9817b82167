# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Writes Protobuf of Arrow rows, in the layout of _columns.pxd."""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memmove

from kafkabuf.cpython._sealed cimport seal
from kafkabuf.wire._wire cimport Field, put_uvarint, put_varint, uvarint_size
from kafkabuf.arrow._array cimport bit_at
from kafkabuf.formats.rows._calendar cimport Date, set_date
from kafkabuf.formats.rows._encoder cimport RowEncoder, fail, reserve
from kafkabuf.formats.rows._numbers cimport scale
from kafkabuf.formats.rows._program cimport (
    FAILED_INEXACT, FAILED_LIMIT, FAILED_NULL, FAILED_ONEOF, FAILED_RANGE, FAILED_SYMBOL, FAILED_UTF8, WRITE_ARRAY,
    WRITE_BOOLEAN, WRITE_BYTES, WRITE_DATE, WRITE_DOUBLE, WRITE_ENUM, WRITE_ENUM_NUMBER, WRITE_FIXED32, WRITE_FIXED64,
    WRITE_FLOAT, WRITE_LONG, WRITE_MAP, WRITE_ONEOF, WRITE_PACKED, WRITE_RECORD, WRITE_ROOT, WRITE_SPAN, WRITE_STRING,
    WRITE_TIMESTAMP, WRITE_TIME_OF_DAY, WRITE_VARINT, WRITE_WRAPPER, Output, Step, Write, find_items, locate,
    read_bytes, read_integer, read_real,
)
from kafkabuf.formats.rows._symbols cimport find_symbol
from kafkabuf.formats.rows._utf8 cimport is_utf8

from kafkabuf.errors import SerializationError

cdef enum:
    FIRST_FIELD = 1 << 3  # the tag of a varint in the field of number 1
    NANOS = 1_000_000_000
    ONE_BYTE = 0x80       # lengths below it take one byte


@cython.final
cdef class ProtobufEncoder(RowEncoder):
    """Encodes rows of Arrow data as Protobuf."""

    cdef uint8_t* write(self, const Step* step, const Step* end, int64_t row, uint8_t* p) noexcept nogil:
        return write_fields(&self.out, step, end, row, p)

    cdef object refusal(self, int64_t row):
        if self.out.failed == NULL or self.out.failure not in (FAILED_NULL, FAILED_ONEOF):
            return RowEncoder.refusal(self, row)
        step = self.program.steps[self.out.failed - self.steps]
        if self.out.failure == FAILED_NULL:
            return SerializationError(
                f"row {row}: column '{step.path}' of type {step.arrow} is null, and Protobuf's {step.target} cannot be "
                f"absent there: replace the nulls")
        other = self.program.steps[self.out.failed - self.steps - self.out.place]
        return SerializationError(
            f"row {row}: columns '{other.path}' of type {other.arrow} and '{step.path}' of type {step.arrow} both have "
            f"a value, and their fields, {other.target} and {step.target}, are of one oneof: make one of them null")


seal(ProtobufEncoder)


cdef uint8_t* write_fields(Output* out, const Step* step, const Step* end, int64_t row, uint8_t* p) noexcept nogil:
    """Write a field for each step up to `end`, of the same row. Output.slack has the capacity contract."""
    cdef int64_t place, inner
    while step < end:
        if locate(step, row, &inner, &place):
            p = write_field(out, step, inner, place, p)
            if p == NULL:
                return NULL
        elif step.null_branch < 0:
            return fail(out, FAILED_NULL, step, place)
        step += step.size
    return p


cdef inline uint8_t* write_field(
    Output* out, const Step* step, int64_t row, int64_t place, uint8_t* p
) noexcept nogil:
    """`place` is the value's in the step's own buffers, `row` that of its children."""
    cdef Write write = step.write
    if write == WRITE_VARINT or write == WRITE_LONG or write == WRITE_FIXED32 or write == WRITE_FIXED64:
        return write_integer(out, step, place, p)
    elif write == WRITE_STRING or write == WRITE_BYTES:
        return write_bytes(out, step, place, p)
    elif write == WRITE_DOUBLE or write == WRITE_FLOAT:
        return write_real(step, place, p)
    elif write == WRITE_BOOLEAN:
        return put_number(step, bit_at(step.column.data, place), p)
    elif write == WRITE_RECORD:
        return write_message(out, step, row, p)
    elif write == WRITE_PACKED:
        return write_packed(out, step, place, p)
    elif write == WRITE_ARRAY:
        return write_array(out, step, place, p)
    elif write == WRITE_MAP:
        return write_map(out, step, place, p)
    return write_rare(out, step, row, place, p)


cdef uint8_t* write_rare(Output* out, const Step* step, int64_t row, int64_t place, uint8_t* p) noexcept nogil:
    cdef Write write = step.write
    if write == WRITE_ENUM:
        return write_enum(out, step, place, p)
    elif write == WRITE_ENUM_NUMBER:
        return write_enum_number(out, step, place, p)
    elif write == WRITE_TIMESTAMP or write == WRITE_SPAN:
        return write_seconds(out, step, place, p)
    elif write == WRITE_DATE:
        return write_date(out, step, place, p)
    elif write == WRITE_TIME_OF_DAY:
        return write_time_of_day(out, step, place, p)
    elif write == WRITE_WRAPPER:
        return write_wrapper(out, step, row, p)
    elif write == WRITE_ONEOF:
        return check_oneof(out, step, row, p)
    elif write == WRITE_ROOT:
        return write_fields(out, step + 1, step + step.size, row, p)
    return fail(out, FAILED_NULL, step, place)


# ---- tags and lengths ------------------------------------------------------------------------------------------------

cdef inline uint8_t* put_tag(const Step* step, uint8_t* p) noexcept nogil:
    memcpy(p, &step.tag, 8)
    return p + step.tag_size


# Write the length of the bytes from `begin` + 1, an offset in the buffer, to `p`; the byte at `begin` is free for it.
cdef inline uint8_t* put_length(Output* out, int64_t begin, uint8_t* p) noexcept nogil:
    cdef uint8_t* start = out.base + begin
    cdef int64_t size = p - start - 1
    cdef int more
    if size < ONE_BYTE:
        start[0] = <uint8_t>size
        return p
    more = uvarint_size(<uint64_t>size) - 1
    memmove(start + 1 + more, start + 1, <size_t>size)
    put_uvarint(start, <uint64_t>size)
    return p + more


# ---- numbers ---------------------------------------------------------------------------------------------------------

cdef inline uint8_t* put_number(const Step* step, int64_t number, uint8_t* p) noexcept nogil:
    if number == 0 and not step.presence:
        return p
    return put_uvarint(put_tag(step, p), <uint64_t>number)


cdef inline uint8_t* write_integer(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef int64_t number = read_integer(step, place)
    if number < step.low or number > step.high:
        return fail(out, FAILED_RANGE, step, place)
    if number == 0 and not step.presence:
        return p
    p = put_tag(step, p)
    if step.write == WRITE_VARINT:
        return put_uvarint(p, <uint64_t>number)
    elif step.write == WRITE_LONG:
        return put_varint(p, number)
    memcpy(p, &number, 8)
    return p + (4 if step.write == WRITE_FIXED32 else 8)


cdef inline uint8_t* write_real(const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    """Negative zero is not zero: its bits decide."""
    cdef double real = read_real(step, place)
    cdef float narrow = <float>real
    cdef uint64_t bits
    memcpy(&bits, &real, 8)
    if bits == 0 and not step.presence:
        return p
    p = put_tag(step, p)
    if step.write == WRITE_FLOAT:
        memcpy(p, &narrow, 4)
        return p + 4
    memcpy(p, &real, 8)
    return p + 8


cdef uint8_t* write_enum(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef Field field = read_bytes(step, place)
    cdef int64_t number
    if not find_symbol(step, &field, &number):
        return fail(out, FAILED_SYMBOL, step, place)
    return put_number(step, number, p)


cdef uint8_t* write_enum_number(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef int64_t number = read_integer(step, place), low = 0, high = step.to_width, middle, known
    while low < high:
        middle = (low + high) // 2
        memcpy(&known, step.constant + 8 * middle, 8)
        if known == number:
            return put_number(step, number, p)
        if known > number:
            high = middle
        else:
            low = middle + 1
    return fail(out, FAILED_SYMBOL, step, place)


# ---- bytes and messages ----------------------------------------------------------------------------------------------

cdef inline uint8_t* write_bytes(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef Field field = read_bytes(step, place)
    if field.size == 0 and not step.presence:
        return p
    p = reserve(out, p, field.size)
    if p == NULL:
        return NULL
    if step.write == WRITE_STRING and not is_utf8(field.data, field.size):
        return fail(out, FAILED_UTF8, step, place)
    p = put_uvarint(put_tag(step, p), <uint64_t>field.size)
    if field.size > 0:
        memcpy(p, field.data, <size_t>field.size)
    return p + field.size


cdef uint8_t* write_message(Output* out, const Step* step, int64_t row, uint8_t* p) noexcept nogil:
    cdef int64_t begin
    p = put_tag(step, p)
    begin = p - out.base
    p = write_fields(out, step + 1, step + step.size, row, p + 1)
    if p == NULL:
        return NULL
    return put_length(out, begin, p)


cdef uint8_t* write_wrapper(Output* out, const Step* step, int64_t row, uint8_t* p) noexcept nogil:
    cdef int64_t begin, inner, place
    if not locate(step + 1, row, &inner, &place):
        return p if step.null_branch >= 0 else fail(out, FAILED_NULL, step + 1, place)
    p = put_tag(step, p)
    begin = p - out.base
    p = write_field(out, step + 1, inner, place, p + 1)
    if p == NULL:
        return NULL
    return put_length(out, begin, p)


cdef uint8_t* check_oneof(Output* out, const Step* step, int64_t row, uint8_t* p) noexcept nogil:
    cdef const Step* member
    cdef const Step* first = NULL
    cdef int64_t i, distance, inner, place
    for i in range(step.to_width):
        memcpy(&distance, step.constant + 8 * i, 8)
        member = step + distance
        if not locate(member, row, &inner, &place):
            continue
        if first != NULL:
            return fail(out, FAILED_ONEOF, member, member - first)
        first = member
    return p


# ---- repeated fields and maps ----------------------------------------------------------------------------------------

cdef uint8_t* write_array(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef int64_t item, begin = 0, end = 0
    find_items(step, place, &begin, &end)
    for item in range(begin, end):
        p = reserve(out, p, 0)
        if p == NULL:
            return NULL
        p = write_fields(out, step + 1, step + step.size, item, p)
        if p == NULL:
            return NULL
    return p


cdef uint8_t* write_packed(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef int64_t start, begin = 0, end = 0
    find_items(step, place, &begin, &end)
    if begin == end:
        return p
    if is_copied(step + 1):
        return copy_packed(out, step, begin, end, p)
    p = put_tag(step, p)
    start = p - out.base
    p = write_array(out, step, place, p + 1)
    if p == NULL:
        return NULL
    return put_length(out, start, p)


cdef inline bint is_copied(const Step* item) noexcept nogil:
    """Whether the items have no nulls, and Arrow's memory has them as Protobuf. An enum's `to_width` is its table's."""
    if item.write != WRITE_DOUBLE and item.write != WRITE_FLOAT and item.write != WRITE_FIXED32 \
            and item.write != WRITE_FIXED64:
        return False
    return item.to_width and item.column.validity == NULL and not item.column.index_type


cdef uint8_t* copy_packed(Output* out, const Step* step, int64_t begin, int64_t end, uint8_t* p) noexcept nogil:
    cdef int64_t width = step[1].to_width, size
    if end - begin > out.limit:
        return fail(out, FAILED_LIMIT, NULL, 0)
    size = (end - begin) * width
    p = reserve(out, p, size)
    if p == NULL:
        return NULL
    p = put_uvarint(put_tag(step, p), <uint64_t>size)
    memcpy(p, step[1].column.data + (step[1].column.start + begin) * width, <size_t>size)
    return p + size


cdef uint8_t* write_map(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef int64_t entry, begin = 0, end = 0
    find_items(step, place, &begin, &end)
    for entry in range(begin, end):
        p = reserve(out, p, 0)
        if p == NULL:
            return NULL
        p = write_message(out, step, entry, p)
        if p == NULL:
            return NULL
    return p


# ---- messages of google.protobuf and google.type ---------------------------------------------------------------------
# Each takes less than 128 bytes, so that its length is one byte.

cdef inline uint8_t* put_part(uint8_t* p, int number, int64_t value) noexcept nogil:
    """A varint field, whose number is below 16, without presence."""
    if value == 0:
        return p
    p[0] = <uint8_t>(number << 3)
    return put_uvarint(p + 1, <uint64_t>value)


cdef uint8_t* write_seconds(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    """seconds=1 nanos=2: a timestamp's nanos count forward, a duration's have the sign of its seconds."""
    cdef int64_t number = read_integer(step, place)
    cdef int64_t seconds = number // step.factor, rest = number % step.factor
    cdef uint8_t* start
    if rest < 0 and step.write == WRITE_TIMESTAMP:
        seconds -= 1
        rest += step.factor
    if seconds < step.low or seconds > step.high:
        return fail(out, FAILED_RANGE, step, place)
    start = put_tag(step, p)
    p = put_part(start + 1, 1, seconds)
    p = put_part(p, 2, rest * (NANOS // step.factor))
    start[0] = <uint8_t>(p - start - 1)
    return p


cdef uint8_t* write_date(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    """year=1 month=2 day=3"""
    cdef int64_t days = read_integer(step, place)
    cdef Date date
    cdef uint8_t* start
    if not scale(&days, step.factor):
        return fail(out, FAILED_INEXACT, step, place)
    if days < step.low or days > step.high:
        return fail(out, FAILED_RANGE, step, place)
    set_date(&date, days)
    start = put_tag(step, p)
    p = put_part(start + 1, 1, date.year)
    p = put_part(p, 2, date.month)
    p = put_part(p, 3, date.day)
    start[0] = <uint8_t>(p - start - 1)
    return p


cdef uint8_t* write_time_of_day(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    """hours=1 minutes=2 seconds=3 nanos=4"""
    cdef int64_t number = read_integer(step, place), seconds
    cdef uint8_t* start
    if number < step.low or number > step.high:
        return fail(out, FAILED_RANGE, step, place)
    seconds = number // step.factor
    start = put_tag(step, p)
    p = put_part(start + 1, 1, seconds // 3600)
    p = put_part(p, 2, seconds // 60 % 60)
    p = put_part(p, 3, seconds % 60)
    p = put_part(p, 4, number % step.factor * (NANOS // step.factor))
    start[0] = <uint8_t>(p - start - 1)
    return p
