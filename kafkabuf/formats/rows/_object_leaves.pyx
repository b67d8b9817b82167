# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The writer of numbers, times, text and bytes: see _object_leaves.pxd."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Check, PyByteArray_GET_SIZE
from cpython.datetime cimport (
    PyDateTime_Check, PyDateTime_CheckExact, PyDate_Check, PyDelta_Check, PyTime_Check, date_day, date_month,
    date_year, datetime_day, datetime_hour, datetime_microsecond, datetime_minute, datetime_month, datetime_second,
    datetime_tzinfo, datetime_year, import_datetime, time_hour, time_microsecond, time_minute, time_second,
    time_tzinfo, timedelta_days, timedelta_microseconds, timedelta_seconds,
)
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check
from cpython.long cimport PyLong_Check
from cpython.memoryview cimport PyMemoryView_Check
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.unicode cimport PyUnicode_Check, PyUnicode_CheckExact
from libc.math cimport isinf
from libc.stdint cimport INT64_MAX, int64_t, uint32_t
from libc.string cimport memcpy

from kafkabuf.cpython._sealed cimport seal
from kafkabuf.wire._wire cimport put_varint
from kafkabuf.formats.rows._object_writer cimport (
    KIND_BOOLEAN, KIND_BYTES, KIND_DATE, KIND_DECIMAL, KIND_DOUBLE, KIND_DURATION, KIND_ENUM, KIND_FIXED, KIND_FLOAT,
    KIND_LOCAL_TIMESTAMP, KIND_LONG, KIND_NULL, KIND_STRING, KIND_TIME, KIND_UUID, KIND_UUID_FIXED, ObjectWriter,
    Part, Writer, put_double, put_long, put_raw, put_text,
)

import datetime as _datetime
import sys
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from enum import Enum
from uuid import UUID

cdef extern from "Python.h":
    object PyUnicode_FromObject(object text)
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    bint PyBool_Check(object value) noexcept

import_datetime()

cdef int64_t EXACT_BOUND = <int64_t>1 << 62
cdef object UTC = _datetime.timezone.utc
# No arithmetic with it rounds.
cdef object EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


# No clear: the garbage collector must not take the parts from an encoder that a finalizer may still call.
@cython.no_gc_clear
cdef class ObjectLeaves(ObjectWriter):
    """Values without parts. Each of write_leaf's functions returns 0 where the value's type does not fit."""

    cdef int write_leaf(self, Writer* w, const Part* part, object value) except -1:
        if part.kind == KIND_LONG:
            return self.write_whole(w, part, value)
        if part.kind == KIND_STRING:
            if not PyUnicode_Check(value):
                return 0
            put_text(self, w, part, value)
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
        put_long(self, w, part, PyNumber_Index(value))
        return 1

    cdef int write_real(self, Writer* w, const Part* part, object value, double real) except -1:
        cdef float narrow = <float>real
        if part.kind == KIND_DOUBLE:
            put_double(w, real)
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
        put_raw(self, w, PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded), part.size < 0)
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
        number = micros_of_day(value)
        w.p = put_varint(w.p, number // 1000 if part.unit == 1000 else number)
        return 1

    cdef int write_timestamp(self, Writer* w, const Part* part, object value) except -1:
        cdef int64_t micros, nanos = self.nanos_of(w, part, value)
        if datetime_tzinfo(value) is not None and part.kind == KIND_LOCAL_TIMESTAMP:
            return self.refuse_value(w, part, value, "has a time zone, unlike")
        micros = micros_since_1970(value)
        if part.unit == 1_000_000_000:
            if micros > INT64_MAX // 1000 - 1 or micros < -INT64_MAX // 1000:
                return self.refuse_value(w, part, value, "is out of the range of")
            micros = micros * 1000 + nanos
        elif part.unit == 1000:  # towards the past, as in Java and fastavro
            micros = micros // 1000 - (micros % 1000 < 0)
        w.p = put_varint(w.p, micros)
        return 0

    cdef int64_t nanos_of(self, Writer* w, const Part* part, object value) except -1:
        """The digits of a datetime below a microsecond."""
        cdef int64_t nanos = 0
        if not PyDateTime_CheckExact(value):
            if value != value:  # pandas.NaT
                self.refuse_type(w, part, value)
            nanos = getattr(value, "nanosecond", 0)  # pandas.Timestamp
            if not 0 <= nanos < 1000:
                self.refuse_type(w, part, value)
        return nanos

    cdef int write_duration(self, Writer* w, const Part* part, object value) except -1:
        """No months, no days, and milliseconds: three little-endian numbers."""
        cdef int64_t micros
        cdef uint32_t[3] parts
        if not PyDelta_Check(value):
            return self.write_bytes(w, part, value)
        micros = micros_in(value)
        if micros < 0 or micros // 1000 > 0xFFFFFFFF:
            return self.refuse_value(w, part, value, "is out of the range of")
        if micros % 1000:
            return self.refuse_value(w, part, value, "cannot be held without loss by")
        parts[0] = parts[1] = 0
        parts[2] = <uint32_t>(micros // 1000)
        put_raw(self, w, parts, 12, False)
        return 1

    # ---- bytes -------------------------------------------------------------------------------------------------------

    cdef int write_bytes(self, Writer* w, const Part* part, object value) except -1:
        cdef const char* data = NULL
        cdef int64_t size = 0
        cdef object _held = bytes_of(value, &data, &size)  # it keeps `data` alive
        if data == NULL:
            return 0
        if part.size >= 0 and size != part.size:
            return self.refuse_value(w, part, value, "has another size than")
        put_raw(self, w, data, size, part.size < 0)
        return 1

    cdef int write_uuid(self, Writer* w, const Part* part, object value) except -1:
        if part.kind == KIND_UUID:
            if isinstance(value, UUID):
                value = str(value)
            if not PyUnicode_Check(value):
                return 0
            put_text(self, w, part, value)
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


seal(ObjectLeaves)


cdef object symbol_number(const Part* part, object value):
    """The number of a symbol, which is the text, or an enum's value or name; None: it is no symbol."""
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
    return None


cdef int64_t symbol_of(const Part* part, object value) except -2:
    """symbol_number() of Avro, whose numbers begin with 0; -1: it is no symbol."""
    number = symbol_number(part, value)
    return -1 if number is None else number


cdef object bytes_of(object value, const char** data, int64_t* size):
    """Where the bytes of an object are while the result lives; `data` stays as it is for an object without bytes."""
    cdef object held = bytes(value) if PyMemoryView_Check(value) else value
    if PyBytes_Check(held):
        data[0] = PyBytes_AS_STRING(held)
        size[0] = PyBytes_GET_SIZE(held)
    elif PyByteArray_Check(held):
        data[0] = PyByteArray_AS_STRING(held)
        size[0] = PyByteArray_GET_SIZE(held)
    return held


cdef int64_t micros_since_1970(object value) except? -1:
    """Microseconds from 1970 to a datetime; without a zone it counts as UTC."""
    cdef int64_t micros
    micros = days(datetime_year(value), datetime_month(value), datetime_day(value)) * 86400
    micros += (datetime_hour(value) * 60 + datetime_minute(value)) * 60 + datetime_second(value)
    micros = micros * 1_000_000 + datetime_microsecond(value)
    zone = datetime_tzinfo(value)
    if zone is not None and zone is not UTC:
        offset = _datetime.datetime.utcoffset(value)
        if offset is not None:
            micros -= micros_in(offset)
    return micros


cdef int64_t MOST_DAYS = 100_000_000  # their microseconds fit in 64 bits


cdef int64_t micros_in(object delta) except? -1:
    """Microseconds in a timedelta. More than MOST_DAYS count as MOST_DAYS: no format takes that many."""
    cdef int64_t days = max(-MOST_DAYS, min(timedelta_days(delta), MOST_DAYS))
    return (days * 86400 + timedelta_seconds(delta)) * 1_000_000 + timedelta_microseconds(delta)


cdef int64_t micros_of_day(object value) except? -1:
    """Microseconds from midnight to a time."""
    cdef int64_t seconds = (time_hour(value) * 60 + time_minute(value)) * 60 + time_second(value)
    return seconds * 1_000_000 + time_microsecond(value)


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
