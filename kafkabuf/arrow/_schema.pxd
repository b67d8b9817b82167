# cython: language_level=3
"""Arrow's C schema as a plain value."""

from kafkabuf.arrow._array cimport ArrowSchema


# Describe an Arrow schema as an ArrowType (types.py). Raises SerializationError.
cdef object describe(const ArrowSchema* schema)
