# cython: language_level=3
"""Arrow data as objects export it: one array or a stream of arrays (the Arrow PyCapsule interface)."""

from kafkabuf.arrow._array cimport ArrowArray, ArrowSchema

# Called for each array of the data, in order. Schema and array may be read until it returns.
ctypedef int (*Visit)(object visitor, ArrowSchema* schema, ArrowArray* array) except -1

# Visits all arrays of `data`. Raises a SerializationError, which names the method `caller`, for an object that exports
# no Arrow data, and for a stream that fails.
cdef int visit_arrays(data, Visit visit, object visitor, str caller) except -1
# Visits the schema of `data`, with NULL for the array. The data is not read, but a stream is taken.
cdef int visit_schema(data, Visit visit, object visitor, str caller) except -1
