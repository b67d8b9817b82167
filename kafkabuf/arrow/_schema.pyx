# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: extra_compile_args = -O1
"""Reads Arrow's C schemas as the plain values of _schema.pxd."""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from kafkabuf.arrow._array cimport ArrowSchema, format_of, malformed

from kafkabuf.errors import SerializationError
from kafkabuf.arrow.types import ArrowType

cdef int64_t NULLABLE = 2  # ARROW_FLAG_NULLABLE
# A type nests no deeper than this, and a schema has no more types: hostile schemas may be circular.
cdef int MAX_DEPTH = 64
cdef int64_t MAX_TYPES = 1 << 16


cdef object describe(const ArrowSchema* schema):
    cdef int64_t types = 0
    if schema.release == NULL:
        raise SerializationError("the Arrow data was released before: export the data again")
    return describe_type(schema, 0, &types)


cdef object describe_type(const ArrowSchema* schema, int depth, int64_t* types):
    cdef int64_t i
    cdef const ArrowSchema* child
    cdef list children = []
    types[0] += 1
    if depth > MAX_DEPTH or types[0] > MAX_TYPES:
        raise SerializationError(f"the Arrow schema has more than {MAX_DEPTH} levels or {MAX_TYPES} columns")
    name = schema.name.decode("utf-8", "replace") if schema.name != NULL else ""
    if schema.n_children < 0 or schema.n_children > MAX_TYPES or schema.n_children and schema.children == NULL:
        malformed(name, f"has {schema.n_children} children")
    for i in range(schema.n_children):
        child = schema.children[i]
        if child == NULL:
            malformed(name, "has a NULL pointer for a child")
        children.append(describe_type(child, depth + 1, types))
    values = None if schema.dictionary == NULL else describe_type(schema.dictionary, depth + 1, types)
    if format_of(schema) == "+r" and len(children) == 2 and children[1].dictionary is None:
        values = children[1]  # of other values a compiler finds no dictionary, and refuses the column
    elif values is not None and values.dictionary is not None:
        malformed(name, "has a dictionary in its dictionary")
    return ArrowType(
        format_of(schema), name, bool(schema.flags & NULLABLE), tuple(children), values, extension_of(schema, name))


cdef str extension_of(const ArrowSchema* schema, str column):
    """The name of an extension type. Metadata is a number of pairs; each key and value is a size and its bytes."""
    cdef const char* at = schema.metadata
    cdef int32_t count, _
    cdef bytes key, value
    if at == NULL:
        return ""
    memcpy(&count, at, 4)
    at += 4
    for _ in range(count):
        key = metadata_text(&at, column)
        value = metadata_text(&at, column)
        if key == b"ARROW:extension:name":
            return value.decode("utf-8", "replace")
    return ""


cdef bytes metadata_text(const char** at, str column):
    cdef int32_t size
    cdef const char* text = at[0] + 4
    memcpy(&size, at[0], 4)
    if size < 0:
        malformed(column, f"has metadata of {size} bytes")
    at[0] = text + size
    return text[:size]
