# cython: language_level=3
"""Reads Arrow's C data interface in place, without pyarrow: the columns of which records are made.

A `Column` is a borrowed view of one array's buffers; the ArrowArray must outlive it. Rows are counted from the start of
the exported slice, so each access adds `start`.

The interface gives the length only of the buffers that views point into. bind_columns (_array.pyx) checks everything
that can be checked, once; the inline functions below then trust offsets, views and dictionary indices.
"""

from libc.stdint cimport (
    INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)

from kafkabuf.wire._wire cimport Field


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
        const char* metadata
        int64_t flags
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


cdef enum Layout:
    ABSENT                      # the data does not have the column
    SMALL                       # 32-bit offsets
    LARGE                       # 64-bit offsets: the large_ forms
    VIEWS                       # binary_view, string_view
    FIXED                       # values of fixed size


cdef struct View:
    # The ABI of one binary_view or string_view. Up to INLINE_VIEW bytes follow the size; longer bytes lie in `buffer`.
    int32_t size
    int32_t prefix
    int32_t buffer
    int32_t offset


cdef enum:
    INLINE_VIEW = 12


cdef struct Column:
    Layout layout
    int64_t start               # added to a row's number
    const uint8_t* validity     # one bit for each row; NULL: no row is null
    const void* offsets         # SMALL and LARGE: offsets, also of lists; VIEWS: the View of each row
    const uint8_t* data         # bytes, or the values of FIXED; of a list view the sizes, as wide as its offsets
    const uint8_t** buffers     # VIEWS: the buffers that long views point into
    int64_t unit_divisor        # timestamps: value * multiplier // divisor is milliseconds
    int64_t unit_multiplier
    # In a dictionary-encoded column start and validity belong to the indices, all other fields to the dictionary.
    char index_type             # as in the format string; 0: the column is not dictionary-encoded
    const void* indices
    int64_t dictionary_start
    const uint8_t* dictionary_validity


cdef struct Columns:
    int64_t rows
    Column key, value, topic, partition, timestamp
    Column headers              # the list; its items are rows of the next three columns
    Column header, header_key, header_value


cdef inline bint bit_at(const uint8_t* bits, int64_t place) noexcept nogil:
    return (bits[place >> 3] >> (place & 7)) & 1


cdef inline bint is_null(const Column* c, int64_t row) noexcept nogil:
    return c.validity != NULL and not bit_at(c.validity, row + c.start)


cdef inline int64_t offset_at(const Column* c, int64_t place) noexcept nogil:
    return (<const int64_t*>c.offsets)[place] if c.layout == LARGE else (<const int32_t*>c.offsets)[place]


# The dictionary row of the index at `place`; negative if a uint64 index does not fit into 63 bits.
cdef inline int64_t index_at(const Column* c, int64_t place) noexcept nogil:
    if c.index_type == b"i":
        return (<const int32_t*>c.indices)[place]
    if c.index_type == b"c":
        return (<const int8_t*>c.indices)[place]
    if c.index_type == b"C":
        return (<const uint8_t*>c.indices)[place]
    if c.index_type == b"s":
        return (<const int16_t*>c.indices)[place]
    if c.index_type == b"S":
        return (<const uint16_t*>c.indices)[place]
    if c.index_type == b"I":
        return (<const uint32_t*>c.indices)[place]
    return (<const int64_t*>c.indices)[place]


cdef inline Field view_at(const Column* c, int64_t place) noexcept nogil:
    cdef Field field
    cdef const View* view = <const View*>c.offsets + place
    field.size = view.size
    if view.size <= INLINE_VIEW:
        field.data = <const uint8_t*>&view.prefix
    else:
        field.data = c.buffers[view.buffer] + view.offset
    return field


cdef inline Field bytes_at(const Column* c, int64_t row) noexcept nogil:
    cdef Field field
    cdef int64_t begin
    field.data = NULL
    field.size = -1
    if c.layout == ABSENT or is_null(c, row):
        return field
    row += c.start
    if c.index_type:
        row = index_at(c, row) + c.dictionary_start
        if c.dictionary_validity != NULL and not bit_at(c.dictionary_validity, row):
            return field
    if c.layout == SMALL:
        begin = (<const int32_t*>c.offsets)[row]
        field.size = (<const int32_t*>c.offsets)[row + 1] - begin
    elif c.layout == LARGE:
        begin = (<const int64_t*>c.offsets)[row]
        field.size = (<const int64_t*>c.offsets)[row + 1] - begin
    else:
        return view_at(c, row)
    field.data = c.data + begin
    return field


# Negative if the time is before 1970, or if its milliseconds do not fit into 63 bits.
cdef inline int64_t millis_at(const Column* c, int64_t row) noexcept nogil:
    cdef int64_t value = (<const int64_t*>c.data)[row + c.start]
    # Checked before the arithmetic, which could overflow: NumPy's NaT is the smallest int64.
    if value < 0 or (c.unit_multiplier > 1 and value > INT64_MAX // c.unit_multiplier):
        return -1
    return value * c.unit_multiplier // c.unit_divisor


cdef inline int32_t int32_at(const Column* c, int64_t row) noexcept nogil:
    return (<const int32_t*>c.data)[row + c.start]


# Fills `columns` with views that borrow from a struct array. Raises a SerializationError that names the column, its
# type and the allowed types. `key` names the column of the record's key. A value or a key that a format makes has no
# column: `has_value` is then false, and `key` is None.
cdef int bind_columns(
    Columns* columns, const ArrowSchema* schema, const ArrowArray* array, str key=*, bint has_value=*
) except -1

# ---- the parts, for other binders: each raises a SerializationError where an array contradicts its schema or itself

cdef str format_of(const ArrowSchema* schema)
cdef int malformed(str column, str problem) except -1
cdef int check_table(const ArrowSchema* schema, const ArrowArray* array) except -1
cdef int check_shape(
    str column, const ArrowSchema* schema, const ArrowArray* array, int64_t n_buffers, int64_t min_rows
) except -1
cdef int check_offsets(str column, const Column* c, int64_t first, int64_t rows) except -1
cdef int check_indices(str column, const Column* c, int64_t rows, int64_t allowed) except -1
cdef Column borrow(const ArrowArray* array, int64_t start, Layout layout) noexcept
cdef Column bind_plain(
    str column, const ArrowSchema* schema, const ArrowArray* array, int64_t start, int64_t rows, allowed,
    bint checks_views=*         # False: the caller asks find_wrong_view()
) except *
cdef int64_t find_wrong_view(
    str column, const Column* c, const ArrowArray* array, int64_t first, int64_t rows
) except -2
cdef int refuse_view(str column, const Column* c, const ArrowArray* array, int64_t place) except -1
