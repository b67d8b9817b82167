# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Loads programs, binds their columns to Arrow's memory, and turns failures of rows into errors."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from kafkabuf._sealed cimport seal
from kafkabuf._wire cimport Field
from kafkabuf.append._arrow cimport (
    FIXED, LARGE, SMALL, VIEWS, ArrowArray, ArrowSchema, Column, bind_plain, bit_at, borrow, check_offsets,
    check_shape, check_table, find_wrong_view, format_of, index_at, is_null, malformed, offset_at, refuse_view,
)
from kafkabuf.formats._program cimport (
    FAILED_INEXACT, FAILED_LIMIT, FAILED_MEMORY, FAILED_NOT, FAILED_NULL, FAILED_PRECISION, FAILED_RANGE,
    FAILED_SYMBOL, FAILED_UTF8, FAILED_UUID, READ_BOOL, READ_BYTES, READ_DECIMAL, READ_DOUBLE, READ_FIXED_LIST,
    READ_FLOAT, READ_HALF, READ_INT8, READ_INT16, READ_INT32, READ_INT64, READ_LIST, READ_MAP, READ_NOTHING,
    READ_NULL, READ_STRUCT, READ_UINT8, READ_UINT16, READ_UINT32, READ_UINT64, WRITE_ARRAY, WRITE_BOOLEAN,
    WRITE_BYTES, WRITE_CONSTANT, WRITE_DATE, WRITE_DECIMAL, WRITE_DECIMAL_FIXED, WRITE_DOUBLE, WRITE_DURATION,
    WRITE_ENUM, WRITE_ENUM_NUMBER, WRITE_FIXED, WRITE_FIXED32, WRITE_FIXED64, WRITE_FLOAT, WRITE_LONG, WRITE_MAP,
    WRITE_NULL, WRITE_ONEOF, WRITE_PACKED, WRITE_PATTERN, WRITE_RECORD, WRITE_ROOT, WRITE_SPAN, WRITE_STRING,
    WRITE_TIMESTAMP, WRITE_TIME_OF_DAY, WRITE_UUID, WRITE_UUID_TEXT, WRITE_VARINT, WRITE_WRAPPER, Failure, Output,
    Read, Step, read_bytes, read_decimal, read_integer, read_real, size_at,
)

from kafkabuf.errors import SerializationError
from kafkabuf.formats.arrow_types import ArrowType

cdef extern from *:
    """
    /* An encoder's class is sealed (_sealed.pxd), and known only at run time: a call of the class would be refused. */
    static PyObject *kb_new_encoder(PyObject *object, PyObject *args) {
        PyTypeObject *type = (PyTypeObject *)object;
        return type->tp_new(type, args, NULL);
    }
    """
    object kb_new_encoder(object type, object args)

_READS = {
    "nothing": READ_NOTHING, "null": READ_NULL, "bool": READ_BOOL, "int8": READ_INT8, "int16": READ_INT16,
    "int32": READ_INT32, "int64": READ_INT64, "uint8": READ_UINT8, "uint16": READ_UINT16, "uint32": READ_UINT32,
    "uint64": READ_UINT64, "half": READ_HALF, "float": READ_FLOAT, "double": READ_DOUBLE, "decimal": READ_DECIMAL,
    "bytes": READ_BYTES, "struct": READ_STRUCT, "list": READ_LIST, "fixed_list": READ_FIXED_LIST, "map": READ_MAP,
}
_WRITES = {
    "constant": WRITE_CONSTANT, "boolean": WRITE_BOOLEAN, "long": WRITE_LONG, "float": WRITE_FLOAT,
    "double": WRITE_DOUBLE, "bytes": WRITE_BYTES, "string": WRITE_STRING, "fixed": WRITE_FIXED, "enum": WRITE_ENUM,
    "uuid": WRITE_UUID, "uuid_text": WRITE_UUID_TEXT, "decimal": WRITE_DECIMAL, "decimal_fixed": WRITE_DECIMAL_FIXED,
    "duration": WRITE_DURATION, "record": WRITE_RECORD, "array": WRITE_ARRAY, "map": WRITE_MAP,
    "pattern": WRITE_PATTERN,
    "varint": WRITE_VARINT, "fixed32": WRITE_FIXED32, "fixed64": WRITE_FIXED64, "enum_number": WRITE_ENUM_NUMBER,
    "timestamp": WRITE_TIMESTAMP, "span": WRITE_SPAN, "date": WRITE_DATE, "time_of_day": WRITE_TIME_OF_DAY,
    "wrapper": WRITE_WRAPPER, "packed": WRITE_PACKED, "root": WRITE_ROOT, "oneof": WRITE_ONEOF, "null": WRITE_NULL,
}
_INDICES = tuple("cCsSiIlL")
_BYTES = ("z", "Z", "vz", "u", "U", "vu")
_RUN_ENDS = ("s", "i", "l")
_LIST_VIEWS = ("+vl", "+vL")
# The most bytes of a step of known size: a union's branch, a varint of 10 bytes or 12 bytes of a duration, and the byte
# that ends an array; rounded up.
cdef int64_t STEP_ROOM = 32
cdef int64_t FIRST_ROOM = 1024
# A type nests no deeper than this, and a schema has no more types: hostile schemas may be circular.
cdef int64_t NULLABLE = 2  # ARROW_FLAG_NULLABLE
cdef int MAX_DEPTH = 64
cdef int64_t MAX_TYPES = 1 << 16


cdef class RowEncoder:
    """Encodes rows of Arrow data, one after the other."""

    def __cinit__(self, program not None, int64_t limit):
        cdef Py_ssize_t count = len(program.steps)
        self.program = program
        self.one_column = program.one_column
        self.prefix = program.prefix
        self.prefix_size = len(program.prefix)
        self.steps = <Step*>calloc(<size_t>max(count, 1), sizeof(Step))
        if self.steps == NULL:
            raise MemoryError()
        self.steps_end = self.steps + count
        for number in range(count):
            load(&self.steps[number], program.steps[number])
        self.out.slack = STEP_ROOM * (count + 1)
        self.out.limit = max(limit, 0)

    def __dealloc__(self):
        free(self.steps)
        free(self.out.base)

    cdef uint8_t* write(self, const Step* step, const Step* end, int64_t row, uint8_t* p) noexcept nogil:
        return NULL

    cdef int bind(self, const ArrowSchema* schema, const ArrowArray* array) except -1:
        self.rows = 0
        self.indices = []
        check_table(schema, array)
        bind_children(self, self.steps, self.steps_end, schema, array, array.offset, 0, array.length, NULL)
        self.rows = array.length
        return 0

    cdef int64_t encode(self, int64_t row) noexcept nogil:
        cdef Output* out = &self.out
        cdef uint8_t* p
        if self.one_column and is_absent(self.steps, row):
            return ENCODED_NULL
        out.items = out.limit
        out.failure = FAILED_NOT
        p = reserve(out, out.base, self.prefix_size)
        if p != NULL:
            memcpy(p, self.prefix, <size_t>self.prefix_size)
            p = self.write(self.steps, self.steps_end, row, p + self.prefix_size)
        if p == NULL:
            return ENCODED_TOO_LARGE if out.failure == FAILED_LIMIT else ENCODED_FAILED
        if <int64_t>(p - out.base) > out.limit:
            return ENCODED_TOO_LARGE
        return <int64_t>(p - out.base)

    cdef object refusal(self, int64_t row):
        if self.out.failure == FAILED_MEMORY or self.out.failed == NULL:
            return MemoryError(f"row {row}: no memory for the row's encoded bytes")
        step = self.program.steps[self.out.failed - self.steps]
        where = f"row {row}: column '{step.path}' of type {step.arrow}"
        target = f"{self.program.format}'s {step.target}"
        if self.out.failure == FAILED_NULL:
            return SerializationError(
                f"{where} is null, and {target} has no null: make the field's type a union with null, or replace the "
                f"nulls")
        value = value_at(self.out.failed, self.out.place)
        return SerializationError(f"{where} has the value {value}, {reason(self.out.failure, target)}")


seal(RowEncoder)


cdef bint is_absent(const Step* step, int64_t row) noexcept nogil:
    """Whether the value of a step's column is null, be it the index of a dictionary or the dictionary's value."""
    cdef const Column* c = &step.column
    if step.read == READ_NULL or is_null(c, row):
        return True
    return c.index_type and c.dictionary_validity != NULL and not bit_at(
        c.dictionary_validity, index_at(c, row + c.start) + c.dictionary_start)


cdef str reason(Failure failure, str target):
    if failure == FAILED_RANGE:
        return f"which is out of the range of {target}"
    if failure == FAILED_INEXACT:
        return f"which {target} cannot hold without loss: round the column first"
    if failure == FAILED_PRECISION:
        return f"which has more digits than {target}"
    if failure == FAILED_SYMBOL:
        return f"which is no symbol of {target}"
    if failure == FAILED_UTF8:
        return f"which is not UTF-8, as {target} requires"
    if failure == FAILED_UUID:
        return f"which is not a uuid of RFC 4122, as {target} requires"
    return f"which has another size than {target}"


cdef object value_at(const Step* step, int64_t place):
    """The value as text, for an error; the beginning of long bytes."""
    cdef uint64_t[4] words
    cdef Field field
    cdef Read read = step.read
    if read == READ_BYTES:
        field = read_bytes(step, place)
        return repr((<const char*>field.data)[:min(field.size, 60)] if field.size > 0 else b"")
    if read == READ_DECIMAL:
        read_decimal(step, place, words)
        return f"{int.from_bytes((<const char*>words)[:32], 'little', signed=True)} (without its scale)"
    if read in (READ_HALF, READ_FLOAT, READ_DOUBLE):
        return repr(read_real(step, place))
    if read == READ_UINT64:
        return repr(<uint64_t>read_integer(step, place))
    return repr(read_integer(step, place))


# ---- the scratch -----------------------------------------------------------------------------------------------------

cdef uint8_t* grow(Output* out, uint8_t* p, int64_t size) noexcept nogil:
    cdef int64_t used = p - out.base, wanted
    cdef uint8_t* base
    if used > out.limit or size > out.limit - used:
        return fail(out, FAILED_LIMIT, NULL, 0)
    wanted = max(2 * (used + size), FIRST_ROOM)
    wanted = min(wanted, max(out.limit, used + size)) + out.slack
    base = <uint8_t*>realloc(out.base, <size_t>wanted)
    if base == NULL:
        return fail(out, FAILED_MEMORY, NULL, 0)
    out.base = base
    out.end = base + wanted
    return base + used


cdef uint8_t* fail(Output* out, int failure, const Step* step, int64_t place) noexcept nogil:
    out.failure = <Failure>failure
    out.failed = step
    out.place = place
    return NULL


# ---- programs --------------------------------------------------------------------------------------------------------

cdef int load(Step* step, given) except -1:
    step.read = _READS[given.read]
    step.write = _WRITES[given.write]
    step.size, step.child = given.size, given.child
    step.null_branch, step.value_branch = given.null_branch, given.value_branch
    step.factor, step.low, step.high = given.factor, given.low, given.high
    step.width, step.to_width = given.width, given.to_width
    step.constant = <const uint8_t*><const char*>given.constant
    step.constant_size = len(given.constant)
    memcpy(&step.tag, <const uint8_t*><const char*>given.tag, <size_t>len(given.tag))
    step.tag_size, step.presence = len(given.tag), given.presence
    return 0


# ---- types -----------------------------------------------------------------------------------------------------------

cdef object describe(const ArrowSchema* schema):
    cdef int64_t types = 0
    if schema.release == NULL:
        raise SerializationError("the Arrow data was released before: export the data again")
    return describe_type(schema, 0, &types)


cdef object describe_type(const ArrowSchema* schema, int depth, int64_t* types):
    cdef int64_t i
    cdef const ArrowSchema* child
    cdef list children = []
    types[0] += 1
    if depth > MAX_DEPTH or types[0] > MAX_TYPES:
        raise SerializationError(f"the Arrow schema has more than {MAX_DEPTH} levels or {MAX_TYPES} columns")
    name = schema.name.decode("utf-8", "replace") if schema.name != NULL else ""
    if schema.n_children < 0 or schema.n_children > MAX_TYPES or schema.n_children and schema.children == NULL:
        malformed(name, f"has {schema.n_children} children")
    for i in range(schema.n_children):
        child = schema.children[i]
        if child == NULL:
            malformed(name, "has a NULL pointer for a child")
        children.append(describe_type(child, depth + 1, types))
    values = None if schema.dictionary == NULL else describe_type(schema.dictionary, depth + 1, types)
    if format_of(schema) == "+r" and len(children) == 2 and children[1].dictionary is None:
        values = children[1]  # of other values a compiler finds no dictionary, and refuses the column
    elif values is not None and values.dictionary is not None:
        malformed(name, "has a dictionary in its dictionary")
    return ArrowType(
        format_of(schema), name, bool(schema.flags & NULLABLE), tuple(children), values, extension_of(schema, name))


cdef str extension_of(const ArrowSchema* schema, str column):
    """The name of an extension type. Metadata is a number of pairs; each key and value is a size and its bytes."""
    cdef const char* at = schema.metadata
    cdef int32_t count, _
    cdef bytes key, value
    if at == NULL:
        return ""
    memcpy(&count, at, 4)
    at += 4
    for _ in range(count):
        key = metadata_text(&at, column)
        value = metadata_text(&at, column)
        if key == b"ARROW:extension:name":
            return value.decode("utf-8", "replace")
    return ""


cdef bytes metadata_text(const char** at, str column):
    cdef int32_t size
    cdef const char* text = at[0] + 4
    memcpy(&size, at[0], 4)
    if size < 0:
        malformed(column, f"has metadata of {size} bytes")
    at[0] = text + size
    return text[:size]


# ---- binding ---------------------------------------------------------------------------------------------------------
# Rows from `first` to `last` - 1 of a column are checked. Row n lies at `start` + n, and the array's own offset more.

cdef struct Parent:
    # The column around a column, and its rows that are bound. A struct's children have its rows, a list's their own.
    const Step* step
    int64_t first, last
    const Parent* outer         # NULL: there is none, or a dictionary lies between


cdef int bind_children(
    RowEncoder encoder, Step* step, Step* end, const ArrowSchema* schema, const ArrowArray* array, int64_t start,
    int64_t first, int64_t last, const Parent* parent
) except -1:
    while step < end:
        if step.read == READ_NOTHING:
            step += 1
            continue
        if step.child >= array.n_children:
            malformed(path_of(encoder, step), "is missing")
        bind_step(encoder, step, schema.children[step.child], array.children[step.child], start, first, last, parent)
        step += step.size
    return 0


cdef int bind_step(
    RowEncoder encoder, Step* step, const ArrowSchema* schema, const ArrowArray* array, int64_t start, int64_t first,
    int64_t last, const Parent* parent
) except -1:
    cdef Column indices
    cdef Column* c = &step.column
    cdef str path = path_of(encoder, step)
    if start > INT64_MAX - last:
        malformed(path, f"begins at offset {start}")
    if format_of(schema) == "+r":
        return bind_runs(encoder, step, path, schema, array, start, first, last)
    if schema.dictionary == NULL:
        return bind_values(encoder, step, path, schema, array, start, first, last, parent)
    if format_of(schema) not in _INDICES or array.dictionary == NULL:
        malformed(path, "has no integer indices, or no dictionary")
    check_shape(path, schema, array, 2, start + last)
    bind_values(encoder, step, path, schema.dictionary, array.dictionary, 0, 0, array.dictionary.length, NULL)
    indices = borrow(array, start, FIXED)
    c.dictionary_start, c.dictionary_validity = c.start, c.validity
    c.start, c.validity = indices.start, indices.validity
    c.index_type = schema.format[0]
    c.indices = array.buffers[1]
    return check_used_indices(path, c, first, last, array.dictionary.length, parent)


cdef int bind_runs(
    RowEncoder encoder, Step* step, str path, const ArrowSchema* schema, const ArrowArray* array, int64_t start,
    int64_t first, int64_t last
) except -1:
    """A run-end encoded column, read as a dictionary of its runs: the encoder has the index of each row."""
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
    bind_values(encoder, step, path, schema.children[1], array.children[1], 0, 0, ends.length, NULL)
    if rows > INT64_MAX // 4 or ends.length > INT32_MAX:
        raise MemoryError(f"column '{path}' has {rows} rows in {ends.length} runs")
    indices = bytearray(4 * rows)
    encoder.indices.append(indices)
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
    """Arrow says nothing of what an index is where a column around it is null. Nobody reads the index there."""
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
    RowEncoder encoder, Step* step, str path, const ArrowSchema* schema, const ArrowArray* array, int64_t start,
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
        bind_children(encoder, step + 1, step + step.size, schema, array, c.start, first, last, &here)
    elif read in (READ_LIST, READ_MAP):
        bind_list(encoder, step, path, schema, array, start, first, last, &here)
    elif read == READ_FIXED_LIST:
        bind_fixed_list(encoder, step, path, schema, array, start, first, last, &here)
    else:
        check_shape(path, schema, array, 2, start + last)
        c[0] = borrow(array, start, FIXED)
        c.data = <const uint8_t*>array.buffers[1]
        if step.width and c.start > INT64_MAX // step.width - last:
            malformed(path, f"has {array.length} rows of {step.width} bytes")
    return 0


cdef int bind_list(
    RowEncoder encoder, Step* step, str path, const ArrowSchema* schema, const ArrowArray* array, int64_t start,
    int64_t first, int64_t last, const Parent* here
) except -1:
    cdef Column* c = &step.column
    cdef int64_t begin = 0, end = 0
    if format_of(schema) in _LIST_VIEWS and step.read == READ_LIST:
        return bind_list_view(encoder, step, path, schema, array, start, first, last, here)
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
        return bind_children(encoder, step + 1, step + step.size, schema, array, 0, begin, end, here)
    check_shape(path, schema.children[0], array.children[0], 1, end)
    return bind_children(encoder, step + 1, step + step.size, schema.children[0], array.children[0],
                         array.children[0].offset, begin, end, here)


cdef int bind_list_view(
    RowEncoder encoder, Step* step, str path, const ArrowSchema* schema, const ArrowArray* array, int64_t start,
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
    return bind_children(encoder, step + 1, step + step.size, schema, array, 0, min(low, high), high, NULL)


cdef int bind_fixed_list(
    RowEncoder encoder, Step* step, str path, const ArrowSchema* schema, const ArrowArray* array, int64_t start,
    int64_t first, int64_t last, const Parent* here
) except -1:
    cdef Column* c = &step.column
    check_shape(path, schema, array, 1, start + last)
    c[0] = borrow(array, start, FIXED)
    if array.n_children != 1 or step.width and c.start > INT64_MAX // step.width - last:
        malformed(path, f"has {array.n_children} children, and {array.length} rows of {step.width} items")
    return bind_children(encoder, step + 1, step + step.size, schema, array, 0, (c.start + first) * step.width,
                         (c.start + last) * step.width, here)


cdef str path_of(RowEncoder encoder, const Step* step):
    return encoder.program.steps[step - encoder.steps].path


cdef RowEncoder new_encoder(program, int64_t limit):
    if not issubclass(program.encoder, RowEncoder):
        raise TypeError(f"expected an encoder's class, found {program.encoder!r}")
    return <RowEncoder>kb_new_encoder(program.encoder, (program, limit))
