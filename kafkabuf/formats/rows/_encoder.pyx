# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Loads programs, and turns failures of rows into errors."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from kafkabuf.cpython._sealed cimport seal
from kafkabuf.wire._wire cimport Field
from kafkabuf.arrow._array cimport ArrowArray, ArrowSchema, Column, bit_at, index_at, is_null
from kafkabuf.formats.rows._binding cimport bind_table
from kafkabuf.formats.rows._program cimport (
    FAILED_INEXACT, FAILED_LIMIT, FAILED_MEMORY, FAILED_NOT, FAILED_NULL, FAILED_PRECISION, FAILED_RANGE,
    FAILED_SYMBOL, FAILED_UTF8, FAILED_UUID, READ_BOOL, READ_BYTES, READ_DECIMAL, READ_DOUBLE, READ_FIXED_LIST,
    READ_FLOAT, READ_HALF, READ_INT8, READ_INT16, READ_INT32, READ_INT64, READ_LIST, READ_MAP, READ_NOTHING,
    READ_NULL, READ_STRUCT, READ_UINT8, READ_UINT16, READ_UINT32, READ_UINT64, WRITE_ARRAY, WRITE_BOOLEAN,
    WRITE_BYTES, WRITE_CONSTANT, WRITE_DATE, WRITE_DECIMAL, WRITE_DECIMAL_FIXED, WRITE_DOUBLE, WRITE_DURATION,
    WRITE_ENUM, WRITE_ENUM_NUMBER, WRITE_FIXED, WRITE_FIXED32, WRITE_FIXED64, WRITE_FLOAT, WRITE_LONG, WRITE_LONG_CUT,
    WRITE_MAP, WRITE_NULL, WRITE_ONEOF, WRITE_PACKED, WRITE_PATTERN, WRITE_RECORD, WRITE_ROOT, WRITE_SPAN,
    WRITE_STRING, WRITE_TIMESTAMP, WRITE_TIME_OF_DAY, WRITE_UUID, WRITE_UUID_TEXT, WRITE_VARINT, WRITE_WRAPPER,
    Failure, Output, Read, Step, read_bytes, read_decimal, read_integer, read_real,
)

from kafkabuf.errors import SerializationError

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
    "constant": WRITE_CONSTANT, "boolean": WRITE_BOOLEAN, "long": WRITE_LONG, "long_cut": WRITE_LONG_CUT,
    "float": WRITE_FLOAT, "double": WRITE_DOUBLE, "bytes": WRITE_BYTES, "string": WRITE_STRING, "fixed": WRITE_FIXED,
    "enum": WRITE_ENUM, "uuid": WRITE_UUID, "uuid_text": WRITE_UUID_TEXT, "decimal": WRITE_DECIMAL,
    "decimal_fixed": WRITE_DECIMAL_FIXED, "duration": WRITE_DURATION, "record": WRITE_RECORD, "array": WRITE_ARRAY,
    "map": WRITE_MAP,
    "pattern": WRITE_PATTERN,
    "varint": WRITE_VARINT, "fixed32": WRITE_FIXED32, "fixed64": WRITE_FIXED64, "enum_number": WRITE_ENUM_NUMBER,
    "timestamp": WRITE_TIMESTAMP, "span": WRITE_SPAN, "date": WRITE_DATE, "time_of_day": WRITE_TIME_OF_DAY,
    "wrapper": WRITE_WRAPPER, "packed": WRITE_PACKED, "root": WRITE_ROOT, "oneof": WRITE_ONEOF, "null": WRITE_NULL,
}
# The most bytes of a step of known size: a union's branch, a varint of 10 bytes or 12 bytes of a duration, and the byte
# that ends an array; rounded up.
cdef int64_t STEP_ROOM = 32
cdef int64_t FIRST_ROOM = 1024


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
        self.indices = bind_table(self.program.steps, self.steps, self.steps_end, schema, array)
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


# ---- the output buffer -----------------------------------------------------------------------------------------------

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


cdef RowEncoder new_encoder(program, int64_t limit):
    if not issubclass(program.encoder, RowEncoder):
        raise TypeError(f"expected an encoder's class, found {program.encoder!r}")
    return <RowEncoder>kb_new_encoder(program.encoder, (program, limit))
