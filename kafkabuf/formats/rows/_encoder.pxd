# cython: language_level=3
"""The base of all formats' encoders: it holds a program, binds it to chunks of Arrow data, and owns the output buffer.

A walker asks for one row after the other: `encode` leaves the row's bytes in the buffer, where they stay until the
next call. The buffer is a plain allocation outside `buffer.memory`. It grows to at most `limit` bytes and the
program's slack, and is freed with the encoder. The walker encodes a row again when the row has met a full batch.

A format does not write into the open batch. The copy from the buffer is 1 % of the instructions of send_arrow() for a
flight of 19 columns as Avro (1,983, of which the writer takes 1,383), and 0.7 % for JSON. Bytes in place would spare a
part of it: a record begins with its length and its value with another, which are known when the value is written, and
the key's bytes choose the partition. `python -m bench formats-send` compares the whole way with bytes made before.
"""

from libc.stdint cimport int64_t, uint8_t

from kafkabuf.arrow._array cimport ArrowArray, ArrowSchema
from kafkabuf.formats.rows._program cimport Output, Step


cdef enum:
    # Negative results of `encode`. The row is null, which is Kafka's null; it needs more than `limit` bytes; any other
    # failure, which `refusal` describes.
    ENCODED_NULL = -1
    ENCODED_TOO_LARGE = -2
    ENCODED_FAILED = -3


cdef class RowEncoder:
    # ---- fixed at construction
    cdef object program             # a Program; its steps keep the constants alive
    cdef Step* steps
    cdef Step* steps_end
    cdef bint one_column            # the program's first step is the whole value, and a null there is Kafka's null
    cdef const uint8_t* prefix      # written before each row
    cdef int64_t prefix_size
    # ---- the present chunk of rows
    cdef int64_t rows
    cdef list indices               # bytearrays: of each run-end encoded column the run of each row
    # ---- the present row
    cdef Output out

    # ---- methods that a subclass overrides
    # Write steps up to `end` for `row`, at `p`; return the address after them, or NULL with out.failure set.
    cdef uint8_t* write(self, const Step* step, const Step* end, int64_t row, uint8_t* p) noexcept nogil

    # Bind the program to a struct array that has the schema which it was compiled for. Raises a SerializationError
    # where the array contradicts the schema or itself. The array must outlive the calls of `encode`.
    cdef int bind(self, const ArrowSchema* schema, const ArrowArray* array) except -1
    # Encode a row of the bound chunk: its size, from out.base on, or one of the negative results above.
    cdef int64_t encode(self, int64_t row) noexcept nogil
    # The error of the row that `encode` has failed on; `row` is its number for the user.
    cdef object refusal(self, int64_t row)


# The encoder that carries out a Program; the most bytes of a row are `limit`.
cdef RowEncoder new_encoder(program, int64_t limit)
cdef uint8_t* grow(Output* out, uint8_t* p, int64_t size) noexcept nogil
cdef uint8_t* fail(Output* out, int failure, const Step* step, int64_t place) noexcept nogil


# Room for `size` bytes at `p` and the slack behind them; NULL with out.failure set. The buffer may move.
cdef inline uint8_t* reserve(Output* out, uint8_t* p, int64_t size) noexcept nogil:
    if size <= <int64_t>(out.end - p) - out.slack:
        return p
    return grow(out, p, size)
