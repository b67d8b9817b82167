# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Chooses the branch of an Avro union for a Python object, by the rules of _object_unions.pxd."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_Check
from cpython.datetime cimport (
    PyDateTime_Check, PyDate_Check, PyDelta_Check, PyTime_Check, datetime_tzinfo, import_datetime,
)
from cpython.dict cimport PyDict_Check, PyDict_CheckExact
from cpython.float cimport PyFloat_Check
from cpython.list cimport PyList_Check
from cpython.long cimport PyLong_Check
from cpython.memoryview cimport PyMemoryView_Check
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_Check, PyUnicode_CheckExact
from libc.stdint cimport INT64_MAX, int64_t

from kafkabuf.cpython._sealed cimport seal
from kafkabuf.wire._wire cimport put_varint
from kafkabuf.formats.rows._object_leaves cimport ObjectLeaves, plain_value, symbol_of
from kafkabuf.formats.rows._object_writer cimport (
    KIND_ARRAY, KIND_BOOLEAN, KIND_BYTES, KIND_DATE, KIND_DECIMAL, KIND_DOUBLE, KIND_DURATION, KIND_ENUM, KIND_FIXED,
    KIND_FLOAT, KIND_LOCAL_TIMESTAMP, KIND_LONG, KIND_MAP, KIND_NULL, KIND_RECORD, KIND_STRING, KIND_TIME, KIND_UUID,
    KIND_UUID_FIXED, ROOM, Kind, Part, Writer,
)

from decimal import Decimal
from uuid import UUID

from kafkabuf.errors import SerializationError
from kafkabuf.formats.rows.object_classes import ATTRIBUTES, MAPPING, SEQUENCE

cdef extern from "Python.h":
    PyObject* PyDict_GetItemWithError(object p, object key) except? NULL
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    bint PyBool_Check(object value) noexcept

import_datetime()

cdef enum:
    FEW_BRANCHES = 64       # their scores lie on the stack

cdef int64_t UNFIT = INT64_MAX
cdef int64_t RANK = <int64_t>1 << 32
cdef str HINT = "-type"
cdef int IS_MAPPING = MAPPING, IS_SEQUENCE = SEQUENCE, IS_ATTRIBUTES = ATTRIBUTES


# No clear: the garbage collector must not take the parts from an encoder that a finalizer may still call.
@cython.no_gc_clear
cdef class AvroObjectUnions(ObjectLeaves):
    """Chooses the branch of a union by the value's type, and by its names."""

    cdef int write_branch(self, Writer* w, const Part* part, int64_t branch, object value) except -1:
        if w.end - w.p < ROOM:
            self.room(w, ROOM)
        w.p = put_varint(w.p, branch)
        return self.write(w, part.parts[branch], value)

    cdef int write_union(self, Writer* w, const Part* part, object value) except -1:
        cdef int64_t[FEW_BRANCHES] few
        cdef int64_t* scores = few
        cdef bytes many  # it keeps `scores` alive
        cdef int64_t fits, branch = self.hinted(part, value)
        if branch >= 0:
            return self.write_branch(w, part, branch, value[1] if PyTuple_CheckExact(value) else value)
        if part.count > FEW_BRANCHES:
            many = PyBytes_FromStringAndSize(NULL, part.count * <int64_t>sizeof(int64_t))
            scores = <int64_t*>PyBytes_AS_STRING(many)
        fits = self.score_branches(part, value, scores)
        if fits == 0:
            plain = plain_value(value)
            if plain is not value:
                value = plain
                fits = self.score_branches(part, value, scores)
        return self.write_scored(w, part, value, scores, fits)

    cdef int write_scored(self, Writer* w, const Part* part, object value, int64_t* scores, int64_t fits) except -1:
        """Try the branches, the best first: a branch may fit at first sight, and not in its depth."""
        cdef int64_t used = w.p - w.base, items = w.items, branch, i
        cdef int depth = w.depth
        cdef str first = ""
        for _ in range(fits):
            branch = 0
            for i in range(1, part.count):
                if scores[i] < scores[branch]:
                    branch = i
            if fits == 1:
                return self.write_branch(w, part, branch, value)
            scores[branch] = UNFIT
            try:
                return self.write_branch(w, part, branch, value)
            except SerializationError as error:
                if not w.refused or w.attempts == 0:
                    raise
                w.attempts -= 1
                w.refused = False
                w.p = w.base + used
                w.items = items
                w.depth = depth
                first = first or f" (of its best branch: {error})"
        if fits == 0:
            return self.refuse_type(w, part, value)
        return self.refuse(w, f"of type {type(value).__name__} fits no branch of {self.target(part)}{first}")

    cdef int64_t score_branches(self, const Part* part, object value, int64_t* scores) except -1:
        """How many branches fit at first sight. A lower score is better; of equal scores the first is taken."""
        cdef int64_t i, rank, fits = 0
        for i in range(part.count):
            rank = self.score(part.parts[i], value)
            scores[i] = UNFIT if rank < 0 else rank
            fits += rank >= 0
        return fits

    cdef int64_t hinted(self, const Part* part, object value) except -2:
        """The branch that a pair ("name", value), or a dict's entry "-type", names; -1: none."""
        cdef object name = None
        cdef PyObject* entry
        if PyTuple_CheckExact(value):
            if PyTuple_GET_SIZE(value) == 2:
                name = <object>PyTuple_GET_ITEM(value, 0)
        elif PyDict_CheckExact(value):
            entry = PyDict_GetItemWithError(value, HINT)
            if entry != NULL:
                name = <object>entry
        if not PyUnicode_CheckExact(name):
            return -1
        number = (<dict>part.symbols).get(name)
        return -1 if number is None else number

    cdef int64_t score(self, const Part* part, object value) except -2:
        """-1: the value does not fit. Else RANK times 0 for its own type, 1 for a wider one, 2 for another use of it;
        less the fields that it shares with a record."""
        cdef Kind kind = part.kind
        cdef int overflow = 0
        cdef int64_t number
        if kind == KIND_NULL:
            return RANK if value is None else -1
        if kind == KIND_RECORD:
            return self.score_record(part, value)
        if kind == KIND_ARRAY:
            if PyTuple_Check(value) and not PyTuple_CheckExact(value):
                return 3 * RANK if self.kind_of(type(value)) == IS_ATTRIBUTES else RANK
            if PyList_Check(value) or PyTuple_Check(value):
                return RANK
            return RANK if not PyDict_Check(value) and self.kind_of(type(value)) == IS_SEQUENCE else -1
        if kind == KIND_MAP:
            return 2 * RANK if PyDict_Check(value) or self.kind_of(type(value)) == IS_MAPPING else -1
        if kind == KIND_BOOLEAN:
            return RANK if PyBool_Check(value) else -1
        if kind == KIND_STRING:
            return RANK if PyUnicode_Check(value) else -1
        if kind == KIND_ENUM:
            return RANK if symbol_of(part, value) >= 0 else -1
        if PyBool_Check(value):
            return -1
        if kind == KIND_DOUBLE or kind == KIND_FLOAT:
            if PyFloat_Check(value):
                return RANK if kind == KIND_DOUBLE else 2 * RANK
            return (2 if kind == KIND_DOUBLE else 3) * RANK if PyLong_Check(value) else -1
        if PyIndex_Check(value) and (kind == KIND_LONG or KIND_DATE <= kind <= KIND_LOCAL_TIMESTAMP):
            number = PyLong_AsLongLongAndOverflow(PyNumber_Index(value), &overflow)
            if overflow != 0 or number < part.low or number > part.high:
                return -1
            return RANK if kind == KIND_LONG else 2 * RANK
        return -1 if kind == KIND_LONG else score_rare(part, value)

    cdef int64_t score_record(self, const Part* part, object value) except -2:
        cdef int64_t i, shared = 0
        cdef int kind = IS_MAPPING
        cdef bint has
        if not PyDict_Check(value):
            kind = self.kind_of(type(value))
            if kind != IS_MAPPING and kind != IS_ATTRIBUTES:
                return -1
        for i in range(part.count):
            name = (<tuple>part.names)[i]
            if kind == IS_ATTRIBUTES:
                has = hasattr(value, name)
            elif PyDict_Check(value):
                has = PyDict_GetItemWithError(value, name) != NULL
            else:
                has = name in value
            if not has and type((<tuple>part.defaults)[i]) is not bytes:
                return -1
            shared += has
        return RANK - shared


seal(AvroObjectUnions)


cdef int64_t score_rare(const Part* part, object value) except -2:
    cdef Kind kind = part.kind
    if kind == KIND_BYTES or kind == KIND_FIXED or kind == KIND_DURATION and not PyDelta_Check(value):
        if not (PyBytes_Check(value) or PyByteArray_Check(value) or PyMemoryView_Check(value)):
            return -1
        return RANK if part.size < 0 or len(memoryview(value)) == part.size else -1
    if kind == KIND_DURATION:
        return RANK
    if kind == KIND_DECIMAL:
        return RANK if isinstance(value, Decimal) else 3 * RANK if PyLong_Check(value) else -1
    if kind == KIND_UUID:
        return RANK if isinstance(value, UUID) or PyUnicode_Check(value) else -1
    if kind == KIND_UUID_FIXED:
        return RANK if isinstance(value, UUID) or PyBytes_Check(value) and PyBytes_GET_SIZE(value) == 16 else -1
    if kind == KIND_DATE:
        return RANK if PyDate_Check(value) and not PyDateTime_Check(value) else -1
    if kind == KIND_TIME:
        return RANK if PyTime_Check(value) else -1
    if not PyDateTime_Check(value):
        return -1
    return RANK if (kind == KIND_LOCAL_TIMESTAMP) == (datetime_tzinfo(value) is None) else 2 * RANK
