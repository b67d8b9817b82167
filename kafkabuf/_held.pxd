# cython: language_level=3
"""What one send() holds of the caller's memory, from checking and measuring it to writing it into the slab.

Memory may be waited for in between, and other threads run then. They may change the caller's list of headers, but not
what is held here: the bytes written are those that were measured.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkabuf._wire cimport Field


cdef enum:
    HEADERS_AT_HAND = 8         # so many headers need no memory of the heap
    MOST_HEADERS = 0x3FFFFFFF   # of a record: each takes two bytes at least, and all of it less than 2^31


cdef struct Headers:
    # A local variable, never moved: the pointers may lead into it.
    int32_t count
    int64_t size                # bytes encoded, without their count
    Field* fields               # name, value, name, value, ...
    PyObject** owners           # of each field's bytes; a reference held
    Field fields_at_hand[2 * HEADERS_AT_HAND]
    PyObject* owners_at_hand[2 * HEADERS_AT_HAND]


cdef struct Held:
    # What one record holds. Filled by _records.hold_record, in the `try` whose `finally` calls release_held.
    bint has_key, has_value     # the view was taken
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


# Point `field` at the bytes of a key or value, or None. 1 when `view` was taken and must be released.
cdef inline int hold(object data, Field* field, Py_buffer* view, str what) except -1:
    if PyBytes_CheckExact(data):  # the caller's own reference keeps them
        field.data = <const uint8_t*>PyBytes_AS_STRING(data)
        field.size = PyBytes_GET_SIZE(data)
        return 0
    return hold_other(data, field, view, what)


cdef int hold_other(object data, Field* field, Py_buffer* view, str what) except -1
# Hold the pairs (str, bytes-like or None) of a mapping or an iterable. Nothing is held where it raises.
cdef int hold_headers(Headers* held, object headers) except -1
cdef void release_headers(Headers* held) noexcept
