# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""encode() and schema_for() of a format: what it makes of Arrow data, without a producer."""

from libc.stdint cimport int64_t

from kafkabuf._sealed cimport seal
from kafkabuf.append._arrow cimport ArrowArray, ArrowSchema, check_table
from kafkabuf.append._exported cimport visit_arrays, visit_schema
from kafkabuf.formats._encoder cimport ENCODED_NULL, ENCODED_TOO_LARGE, describe, new_encoder

from kafkabuf.errors import RecordTooLargeError, SerializationError

# The most bytes of a record's value: sizes are int32 on the wire.
cdef int64_t LIMIT = 0x7FFFFFFF


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
        elif size == ENCODED_TOO_LARGE:
            raise RecordTooLargeError(f"row {first_row + row}: the encoded row is larger than {LIMIT} bytes")
        else:
            raise encoding.encoder.refusal(first_row + row)
    return 0


def bench_rows(format, data, int64_t rounds):
    """Encode each row of one Arrow array `rounds` times, and return the bytes: for the bench, which has no use for
    them. Nothing is done in Python for a row."""
    cdef Encoding encoding = Encoding.__new__(Encoding)
    encoding.format = format
    encoding.rounds = rounds
    visit_arrays(data, encode_again, encoding, "bench_rows")
    return encoding.bytes


cdef int encode_again(object visitor, ArrowSchema* schema, ArrowArray* array) except -1:
    cdef Encoding encoding = visitor
    cdef int64_t _, row = 0, size = 0
    make_encoder(encoding, schema, array)
    with nogil:
        for _ in range(encoding.rounds):
            for row in range(encoding.encoder.rows):
                size = encoding.encoder.encode(row)
                if size < 0:
                    break
                encoding.bytes += size
            if size < 0:
                break
    if size < 0:
        raise encoding.encoder.refusal(row)
    return 0


def columns_of(data):
    """The types of the columns of Arrow data, or of an Arrow schema."""
    cdef list found = []
    visit_schema(data, note_schema, found, "schema_for")
    if found[0].format != "+s":
        raise SerializationError("give a table or a record batch, or the schema of one")
    return found[0].children


cdef int note_schema(object visitor, ArrowSchema* schema, ArrowArray* array) except -1:
    (<list>visitor).append(describe(schema))
    return 0
