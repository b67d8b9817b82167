# cython: language_level=3
"""The contract between the compiler of a format, the binder and the writer: a program is a flat array of steps.

A step reads a column (`read`) and writes one field of the format (`write`). The steps of a nested column's children
follow their parent's step, depth first: `size` counts a step and all its descendants, so that `step + step.size` is the
next sibling. For the n-th row a step reads place `row + column.start` of its buffers; a list's children have rows of
their own, which the list's offsets number.

`Step` in program.py has the same fields for Python, where the compilers make them; `load` in _encoder.pyx copies them.
The names of `read` say what lies in Arrow's memory and are those of every format; `write` names what a format's writer
makes of it.

A program is compiled once, and each check has one place. The compiler holds the types of columns against the schema,
before any row. The binder (_binding.pyx) holds each chunk's buffers against the types: after it, the reader trusts
offsets, indices and views. The writer checks only what depends on a value.

A row is written to the encoder's scratch. Numbers need no check there: before each of them `Output.slack` bytes are
free, enough for one pass over the whole program. Bytes, and each item of a list, reserve their room first.
max.request.size bounds the scratch, and also the number of a row's items, because items of the null type take neither
memory nor bytes.
"""

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.string cimport memcpy, memset

from kafkabuf.wire._wire cimport Field
from kafkabuf.arrow._array cimport FIXED, LARGE, SMALL, Column, bit_at, index_at, offset_at, view_at


cdef enum Read:
    READ_NOTHING            # the step has no column: its bytes are constant, or its children are its parent's
    READ_NULL               # Arrow's null type: nothing but a number of rows
    READ_BOOL
    READ_INT8
    READ_INT16
    READ_INT32
    READ_INT64
    READ_UINT8
    READ_UINT16
    READ_UINT32
    READ_UINT64             # as an int64: a number above its range is negative, and `low` refuses it
    READ_HALF
    READ_FLOAT
    READ_DOUBLE
    READ_DECIMAL            # little-endian two's complement, `width` bytes
    READ_BYTES              # strings and binaries of each layout; FIXED: `width` bytes
    READ_STRUCT
    READ_LIST               # one child; the column has offsets, and the sizes of a list view
    READ_FIXED_LIST         # one child; `width` items
    READ_MAP                # two children, key and value, which are the children of the map's only child


cdef enum Write:
    # Avro's. A format that comes later adds its own.
    WRITE_CONSTANT          # `constant`
    WRITE_BOOLEAN
    WRITE_LONG              # also int: a zig-zag varint, of a number between `low` and `high`
    WRITE_LONG_CUT          # the same, of a number divided by -factor, towards the past
    WRITE_FLOAT
    WRITE_DOUBLE
    WRITE_BYTES
    WRITE_STRING            # as bytes, which must be UTF-8
    WRITE_FIXED             # `width` bytes
    WRITE_ENUM              # `constant` is the table that `find_symbol` searches
    WRITE_UUID              # a string of 36 characters, of 16 bytes
    WRITE_UUID_TEXT         # the same, of text that must be a uuid
    WRITE_DECIMAL           # big-endian two's complement, as bytes; `constant` is the bound of its magnitude
    WRITE_DECIMAL_FIXED     # the same, in `to_width` bytes
    WRITE_DURATION          # 12 bytes: months, days, milliseconds
    WRITE_RECORD
    WRITE_ARRAY
    WRITE_MAP
    # JSON's; it also has BOOLEAN, LONG, FLOAT, DOUBLE, BYTES, STRING, UUID, DECIMAL, DURATION, RECORD, ARRAY and MAP.
    WRITE_PATTERN           # a date, time or timestamp as text
    # Protobuf's. It shares WRITE_LONG (sint32, sint64) to WRITE_STRING, and those of enum, record, array and map.
    WRITE_VARINT            # of a number between `low` and `high`, as two's complement of 64 bits
    WRITE_FIXED32           # the same, in 4 bytes
    WRITE_FIXED64
    WRITE_ENUM_NUMBER       # `constant` has the `to_width` numbers of the enum, ascending
    WRITE_TIMESTAMP         # seconds between `low` and `high`, and nanoseconds; `factor` units are a second
    WRITE_SPAN              # the same, of a duration: both have the same sign
    WRITE_DATE              # year, month and day
    WRITE_TIME_OF_DAY       # hours, minutes, seconds and nanoseconds; `factor` units are a second
    WRITE_WRAPPER           # a message whose only field is the next step, which reads a column of this step's parent
    WRITE_PACKED            # the items of a list, as bytes
    WRITE_ROOT              # a record that is the whole value
    WRITE_ONEOF             # nothing; of the `to_width` steps at the distances in `constant`, one at most has a value
    WRITE_NULL              # a value that cannot be written: it is null


cdef enum:
    NO_BRANCH = -1      # program.NO_BRANCH


cdef struct Step:
    # ---- the program: never changes
    Read read
    Write write
    int32_t size                # steps: this step and its descendants
    int32_t child               # the number of the column among its parent's children
    # The byte of the union's branch for a null, and for another value. Two bytes are the negative of a little-endian
    # number. NO_BRANCH: a null is an error (Protobuf: 0 where a null is allowed); there is no union.
    int16_t null_branch
    int16_t value_branch
    int64_t factor              # numbers are multiplied by it; if negative, divided by -factor without a remainder
    int64_t low, high           # the allowed numbers, after that
    int64_t width, to_width     # bytes of a value that is read, and that is written; items of a READ_FIXED_LIST
    const uint8_t* constant     # borrowed from the Python step
    int64_t constant_size
    # Protobuf's: the bytes before each value, as a little-endian number; whether a zero is written.
    uint64_t tag
    int32_t tag_size
    bint presence
    # ---- the present chunk of rows, borrowed from the caller
    Column column


cdef enum Failure:
    FAILED_NOT
    FAILED_NULL                 # a null, where the format allows no null
    FAILED_RANGE
    FAILED_INEXACT              # a division by -factor leaves a remainder
    FAILED_PRECISION
    FAILED_SYMBOL
    FAILED_UTF8
    FAILED_UUID                 # text that is not a uuid of RFC 4122
    FAILED_SIZE                 # bytes of another size than the format's
    FAILED_ONEOF                # two columns of a oneof have a value: the first is `place` steps before the second
    FAILED_LIMIT                # the row's bytes, or its items, are more than Output.limit
    FAILED_MEMORY


cdef struct Output:
    # The buffer that a row is written to. Before each step of known size at least `slack` bytes are free: enough for
    # every such step of the program once. A step of any other size, and each item of a list, reserves its bytes first.
    uint8_t* base
    uint8_t* end
    int64_t slack
    int64_t limit               # the most bytes of a row; also the most items, which need not take any byte
    int64_t items               # the items that the row may still have
    Failure failure
    const Step* failed          # the step, and the place in its column
    int64_t place


# The value of a step's column for a row: its place in the column's own buffers, and the row of the column's children.
# False: it is null, be it the index of a dictionary or the dictionary's value.
cdef inline bint locate(const Step* step, int64_t row, int64_t* inner, int64_t* place) noexcept nogil:
    cdef const Column* c = &step.column
    inner[0] = row
    place[0] = row + c.start
    if c.validity != NULL and not bit_at(c.validity, place[0]):
        return False
    if c.index_type:
        inner[0] = index_at(c, place[0])
        place[0] = inner[0] + c.dictionary_start
        return c.dictionary_validity == NULL or bit_at(c.dictionary_validity, place[0])
    return True


# The rows of the children of a list or map: from `begin` to `end` - 1.
cdef inline void find_items(const Step* step, int64_t place, int64_t* begin, int64_t* end) noexcept nogil:
    if step.read == READ_FIXED_LIST:
        begin[0], end[0] = place * step.width, (place + 1) * step.width
    elif step.column.data == NULL:
        begin[0], end[0] = offset_at(&step.column, place), offset_at(&step.column, place + 1)
    else:
        begin[0] = offset_at(&step.column, place)
        end[0] = begin[0] + size_at(&step.column, place)


# The items of a row of a list view.
cdef inline int64_t size_at(const Column* c, int64_t place) noexcept nogil:
    return (<const int64_t*>c.data)[place] if c.layout == LARGE else (<const int32_t*>c.data)[place]


cdef inline int64_t read_integer(const Step* step, int64_t place) noexcept nogil:
    cdef const uint8_t* data = step.column.data
    cdef Read read = step.read
    if read == READ_INT32:
        return (<const int32_t*>data)[place]
    elif read == READ_INT64:
        return (<const int64_t*>data)[place]
    elif read == READ_INT8:
        return (<const int8_t*>data)[place]
    elif read == READ_INT16:
        return (<const int16_t*>data)[place]
    elif read == READ_UINT8:
        return data[place]
    elif read == READ_UINT16:
        return (<const uint16_t*>data)[place]
    elif read == READ_UINT32:
        return (<const uint32_t*>data)[place]
    elif read == READ_UINT64:
        return <int64_t>(<const uint64_t*>data)[place]
    elif read == READ_BOOL:
        return bit_at(data, place)
    return 0


# IEEE 754 half precision: 1 bit of sign, 5 of exponent, 10 of fraction.
cdef inline double half(uint16_t bits) noexcept nogil:
    cdef int exponent = (bits >> 10) & 31
    cdef uint64_t wide, sign = <uint64_t>(bits >> 15) << 63, fraction = bits & 1023
    cdef double result
    if exponent == 0:
        result = <double>fraction * 5.9604644775390625e-08  # 2^-24
        return -result if sign else result
    wide = sign | fraction << 42 | (2047 if exponent == 31 else <uint64_t>(exponent + 1008)) << 52
    memcpy(&result, &wide, 8)
    return result


cdef inline double read_real(const Step* step, int64_t place) noexcept nogil:
    cdef Read read = step.read
    if read == READ_DOUBLE:
        return (<const double*>step.column.data)[place]
    elif read == READ_FLOAT:
        return (<const float*>step.column.data)[place]
    elif read == READ_HALF:
        return half((<const uint16_t*>step.column.data)[place])
    return <double>read_integer(step, place)


cdef inline Field read_bytes(const Step* step, int64_t place) noexcept nogil:
    cdef Field field
    cdef const Column* c = &step.column
    cdef int64_t begin
    if c.layout == SMALL:
        begin = (<const int32_t*>c.offsets)[place]
        field.size = (<const int32_t*>c.offsets)[place + 1] - begin
    elif c.layout == LARGE:
        begin = (<const int64_t*>c.offsets)[place]
        field.size = (<const int64_t*>c.offsets)[place + 1] - begin
    elif c.layout == FIXED:
        begin = place * step.width
        field.size = step.width
    else:
        return view_at(c, place)
    field.data = c.data + begin
    return field


# A decimal of any width as 256 bits, least significant word first.
cdef inline void read_decimal(const Step* step, int64_t place, uint64_t* words) noexcept nogil:
    cdef const uint8_t* data = step.column.data + place * step.width
    cdef bint negative = data[step.width - 1] >> 7
    memset(words, 0xFF if negative else 0, 32)
    memcpy(words, data, <size_t>step.width)
