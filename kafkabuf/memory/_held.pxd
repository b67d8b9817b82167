# cython: language_level=3
"""The caller's memory that one send() holds, from the time when it measures the record until it has written the record.

send() may wait for a slab in between, while other threads run. These threads may change the caller's list of headers.
They cannot move or resize the held memory: send() writes as many bytes as it has measured.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkabuf.memory._view cimport items_of, length_of, view_of
from kafkabuf.wire._wire cimport Field


cdef enum:
    HEADERS_AT_HAND = 8         # up to this many headers need no memory from the heap
    MOST_HEADERS = 0x3FFFFFFF   # of a record: a header takes at least two bytes, a record less than 2^31


cdef struct Headers:
    # Lives in a local variable and never moves, because its pointers may point into it.
    int32_t count
    int64_t size                # bytes of the encoded headers, without the header count
    Field* fields               # name, value, name, value, ...
    PyObject** owners           # by field, a reference to the object that owns the bytes
    Field fields_at_hand[2 * HEADERS_AT_HAND]
    PyObject* owners_at_hand[2 * HEADERS_AT_HAND]


cdef struct Held:
    # Filled by _records.hold_record, inside the `try` whose `finally` calls release_held.
    bint has_key, has_value     # `key` or `value` was taken and must be released
    bint has_headers
    Py_buffer key, value
    Headers headers


cdef inline void hold_nothing(Held* held) noexcept nogil:
    held.has_key = held.has_value = held.has_headers = False


cdef inline void release_held(Held* held) noexcept:
    if held.has_key:
        PyBuffer_Release(&held.key)
    if held.has_value:
        PyBuffer_Release(&held.value)
    if held.has_headers:
        release_headers(&held.headers)


# Point `field` at the bytes of a key or value, or None. Returns 1 if `view` was taken and must be released.
cdef inline int hold(object data, Field* field, Py_buffer* view, str name) except -1:
    if PyBytes_CheckExact(data):  # the caller's own reference keeps the bytes alive
        field.data = <const uint8_t*>PyBytes_AS_STRING(data)
        field.size = PyBytes_GET_SIZE(data)
        return 0
    if data is None:
        field.data = NULL
        field.size = -1
        return 0
    return hold_not_bytes(data, field, view, name)


# As `hold`, for any object that is neither exactly bytes nor None.
cdef int hold_not_bytes(object data, Field* field, Py_buffer* view, str name) except -1
# Hold the pairs (str, bytes-like or None) of a mapping or an iterable. If it raises, it holds nothing.
cdef int hold_headers(Headers* held, object headers) except -1
cdef void release_headers(Headers* held) noexcept


# A view of the bytes of a key or a value, or None for None; and the bytes of the view as a field, or a null for None.
cdef inline object view_or_none(object data):
    return None if data is None else view_of(data, 1, False)


cdef inline Field field_of(object view) noexcept:
    cdef Field field
    field.data = NULL
    field.size = -1
    if view is not None:
        field.data = <const uint8_t*>items_of(view)
        field.size = length_of(view)
    return field
