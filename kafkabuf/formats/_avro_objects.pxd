# cython: language_level=3
"""Avro's binary encoding of Python objects; the layout is that of _avro.pxd. avro_objects.py makes the parts.

Any object may run Python when it is read: the code may change the list or dict that is read, encode another object, or
close the producer. So no step relies on what an earlier step saw, each call has a Writer of its own, and the writer
holds a reference to what it reads.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t

cdef enum:
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


cdef struct Part:
    # See avro_objects.py. The objects belong to the Python parts, which the encoder keeps.
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
    bint refused            # the error is ours: another branch may take the value
    Frame[MAX_NESTING] frames


cdef class ObjectEncoder:
    """Encodes objects by one schema. Immutable but for its caches."""

    cdef Part* parts        # `count` of them, the root first
    cdef Part** links       # the arrays of Part.parts
    cdef int64_t count
    cdef tuple sources      # the parts as Python has them
    cdef str name           # of the root, for errors: "value" or "key"
    cdef bint refuses_extra
    cdef dict kinds         # class -> class_kind
    cdef dict checked       # (part, class) -> whether the class has no field but the record's
    cdef Writer* idle       # a scratch that no call uses

    cdef object encoded(self, object value, bytes prefix)
    cdef Writer* take(self) except NULL
    cdef void give(self, Writer* w) noexcept
    cdef str target(self, const Part* part)
    cdef str path(self, Writer* w)
    cdef int refuse(self, Writer* w, str text) except -1
    cdef int refuse_type(self, Writer* w, const Part* part, object value) except -1
    cdef int refuse_value(self, Writer* w, const Part* part, object value, str why) except -1
    cdef int room(self, Writer* w, int64_t size) except -1
    cdef int write(self, Writer* w, const Part* part, object value) except -1
    cdef int write_other(self, Writer* w, const Part* part, object value) except -1
    cdef int write_leaf(self, Writer* w, const Part* part, object value) except -1
    cdef int write_rare(self, Writer* w, const Part* part, object value) except -1
    cdef int write_long(self, Writer* w, const Part* part, object value) except -1
    cdef int write_whole(self, Writer* w, const Part* part, object value) except -1
    cdef int write_real(self, Writer* w, const Part* part, object value, double real) except -1
    cdef int write_whole_real(self, Writer* w, const Part* part, object value) except -1
    cdef int write_raw(self, Writer* w, const void* data, int64_t size, bint sized) except -1
    cdef int write_text(self, Writer* w, const Part* part, object value) except -1
    cdef int write_bytes(self, Writer* w, const Part* part, object value) except -1
    cdef int write_enum(self, Writer* w, const Part* part, object value) except -1
    cdef int write_date(self, Writer* w, const Part* part, object value) except -1
    cdef int write_time(self, Writer* w, const Part* part, object value) except -1
    cdef int write_duration(self, Writer* w, const Part* part, object value) except -1
    cdef int write_uuid(self, Writer* w, const Part* part, object value) except -1
    cdef int write_decimal(self, Writer* w, const Part* part, object value) except -1
    cdef int write_timestamp(self, Writer* w, const Part* part, object value) except -1
    cdef int write_nested(self, Writer* w, const Part* part, object value) except -1
    cdef int write_parts(self, Writer* w, const Part* part, object value) except -1
    cdef int write_dict_record(self, Writer* w, const Part* part, dict value) except -1
    cdef int write_mapping_record(self, Writer* w, const Part* part, object value) except -1
    cdef int write_attributes(self, Writer* w, const Part* part, object value) except -1
    cdef int write_default(self, Writer* w, const Part* part, int64_t field) except -1
    cdef int refuse_extra(self, Writer* w, const Part* part, object names) except -1
    cdef int begin_items(self, Writer* w, const Part* part, object value, int64_t count) except -1
    cdef int write_sequence(self, Writer* w, const Part* part, object value) except -1
    cdef int write_dict_map(self, Writer* w, const Part* part, dict value) except -1
    cdef int write_mapping(self, Writer* w, const Part* part, object value) except -1
    cdef int write_pair(self, Writer* w, const Part* part, object key, object value) except -1
    cdef int refuse_changed(self, Writer* w) except -1
    cdef int write_branch(self, Writer* w, const Part* part, int64_t branch, object value) except -1
    cdef int write_union(self, Writer* w, const Part* part, object value) except -1
    cdef int write_scored(self, Writer* w, const Part* part, object value, int64_t* scores, int64_t fits) except -1
    cdef int64_t score_branches(self, const Part* part, object value, int64_t* scores) except -1
    cdef int64_t hinted(self, const Part* part, object value) except -2
    cdef int64_t score(self, const Part* part, object value) except -2
    cdef int64_t score_record(self, const Part* part, object value) except -2
    cdef int kind_of(self, object cls) except -1
    cdef int check_class(self, Writer* w, const Part* part, object cls) except -1


cdef class ObjectSerializer:
    """Calls the encoder with a prefix."""

    cdef ObjectEncoder encoder
    cdef bytes prefix
