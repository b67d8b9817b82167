# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The base of the writers of Python objects: see _object_writer.pxd."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Check, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.list cimport PyList_Check, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.math cimport isnan
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from kafkabuf.cpython._sealed cimport seal

import datetime as _datetime
import itertools
from decimal import Decimal

from kafkabuf.errors import SerializationError
from kafkabuf.formats.rows.object_classes import class_kind, declared_names

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) noexcept
    bint PyErr_ExceptionMatches(object error) noexcept
    void PyErr_Clear() noexcept

cdef extern from *:
    """
    /* Two threads never get the same Writer, with or without the GIL. */
    static inline void *kb_exchange(void **place, void *value) {
        return __atomic_exchange_n(place, value, __ATOMIC_ACQ_REL);
    }
    """
    void* kb_exchange(void** place, void* value) noexcept

cdef bint is_missing(object value) except -1:
    """Whether pandas writes the value for a missing one: NaN, NA and NaT. It runs no code of the value's class."""
    if isinstance(value, float):
        return isnan(PyFloat_AS_DOUBLE(value))
    return type(value).__name__ in ("NAType", "NaTType")


cdef enum:
    CACHED_CLASSES = 256
    FIRST_ROOM = 512
    # A larger Writer is not kept after its call.
    KEPT_ROOM = 1 << 16
    ATTEMPTS = 1000
    SHOWN = 60

cdef int64_t LIMIT = 0x7FFFFFFF  # sizes of values are int32 on the wire

cdef frozenset SHOWN_TYPES = frozenset(
    {int, float, str, bytes, bool, Decimal, _datetime.date, _datetime.datetime, _datetime.time, _datetime.timedelta})
cdef dict KINDS = {
    "null": KIND_NULL, "boolean": KIND_BOOLEAN, "long": KIND_LONG, "float": KIND_FLOAT, "double": KIND_DOUBLE,
    "string": KIND_STRING, "bytes": KIND_BYTES, "fixed": KIND_FIXED, "enum": KIND_ENUM, "decimal": KIND_DECIMAL,
    "uuid": KIND_UUID, "uuid_fixed": KIND_UUID_FIXED, "date": KIND_DATE, "time": KIND_TIME,
    "timestamp": KIND_TIMESTAMP, "local_timestamp": KIND_LOCAL_TIMESTAMP, "duration": KIND_DURATION,
    "array": KIND_ARRAY, "map": KIND_MAP, "record": KIND_RECORD, "optional": KIND_OPTIONAL, "union": KIND_UNION,
    "varint": KIND_VARINT, "fixed32": KIND_FIXED32, "fixed64": KIND_FIXED64, "message": KIND_MESSAGE,
    "group": KIND_GROUP,
}


# No clear: the garbage collector must not take the parts from an encoder that a finalizer may still call.
@cython.no_gc_clear
cdef class ObjectWriter:
    """What all values need: the parts, a Writer for each call, and errors."""

    def __cinit__(self, str format not None, tuple sources not None, bint refuses_extra, str name not None):
        cdef int64_t i, links = 0
        self.format = format
        self.null_advice = "make the type a union with null, or " if format == "Avro" else ""
        self.sources = sources
        self.refuses_extra = refuses_extra
        self.name = name
        self.kinds = {}
        self.checked = {}
        self.count = len(sources)
        self.parts = <Part*>calloc(<size_t>self.count, sizeof(Part))
        for source in sources:
            links += len(source.parts)
        self.links = <Part**>calloc(<size_t>max(links, 1), sizeof(Part*))
        if self.parts == NULL or self.links == NULL:
            raise MemoryError()
        links = 0
        for i in range(self.count):
            load(&self.parts[i], sources[i], i)
            self.parts[i].parts = self.links + links
            for number in sources[i].parts:
                self.links[links] = &self.parts[<int64_t>number]
                links += 1

    def __dealloc__(self):
        drop(self.idle)
        free(self.parts)
        free(self.links)

    def encode(self, value, bytes prefix not None=b""):
        """The object as bytes after `prefix`; None for None. Raises SerializationError."""
        return self.encoded(value, prefix)

    cdef object encoded(self, object value, bytes prefix):
        cdef Writer* w
        if value is None:
            return None
        w = self.take()
        try:
            self.room(w, PyBytes_GET_SIZE(prefix) + ROOM)
            memcpy(w.p, PyBytes_AS_STRING(prefix), <size_t>PyBytes_GET_SIZE(prefix))
            w.p += PyBytes_GET_SIZE(prefix)
            self.write(w, self.parts, value)
            return PyBytes_FromStringAndSize(<const char*>w.base, w.p - w.base)
        except (SerializationError, MemoryError):
            raise
        except Exception as error:
            raise SerializationError(f"{self.path(w)} cannot be read: {type(error).__name__}{words(error)}") from error
        finally:
            self.give(w)

    cdef int write(self, Writer* w, const Part* part, object value) except -1:
        raise NotImplementedError

    # ---- the Writer of a call ----------------------------------------------------------------------------------------

    cdef Writer* take(self) except NULL:
        """A Writer for one call. An object that is read may encode another object: that call takes another Writer."""
        cdef Writer* w = <Writer*>kb_exchange(<void**>&self.idle, NULL)
        if w == NULL:
            w = <Writer*>malloc(sizeof(Writer))
            if w == NULL:
                raise MemoryError()
            w.base = <uint8_t*>malloc(FIRST_ROOM)
            if w.base == NULL:
                free(w)
                raise MemoryError()
            w.end = w.base + FIRST_ROOM
        w.p = w.base
        w.items = LIMIT
        w.attempts = ATTEMPTS
        w.depth = w.messages = 0
        w.refused = False
        return w

    cdef void give(self, Writer* w) noexcept:
        if w.end - w.base > KEPT_ROOM:
            drop(w)
        else:
            drop(<Writer*>kb_exchange(<void**>&self.idle, w))

    cdef int room(self, Writer* w, int64_t size) except -1:
        cdef int64_t used = w.p - w.base, capacity = w.end - w.base
        cdef uint8_t* grown
        if size <= capacity - used:
            return 0
        if size > LIMIT - used:
            return self.refuse(w, f"needs more than {LIMIT} bytes")
        capacity = max(2 * capacity, used + size)
        grown = <uint8_t*>realloc(w.base, <size_t>capacity)
        if grown == NULL:
            raise MemoryError()
        w.base = grown
        w.p = grown + used
        w.end = grown + capacity
        return 0

    # ---- errors ------------------------------------------------------------------------------------------------------

    cdef str target(self, const Part* part):
        return f"{self.format}'s {self.sources[part.number].target}"

    cdef str path(self, Writer* w):
        """Where the writer is: `value.lines[3].price`."""
        cdef list texts = [self.name]
        cdef Frame* frame
        cdef int i
        for i in range(w.depth):
            frame = &w.frames[i]
            if frame.index < 0:
                continue
            if frame.part.kind == KIND_RECORD:
                texts.append(f".{(<tuple>frame.part.names)[frame.index]}")
            elif frame.part.kind == KIND_ARRAY:
                texts.append(f"[{frame.index}]")
            else:
                texts.append("{}" if frame.key == NULL else f"[{shown(<object>frame.key)}]")
        text = "".join(texts)
        return text if len(text) <= 300 else f"{text[:100]}...{text[len(text) - 100:]}"

    cdef int refuse(self, Writer* w, str text) except -1:
        w.refused = True
        raise SerializationError(f"{self.path(w)} {text}")

    cdef int refuse_type(self, Writer* w, const Part* part, object value) except -1:
        if value is None:
            return self.refuse(w, f"is None, and {self.target(part)} has no null: {self.null_advice}give a value")
        missing = ": give None for a missing value" if is_missing(value) else ""
        return self.refuse(w, f"of type {type(value).__name__} does not fit {self.target(part)}{missing}")

    cdef int refuse_value(self, Writer* w, const Part* part, object value, str why) except -1:
        has = f"has the value {shown(value)}, which" if type(value) in SHOWN_TYPES else "has a value that"
        return self.refuse(w, f"of type {type(value).__name__} {has} {why} {self.target(part)}")

    cdef int refuse_text(self, Writer* w, const Part* part, object value) except -1:
        """PyUnicode_AsUTF8AndSize has failed."""
        if not PyErr_ExceptionMatches(UnicodeError):
            raise MemoryError()
        PyErr_Clear()
        return self.refuse_value(w, part, value, "has no UTF-8 encoding for")

    cdef int refuse_changed(self, Writer* w) except -1:
        w.frames[w.depth - 1].index = -1
        return self.refuse(w, "was changed while it was read")

    cdef int refuse_extra(self, Writer* w, const Part* part, object names) except -1:
        w.frames[w.depth - 1].index = -1
        cdef list shown_names = []
        for name in names:
            shown_names.append(shown(name))
        listed = ", ".join(shown_names)
        return self.refuse(w, f"has {listed}, for which {self.target(part)} has no field: leave it out, add a field, "
                              f'or give {self.format}(..., extra_columns="ignore")')

    # ---- classes and items -------------------------------------------------------------------------------------------

    cdef int kind_of(self, object cls) except -1:
        """class_kind(), remembered. A class does not change its kind."""
        kind = self.kinds.get(cls)
        if kind is None:
            kind = class_kind(cls)
            if len(self.kinds) >= CACHED_CLASSES:
                self.kinds.clear()
            self.kinds[cls] = kind
        return kind

    cdef int check_extra(self, Writer* w, const Part* part, object value, int64_t fields, object known) except -1:
        """`fields` keys of a mapping are fields of the record. Refuse its other keys. A mapping may have no end."""
        names = itertools.islice(value, fields + 10)
        extra = [name for name in names if name not in known]
        return self.refuse_extra(w, part, extra[:10]) if extra else 0

    cdef int check_class(self, Writer* w, const Part* part, object cls, object known) except -1:
        """A class that declares its fields has no field that the record lacks."""
        cdef object key = (part.number, cls)
        cdef list extra
        if key in self.checked:
            return 0
        extra = sorted((declared_names(cls) or frozenset()).difference(known))
        if extra:
            return self.refuse_extra(w, part, extra[:10])
        if len(self.checked) >= CACHED_CLASSES:
            self.checked.clear()
        self.checked[key] = True
        return 0

    cdef int64_t count_items(self, Writer* w, object value) except -1:
        """Items may be without bytes, so that their number is limited, too."""
        cdef int64_t count
        if PyList_Check(value):
            count = PyList_GET_SIZE(value)
        elif PyTuple_Check(value):
            count = PyTuple_GET_SIZE(value)
        elif PyDict_Check(value):
            count = PyDict_Size(value)
        else:
            count = len(value)
        if count > w.items:
            self.refuse(w, f"of type {type(value).__name__} has {count} items, which are too many")
        w.items -= count
        return count

    cdef int write_items(self, Writer* w, const Part* part, object value, int64_t count) except -1:
        """Write each item of a sequence, which has had `count` items so far, by the first part of `part`."""
        cdef Frame* frame = &w.frames[w.depth - 1]
        cdef int64_t i = 0
        cdef object held
        if PyList_Check(value):
            while i < count and i < PyList_GET_SIZE(value):
                held = <object>PyList_GET_ITEM(value, i)
                frame.index = i
                self.write(w, part.parts[0], held)
                i += 1
            if PyList_GET_SIZE(value) != count:
                return self.refuse_changed(w)
            return 0
        if PyTuple_Check(value):
            for i in range(count):
                frame.index = i
                self.write(w, part.parts[0], <object>PyTuple_GET_ITEM(value, i))
            return 0
        for held in value:
            if i == count:
                return self.refuse_changed(w)
            frame.index = i
            self.write(w, part.parts[0], held)
            i += 1
        return 0 if i == count else self.refuse_changed(w)


@cython.final
cdef class ObjectSerializer:
    """A callable that encodes its argument. None stays None, which is Kafka's null."""

    def __call__(self, data):
        return self.encoder.encoded(data, self.prefix)


def object_serializer(ObjectWriter encoder not None, bytes prefix not None):
    """What a producer calls for each value, or for each key."""
    cdef ObjectSerializer serializer = ObjectSerializer.__new__(ObjectSerializer)
    serializer.encoder = encoder
    serializer.prefix = prefix
    return serializer


seal(ObjectWriter)
seal(ObjectSerializer)


cdef int load(Part* part, object source, int64_t number) except -1:
    part.kind = <Kind><int>KINDS[source.kind]
    part.number = number
    part.count = len(source.parts)
    part.names = <PyObject*>source.names
    part.defaults = <PyObject*>source.defaults
    part.symbols = <PyObject*>source.symbols
    part.low = source.low
    part.high = source.high
    part.unit = source.unit
    part.size = source.size
    part.precision = source.precision
    part.scale = source.scale
    part.null_branch = source.null_branch
    part.value_branch = source.value_branch
    part.alias = <PyObject*>source.alias
    part.numbers = <PyObject*>source.numbers
    part.oneof = source.oneof
    part.tag = int.from_bytes(source.tag, "little")
    part.tag_size = len(source.tag)
    part.presence = source.presence
    part.required = source.required
    part.is_unsigned = source.is_unsigned
    part.packed = source.packed
    part.special = source.special
    return 0


cdef void drop(Writer* w) noexcept:
    if w != NULL:
        free(w.base)
        free(w)


cdef str shown(object value):
    """A value as text, for an error: the beginning of it, and no code of the user's classes."""
    if type(value) not in SHOWN_TYPES:
        return f"an object of type {type(value).__name__}"
    try:
        text = repr(value)
    except ValueError:  # an int of more than sys.get_int_max_str_digits()
        text = "of too many digits to show"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


cdef str words(object error):
    cdef str text = ""
    try:
        text = f": {error}"
    except Exception:
        pass
    return text
