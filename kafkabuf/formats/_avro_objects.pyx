# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Writes Python objects as Avro: see _avro_objects.pxd."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Check, PyByteArray_GET_SIZE
from cpython.datetime cimport (
    PyDate_Check, PyDateTime_Check, PyDateTime_CheckExact, PyDelta_Check, PyTime_Check, date_day, date_month, date_year,
    datetime_day, datetime_hour, datetime_microsecond, datetime_minute, datetime_month, datetime_second,
    datetime_tzinfo, datetime_year, import_datetime, time_hour, time_microsecond, time_minute, time_second, time_tzinfo,
    timedelta_days, timedelta_microseconds, timedelta_seconds,
)
from cpython.dict cimport PyDict_Check, PyDict_CheckExact, PyDict_Next, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check, PyFloat_CheckExact
from cpython.list cimport PyList_Check, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_Check, PyLong_CheckExact
from cpython.memoryview cimport PyMemoryView_Check
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_Check, PyUnicode_CheckExact
from libc.math cimport isinf
from libc.stddef cimport size_t
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from kafkabuf._sealed cimport seal
from kafkabuf._wire cimport put_varint

import datetime as _datetime
import itertools
import sys
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from enum import Enum
from uuid import UUID

from kafkabuf.errors import SerializationError
from kafkabuf.formats.avro_objects import compile_objects
from kafkabuf.formats.avro_schema import parse
from kafkabuf.formats.object_classes import ATTRIBUTES, MAPPING, NEITHER, SEQUENCE, class_kind, declared_names

cdef extern from *:
    """
    /* Two threads never get the same scratch, with or without the GIL. */
    static inline void *kb_exchange(void **place, void *value) {
        return __atomic_exchange_n(place, value, __ATOMIC_ACQ_REL);
    }
    """
    void* kb_exchange(void** place, void* value) noexcept

cdef extern from "Python.h":
    PyObject* PyDict_GetItemWithError(object p, object key) except? NULL
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) noexcept
    object PyUnicode_FromObject(object text)
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    int Py_EnterRecursiveCall(const char* where) except -1
    void Py_LeaveRecursiveCall() noexcept
    bint PyBool_Check(object value) noexcept
    bint PyErr_ExceptionMatches(object error) noexcept
    void PyErr_Clear() noexcept

import_datetime()

cdef enum:
    # The most bytes that a value takes before `write` asks for room again: a branch, and a varint or 16 bytes.
    ROOM = 32
    FIRST_ROOM = 512
    # A larger scratch is not kept after its call.
    KEPT_ROOM = 1 << 16
    MOST_BRANCHES = 64      # avro_schema.MAX_BRANCHES
    ATTEMPTS = 1000
    CACHED_CLASSES = 256
    SHOWN = 60

cdef int64_t LIMIT = 0x7FFFFFFF  # sizes of values are int32 on the wire
cdef int64_t UNFIT = INT64_MAX
cdef int64_t RANK = <int64_t>1 << 32
cdef int64_t EXACT_BOUND = <int64_t>1 << 62

cdef object UTC = _datetime.timezone.utc
# No arithmetic with it rounds.
cdef object EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
cdef frozenset SHOWN_TYPES = frozenset(
    {int, float, str, bytes, bool, Decimal, _datetime.date, _datetime.datetime, _datetime.time, _datetime.timedelta})
cdef str HINT = "-type"
cdef dict KINDS = {
    "null": KIND_NULL, "boolean": KIND_BOOLEAN, "long": KIND_LONG, "float": KIND_FLOAT, "double": KIND_DOUBLE,
    "string": KIND_STRING, "bytes": KIND_BYTES, "fixed": KIND_FIXED, "enum": KIND_ENUM, "decimal": KIND_DECIMAL,
    "uuid": KIND_UUID, "uuid_fixed": KIND_UUID_FIXED, "date": KIND_DATE, "time": KIND_TIME,
    "timestamp": KIND_TIMESTAMP, "local_timestamp": KIND_LOCAL_TIMESTAMP, "duration": KIND_DURATION,
    "array": KIND_ARRAY, "map": KIND_MAP, "record": KIND_RECORD, "optional": KIND_OPTIONAL, "union": KIND_UNION,
}
cdef int IS_NEITHER = NEITHER, IS_MAPPING = MAPPING, IS_SEQUENCE = SEQUENCE, IS_ATTRIBUTES = ATTRIBUTES


def object_encoder(str schema not None, str extra_columns not None, str name not None):
    """The encoder of a schema's JSON text. `name` begins the paths in errors."""
    return ObjectEncoder.__new__(ObjectEncoder, compile_objects(parse(schema)), extra_columns == "error", name)


def object_serializer(ObjectEncoder encoder not None, bytes prefix not None):
    cdef ObjectSerializer serializer = ObjectSerializer.__new__(ObjectSerializer)
    serializer.encoder = encoder
    serializer.prefix = prefix
    return serializer


@cython.final
cdef class ObjectSerializer:
    """A callable that encodes its argument. None stays None, which is Kafka's null."""

    def __call__(self, data):
        return self.encoder.encoded(data, self.prefix)


# No clear: the garbage collector must not take the parts from an encoder that a finalizer may still call.
@cython.final
@cython.no_gc_clear
cdef class ObjectEncoder:
    """Encodes Python objects as Avro."""

    def __cinit__(self, tuple sources not None, bint refuses_extra, str name not None):
        cdef int64_t i, links = 0
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

    # ---- the scratch -------------------------------------------------------------------------------------------------

    cdef Writer* take(self) except NULL:
        """A scratch for one call. An object that is read may encode another object: that call takes another scratch."""
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
        w.depth = 0
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
        return f"Avro's {self.sources[part.number].target}"

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
            return self.refuse(w, f"is None, and {self.target(part)} has no null: make the type a union with null, or "
                                  f"give a value")
        return self.refuse(w, f"of type {type(value).__name__} does not fit {self.target(part)}")

    cdef int refuse_value(self, Writer* w, const Part* part, object value, str why) except -1:
        has = f"has the value {shown(value)}, which" if type(value) in SHOWN_TYPES else "has a value that"
        return self.refuse(w, f"of type {type(value).__name__} {has} {why} {self.target(part)}")

    cdef int refuse_changed(self, Writer* w) except -1:
        w.frames[w.depth - 1].index = -1
        return self.refuse(w, "was changed while it was read")

    cdef int refuse_extra(self, Writer* w, const Part* part, object names) except -1:
        w.frames[w.depth - 1].index = -1
        listed = ", ".join(shown(name) for name in names)
        return self.refuse(w, f"has {listed}, for which {self.target(part)} has no field: leave it out, add a field, "
                              f'or give Avro(..., extra_columns="ignore")')

    # ---- values ------------------------------------------------------------------------------------------------------

    cdef int write(self, Writer* w, const Part* part, object value) except -1:
        cdef int overflow = 0
        cdef int64_t number
        cdef double real
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
            number = PyLong_AsLongLongAndOverflow(value, &overflow)
            if overflow != 0 or number < part.low or number > part.high:
                return self.refuse_value(w, part, value, "is out of the range of")
            w.p = put_varint(w.p, number)
            return 0
        if part.kind == KIND_STRING and PyUnicode_CheckExact(value):
            return self.write_text(w, part, value)
        if part.kind == KIND_DOUBLE and PyFloat_CheckExact(value):
            real = PyFloat_AS_DOUBLE(value)
            memcpy(w.p, &real, 8)
            w.p += 8
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

    # Each of the functions below returns 0 where the value's type does not fit.

    cdef int write_leaf(self, Writer* w, const Part* part, object value) except -1:
        if part.kind == KIND_LONG:
            return self.write_whole(w, part, value)
        if part.kind == KIND_STRING:
            if not PyUnicode_Check(value):
                return 0
            self.write_text(w, part, value)
            return 1
        if part.kind == KIND_DOUBLE or part.kind == KIND_FLOAT:
            if PyFloat_Check(value):
                self.write_real(w, part, value, PyFloat_AS_DOUBLE(value))
                return 1
            if not PyLong_Check(value) or PyBool_Check(value):
                return 0
            self.write_whole_real(w, part, value)
            return 1
        if part.kind == KIND_BOOLEAN:
            if not PyBool_Check(value):
                return 0
            w.p[0] = value is True
            w.p += 1
            return 1
        if part.kind == KIND_NULL:
            return value is None
        if part.kind == KIND_ENUM:
            return self.write_enum(w, part, value)
        return self.write_rare(w, part, value)

    cdef int write_rare(self, Writer* w, const Part* part, object value) except -1:
        if part.kind == KIND_BYTES or part.kind == KIND_FIXED:
            return self.write_bytes(w, part, value)
        if part.kind == KIND_DECIMAL:
            return self.write_decimal(w, part, value)
        if part.kind == KIND_UUID or part.kind == KIND_UUID_FIXED:
            return self.write_uuid(w, part, value)
        if part.kind == KIND_DATE:
            return self.write_date(w, part, value)
        if part.kind == KIND_TIME:
            return self.write_time(w, part, value)
        if part.kind == KIND_DURATION:
            return self.write_duration(w, part, value)
        if PyDateTime_Check(value):
            self.write_timestamp(w, part, value)
            return 1
        return self.write_whole(w, part, value)

    # ---- numbers -----------------------------------------------------------------------------------------------------

    cdef int write_whole(self, Writer* w, const Part* part, object value) except -1:
        if PyBool_Check(value) or not PyIndex_Check(value):
            return 0
        self.write_long(w, part, PyNumber_Index(value))
        return 1

    cdef int write_long(self, Writer* w, const Part* part, object value) except -1:
        cdef int overflow = 0
        cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow != 0 or number < part.low or number > part.high:
            return self.refuse_value(w, part, value, "is out of the range of")
        w.p = put_varint(w.p, number)
        return 0

    cdef int write_real(self, Writer* w, const Part* part, object value, double real) except -1:
        cdef float narrow = <float>real
        if part.kind == KIND_DOUBLE:
            memcpy(w.p, &real, 8)
            w.p += 8
            return 0
        if isinf(narrow) and not isinf(real):
            return self.refuse_value(w, part, value, "is out of the range of")
        memcpy(w.p, &narrow, 4)
        w.p += 4
        return 0

    cdef int write_whole_real(self, Writer* w, const Part* part, object value) except -1:
        """Only what loses nothing."""
        cdef int overflow = 0
        cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
        cdef double real = <double>number if part.kind == KIND_DOUBLE else <double><float>number
        if overflow != 0 or not -EXACT_BOUND < number < EXACT_BOUND or <int64_t>real != number:
            return self.refuse_value(w, part, value, "cannot be held without loss by")
        return self.write_real(w, part, value, real)

    cdef int write_decimal(self, Writer* w, const Part* part, object value) except -1:
        cdef object whole, number, scaled, unscaled, size
        cdef bytes encoded
        if PyLong_Check(value) and not PyBool_Check(value):
            whole = PyNumber_Index(value)
            if whole.bit_length() > 4 * part.precision:
                return self.refuse_value(w, part, whole, "has more digits than")
            number = Decimal(whole)
        elif isinstance(value, Decimal):
            number = value
        else:
            return 0
        if not Decimal.is_finite(number):
            return self.refuse_value(w, part, value, "is no number for")
        if not Decimal.__bool__(number):
            unscaled = 0
        elif Decimal.adjusted(number) + 1 + part.scale > part.precision:
            return self.refuse_value(w, part, value, "has more digits than")
        else:
            scaled = EXACT.scaleb(number, part.scale)
            unscaled = int(scaled)
            if unscaled != scaled:
                return self.refuse_value(w, part, value, "cannot be held without loss by")
        # The shortest two's complement, as Java's BigInteger.toByteArray.
        size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        if part.size >= 0 and size > part.size:
            return self.refuse_value(w, part, value, "has more digits than")
        encoded = unscaled.to_bytes(size if part.size < 0 else part.size, "big", signed=True)
        self.write_raw(w, PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded), part.size < 0)
        return 1

    # ---- times -------------------------------------------------------------------------------------------------------

    cdef int write_date(self, Writer* w, const Part* part, object value) except -1:
        if PyDateTime_Check(value) or not PyDate_Check(value):
            return self.write_whole(w, part, value)
        w.p = put_varint(w.p, days(date_year(value), date_month(value), date_day(value)))
        return 1

    cdef int write_time(self, Writer* w, const Part* part, object value) except -1:
        cdef int64_t number
        if not PyTime_Check(value):
            return self.write_whole(w, part, value)
        if time_tzinfo(value) is not None:
            return self.refuse_value(w, part, value, "has a time zone, unlike")
        number = (time_hour(value) * 60 + time_minute(value)) * 60 + time_second(value)
        number = number * 1_000_000 + time_microsecond(value)
        w.p = put_varint(w.p, number // 1000 if part.unit == 1000 else number)
        return 1

    cdef int write_timestamp(self, Writer* w, const Part* part, object value) except -1:
        cdef int64_t seconds, micros, nanos = 0
        if not PyDateTime_CheckExact(value):
            if value != value:  # pandas.NaT
                return self.refuse_type(w, part, value)
            nanos = getattr(value, "nanosecond", 0)  # pandas.Timestamp
            if not 0 <= nanos < 1000:
                return self.refuse_type(w, part, value)
        zone = datetime_tzinfo(value)
        if zone is not None and part.kind == KIND_LOCAL_TIMESTAMP:
            return self.refuse_value(w, part, value, "has a time zone, unlike")
        seconds = days(datetime_year(value), datetime_month(value), datetime_day(value)) * 86400
        seconds += (datetime_hour(value) * 60 + datetime_minute(value)) * 60 + datetime_second(value)
        micros = seconds * 1_000_000 + datetime_microsecond(value)
        if zone is not None and zone is not UTC:
            offset = _datetime.datetime.utcoffset(value)
            if offset is not None:
                micros -= (<int64_t>timedelta_days(offset) * 86400 + timedelta_seconds(offset)) * 1_000_000
                micros -= timedelta_microseconds(offset)
        if part.unit == 1_000_000_000:
            if micros > INT64_MAX // 1000 - 1 or micros < -INT64_MAX // 1000:
                return self.refuse_value(w, part, value, "is out of the range of")
            micros = micros * 1000 + nanos
        elif part.unit == 1000:  # towards the past, as in Java and fastavro
            micros = micros // 1000 - (micros % 1000 < 0)
        w.p = put_varint(w.p, micros)
        return 0

    cdef int write_duration(self, Writer* w, const Part* part, object value) except -1:
        """No months, no days, and milliseconds: three little-endian numbers."""
        cdef int64_t micros
        cdef uint32_t[3] parts
        if not PyDelta_Check(value):
            return self.write_bytes(w, part, value)
        micros = (<int64_t>timedelta_days(value) * 86400 + timedelta_seconds(value)) * 1_000_000
        micros += timedelta_microseconds(value)
        if micros < 0 or micros // 1000 > 0xFFFFFFFF:
            return self.refuse_value(w, part, value, "is out of the range of")
        if micros % 1000:
            return self.refuse_value(w, part, value, "cannot be held without loss by")
        parts[0] = parts[1] = 0
        parts[2] = <uint32_t>(micros // 1000)
        self.write_raw(w, parts, 12, False)
        return 1

    # ---- bytes -------------------------------------------------------------------------------------------------------

    cdef int write_raw(self, Writer* w, const void* data, int64_t size, bint sized) except -1:
        """`data` stays where it is: no Python runs here."""
        if w.end - w.p < size + ROOM:
            self.room(w, size + ROOM)
        if sized:
            w.p = put_varint(w.p, size)
        if size > 0:
            memcpy(w.p, data, <size_t>size)
        w.p += size
        return 0

    cdef int write_text(self, Writer* w, const Part* part, object value) except -1:
        cdef Py_ssize_t size = 0
        cdef const char* text = PyUnicode_AsUTF8AndSize(value, &size)
        if text == NULL:
            if not PyErr_ExceptionMatches(UnicodeError):
                raise MemoryError()
            PyErr_Clear()
            return self.refuse_value(w, part, value, "has no UTF-8 encoding for")
        return self.write_raw(w, text, size, True)

    cdef int write_bytes(self, Writer* w, const Part* part, object value) except -1:
        cdef const char* data
        cdef int64_t size
        cdef object held = value
        if PyMemoryView_Check(value):
            held = bytes(value)
        if PyBytes_Check(held):
            data = PyBytes_AS_STRING(held)
            size = PyBytes_GET_SIZE(held)
        elif PyByteArray_Check(held):
            data = PyByteArray_AS_STRING(held)
            size = PyByteArray_GET_SIZE(held)
        else:
            return 0
        if part.size >= 0 and size != part.size:
            return self.refuse_value(w, part, value, "has another size than")
        self.write_raw(w, data, size, part.size < 0)
        return 1

    cdef int write_uuid(self, Writer* w, const Part* part, object value) except -1:
        if part.kind == KIND_UUID:
            if isinstance(value, UUID):
                value = str(value)
            if not PyUnicode_Check(value):
                return 0
            self.write_text(w, part, value)
            return 1
        return self.write_bytes(w, part, value.bytes if isinstance(value, UUID) else value)

    cdef int write_enum(self, Writer* w, const Part* part, object value) except -1:
        cdef int64_t number = symbol_of(part, value)
        if number < 0:
            if PyUnicode_Check(value) or isinstance(value, Enum):
                return self.refuse_value(w, part, value, "is no symbol of")
            return 0
        w.p = put_varint(w.p, number)
        return 1

    # ---- records, arrays and maps ------------------------------------------------------------------------------------

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
        cdef int64_t i, found = 0
        for i in range(part.count):
            frame.index = i
            item = PyDict_GetItemWithError(value, <object>PyTuple_GET_ITEM(<object>part.names, i))
            if item == NULL:
                self.write_default(w, part, i)
                continue
            held = <object>item  # the value's own code may take it out of the dict
            found += 1
            self.write(w, part.parts[i], held)
        if self.refuses_extra and PyDict_Size(value) != found:
            extra = [name for name in value if name not in <tuple>part.names and name != HINT]
            if extra:
                return self.refuse_extra(w, part, extra[:10])
        return 0

    cdef int write_mapping_record(self, Writer* w, const Part* part, object value) except -1:
        cdef Frame* frame = &w.frames[w.depth - 1]
        cdef int64_t i, found = 0
        for i in range(part.count):
            frame.index = i
            try:
                item = value[(<tuple>part.names)[i]]
            except KeyError:
                self.write_default(w, part, i)
                continue
            found += 1
            self.write(w, part.parts[i], item)
        if self.refuses_extra and len(value) != found:
            names = itertools.islice(value, found + 10)
            extra = [name for name in names if name not in <tuple>part.names and name != HINT]
            if extra:
                return self.refuse_extra(w, part, extra[:10])
        return 0

    cdef int write_attributes(self, Writer* w, const Part* part, object value) except -1:
        cdef Frame* frame = &w.frames[w.depth - 1]
        cdef int64_t i, found = 0
        if self.refuses_extra:
            self.check_class(w, part, type(value))
        for i in range(part.count):
            frame.index = i
            try:
                item = getattr(value, <str>PyTuple_GET_ITEM(<object>part.names, i))
            except AttributeError:
                self.write_default(w, part, i)
                continue
            found += 1
            self.write(w, part.parts[i], item)
        if found == 0 and part.count > 0:
            frame.index = -1
            return self.refuse_type(w, part, value)
        return 0

    cdef int write_default(self, Writer* w, const Part* part, int64_t field) except -1:
        default = (<tuple>part.defaults)[field]
        if type(default) is not bytes:
            return self.refuse(w, f"is missing, and {default}: give a value")
        return self.write_raw(w, PyBytes_AS_STRING(default), PyBytes_GET_SIZE(default), False)

    cdef int begin_items(self, Writer* w, const Part* part, object value, int64_t count) except -1:
        """Items may be without bytes, so that their number is limited, too."""
        if count > w.items:
            return self.refuse(w, f"of type {type(value).__name__} has {count} items, which are too many")
        w.items -= count
        if w.end - w.p < ROOM:
            self.room(w, ROOM)
        if count > 0:
            w.p = put_varint(w.p, count)
        return 0

    cdef int write_sequence(self, Writer* w, const Part* part, object value) except -1:
        cdef Frame* frame = &w.frames[w.depth - 1]
        cdef int64_t i = 0, count
        cdef object held
        if PyList_Check(value):
            count = PyList_GET_SIZE(value)
            self.begin_items(w, part, value, count)
            while i < count and i < PyList_GET_SIZE(value):
                held = <object>PyList_GET_ITEM(value, i)
                frame.index = i
                self.write(w, part.parts[0], held)
                i += 1
            if PyList_GET_SIZE(value) != count:
                return self.refuse_changed(w)
        elif PyTuple_Check(value):
            count = PyTuple_GET_SIZE(value)
            self.begin_items(w, part, value, count)
            for i in range(count):
                frame.index = i
                self.write(w, part.parts[0], <object>PyTuple_GET_ITEM(value, i))
        else:
            count = len(value)
            self.begin_items(w, part, value, count)
            for held in value:
                if i == count:
                    return self.refuse_changed(w)
                frame.index = i
                self.write(w, part.parts[0], held)
                i += 1
            if i != count:
                return self.refuse_changed(w)
        return self.write_raw(w, b"\0", 1, False)

    cdef int write_dict_map(self, Writer* w, const Part* part, dict value) except -1:
        cdef Py_ssize_t position = 0
        cdef int64_t count = PyDict_Size(value), seen = 0
        cdef PyObject* key = NULL
        cdef PyObject* item = NULL
        cdef object held_key, held
        self.begin_items(w, part, value, count)
        while PyDict_Next(value, &position, &key, &item):
            held_key = <object>key
            held = <object>item
            if seen == count or PyDict_Size(value) != count:
                return self.refuse_changed(w)
            seen += 1
            self.write_pair(w, part, held_key, held)
        if seen != count or PyDict_Size(value) != count:
            return self.refuse_changed(w)
        return self.write_raw(w, b"\0", 1, False)

    cdef int write_mapping(self, Writer* w, const Part* part, object value) except -1:
        cdef int64_t count = len(value), seen = 0
        self.begin_items(w, part, value, count)
        for key in value:
            if seen == count:
                return self.refuse_changed(w)
            seen += 1
            self.write_pair(w, part, key, value[key])
        if seen != count:
            return self.refuse_changed(w)
        return self.write_raw(w, b"\0", 1, False)

    cdef int write_pair(self, Writer* w, const Part* part, object key, object value) except -1:
        cdef Frame* frame = &w.frames[w.depth - 1]
        if not PyUnicode_Check(key):
            return self.refuse(w, f"has a key of type {type(key).__name__}, and the keys of {self.target(part)} are "
                                  f"text")
        frame.index = 0
        frame.key = <PyObject*>key
        try:
            self.write_text(w, part, key)
            self.write(w, part.parts[0], value)
        finally:
            frame.key = NULL
        frame.index = -1
        return 0

    cdef int kind_of(self, object cls) except -1:
        found = self.kinds.get(cls)
        if found is None:
            found = class_kind(cls)
            if len(self.kinds) >= CACHED_CLASSES:
                self.kinds.clear()
            self.kinds[cls] = found
        return found

    cdef int check_class(self, Writer* w, const Part* part, object cls) except -1:
        """A class that declares its fields has no field that the record lacks."""
        cdef object key = (part.number, cls)
        cdef list extra
        if key in self.checked:
            return 0
        extra = sorted((declared_names(cls) or frozenset()).difference(<tuple>part.names))
        if extra:
            return self.refuse_extra(w, part, extra[:10])
        if len(self.checked) >= CACHED_CLASSES:
            self.checked.clear()
        self.checked[key] = True
        return 0

    # ---- unions ------------------------------------------------------------------------------------------------------

    cdef int write_branch(self, Writer* w, const Part* part, int64_t branch, object value) except -1:
        if w.end - w.p < ROOM:
            self.room(w, ROOM)
        w.p[0] = <uint8_t>(2 * branch)
        w.p += 1
        return self.write(w, part.parts[branch], value)

    cdef int write_union(self, Writer* w, const Part* part, object value) except -1:
        cdef int64_t[MOST_BRANCHES] scores
        cdef int64_t fits, branch = self.hinted(part, value)
        if branch >= 0:
            return self.write_branch(w, part, branch, value[1] if PyTuple_CheckExact(value) else value)
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


seal(ObjectSerializer)
seal(ObjectEncoder)


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
    return 0


cdef void drop(Writer* w) noexcept:
    if w != NULL:
        free(w.base)
        free(w)


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


cdef int64_t symbol_of(const Part* part, object value) except -2:
    """The number of a symbol, which is the text, or an enum's value or name; -1: it is none."""
    cdef object number, text
    if PyUnicode_Check(value):
        number = (<dict>part.symbols).get(PyUnicode_FromObject(value))
        if number is not None:
            return number
    if isinstance(value, Enum):
        for text in [value.value, value.name]:
            if PyUnicode_CheckExact(text):
                number = (<dict>part.symbols).get(text)
                if number is not None:
                    return number
    return -1


cdef object plain_value(object value):
    """What an Enum or a scalar of numpy holds; any other object itself."""
    if isinstance(value, Enum):
        return value.value
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    plain = value.item()
    # The number of a datetime64 in nanoseconds would lose its unit.
    return value if isinstance(value, (numpy.datetime64, numpy.timedelta64)) and PyLong_Check(plain) else plain


cdef int64_t days(int64_t year, int64_t month, int64_t day) noexcept:
    """Days since 1970-01-01, from year 1 on: http://howardhinnant.github.io/date_algorithms.html#days_from_civil."""
    cdef int64_t era, year_of_era, day_of_year
    year -= month <= 2
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468


cdef str shown(object value):
    """A value as text, for an error: the beginning of it, and no code of the user's classes."""
    if type(value) not in SHOWN_TYPES:
        return f"an object of type {type(value).__name__}"
    try:
        text = repr(value)
    except ValueError:  # an int of more than sys.get_int_max_str_digits()
        return "of too many digits to show"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


cdef str words(object error):
    try:
        return f": {error}"
    except Exception:
        return ""
