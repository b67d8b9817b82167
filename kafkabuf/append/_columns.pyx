# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Whole Arrow columns at once: a digest of the records they make, and the partitions of their keys.

The digest says whether two sets of records are equal, whatever their order, batches and partitions: the sum, modulo
2^64, of a hash of each record's key, value and headers (CRC-32C of each field, its size and its place, stirred
together). Against accident, not against malice.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint64_t

import numpy as np

from kafkabuf._wire cimport Field, kb_crc32c, kb_crc32c_init, partition_of_key
from kafkabuf.append._arrow cimport ABSENT, ArrowArray, ArrowSchema, Columns, bind_columns, bytes_at, is_null, offset_at

kb_crc32c_init()


# The finaliser of splitmix64: each bit of the result depends on each of the argument's.
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
    """The digest of one Arrow struct array (anything with `__arrow_c_array__`), whose columns are those of send_arrow.

    From 0 to 2^64 - 1; that of several arrays is the sum of theirs, modulo 2^64. Raises SerializationError as
    send_arrow does.
    """
    cdef Columns columns
    cdef uint64_t found
    schema, array = data.__arrow_c_array__()
    bind_columns(&columns, <ArrowSchema*>PyCapsule_GetPointer(schema, "arrow_schema"),
                 <ArrowArray*>PyCapsule_GetPointer(array, "arrow_array"))
    with nogil:
        found = digest_of(&columns)
    return found


def partitions_of(data, int32_t partitions):
    """Of the keys of one Arrow struct array the partitions, as Java's producer has them; -1 for a null key.

    An int32 array. `data` has a column `value` too, as all that send_arrow takes.
    """
    cdef Columns columns
    cdef int32_t[::1] chosen
    cdef int64_t row
    cdef Field key
    if partitions < 1:
        raise ValueError(f"a topic has at least one partition, found {partitions}")
    schema, array = data.__arrow_c_array__()
    bind_columns(&columns, <ArrowSchema*>PyCapsule_GetPointer(schema, "arrow_schema"),
                 <ArrowArray*>PyCapsule_GetPointer(array, "arrow_array"))
    result = chosen = np.empty(columns.rows, np.int32)
    with nogil:
        for row in range(columns.rows):
            key = bytes_at(&columns.key, row)
            chosen[row] = -1 if key.size < 0 else partition_of_key(key.data, <size_t>key.size, partitions)
    return result
