# cython: language_level=3
# distutils: extra_compile_args = -O1
"""Takes arrays out of the capsules of the Arrow PyCapsule interface, and gives them back."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.string cimport memset

from kafkabuf.arrow._array cimport ArrowArray, ArrowArrayStream, ArrowSchema

from kafkabuf.errors import SerializationError


cdef int visit_arrays(data, Visit visit, object visitor, str caller) except -1:
    if hasattr(data, "__arrow_c_array__"):
        schema, array = data.__arrow_c_array__()
        return visit_borrowed(
            visit, visitor, <ArrowSchema*>pointer(schema, "arrow_schema"), <ArrowArray*>pointer(array, "arrow_array"))
    if hasattr(data, "__arrow_c_stream__"):
        capsule = data.__arrow_c_stream__()
        return visit_stream(visit, visitor, <ArrowArrayStream*>pointer(capsule, "arrow_array_stream"), arrays=True)
    return refuse(data, caller)


cdef int visit_schema(data, Visit visit, object visitor, str caller) except -1:
    if hasattr(data, "__arrow_c_schema__"):
        capsule = data.__arrow_c_schema__()
        return visit(visitor, <ArrowSchema*>pointer(capsule, "arrow_schema"), NULL)
    if hasattr(data, "__arrow_c_array__"):
        capsules = data.__arrow_c_array__()
        return visit(visitor, <ArrowSchema*>pointer(capsules[0], "arrow_schema"), NULL)
    if hasattr(data, "__arrow_c_stream__"):
        capsule = data.__arrow_c_stream__()
        return visit_stream(visit, visitor, <ArrowArrayStream*>pointer(capsule, "arrow_array_stream"), arrays=False)
    return refuse(data, caller)


cdef int refuse(data, str caller) except -1:
    raise SerializationError(
        f"{caller} needs data with the Arrow PyCapsule interface (a pyarrow RecordBatch or Table, a pandas or polars "
        f"DataFrame), found {type(data).__name__}")


cdef void* pointer(capsule, const char* name) except NULL:
    try:
        return PyCapsule_GetPointer(capsule, name)
    except ValueError as error:
        raise SerializationError(
            f"the Arrow PyCapsule interface must return a capsule '{name.decode()}', found {capsule!r}") from error


cdef int visit_borrowed(
    Visit visit, object visitor, ArrowSchema* callers_schema, ArrowArray* callers_array
) except -1:
    cdef ArrowSchema schema = callers_schema[0]
    cdef ArrowArray array = callers_array[0]
    # The caller's capsules are marked as released during the call. Otherwise, while this thread waits for memory,
    # another thread that holds the capsules could import the data and release it.
    callers_schema.release = NULL
    callers_array.release = NULL
    try:
        visit(visitor, &schema, &array)
    finally:
        callers_schema.release = schema.release
        callers_array.release = array.release
    return 0


cdef int visit_stream(Visit visit, object visitor, ArrowArrayStream* callers_stream, bint arrays) except -1:
    cdef ArrowArrayStream stream
    if callers_stream.release == NULL:
        raise SerializationError("the Arrow stream was read or released before: give a new stream")
    # The interface moves a stream out of its capsule. Without the move, a second call with the same capsule would find
    # a stream without rows.
    stream = callers_stream[0]
    callers_stream.release = NULL
    try:
        return visit_batches(visit, visitor, &stream, arrays)
    finally:
        stream.release(&stream)


cdef int visit_batches(Visit visit, object visitor, ArrowArrayStream* stream, bint arrays) except -1:
    cdef ArrowSchema schema
    cdef ArrowArray array
    memset(&schema, 0, sizeof(schema))
    require(stream, stream.get_schema(stream, &schema))
    try:
        if not arrays:
            return visit(visitor, &schema, NULL)
        while True:
            memset(&array, 0, sizeof(array))
            require(stream, stream.get_next(stream, &array))
            if array.release == NULL:
                return 0
            try:
                visit(visitor, &schema, &array)
            finally:
                array.release(&array)
    finally:
        if schema.release != NULL:
            schema.release(&schema)


cdef int require(ArrowArrayStream* stream, int status) except -1:
    cdef const char* text
    if status != 0:
        text = stream.get_last_error(stream)
        reason = text.decode("utf-8", "replace") if text != NULL else f"error {status}"
        raise SerializationError(f"the Arrow stream failed: {reason}")
    return 0
