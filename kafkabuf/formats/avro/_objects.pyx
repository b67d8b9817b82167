# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Avro's writer of Python objects: records, arrays, maps. _objects.pxd has the contract."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Check, PyDict_Next, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_Check
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_CheckExact, PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_Check, PyUnicode_CheckExact
from libc.stdint cimport int64_t

from kafkabuf.cpython._sealed cimport seal
from kafkabuf.wire._wire cimport put_varint
from kafkabuf.formats.rows._object_leaves cimport plain_value
from kafkabuf.formats.avro._object_unions cimport AvroObjectUnions
from kafkabuf.formats.rows._object_writer cimport (
    KIND_ARRAY, KIND_DOUBLE, KIND_LONG, KIND_MAP, KIND_OPTIONAL, KIND_RECORD, KIND_STRING, KIND_UNION, MAX_NESTING,
    ROOM, Frame, Part, Writer, put_double, put_long, put_raw, put_text,
)

from kafkabuf.formats.avro.objects import compile_objects
from kafkabuf.formats.avro.schema import parse
from kafkabuf.formats.rows.object_classes import ATTRIBUTES, MAPPING, SEQUENCE

cdef extern from "Python.h":
    PyObject* PyDict_GetItemWithError(object p, object key) except? NULL
    int Py_EnterRecursiveCall(const char* where) except -1
    void Py_LeaveRecursiveCall() noexcept

cdef str HINT = "-type"
cdef int IS_MAPPING = MAPPING, IS_SEQUENCE = SEQUENCE, IS_ATTRIBUTES = ATTRIBUTES


def object_encoder(str schema not None, str extra_columns not None, str name not None):
    """The encoder of a schema's JSON text. `name` begins the paths in errors."""
    return ObjectEncoder.__new__(ObjectEncoder, "Avro", compile_objects(parse(schema)), extra_columns == "error", name)


# No clear: the garbage collector must not take the parts from an encoder that a finalizer may still call.
@cython.final
@cython.no_gc_clear
cdef class ObjectEncoder(AvroObjectUnions):
    """Encodes Python objects as Avro."""

    cdef int write(self, Writer* w, const Part* part, object value) except -1:
        if w.end - w.p < ROOM:
            self.room(w, ROOM)
        if part.kind == KIND_OPTIONAL and not PyTuple_CheckExact(value):
            if value is None:
                w.p[0] = part.null_branch
                w.p += 1
                return 0
            w.p[0] = part.value_branch
            w.p += 1
            part = part.parts[part.value_branch >> 1]
        if part.kind == KIND_LONG and PyLong_CheckExact(value):
            return put_long(self, w, part, value)
        if part.kind == KIND_STRING and PyUnicode_CheckExact(value):
            return put_text(self, w, part, value)
        if part.kind == KIND_DOUBLE and PyFloat_CheckExact(value):
            put_double(w, PyFloat_AS_DOUBLE(value))
            return 0
        return self.write_other(w, part, value)

    cdef int write_other(self, Writer* w, const Part* part, object value) except -1:
        if part.kind == KIND_RECORD or part.kind == KIND_ARRAY or part.kind == KIND_MAP:
            return self.write_nested(w, part, value)
        if part.kind == KIND_OPTIONAL or part.kind == KIND_UNION:
            return self.write_union(w, part, value)
        if self.write_leaf(w, part, value):
            return 0
        plain = plain_value(value)
        if plain is not value and self.write_leaf(w, part, plain):
            return 0
        return self.refuse_type(w, part, value)

    # ---- records -----------------------------------------------------------------------------------------------------

    cdef int write_nested(self, Writer* w, const Part* part, object value) except -1:
        cdef Frame* frame
        if w.depth == MAX_NESTING:
            return self.refuse(w, f"is nested deeper than {MAX_NESTING} levels")
        # Python counts the levels too: an object's code may encode another object, and so on.
        Py_EnterRecursiveCall(b" while an object is encoded")
        frame = &w.frames[w.depth]
        frame.part = part
        frame.index = -1
        frame.key = NULL
        w.depth += 1
        try:
            self.write_parts(w, part, value)
        finally:
            Py_LeaveRecursiveCall()
        w.depth -= 1
        return 0

    cdef int write_parts(self, Writer* w, const Part* part, object value) except -1:
        cdef int kind
        if PyDict_Check(value):
            if part.kind == KIND_RECORD:
                return self.write_dict_record(w, part, <dict>value)
            if part.kind == KIND_MAP:
                return self.write_dict_map(w, part, <dict>value)
            return self.refuse_type(w, part, value)
        if part.kind == KIND_ARRAY and (PyList_Check(value) or PyTuple_Check(value)):
            return self.write_sequence(w, part, value)
        kind = self.kind_of(type(value))
        if part.kind == KIND_RECORD and kind == IS_ATTRIBUTES:
            return self.write_attributes(w, part, value)
        if part.kind == KIND_RECORD and kind == IS_MAPPING:
            return self.write_mapping_record(w, part, value)
        if part.kind == KIND_MAP and kind == IS_MAPPING:
            return self.write_mapping(w, part, value)
        if part.kind == KIND_ARRAY and kind == IS_SEQUENCE:
            return self.write_sequence(w, part, value)
        return self.refuse_type(w, part, value)

    cdef int write_dict_record(self, Writer* w, const Part* part, dict value) except -1:
        cdef Frame* frame = &w.frames[w.depth - 1]
        cdef PyObject* item
        cdef object held
        cdef int64_t i, fields = 0
        for i in range(part.count):
            frame.index = i
            item = PyDict_GetItemWithError(value, <object>PyTuple_GET_ITEM(<object>part.names, i))
            if item == NULL:
                self.write_default(w, part, i)
                continue
            held = <object>item  # the value's own code may take it out of the dict
            fields += 1
            self.write(w, part.parts[i], held)
        if self.refuses_extra and PyDict_Size(value) != fields:
            return self.check_extra(w, part, value, fields, (HINT, *<tuple>part.names))
        return 0

    cdef int write_mapping_record(self, Writer* w, const Part* part, object value) except -1:
        cdef Frame* frame = &w.frames[w.depth - 1]
        cdef int64_t i, fields = 0
        for i in range(part.count):
            frame.index = i
            try:
                item = value[(<tuple>part.names)[i]]
            except KeyError:
                self.write_default(w, part, i)
            else:
                fields += 1
                self.write(w, part.parts[i], item)
        if self.refuses_extra and len(value) != fields:
            return self.check_extra(w, part, value, fields, (HINT, *<tuple>part.names))
        return 0

    cdef int write_attributes(self, Writer* w, const Part* part, object value) except -1:
        cdef Frame* frame = &w.frames[w.depth - 1]
        cdef int64_t i, fields = 0
        if self.refuses_extra:
            self.check_class(w, part, type(value), <tuple>part.names)
        for i in range(part.count):
            frame.index = i
            try:
                item = getattr(value, <str>PyTuple_GET_ITEM(<object>part.names, i))
            except AttributeError:
                self.write_default(w, part, i)
            else:
                fields += 1
                self.write(w, part.parts[i], item)
        if fields == 0 and part.count > 0:
            frame.index = -1
            return self.refuse_type(w, part, value)
        return 0

    cdef int write_default(self, Writer* w, const Part* part, int64_t field) except -1:
        default = (<tuple>part.defaults)[field]
        if type(default) is not bytes:
            return self.refuse(w, f"is missing, and {default}: give a value")
        return put_raw(self, w, PyBytes_AS_STRING(default), PyBytes_GET_SIZE(default), False)

    # ---- arrays and maps ---------------------------------------------------------------------------------------------

    cdef int64_t begin_items(self, Writer* w, object value) except -1:
        cdef int64_t count = self.count_items(w, value)
        if w.end - w.p < ROOM:
            self.room(w, ROOM)
        if count > 0:
            w.p = put_varint(w.p, count)
        return count

    cdef int write_sequence(self, Writer* w, const Part* part, object value) except -1:
        self.write_items(w, part, value, self.begin_items(w, value))
        return put_raw(self, w, b"\0", 1, False)

    cdef int write_dict_map(self, Writer* w, const Part* part, dict value) except -1:
        cdef Py_ssize_t position = 0
        cdef int64_t count, seen = 0
        cdef PyObject* key = NULL
        cdef PyObject* item = NULL
        cdef object held_key, held
        count = self.begin_items(w, value)
        while PyDict_Next(value, &position, &key, &item):
            held_key = <object>key
            held = <object>item
            if seen == count or PyDict_Size(value) != count:
                return self.refuse_changed(w)
            seen += 1
            self.write_pair(w, part, held_key, held)
        if seen != count or PyDict_Size(value) != count:
            return self.refuse_changed(w)
        return put_raw(self, w, b"\0", 1, False)

    cdef int write_mapping(self, Writer* w, const Part* part, object value) except -1:
        cdef int64_t count = self.begin_items(w, value), seen = 0
        for key in value:
            if seen == count:
                return self.refuse_changed(w)
            seen += 1
            self.write_pair(w, part, key, value[key])
        if seen != count:
            return self.refuse_changed(w)
        return put_raw(self, w, b"\0", 1, False)

    cdef int write_pair(self, Writer* w, const Part* part, object key, object value) except -1:
        cdef Frame* frame = &w.frames[w.depth - 1]
        if not PyUnicode_Check(key):
            return self.refuse(w, f"has a key of type {type(key).__name__}, and the keys of {self.target(part)} are "
                                  f"text")
        frame.index = 0
        frame.key = <PyObject*>key
        try:
            put_text(self, w, part, key)
            self.write(w, part.parts[0], value)
        finally:
            frame.key = NULL
        frame.index = -1
        return 0


seal(ObjectEncoder)
