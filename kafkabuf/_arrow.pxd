# cython: language_level=3
"""Reading Arrow's C data interface in place: the columns a record is made of, without pyarrow.

A `Column` is a borrowed view of one array's buffers; the ArrowArray it came from must outlive it. Rows are counted from
the start of the slice that was exported, so `start` is added to every look.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from kafkabuf._wire cimport Field


cdef extern from * nogil:
    """
    #include <stdint.h>
    /* The ABI of the Arrow C data and stream interfaces. */
    struct ArrowSchema {
        const char *format, *name, *metadata;
        int64_t flags, n_children;
        struct ArrowSchema **children, *dictionary;
        void (*release)(struct ArrowSchema *);
        void *private_data;
    };
    struct ArrowArray {
        int64_t length, null_count, offset, n_buffers, n_children;
        const void **buffers;
        struct ArrowArray **children, *dictionary;
        void (*release)(struct ArrowArray *);
        void *private_data;
    };
    struct ArrowArrayStream {
        int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *out);
        int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *out);
        const char *(*get_last_error)(struct ArrowArrayStream *);
        void (*release)(struct ArrowArrayStream *);
        void *private_data;
    };
    """
    cdef struct ArrowSchema:
        const char* format
        const char* name
        int64_t n_children
        ArrowSchema** children
        ArrowSchema* dictionary
        void (*release)(ArrowSchema*) noexcept

    cdef struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept

    cdef struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema*) noexcept
        int (*get_next)(ArrowArrayStream*, ArrowArray*) noexcept
        const char* (*get_last_error)(ArrowArrayStream*) noexcept
        void (*release)(ArrowArrayStream*) noexcept


cdef struct Column:
    bint present
    bint wide                   # 64-bit offsets: the large_ forms
    int64_t start               # added to a row's number
    const uint8_t* validity     # one bit a row, or NULL: no nulls
    const void* offsets         # variable-size and list columns
    const uint8_t* data         # bytes, or the values of fixed-size columns
    int64_t unit_divisor        # timestamps: value * multiplier // divisor is milliseconds
    int64_t unit_multiplier


cdef struct Columns:
    int64_t rows
    Column key, value, topic, partition, timestamp
    Column headers              # the list; its items are rows of the two below
    Column header_key, header_value


cdef inline bint is_null(const Column* c, int64_t row) noexcept nogil:
    row += c.start
    return c.validity != NULL and not (c.validity[row >> 3] >> (row & 7)) & 1


cdef inline int64_t offset_at(const Column* c, int64_t row) noexcept nogil:
    row += c.start
    return (<const int64_t*>c.offsets)[row] if c.wide else (<const int32_t*>c.offsets)[row]


# A negative length, which only a lying producer of Arrow data gives, reads as null.
cdef inline Field bytes_at(const Column* c, int64_t row) noexcept nogil:
    cdef Field field
    cdef int64_t begin
    field.data = NULL
    field.size = -1
    if c.present and not is_null(c, row):
        begin = offset_at(c, row)
        field.data = c.data + begin
        field.size = max(offset_at(c, row + 1) - begin, -1)
    return field


cdef inline int64_t floor_div(int64_t a, int64_t b) noexcept nogil:
    return a // b if a >= 0 else -((b - 1 - a) // b)


# Negative where the time is before 1970, or more ms than 63 bits hold.
cdef inline int64_t millis_at(const Column* c, int64_t row) noexcept nogil:
    cdef int64_t value = (<const int64_t*>c.data)[row + c.start]
    if c.unit_multiplier > 1 and value > INT64_MAX // c.unit_multiplier:
        return -1
    return floor_div(value * c.unit_multiplier, c.unit_divisor)


cdef inline int32_t int32_at(const Column* c, int64_t row) noexcept nogil:
    return (<const int32_t*>c.data)[row + c.start]


# Fills `columns` from a struct array; borrowed from it. Raises SerializationError naming column, found and allowed.
cdef int bind_columns(Columns* columns, const ArrowSchema* schema, const ArrowArray* array) except -1
