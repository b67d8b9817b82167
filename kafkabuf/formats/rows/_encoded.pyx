# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""encode() and schema_for() of a format: what it makes of Arrow data, without a producer."""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

import numpy as np

from kafkabuf.cpython._sealed cimport seal
from kafkabuf.memory._view cimport items_of, view_of
from kafkabuf.arrow._array cimport ArrowArray, ArrowSchema, check_table
from kafkabuf.arrow._exported cimport visit_arrays, visit_schema
from kafkabuf.arrow._schema cimport describe
from kafkabuf.formats.rows._encoder cimport ENCODED_NULL, ENCODED_TOO_LARGE, RowEncoder, new_encoder

from kafkabuf.errors import RecordTooLargeError, SerializationError

# The most bytes of a record's value: sizes are int32 on the wire.
cdef int64_t LIMIT = 0x7FFFFFFF
# Bytes that encode_batch() begins with, and the same for each row.
cdef int64_t FIRST_ROOM = 1024
cdef int64_t ROW_ROOM = 64


cdef class Encoding:
    """One call of encode()."""

seal(Encoding)


def encode(format, data):
    """See Format.encode."""
    cdef Encoding encoding = Encoding.__new__(Encoding)
    encoding.format = format
    encoding.values = []
    visit_arrays(data, encode_array, encoding, "encode")
    return encoding.values


cdef int make_encoder(Encoding encoding, ArrowSchema* schema, ArrowArray* array) except -1:
    if encoding.encoder is None:
        check_table(schema, array)
        program = encoding.format.table_program(list(enumerate(describe(schema).children)))
        encoding.encoder = new_encoder(program, LIMIT)
    return encoding.encoder.bind(schema, array)


cdef int encode_array(object visitor, ArrowSchema* schema, ArrowArray* array) except -1:
    cdef Encoding encoding = visitor
    cdef int64_t row, size, first_row = len(encoding.values)
    make_encoder(encoding, schema, array)
    for row in range(encoding.encoder.rows):
        with nogil:
            size = encoding.encoder.encode(row)
        if size >= 0:
            encoding.values.append((<const char*>encoding.encoder.out.base)[:size])
        elif size == ENCODED_NULL:
            encoding.values.append(None)
        else:
            raise error_of(encoding.encoder, size, first_row + row)
    return 0


@cython.final
cdef class EncodedRows:
    """One call of encode_batch()."""

seal(EncodedRows)


def encode_batch(program, data):
    """Encode each row of one Arrow struct array, also the rows behind a row that cannot be encoded.

    Returns offsets, bytes, flags and errors, for an Arrow column of large_binary. Row n has the bytes from offsets[n]
    to offsets[n + 1]. The flag of a row is 0 where it is Kafka's null, or has an error: `errors` is a dict from row to
    SerializationError. Raises SerializationError where the array contradicts itself, or the program's types.
    """
    cdef EncodedRows made = EncodedRows.__new__(EncodedRows)
    made.encoder = new_encoder(program, LIMIT)
    made.errors = {}
    visit_arrays(data, encode_rows, made, "encode_batch")
    return made.offsets, made.encoded, made.valid, made.errors


cdef int encode_rows(object visitor, ArrowSchema* schema, ArrowArray* array) except -1:
    cdef EncodedRows made = visitor
    cdef RowEncoder encoder = made.encoder
    cdef int64_t row = 0, rows, used = 0, size = 0, room
    cdef int64_t* offsets
    cdef uint8_t* valid
    cdef char* base
    check_table(schema, array)
    encoder.bind(schema, array)
    rows = encoder.rows
    made.offsets, made.valid = np.zeros(rows + 1, np.int64), np.ones(rows, np.uint8)
    views = view_of(made.offsets, sizeof(int64_t), True), view_of(made.valid, 1, True)
    offsets, valid = <int64_t*>items_of(views[0]), <uint8_t*>items_of(views[1])
    room = FIRST_ROOM + ROW_ROOM * rows
    made.encoded = bytearray(room)
    while True:
        base = PyByteArray_AS_STRING(made.encoded)
        with nogil:
            while row < rows:
                size = encoder.encode(row)
                if size < ENCODED_NULL or size > room - used:
                    break
                if size >= 0:
                    memcpy(base + used, encoder.out.base, <size_t>size)
                    used += size
                else:
                    valid[row] = 0
                row += 1
                offsets[row] = used
        if row == rows:
            break
        if size < 0:
            made.errors[row] = error_of(encoder, size, row)
            valid[row] = 0
            row += 1
            offsets[row] = used
        else:  # the row is encoded again, with more room
            room = max(2 * room, used + size)
            PyByteArray_Resize(made.encoded, <Py_ssize_t>room)
    PyByteArray_Resize(made.encoded, <Py_ssize_t>used)
    return 0


cdef object error_of(RowEncoder encoder, int64_t size, int64_t row):
    """The error of a row. Raises what is no fault of the row."""
    if size == ENCODED_TOO_LARGE:
        return RecordTooLargeError(f"row {row}: the encoded row is larger than {LIMIT} bytes")
    error = encoder.refusal(row)
    if isinstance(error, MemoryError):
        raise error
    return error


def columns_of(data):
    """The types of the columns of Arrow data, or of an Arrow schema."""
    cdef list schemas = []
    visit_schema(data, note_schema, schemas, "schema_for")
    if schemas[0].format != "+s":
        raise SerializationError("give a table or a record batch, or the schema of one")
    return schemas[0].children


cdef int note_schema(object visitor, ArrowSchema* schema, ArrowArray* array) except -1:
    (<list>visitor).append(describe(schema))
    return 0
