# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: extra_compile_args = -O1
"""Binds the steps of a program to Arrow's memory: see _binding.pxd."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memset

from kafkabuf.cpython._sealed cimport seal
from kafkabuf.arrow._array cimport (
    FIXED, LARGE, SMALL, VIEWS, ArrowArray, ArrowSchema, Column, bind_plain, borrow, check_offsets, check_shape,
    check_table, find_wrong_view, format_of, index_at, is_null, malformed, offset_at, refuse_view,
)
from kafkabuf.formats.rows._program cimport (
    READ_BYTES, READ_FIXED_LIST, READ_LIST, READ_MAP, READ_NOTHING, READ_NULL, READ_STRUCT, Read, Step, size_at,
)

_INDICES = tuple("cCsSiIlL")
_BYTES = ("z", "Z", "vz", "u", "U", "vu")
_RUN_ENDS = ("s", "i", "l")
_LIST_VIEWS = ("+vl", "+vL")


cdef class Binding:
    """One call of bind_table()."""

    cdef object steps           # of the Program, for errors
    cdef Step* first
    cdef list indices


seal(Binding)


cdef list bind_table(object steps, Step* first, Step* end, const ArrowSchema* schema, const ArrowArray* array):
    cdef Binding binding = Binding.__new__(Binding)
    binding.steps, binding.first, binding.indices = steps, first, []
    check_table(schema, array)
    bind_children(binding, first, end, schema, array, array.offset, 0, array.length, NULL)
    return binding.indices


# Rows from `first` to `last` - 1 of a column are checked. Row n lies at `start` + n, and the array's own offset more.

cdef struct Parent:
    # The column around a column, and its rows that are bound. A struct's children have its rows, a list's their own.
    const Step* step
    int64_t first, last
    const Parent* outer         # NULL: there is none, or a dictionary lies between


cdef int bind_children(
    Binding binding, Step* step, Step* end, const ArrowSchema* schema, const ArrowArray* array, int64_t start,
    int64_t first, int64_t last, const Parent* parent
) except -1:
    while step < end:
        if step.read == READ_NOTHING:
            step += 1
            continue
        if step.child >= array.n_children:
            malformed(path_of(binding, step), "is missing")
        bind_step(binding, step, schema.children[step.child], array.children[step.child], start, first, last, parent)
        step += step.size
    return 0


cdef int bind_step(
    Binding binding, Step* step, const ArrowSchema* schema, const ArrowArray* array, int64_t start, int64_t first,
    int64_t last, const Parent* parent
) except -1:
    cdef Column indices
    cdef Column* c = &step.column
    cdef str path = path_of(binding, step)
    if start > INT64_MAX - last:
        malformed(path, f"begins at offset {start}")
    if format_of(schema) == "+r":
        return bind_runs(binding, step, path, schema, array, start, first, last)
    if schema.dictionary == NULL:
        return bind_values(binding, step, path, schema, array, start, first, last, parent)
    if format_of(schema) not in _INDICES or array.dictionary == NULL:
        malformed(path, "has no integer indices, or no dictionary")
    check_shape(path, schema, array, 2, start + last)
    bind_values(binding, step, path, schema.dictionary, array.dictionary, 0, 0, array.dictionary.length, NULL)
    indices = borrow(array, start, FIXED)
    c.dictionary_start, c.dictionary_validity = c.start, c.validity
    c.start, c.validity = indices.start, indices.validity
    c.index_type = schema.format[0]
    c.indices = array.buffers[1]
    return check_used_indices(path, c, first, last, array.dictionary.length, parent)


cdef int bind_runs(
    Binding binding, Step* step, str path, const ArrowSchema* schema, const ArrowArray* array, int64_t start,
    int64_t first, int64_t last
) except -1:
    """A run-end encoded column, read as a dictionary of its runs: `indices` has the index of each row."""
    cdef Column* c = &step.column
    cdef const ArrowArray* ends
    cdef int64_t run = 0, before = 0, end = 0, row, rows = last - first
    cdef char width
    check_shape(path, schema, array, min(array.n_buffers, 1), start + last)
    if array.n_children != 2 or format_of(schema.children[0]) not in _RUN_ENDS:
        malformed(path, "has no run ends, or no values")
    ends = array.children[0]
    width = schema.children[0].format[0]
    check_shape(path, schema.children[0], ends, 2, 1 if rows else 0)
    check_shape(path, schema.children[1], array.children[1], array.children[1].n_buffers, ends.length)
    bind_values(binding, step, path, schema.children[1], array.children[1], 0, 0, ends.length, NULL)
    if rows > INT64_MAX // 4 or ends.length > INT32_MAX:
        raise MemoryError(f"column '{path}' has {rows} rows in {ends.length} runs")
    indices = bytearray(4 * rows)
    binding.indices.append(indices)
    cdef int32_t* places = <int32_t*>PyByteArray_AS_STRING(indices)
    start += array.offset + first  # check_shape() has found that it is in range
    for row in range(rows):
        while start + row >= end:
            if run == ends.length:
                malformed(path, f"has runs that end at row {end}")
            before, end = end, run_end(ends, width, run)
            if end <= before:
                malformed(path, f"has a run that ends at {end} after one that ends at {before}")
            run += 1
        places[row] = <int32_t>(run - 1)
    c.dictionary_start, c.dictionary_validity = c.start, c.validity
    c.start, c.validity = -first, NULL
    c.index_type, c.indices = b"i", places
    return 0


cdef int64_t run_end(const ArrowArray* ends, char width, int64_t run) noexcept:
    run += ends.offset
    if width == b"s":
        return (<const int16_t*>ends.buffers[1])[run]
    return (<const int32_t*>ends.buffers[1])[run] if width == b"i" else (<const int64_t*>ends.buffers[1])[run]


cdef int check_used_indices(
    str path, const Column* c, int64_t first, int64_t last, int64_t allowed, const Parent* parent
) except -1:
    """Arrow does not define an index where a column around it is null. Nothing reads the index there."""
    cdef int64_t row, index
    for row in range(first, last):
        if not is_null(c, row):
            index = index_at(c, c.start + row)
            if (index < 0 or index >= allowed) and is_used(parent, row):
                malformed(path, f"has index {index} into a dictionary of {allowed} values")
    return 0


cdef int check_used_views(
    str path, const Column* c, const ArrowArray* array, int64_t first, int64_t last, const Parent* parent
) except -1:
    """As check_used_indices(), for views."""
    cdef int64_t wrong = c.start + first - 1
    while True:
        wrong = find_wrong_view(path, c, array, wrong + 1, c.start + last - wrong - 1)
        if wrong < 0:
            return 0
        if is_used(parent, wrong - c.start):
            refuse_view(path, c, array, wrong)


cdef bint is_used(const Parent* parent, int64_t row) noexcept:
    """Whether no column around a row of a column is null there."""
    while parent != NULL:
        if parent.step.read != READ_STRUCT:
            row = row_around(parent, row)
        if row < parent.first or is_null(&parent.step.column, row):
            return False
        parent = parent.outer
    return True


cdef int64_t row_around(const Parent* parent, int64_t item) noexcept:
    """The row of a list that has an item."""
    cdef const Column* c = &parent.step.column
    cdef int64_t low = parent.first, high = parent.last, middle
    if parent.step.read == READ_FIXED_LIST:
        return item // parent.step.width - c.start
    while low < high:  # the first row that ends behind the item
        middle = (low + high) // 2
        if offset_at(c, c.start + middle + 1) > item:
            high = middle
        else:
            low = middle + 1
    return low


cdef int bind_values(
    Binding binding, Step* step, str path, const ArrowSchema* schema, const ArrowArray* array, int64_t start,
    int64_t first, int64_t last, const Parent* parent
) except -1:
    cdef Column* c = &step.column
    cdef Read read = step.read
    cdef Parent here
    here.step, here.first, here.last, here.outer = step, first, last, parent
    if read == READ_NULL:
        check_shape(path, schema, array, min(array.n_buffers, 1), start + last)
        memset(c, 0, sizeof(Column))
    elif read == READ_BYTES and step.width == 0 and format_of(schema) in _BYTES:
        c[0] = bind_plain(path, schema, array, start + first, last - first, _BYTES, False)
        c.start -= first
        if c.layout == VIEWS:
            check_used_views(path, c, array, first, last, parent)
    elif read == READ_STRUCT:
        check_shape(path, schema, array, 1, start + last)
        c[0] = borrow(array, start, FIXED)
        bind_children(binding, step + 1, step + step.size, schema, array, c.start, first, last, &here)
    elif read in (READ_LIST, READ_MAP):
        bind_list(binding, step, path, schema, array, start, first, last, &here)
    elif read == READ_FIXED_LIST:
        bind_fixed_list(binding, step, path, schema, array, start, first, last, &here)
    else:
        check_shape(path, schema, array, 2, start + last)
        c[0] = borrow(array, start, FIXED)
        c.data = <const uint8_t*>array.buffers[1]
        if step.width and c.start > INT64_MAX // step.width - last:
            malformed(path, f"has {array.length} rows of {step.width} bytes")
    return 0


cdef int bind_list(
    Binding binding, Step* step, str path, const ArrowSchema* schema, const ArrowArray* array, int64_t start,
    int64_t first, int64_t last, const Parent* here
) except -1:
    cdef Column* c = &step.column
    cdef int64_t begin = 0, end = 0
    if format_of(schema) in _LIST_VIEWS and step.read == READ_LIST:
        return bind_list_view(binding, step, path, schema, array, start, first, last, here)
    check_shape(path, schema, array, 2, start + last)
    c[0] = borrow(array, start, LARGE if format_of(schema) == "+L" else SMALL)
    c.offsets = array.buffers[1]
    check_offsets(path, c, c.start + first, last - first)
    if last > first:
        begin = offset_at(c, c.start + first)
        end = offset_at(c, c.start + last)
    if array.n_children != 1:
        malformed(path, f"has {array.n_children} children")
    if step.read == READ_LIST:
        return bind_children(binding, step + 1, step + step.size, schema, array, 0, begin, end, here)
    check_shape(path, schema.children[0], array.children[0], 1, end)
    return bind_children(binding, step + 1, step + step.size, schema.children[0], array.children[0],
                         array.children[0].offset, begin, end, here)


cdef int bind_list_view(
    Binding binding, Step* step, str path, const ArrowSchema* schema, const ArrowArray* array, int64_t start,
    int64_t first, int64_t last, const Parent* here
) except -1:
    """Rows may have their items in any order, and in common. Nobody reads the items of a row that is null."""
    cdef Column* c = &step.column
    cdef int64_t row, begin, size, low = INT64_MAX, high = 0
    check_shape(path, schema, array, 3, start + last)
    if array.n_children != 1 or last > first and array.buffers[2] == NULL:
        malformed(path, f"has {array.n_children} children, or no buffer of sizes")
    c[0] = borrow(array, start, LARGE if format_of(schema) == "+vL" else SMALL)
    c.offsets, c.data = array.buffers[1], <const uint8_t*>array.buffers[2]
    for row in range(first, last):
        if is_null(c, row) or here.outer != NULL and not is_used(here.outer, row):
            continue
        begin, size = offset_at(c, c.start + row), size_at(c, c.start + row)
        if begin < 0 or size < 0 or size > INT64_MAX - begin:
            malformed(path, f"has a list of {size} items at {begin}")
        if size:
            low, high = min(low, begin), max(high, begin + size)
    # An item may be of several rows, so that none of them tells whether the item is used.
    return bind_children(binding, step + 1, step + step.size, schema, array, 0, min(low, high), high, NULL)


cdef int bind_fixed_list(
    Binding binding, Step* step, str path, const ArrowSchema* schema, const ArrowArray* array, int64_t start,
    int64_t first, int64_t last, const Parent* here
) except -1:
    cdef Column* c = &step.column
    check_shape(path, schema, array, 1, start + last)
    c[0] = borrow(array, start, FIXED)
    if array.n_children != 1 or step.width and c.start > INT64_MAX // step.width - last:
        malformed(path, f"has {array.n_children} children, and {array.length} rows of {step.width} items")
    return bind_children(binding, step + 1, step + step.size, schema, array, 0, (c.start + first) * step.width,
                         (c.start + last) * step.width, here)


cdef str path_of(Binding binding, const Step* step):
    return binding.steps[step - binding.first].path
