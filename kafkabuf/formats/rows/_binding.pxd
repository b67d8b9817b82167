# cython: language_level=3
"""Where the columns of a program's steps lie in a chunk of Arrow data, checked as far as the data can be checked."""

from kafkabuf.arrow._array cimport ArrowArray, ArrowSchema
from kafkabuf.formats.rows._program cimport Step


# Bind the steps from `first` on to a struct array that has the schema which they were compiled for; `steps` are the
# same in Python. The steps point into the array, and into the result: of each run-end encoded column the run of each
# row. Raises a SerializationError where the array contradicts the schema or itself.
cdef list bind_table(object steps, Step* first, Step* end, const ArrowSchema* schema, const ArrowArray* array)
