# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Writes Avro of Arrow rows, in the layout of _columns.pxd."""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kafkabuf.cpython._sealed cimport seal
from kafkabuf.wire._wire cimport Field, kb_bswap64, put_varint
from kafkabuf.arrow._array cimport bit_at
from kafkabuf.formats.rows._calendar cimport floor_divide
from kafkabuf.formats.rows._digits cimport UUID_TEXT, is_uuid, put_uuid
from kafkabuf.formats.rows._encoder cimport RowEncoder, fail, reserve
from kafkabuf.formats.rows._numbers cimport absolute, scale
from kafkabuf.formats.rows._program cimport (
    FAILED_INEXACT, FAILED_LIMIT, FAILED_NULL, FAILED_PRECISION, FAILED_RANGE, FAILED_SIZE, FAILED_SYMBOL,
    FAILED_UTF8, FAILED_UUID, NO_BRANCH,
    WRITE_ARRAY, WRITE_BOOLEAN, WRITE_BYTES, WRITE_CONSTANT, WRITE_DECIMAL, WRITE_DOUBLE,
    WRITE_DURATION, WRITE_ENUM, WRITE_FIXED, WRITE_FLOAT, WRITE_LONG, WRITE_LONG_CUT, WRITE_MAP, WRITE_RECORD,
    WRITE_STRING, WRITE_UUID, WRITE_UUID_TEXT, Output, Step, Write, find_items, locate, read_bytes, read_decimal,
    read_integer, read_real,
)
from kafkabuf.formats.rows._symbols cimport find_symbol
from kafkabuf.formats.rows._utf8 cimport is_utf8

cdef extern from *:
    bint unlikely(bint) nogil   # Cython's own

cdef enum:
    DECIMAL_BYTES = 32


@cython.final
cdef class AvroEncoder(RowEncoder):
    """Encodes rows of Arrow data as Avro."""

    cdef uint8_t* write(self, const Step* step, const Step* end, int64_t row, uint8_t* p) noexcept nogil:
        return write_steps(&self.out, step, end, row, p)


seal(AvroEncoder)


cdef uint8_t* write_steps(Output* out, const Step* step, const Step* end, int64_t row, uint8_t* p) noexcept nogil:
    """Write a value for each step up to `end`, of the same row. Output.slack has the capacity contract."""
    cdef int64_t place, inner
    while step < end:
        if not locate(step, row, &inner, &place):
            if step.null_branch == NO_BRANCH:
                return fail(out, FAILED_NULL, step, place)
            p = put_branch(p, step.null_branch)
        else:
            p = put_branch(p, step.value_branch)
            p = write_value(out, step, inner, place, p)
            if p == NULL:
                return NULL
        step += step.size
    return p


cdef inline uint8_t* put_branch(uint8_t* p, int branch) noexcept nogil:
    if unlikely(branch < 0):
        if branch != NO_BRANCH:
            p[0] = <uint8_t>-branch
            p[1] = <uint8_t>(-branch >> 8)
            p += 2
        return p
    p[0] = <uint8_t>branch
    return p + 1


cdef inline uint8_t* write_value(
    Output* out, const Step* step, int64_t row, int64_t place, uint8_t* p
) noexcept nogil:
    """`place` is the value's in the step's own buffers, `row` that of its children."""
    cdef Write write = step.write
    cdef int64_t number
    cdef double real
    cdef float narrow
    if write == WRITE_LONG:
        number = read_integer(step, place)
        if step.factor != 1 and not scale(&number, step.factor):
            return fail(out, FAILED_INEXACT if step.factor < 0 else FAILED_RANGE, step, place)
        if number < step.low or number > step.high:
            return fail(out, FAILED_RANGE, step, place)
        return put_varint(p, number)
    elif write == WRITE_STRING or write == WRITE_BYTES:
        return write_bytes(out, step, place, p)
    elif write == WRITE_DOUBLE:
        real = read_real(step, place)
        memcpy(p, &real, 8)
        return p + 8
    elif write == WRITE_FLOAT:
        narrow = <float>read_real(step, place)
        memcpy(p, &narrow, 4)
        return p + 4
    elif write == WRITE_BOOLEAN:
        p[0] = bit_at(step.column.data, place)
        return p + 1
    elif write == WRITE_CONSTANT:
        p = reserve(out, p, step.constant_size)
        if p == NULL:
            return NULL
        memcpy(p, step.constant, <size_t>step.constant_size)
        return p + step.constant_size
    elif write == WRITE_RECORD:
        return write_steps(out, step + 1, step + step.size, row, p)
    elif write == WRITE_ARRAY or write == WRITE_MAP:
        return write_items(out, step, place, p)
    return write_rare(out, step, place, p)


cdef uint8_t* write_rare(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef Write write = step.write
    if write == WRITE_ENUM:
        return write_enum(out, step, place, p)
    elif write == WRITE_LONG_CUT:
        return write_long_cut(out, step, place, p)
    elif write == WRITE_FIXED:
        return write_fixed(out, step, place, p)
    elif write == WRITE_UUID:
        return write_uuid(out, step, place, p)
    elif write == WRITE_UUID_TEXT:
        return write_uuid_text(out, step, place, p)
    elif write == WRITE_DURATION:
        return write_duration(out, step, place, p)
    return write_decimal(out, step, place, p)


# ---- numbers ---------------------------------------------------------------------------------------------------------

cdef uint8_t* write_long_cut(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef int64_t number = floor_divide(read_integer(step, place), -step.factor)
    if number < step.low or number > step.high:
        return fail(out, FAILED_RANGE, step, place)
    return put_varint(p, number)


cdef uint8_t* write_duration(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    """No months, no days, and milliseconds: three little-endian numbers."""
    cdef int64_t number = read_integer(step, place)
    cdef uint32_t[3] parts
    if not scale(&number, step.factor):
        return fail(out, FAILED_INEXACT if step.factor < 0 else FAILED_RANGE, step, place)
    if number < step.low or number > step.high:
        return fail(out, FAILED_RANGE, step, place)
    parts[0] = parts[1] = 0
    parts[2] = <uint32_t>number
    memcpy(p, parts, 12)
    return p + 12


cdef uint8_t* write_decimal(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef uint64_t[4] words, magnitude
    cdef uint8_t[DECIMAL_BYTES] digits
    cdef uint8_t sign
    cdef int i
    cdef int64_t size = step.to_width, first = 0
    read_decimal(step, place, words)
    sign = 0xFF if words[3] >> 63 else 0
    absolute(words, magnitude)
    if not is_below(magnitude, step.constant):
        return fail(out, FAILED_PRECISION, step, place)
    for i in range(4):
        words[i] = kb_bswap64(words[i])
    for i in range(4):
        memcpy(digits + 8 * i, &words[3 - i], 8)
    # The shortest two's complement, as Java's BigInteger.toByteArray.
    while first < DECIMAL_BYTES - 1 and digits[first] == sign and (digits[first + 1] ^ sign) < 0x80:
        first += 1
    if step.write == WRITE_DECIMAL:
        p = reserve(out, p, 1 + DECIMAL_BYTES)
        if p == NULL:
            return NULL
        size = DECIMAL_BYTES - first
        p = put_varint(p, size)
    else:
        p = reserve(out, p, size)
        if p == NULL:
            return NULL
    # `is_below` has checked that the digits that count fit into `size` bytes.
    while size > DECIMAL_BYTES:
        p[0] = sign
        p += 1
        size -= 1
    memcpy(p, digits + DECIMAL_BYTES - size, <size_t>size)
    return p + size


cdef inline bint is_below(const uint64_t* magnitude, const uint8_t* bound) noexcept nogil:
    cdef uint64_t[4] most
    cdef int i
    memcpy(most, bound, DECIMAL_BYTES)
    for i in range(3, -1, -1):
        if magnitude[i] != most[i]:
            return magnitude[i] < most[i]
    return False


# ---- bytes -----------------------------------------------------------------------------------------------------------

cdef inline uint8_t* write_bytes(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef Field field = read_bytes(step, place)
    p = reserve(out, p, field.size)
    if p == NULL:
        return NULL
    if step.write == WRITE_STRING and not is_utf8(field.data, field.size):
        return fail(out, FAILED_UTF8, step, place)
    p = put_varint(p, field.size)
    if field.size > 0:
        memcpy(p, field.data, <size_t>field.size)
    return p + field.size


cdef uint8_t* write_fixed(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef Field field = read_bytes(step, place)
    if field.size != step.to_width:
        return fail(out, FAILED_SIZE, step, place)
    p = reserve(out, p, field.size)
    if p == NULL:
        return NULL
    if field.size > 0:
        memcpy(p, field.data, <size_t>field.size)
    return p + field.size


cdef uint8_t* write_uuid(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    p = reserve(out, p, 1 + UUID_TEXT)
    if p == NULL:
        return NULL
    return put_uuid(put_varint(p, UUID_TEXT), read_bytes(step, place).data)


cdef uint8_t* write_uuid_text(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef Field field = read_bytes(step, place)
    if not is_uuid(field.data, field.size):
        return fail(out, FAILED_UUID, step, place)
    p = reserve(out, p, 1 + UUID_TEXT)
    if p == NULL:
        return NULL
    p = put_varint(p, UUID_TEXT)
    memcpy(p, field.data, UUID_TEXT)
    return p + UUID_TEXT


cdef uint8_t* write_enum(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef Field field = read_bytes(step, place)
    cdef int64_t number
    if not find_symbol(step, &field, &number):
        return fail(out, FAILED_SYMBOL, step, place)
    return put_varint(p, number)


# ---- arrays and maps -------------------------------------------------------------------------------------------------

cdef uint8_t* write_items(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    """One block with all items. Items may be without bytes, so that their number is limited, too."""
    cdef int64_t item, begin = 0, end = 0
    find_items(step, place, &begin, &end)
    if end - begin > out.items:
        return fail(out, FAILED_LIMIT, NULL, 0)
    out.items -= end - begin
    if end > begin:
        p = put_varint(p, end - begin)
    for item in range(begin, end):
        p = reserve(out, p, 0)
        if p == NULL:
            return NULL
        p = write_steps(out, step + 1, step + step.size, item, p)
        if p == NULL:
            return NULL
    p[0] = 0
    return p + 1
