# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Writes JSON of Arrow rows, in the layout of _columns.pxd."""

cimport cython
from libc.math cimport isfinite, isnan
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from kafkabuf.cpython._sealed cimport seal
from kafkabuf.wire._wire cimport Field
from kafkabuf.arrow._array cimport bit_at
from kafkabuf.formats.rows._digits cimport kb_hexadecimal, put_unsigned, put_uuid
from kafkabuf.formats.rows._encoder cimport RowEncoder, fail, reserve
from kafkabuf.formats.json._columns cimport NAME_BLOCK, NULL_LEFT_OUT, NULL_WRITTEN, QUOTED, SPARK
from kafkabuf.formats.rows._numbers cimport absolute, scale
from kafkabuf.formats.json._patterns cimport SECOND_NANOS, put_duration, put_interval, put_pattern
from kafkabuf.formats.rows._program cimport (
    FAILED_INEXACT, FAILED_LIMIT, FAILED_NULL, FAILED_RANGE, FAILED_UTF8, READ_NULL, READ_UINT64, WRITE_ARRAY,
    WRITE_BOOLEAN, WRITE_BYTES, WRITE_DECIMAL, WRITE_DOUBLE, WRITE_DURATION, WRITE_FLOAT, WRITE_LONG, WRITE_MAP,
    WRITE_PATTERN, WRITE_RECORD, WRITE_STRING, Output, Step, Write, find_items, locate, read_bytes, read_decimal,
    read_integer, read_real,
)
from kafkabuf.formats.json._reals cimport DECIMAL_DIGITS, decimal_digits, put_real
from kafkabuf.formats.json._shortest cimport Decimal, shortest_double, shortest_float
from kafkabuf.formats.rows._utf8 cimport is_utf8_rest

cdef extern from * nogil:
    """
    static const char kb_base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char kb_upper_hexadecimal[] = "0123456789ABCDEF";
    """
    const char* kb_base64
    const char* kb_upper_hexadecimal

# What follows the backslash of a byte that needs one; 0: the byte needs none.
cdef uint8_t[256] ESCAPES
memset(ESCAPES, 0, sizeof(ESCAPES))
memset(ESCAPES, b"u", 0x20)
ESCAPES[b'"'], ESCAPES[b"\\"] = b'"', b"\\"
ESCAPES[8], ESCAPES[9], ESCAPES[10], ESCAPES[12], ESCAPES[13] = b"b", b"t", b"n", b"f", b"r"
# The bytes of an escape, at most.
cdef enum:
    ESCAPE_ROOM = 6


@cython.final
cdef class JsonEncoder(RowEncoder):
    """Encodes rows of Arrow data as JSON."""

    cdef uint8_t* write(self, const Step* step, const Step* end, int64_t row, uint8_t* p) noexcept nogil:
        cdef int64_t begin = p - self.out.base
        p = write_steps(&self.out, step, end, row, p)
        return p if p == NULL or self.one_column else enclose(&self.out, begin, p, b"{", b"}")


seal(JsonEncoder)


cdef uint8_t* write_steps(Output* out, const Step* step, const Step* end, int64_t row, uint8_t* p) noexcept nogil:
    """Write name and value of each step up to `end`, of the same row.

    Output.slack bytes are free behind each name. A value of at most 64 bytes and the brackets that end there need no
    more: two steps have that many.
    """
    cdef int64_t place, inner
    cdef bint present
    while step < end:
        present = locate(step, row, &inner, &place) and step.read != READ_NULL
        if not present and step.null_branch != NULL_WRITTEN:
            if step.null_branch != NULL_LEFT_OUT:
                return fail(out, FAILED_NULL, step, place)
            step += step.size
            continue
        p = write_name(out, step, p)
        if p == NULL:
            return NULL
        if present:
            p = write_value(out, step, inner, place, p)
            if p == NULL:
                return NULL
        else:
            memcpy(p, b"null", 4)
            p += 4
        step += step.size
    return p


cdef inline uint8_t* write_name(Output* out, const Step* step, uint8_t* p) noexcept nogil:
    cdef int64_t done = 0
    p = reserve(out, p, step.to_width)
    if p == NULL:
        return NULL
    while done < step.to_width:
        memcpy(p + done, step.constant + done, NAME_BLOCK)
        done += NAME_BLOCK
    return p + step.to_width


cdef inline uint8_t* write_value(
    Output* out, const Step* step, int64_t row, int64_t place, uint8_t* p
) noexcept nogil:
    """`place` is the value's in the step's own buffers, `row` that of its children."""
    cdef Write write = step.write
    if write == WRITE_LONG:
        return write_integer(out, step, place, p)
    elif write == WRITE_STRING:
        return write_string(out, step, place, p)
    elif write == WRITE_DOUBLE or write == WRITE_FLOAT:
        return write_real(step, place, p)
    elif write == WRITE_PATTERN:
        return put_pattern(out, step, table_of(step), place, p)
    elif write == WRITE_RECORD:
        return write_object(out, step, row, p)
    elif write == WRITE_ARRAY or write == WRITE_MAP:
        return write_items(out, step, place, p)
    return write_rare(out, step, place, p)


cdef inline const uint8_t* table_of(const Step* step) noexcept nogil:
    """What follows the blocks of the name."""
    return step.constant + (step.to_width + NAME_BLOCK - 1) // NAME_BLOCK * NAME_BLOCK


cdef uint8_t* write_rare(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef Write write = step.write
    if write == WRITE_BOOLEAN:
        return write_boolean(step, place, p)
    elif write == WRITE_DECIMAL:
        return write_decimal(out, step, place, p)
    elif write == WRITE_BYTES:
        return write_base64(out, step, place, p)
    elif write == WRITE_DURATION:
        return write_duration(step, place, p)
    return write_uuid(step, place, p)


# ---- numbers ---------------------------------------------------------------------------------------------------------

cdef inline uint8_t* put_quote(const Step* step, uint8_t* p) noexcept nogil:
    """The quote before and after a number that is the key of a map."""
    p[0] = b'"'
    return p + 1 if step.value_branch & QUOTED else p


cdef inline uint8_t* write_integer(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef int64_t number = read_integer(step, place)
    cdef uint64_t magnitude
    if step.factor != 1 and not scale(&number, step.factor):
        return fail(out, FAILED_INEXACT if step.factor < 0 else FAILED_RANGE, step, place)
    magnitude = <uint64_t>number
    p = put_quote(step, p)
    if number < 0 and step.read != READ_UINT64:
        p[0] = b"-"
        p += 1
        magnitude = 0 - magnitude
    return put_quote(step, put_unsigned(p, magnitude))


cdef inline uint8_t* write_real(const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef double value = read_real(step, place)
    cdef bint spark = step.value_branch & SPARK, negative = value < 0 or value == 0 and 1 / value < 0
    cdef Decimal number
    if not isfinite(value):
        return write_not_finite(step, value, p)
    if step.write == WRITE_FLOAT:
        number = shortest_float(<float>value, spark)
    else:
        number = shortest_double(value, spark)
    return put_quote(step, put_real(put_quote(step, p), number, negative, spark))


cdef uint8_t* write_not_finite(const Step* step, double value, uint8_t* p) noexcept nogil:
    if not step.value_branch & SPARK:
        p = put_quote(step, p)
        memcpy(p, b"null", 4)
        return put_quote(step, p + 4)
    if isnan(value):
        memcpy(p, b'"NaN"', 5)
        return p + 5
    if value < 0:
        memcpy(p, b'"-Infinity"', 11)
        return p + 11
    memcpy(p, b'"Infinity"', 10)
    return p + 10


cdef uint8_t* write_boolean(const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    p = put_quote(step, p)
    if bit_at(step.column.data, place):
        memcpy(p, b"true", 4)
        return put_quote(step, p + 4)
    memcpy(p, b"false", 5)
    return put_quote(step, p + 5)


cdef uint8_t* write_decimal(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef uint64_t[4] words, magnitude
    cdef uint8_t[DECIMAL_DIGITS + 2] digits
    cdef int size, digits_after = <int>step.factor
    cdef bint spark = step.value_branch & SPARK
    read_decimal(step, place, words)
    absolute(words, magnitude)
    size = decimal_digits(magnitude, digits)
    # Digits, zeros before or behind them, and at most 16 bytes of signs, point, exponent and quotes.
    p = reserve(out, p, size + abs(digits_after) + 16)
    if p == NULL:
        return NULL
    p = put_quote(step, p)
    if words[3] >> 63:
        p[0] = b"-"
        p += 1
    # Java's BigDecimal.toString() has an exponent where the scale is negative or the number less than 0.000001.
    if spark and (digits_after < 0 or size - 1 - digits_after < -6):
        return put_quote(step, put_java_exponent(p, digits, size, digits_after))
    return put_quote(step, put_scaled(p, digits, size, digits_after))


cdef uint8_t* put_scaled(uint8_t* p, const uint8_t* digits, int size, int digits_after) noexcept nogil:
    """All digits, with `digits_after` of them behind the point. If it is -n, n zeros stand behind the digits."""
    cdef int whole = size - digits_after
    if digits_after <= 0:
        memcpy(p, digits, <size_t>size)
        # A zero stays a single digit.
        whole = size if digits[0] == b"0" else whole
        memset(p + size, b"0", <size_t>(whole - size))
        return p + whole
    if whole <= 0:
        memset(p, b"0", <size_t>(2 - whole))
        p[1] = b"."
        p += 2 - whole
        memcpy(p, digits, <size_t>size)
        return p + size
    memcpy(p, digits, <size_t>whole)
    p[whole] = b"."
    memcpy(p + whole + 1, digits + whole, <size_t>digits_after)
    return p + size + 1


cdef uint8_t* put_java_exponent(uint8_t* p, const uint8_t* digits, int size, int digits_after) noexcept nogil:
    cdef int exponent = size - 1 - digits_after
    p[0] = digits[0]
    p += 1
    if size > 1:
        p[0] = b"."
        memcpy(p + 1, digits + 1, <size_t>(size - 1))
        p += size
    if exponent == 0:
        return p
    p[0] = b"E"
    p[1] = b"-" if exponent < 0 else b"+"
    return put_unsigned(p + 2, <uint64_t>(-exponent if exponent < 0 else exponent))


cdef uint8_t* write_duration(const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef int64_t number = read_integer(step, place)
    cdef uint64_t magnitude = <uint64_t>number, units = <uint64_t>step.factor
    cdef int64_t nanos
    if number < 0:
        magnitude = 0 - magnitude
    nanos = <int64_t>(magnitude % units * (SECOND_NANOS // units))
    if step.value_branch & SPARK:
        return put_interval(p, magnitude // units, nanos, number < 0)
    return put_duration(p, magnitude // units, nanos, number < 0)


# ---- texts -----------------------------------------------------------------------------------------------------------

cdef inline bint needs_look(uint64_t word) noexcept nogil:
    """Whether one of eight bytes may need an escape, or is not ASCII."""
    cdef uint64_t ones = 0x0101010101010101, tops = 0x8080808080808080
    cdef uint64_t quotes = word ^ ones * 0x22, slashes = word ^ ones * 0x5C
    return ((word - ones * 0x20) | (quotes - ones) | (slashes - ones) | word) & tops != 0


cdef inline uint8_t* write_string(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    """Eight bytes at a time as long as none needs an escape."""
    cdef Field field = read_bytes(step, place)
    cdef const uint8_t* text = field.data
    cdef const uint8_t* end
    cdef uint64_t word
    # The quotes lie in the slack; with them the sum might overflow.
    p = reserve(out, p, field.size)
    if p == NULL:
        return NULL
    p[0] = b'"'
    p += 1
    if field.size > 0:
        end = text + field.size
        while end - text >= 8:
            memcpy(&word, text, 8)
            if needs_look(word):
                break
            memcpy(p, &word, 8)
            text += 8
            p += 8
        if 0 < end - text < 8:
            word = last_bytes(text, end - text)
            if not needs_look(word):
                memcpy(p, &word, 8)
                p += end - text
                text = end
        p = write_rest(out, step, place, text, end, p)
        if p == NULL:
            return NULL
    p[0] = b'"'
    return p + 1


cdef inline uint64_t last_bytes(const uint8_t* text, int64_t size) noexcept nogil:
    """1 to 7 bytes, and blanks behind them. No byte behind the text is read."""
    cdef uint32_t first, last
    cdef uint64_t word
    if size >= 4:
        memcpy(&first, text, 4)
        memcpy(&last, text + size - 4, 4)
        word = first | <uint64_t>last << 8 * (size - 4)
    else:
        word = text[0] | <uint64_t>text[size >> 1] << 8 * (size >> 1) | <uint64_t>text[size - 1] << 8 * (size - 1)
    return word | <uint64_t>0x2020202020202020 << 8 * size


cdef uint8_t* write_rest(
    Output* out, const Step* step, int64_t place, const uint8_t* text, const uint8_t* end, uint8_t* p
) noexcept nogil:
    """The rest of a text, byte by byte; all bytes before it are ASCII."""
    cdef bint checked = False
    cdef uint8_t escape
    while text < end:
        escape = ESCAPES[text[0]]
        if escape:
            p = put_escape(step, text[0], escape, p)
            text += 1
            p = reserve(out, p, end - text)
            if p == NULL:
                return NULL
            continue
        if text[0] >= 0x80 and not checked:
            if not is_utf8_rest(text, end):
                return fail(out, FAILED_UTF8, step, place)
            checked = True
        p[0] = text[0]
        p += 1
        text += 1
    return p


cdef uint8_t* put_escape(const Step* step, uint8_t byte, uint8_t escape, uint8_t* p) noexcept nogil:
    """At most ESCAPE_ROOM bytes."""
    cdef const char* hexadecimal = kb_upper_hexadecimal if step.value_branch & SPARK else kb_hexadecimal
    p[0] = b"\\"
    p[1] = escape
    if escape != b"u":
        return p + 2
    memcpy(p + 2, b"00", 2)
    p[4] = <uint8_t>hexadecimal[byte >> 4]
    p[5] = <uint8_t>hexadecimal[byte & 15]
    return p + ESCAPE_ROOM


cdef uint8_t* write_base64(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    cdef Field field = read_bytes(step, place)
    cdef const uint8_t* data = field.data
    cdef int64_t left = field.size
    cdef uint64_t bits
    cdef int i
    # Beyond the limit the product might overflow.
    p = reserve(out, p, left if left > out.limit else (left + 2) // 3 * 4 + 2)
    if p == NULL:
        return NULL
    p[0] = b'"'
    p += 1
    while left > 0:
        bits = <uint64_t>data[0] << 16 | (<uint64_t>data[1] << 8 if left > 1 else 0) | (data[2] if left > 2 else 0)
        for i in range(4):
            p[i] = <uint8_t>kb_base64[(bits >> (18 - 6 * i)) & 63]
        if left < 3:
            p[3] = b"="
            if left < 2:
                p[2] = b"="
        p += 4
        data += 3
        left -= 3
    p[0] = b'"'
    return p + 1


cdef uint8_t* write_uuid(const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    p[0] = b'"'
    p = put_uuid(p + 1, read_bytes(step, place).data)
    p[0] = b'"'
    return p + 1


# ---- objects and arrays ----------------------------------------------------------------------------------------------

cdef inline uint8_t* enclose(Output* out, int64_t begin, uint8_t* p, char opening, char closing) noexcept nogil:
    """Put brackets around the parts from offset `begin` of the buffer to `p`; the first part begins with a comma."""
    if p == out.base + begin:
        p += 1
    out.base[begin] = <uint8_t>opening
    p[0] = <uint8_t>closing
    return p + 1


cdef uint8_t* write_object(Output* out, const Step* step, int64_t row, uint8_t* p) noexcept nogil:
    cdef int64_t begin = p - out.base
    p = write_steps(out, step + 1, step + step.size, row, p)
    return p if p == NULL else enclose(out, begin, p, b"{", b"}")


cdef uint8_t* write_items(Output* out, const Step* step, int64_t place, uint8_t* p) noexcept nogil:
    """An item takes two bytes at least, so that more items than the limit cannot fit."""
    cdef int64_t item, first = p - out.base, begin = 0, end = 0
    find_items(step, place, &begin, &end)
    if end - begin > out.items:
        return fail(out, FAILED_LIMIT, NULL, 0)
    for item in range(begin, end):
        p = write_steps(out, step + 1, step + step.size, item, p)
        if p == NULL:
            return NULL
    if step.write == WRITE_MAP:
        return enclose(out, first, p, b"{", b"}")
    return enclose(out, first, p, b"[", b"]")
