# cython: language_level=3
"""The base of the writers of Python objects: the parts of a schema, a Writer for each call, and errors.

The layers above it inherit: leaves (_object_leaves.pxd), then Avro's unions, and its records, arrays and maps
(avro/_objects.pxd), or all of Protobuf (protobuf/_objects.pxd).

Any object may run Python when it is read: the code may change the list or dict that is read, encode another object, or
close the producer. So no step relies on what an earlier step saw, each call has a Writer of its own, and the writer
holds a reference to what it reads.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from kafkabuf.wire._wire cimport put_varint

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) noexcept
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

cdef enum:
    # The most bytes that a value takes before `write` asks for room again: a branch, and a varint or 16 bytes.
    ROOM = 32
    # Values nest no deeper: a recursive type, or an object that contains itself.
    MAX_NESTING = 256


cdef enum Kind:
    KIND_NULL
    KIND_BOOLEAN
    KIND_LONG               # int too, with its limits
    KIND_FLOAT
    KIND_DOUBLE
    KIND_STRING
    KIND_BYTES
    KIND_FIXED
    KIND_ENUM
    KIND_DECIMAL            # bytes; with `size` >= 0 fixed
    KIND_UUID               # a string
    KIND_UUID_FIXED
    KIND_DATE
    KIND_TIME
    KIND_TIMESTAMP
    KIND_LOCAL_TIMESTAMP
    KIND_DURATION
    KIND_ARRAY
    KIND_MAP
    KIND_RECORD
    KIND_OPTIONAL           # a union of null and another type
    KIND_UNION
    # Protobuf's fields. KIND_LONG is a varint of the zigzag there, KIND_RECORD a message without its tag.
    KIND_VARINT
    KIND_FIXED32
    KIND_FIXED64
    KIND_MESSAGE
    KIND_GROUP


cdef struct Part:
    # See object_parts.py. The objects belong to the Python parts, which the encoder keeps.
    Kind kind
    Part** parts
    int64_t count
    int64_t number          # of the part
    PyObject* names         # tuple of str
    PyObject* defaults      # tuple of bytes and str
    PyObject* symbols       # dict of str to int
    int64_t low, high
    int64_t unit
    int64_t size
    int64_t precision, scale
    uint8_t null_branch, value_branch
    PyObject* alias         # str or None
    PyObject* numbers       # frozenset of int, or None
    int64_t oneof
    uint64_t tag
    uint8_t tag_size
    bint presence, required, is_unsigned, packed
    int special


cdef struct Frame:
    # Where the writer is in a record, array or map, for errors.
    const Part* part
    int64_t index           # of the field or item
    PyObject* key           # of the map's value; the writer's caller holds it


cdef struct Writer:
    uint8_t* base
    uint8_t* p
    uint8_t* end
    int64_t items           # how many more items of arrays and maps are allowed
    int attempts            # how many more branches may fail
    int depth
    int messages            # how many messages of Protobuf are around the value
    bint refused            # the error is ours: another branch may take the value
    Frame[MAX_NESTING] frames


cdef class ObjectWriter:
    """Encodes objects by one schema. Immutable but for its caches."""

    cdef Part* parts        # `count` of them, the root first
    cdef Part** links       # the arrays of Part.parts
    cdef int64_t count
    cdef tuple sources      # the parts as Python has them
    cdef str name           # of the root, for errors: "value" or "key"
    cdef str format         # for errors: "Avro" or "Protobuf"
    cdef str null_advice    # for errors: what else than a value may take the place of None
    cdef bint refuses_extra
    cdef Writer* idle       # a Writer that no call uses
    cdef dict kinds         # class -> its kind
    cdef dict checked       # (part, class) -> whether the class has no field but the record's

    cdef object encoded(self, object value, bytes prefix)
    cdef int write(self, Writer* w, const Part* part, object value) except -1
    cdef Writer* take(self) except NULL
    cdef void give(self, Writer* w) noexcept
    cdef int room(self, Writer* w, int64_t size) except -1
    cdef str target(self, const Part* part)
    cdef str path(self, Writer* w)
    cdef int refuse(self, Writer* w, str text) except -1
    cdef int refuse_type(self, Writer* w, const Part* part, object value) except -1
    cdef int refuse_value(self, Writer* w, const Part* part, object value, str why) except -1
    cdef int refuse_text(self, Writer* w, const Part* part, object value) except -1
    cdef int refuse_changed(self, Writer* w) except -1
    cdef int refuse_extra(self, Writer* w, const Part* part, object names) except -1
    cdef int kind_of(self, object cls) except -1
    cdef int check_extra(self, Writer* w, const Part* part, object value, int64_t fields, object known) except -1
    cdef int check_class(self, Writer* w, const Part* part, object cls, object known) except -1
    cdef int64_t count_items(self, Writer* w, object value) except -1
    cdef int write_items(self, Writer* w, const Part* part, object value, int64_t count) except -1


cdef class ObjectSerializer:
    """Calls the encoder with a prefix."""

    cdef ObjectWriter encoder
    cdef bytes prefix


# What the hottest values need is inlined in each layer.

cdef inline int put_raw(ObjectWriter self, Writer* w, const void* data, int64_t size, bint sized) except -1:
    """`data` stays where it is: no Python runs here."""
    if w.end - w.p < size + ROOM:
        self.room(w, size + ROOM)
    if sized:
        w.p = put_varint(w.p, size)
    if size > 0:
        memcpy(w.p, data, <size_t>size)
    w.p += size
    return 0


cdef inline int put_text(ObjectWriter self, Writer* w, const Part* part, object value) except -1:
    cdef Py_ssize_t size = 0
    cdef const char* text = PyUnicode_AsUTF8AndSize(value, &size)
    if text == NULL:
        return self.refuse_text(w, part, value)
    return put_raw(self, w, text, size, True)


cdef inline int put_long(ObjectWriter self, Writer* w, const Part* part, object value) except -1:
    cdef int overflow = 0
    cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow != 0 or number < part.low or number > part.high:
        return self.refuse_value(w, part, value, "is out of the range of")
    w.p = put_varint(w.p, number)
    return 0


cdef inline void put_double(Writer* w, double real) noexcept:
    memcpy(w.p, &real, 8)
    w.p += 8
