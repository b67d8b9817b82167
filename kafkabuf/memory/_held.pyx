# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Holds keys, values and headers as users pass them. It makes no object for bytes, a tuple or a short list."""

from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.sequence cimport PySequence_Fast_GET_ITEM, PySequence_Fast_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free, malloc

from kafkabuf.wire._wire cimport Field, field_size

from kafkabuf.errors import SerializationError


cdef int hold_not_bytes(object data, Field* field, Py_buffer* view, str name) except -1:
    if not PyObject_CheckBuffer(data):
        raise SerializationError(
            f"the {name} is a {type(data).__name__}, and only bytes-like objects or None can be sent as they are: "
            f"encode it, or configure {name}_serializer")
    try:
        PyObject_GetBuffer(data, view, PyBUF_ND | PyBUF_FORMAT)
    except (BufferError, ValueError) as error:  # NumPy arrays and released memoryviews raise ValueError
        raise SerializationError(f"the {name}'s memory is not one contiguous piece: {error}") from None
    if holds_objects(view.format):
        PyBuffer_Release(view)
        raise SerializationError(f"the {name} holds Python objects, and only their addresses would be sent: encode it")
    field.data = <const uint8_t*>view.buf
    field.size = view.len
    return 1


cdef bint holds_objects(const char* format) noexcept:
    """Whether an item has a Python object: the code O. A field's name stands between colons, and may have an O too."""
    cdef bint in_name = False
    if format == NULL:
        return False
    while format[0] != 0:
        if format[0] == b":":
            in_name = not in_name
        elif format[0] == b"O" and not in_name:
            return True
        format += 1
    return False


cdef int hold_headers(Headers* held, object headers) except -1:
    cdef Py_ssize_t i = 0, n
    held.count = 0
    held.size = 0
    held.fields = held.fields_at_hand
    held.owners = held.owners_at_hand
    if type(headers) is not tuple and (type(headers) is not list or len(<list>headers) > HEADERS_AT_HAND):
        headers = tuple(pairs_of(headers))
    n = PySequence_Fast_GET_SIZE(headers)
    header = None
    try:
        if n > HEADERS_AT_HAND:
            take_memory(held, n)
        # Unpacking an unusual pair may run the user's code, which may shorten the list. Additions to the list after the
        # start are ignored.
        while i < n and i < PySequence_Fast_GET_SIZE(headers):
            header = <object>PySequence_Fast_GET_ITEM(headers, i)
            name, value = header
            hold_pair(held, name, value)
            i += 1
    except BaseException as error:
        release_headers(held)
        if isinstance(error, (TypeError, ValueError)) and not isinstance(error, SerializationError):
            raise SerializationError(f"a header must be a pair (str, bytes or None), found {header!r}") from None
        raise
    return 0


cdef void release_headers(Headers* held) noexcept:
    cdef int32_t i
    for i in range(2 * held.count):
        Py_DECREF(<object>held.owners[i])
    if held.fields != held.fields_at_hand:
        free(held.fields)
        free(held.owners)


cdef object pairs_of(object headers):
    try:
        return iter(headers.items() if hasattr(headers, "items") else headers)
    except TypeError:
        raise SerializationError(
            f"headers must be pairs of (str, bytes or None), or a mapping from str to bytes or None, found "
            f"{type(headers).__name__}") from None


cdef int take_memory(Headers* held, Py_ssize_t n) except -1:
    cdef Field* fields
    cdef PyObject** owners
    if n > MOST_HEADERS:
        raise SerializationError(f"{n} headers exceed the format's limit of 2^31 - 1 bytes a record: send fewer")
    fields = <Field*>malloc(2 * n * sizeof(Field))
    owners = <PyObject**>malloc(2 * n * sizeof(PyObject*))
    if fields == NULL or owners == NULL:
        free(fields)
        free(owners)
        raise MemoryError(f"no memory for {n} headers")
    held.fields = fields
    held.owners = owners
    return 0


cdef int hold_pair(Headers* held, object name, object value) except -1:
    cdef Field* field = &held.fields[2 * held.count]
    cdef PyObject** owner = &held.owners[2 * held.count]
    cdef Py_ssize_t name_size
    field[0].data = <const uint8_t*>PyUnicode_AsUTF8AndSize(name, &name_size)
    field[0].size = name_size
    if type(value) is bytes:
        field[1].data = <const uint8_t*>PyBytes_AS_STRING(value)
        field[1].size = PyBytes_GET_SIZE(value)
    elif value is None:
        field[1].data = NULL
        field[1].size = -1
    else:
        value = view_of_value(value)
        field[1].data = <const uint8_t*>PyMemoryView_GET_BUFFER(value).buf
        field[1].size = PyMemoryView_GET_BUFFER(value).len
    Py_INCREF(name)
    Py_INCREF(value)
    owner[0] = <PyObject*>name
    owner[1] = <PyObject*>value
    held.size += field_size(&field[0]) + field_size(&field[1])
    held.count += 1
    return 0


cdef object view_of_value(object value):
    """A memoryview of the value: while it exists, the bytes do not move."""
    if isinstance(value, str):
        raise SerializationError(f"a header's value must be bytes or None, found the str {value!r}: encode it")
    try:
        view = PyMemoryView_FromObject(value)
    except (TypeError, BufferError, ValueError):  # NumPy arrays and released memoryviews raise ValueError
        view = None
    if view is None or not PyBuffer_IsContiguous(PyMemoryView_GET_BUFFER(view), b"C"):
        raise SerializationError(f"a header's value must be contiguous bytes or None, found {type(value).__name__}")
    if holds_objects(PyMemoryView_GET_BUFFER(view).format):
        raise SerializationError("a header's value holds Python objects, and only their addresses would be sent: "
                                 "encode it")
    return view
