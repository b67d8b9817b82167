# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Functions of whole Arrow columns: a digest of the records that the columns hold, and the partitions of their keys.

Two equal sets of records have the same digest, whatever their order, batches and partitions. It is the sum, modulo
2^64, of a hash of each record's key, value and headers (the hash mixes the CRC-32C of each field, its size and its
position). It detects accidents, not malice.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint64_t

import numpy as np

from kafkabuf.memory._view cimport items_of, view_of
from kafkabuf.wire._wire cimport Field, kb_crc32c, kb_crc32c_init, partition_of_key
from kafkabuf.arrow._array cimport ABSENT, ArrowArray, ArrowSchema, Columns, bind_columns, bytes_at, is_null, offset_at

kb_crc32c_init()


# The finaliser of splitmix64: each bit of the result depends on each bit of the argument.
cdef inline uint64_t stir(uint64_t x) noexcept nogil:
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


cdef inline uint64_t add_field(uint64_t hashed, Field field) noexcept nogil:
    cdef uint64_t crc = kb_crc32c(0, field.data, <size_t>field.size) if field.size > 0 else 0
    return stir((hashed ^ crc ^ (<uint64_t>(field.size + 1) << 32)) + <uint64_t>0x9E3779B97F4A7C15)


cdef uint64_t digest_of(const Columns* c) noexcept nogil:
    cdef int64_t row, item, place
    cdef uint64_t hashed, total = 0
    for row in range(c.rows):
        hashed = add_field(add_field(0, bytes_at(&c.key, row)), bytes_at(&c.value, row))
        if c.headers.layout != ABSENT and not is_null(&c.headers, row):
            place = c.headers.start + row
            for item in range(offset_at(&c.headers, place), offset_at(&c.headers, place + 1)):
                hashed = add_field(add_field(hashed, bytes_at(&c.header_key, item)), bytes_at(&c.header_value, item))
        total += hashed
    return total


def digest(data):
    """The digest of one Arrow struct array (an object with `__arrow_c_array__`) with the columns of send_arrow.

    A number from 0 to 2^64 - 1. The digest of several arrays is the sum of their digests, modulo 2^64. Raises
    SerializationError as send_arrow does.
    """
    cdef Columns columns
    cdef uint64_t result
    schema, array = data.__arrow_c_array__()
    bind_columns(&columns, <ArrowSchema*>PyCapsule_GetPointer(schema, "arrow_schema"),
                 <ArrowArray*>PyCapsule_GetPointer(array, "arrow_array"))
    with nogil:
        result = digest_of(&columns)
    return result


def partitions_of(data, int32_t partitions):
    """The partitions of the keys of one Arrow struct array, as Java's producer computes them; -1 for a null key.

    Returns an int32 array. `data` needs a column `value`, as for send_arrow.
    """
    cdef Columns columns
    cdef int32_t* chosen
    cdef int64_t row
    cdef Field key
    if partitions < 1:
        raise ValueError(f"partitions must be at least 1, found {partitions}")
    schema, array = data.__arrow_c_array__()
    bind_columns(&columns, <ArrowSchema*>PyCapsule_GetPointer(schema, "arrow_schema"),
                 <ArrowArray*>PyCapsule_GetPointer(array, "arrow_array"))
    result = np.empty(columns.rows, np.int32)
    view = view_of(result, sizeof(int32_t), True)
    chosen = <int32_t*>items_of(view)
    with nogil:
        for row in range(columns.rows):
            key = bytes_at(&columns.key, row)
            chosen[row] = -1 if key.size < 0 else partition_of_key(key.data, <size_t>key.size, partitions)
    return result
