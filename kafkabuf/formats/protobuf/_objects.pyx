# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Protobuf's writer of Python objects: messages and their fields. _objects.pxd has the contract."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.datetime cimport (
    PyDateTime_Check, PyDate_Check, PyDelta_Check, PyTime_Check, date_day, date_month, date_year, import_datetime,
    time_tzinfo,
)
from cpython.dict cimport PyDict_Check, PyDict_Items, PyDict_Size
from cpython.float cimport PyFloat_Check
from cpython.list cimport PyList_Check
from cpython.long cimport PyLong_AsUnsignedLongLong, PyLong_Check, PyLong_CheckExact
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_Check
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memmove

from kafkabuf.cpython._sealed cimport seal
from kafkabuf.wire._wire cimport put_uvarint, uvarint_size
from kafkabuf.formats.rows._object_leaves cimport (
    ObjectLeaves, bytes_of, micros_in, micros_of_day, micros_since_1970, plain_value, symbol_number,
)
from kafkabuf.formats.rows._object_writer cimport (
    KIND_ARRAY, KIND_BYTES, KIND_ENUM, KIND_FIXED32, KIND_FIXED64, KIND_GROUP, KIND_MAP, KIND_MESSAGE, KIND_RECORD,
    KIND_STRING, KIND_VARINT, MAX_NESTING, ROOM, Frame, Part, Writer, put_raw,
)

from kafkabuf.formats.rows.object_classes import ATTRIBUTES, MAPPING, SEQUENCE
from kafkabuf.formats.protobuf.objects import (
    DATE, DURATION, MESSAGE, STRUCT, TIME_OF_DAY, TIMESTAMP, VALUE, compile_objects, object_kind,
)

cdef extern from "Python.h":
    PyObject* PyDict_GetItemWithError(object p, object key) except? NULL
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) noexcept
    object PyUnicode_FromObject(object text)
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    bint PyBool_Check(object value) noexcept
    int Py_EnterRecursiveCall(const char* where) except -1
    void Py_LeaveRecursiveCall() noexcept

import_datetime()

cdef enum:
    CACHED_CLASSES = 256
    # Readers refuse a message in more than 100 others.
    MOST_MESSAGES = 101
    ONE_BYTE = 0x80         # lengths below it take one byte
    # The places of the fields of google.protobuf.Value; then a Value itself.
    ANY_NULL = 0
    ANY_NUMBER = 1
    ANY_STRING = 2
    ANY_BOOL = 3
    ANY_STRUCT = 4
    ANY_LIST = 5
    ANY_VALUE = 6

cdef int64_t MICROS = 1_000_000
# From 0001-01-01 to 9999-12-31, and 10,000 years: the ranges of google.protobuf.
cdef int64_t FIRST_SECOND = -62_135_596_800, LAST_SECOND = 253_402_300_799, LONGEST = 315_576_000_000
cdef int IS_MAPPING = MAPPING, IS_SEQUENCE = SEQUENCE, IS_ATTRIBUTES = ATTRIBUTES, IS_MESSAGE = MESSAGE
cdef int IS_TIMESTAMP = TIMESTAMP, IS_DURATION = DURATION, IS_DATE = DATE, IS_TIME_OF_DAY = TIME_OF_DAY
cdef int IS_STRUCT = STRUCT, IS_VALUE = VALUE
cdef dict MESSAGES_OF_ANY = {
    "google.protobuf.Struct": ANY_STRUCT, "google.protobuf.Value": ANY_VALUE, "google.protobuf.ListValue": ANY_LIST,
}
cdef object ABSENT = object()


def object_encoder(message, str extra_columns not None, str missing_columns not None, str name not None):
    """The encoder of a message. `name` begins the paths in errors."""
    cdef ProtobufObjectEncoder made = ProtobufObjectEncoder.__new__(
        ProtobufObjectEncoder, "Protobuf", compile_objects(message), extra_columns == "error", name)
    made.refuses_missing = missing_columns == "error"
    return made


# No clear: the garbage collector must not take the parts from an encoder that a finalizer may still call.
@cython.final
@cython.no_gc_clear
cdef class ProtobufObjectEncoder(ObjectLeaves):
    """Encodes Python objects as Protobuf."""

    cdef int write(self, Writer* w, const Part* part, object value) except -1:
        if w.end - w.p < ROOM:
            self.room(w, ROOM)
        if part.kind == KIND_MESSAGE:
            return self.write_message_field(w, part, value)
        if part.kind == KIND_ARRAY:
            return self.write_repeated(w, part, value)
        if part.kind == KIND_MAP:
            return self.write_map(w, part, value)
        if part.kind == KIND_RECORD:
            return self.write_message(w, part, value)
        return self.write_leaf_field(w, part, value)

    # ---- fields without parts ----------------------------------------------------------------------------------------

    cdef int write_leaf_field(self, Writer* w, const Part* part, object value) except -1:
        """A field without presence leaves out a zero, which is a zero in each byte: a text's first is its length."""
        cdef int64_t start = w.p - w.base, begin
        put_tag(w, part)
        begin = w.p - w.base
        if not self.write_value(w, part, value):
            plain = plain_value(value)
            if plain is value or not self.write_value(w, part, plain):
                return self.refuse_type(w, part, value)
        if not part.presence and is_zero(w.base + begin, w.p):
            w.p = w.base + start
        return 0

    cdef int write_value(self, Writer* w, const Part* part, object value) except -1:
        """0: the value's type does not fit."""
        cdef Py_ssize_t length = 0
        cdef const char* data = NULL
        cdef int64_t size = 0
        cdef object _held  # it keeps `data` alive
        if part.kind == KIND_VARINT or part.kind == KIND_FIXED64 or part.kind == KIND_FIXED32:
            return self.write_integer(w, part, value)
        if part.kind == KIND_STRING:
            if not PyUnicode_Check(value):
                return 0
            data = PyUnicode_AsUTF8AndSize(value, &length)
            if data == NULL:
                return self.refuse_text(w, part, value)
            put_sized(self, w, data, length)
            return 1
        if part.kind == KIND_BYTES:
            _held = bytes_of(value, &data, &size)
            if data == NULL:
                return 0
            put_sized(self, w, data, size)
            return 1
        if part.kind == KIND_ENUM:
            return self.write_symbol(w, part, value)
        if part.kind == KIND_GROUP:
            return self.refuse(w, "is a group, which is not supported: leave it out")
        return self.write_leaf(w, part, value)

    cdef int write_integer(self, Writer* w, const Part* part, object value) except -1:
        cdef int overflow = 0
        cdef int64_t number
        cdef uint64_t bits
        if not PyLong_CheckExact(value):
            if PyBool_Check(value) or not PyIndex_Check(value):
                return 0
            value = PyNumber_Index(value)
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow > 0 and part.is_unsigned and value.bit_length() == 64:
            bits = PyLong_AsUnsignedLongLong(value)
        elif overflow != 0 or number < part.low or number > part.high:
            return self.refuse_value(w, part, value, "is out of the range of")
        else:
            bits = <uint64_t>number
        if part.kind == KIND_VARINT:
            w.p = put_uvarint(w.p, bits)
        else:
            memcpy(w.p, &bits, 8)
            w.p += 4 if part.kind == KIND_FIXED32 else 8
        return 1

    cdef int write_symbol(self, Writer* w, const Part* part, object value) except -1:
        cdef object number = symbol_number(part, value), plain
        cdef int64_t held
        if number is None:
            plain = plain_value(value)
            if PyUnicode_Check(plain):
                return self.refuse_value(w, part, value, "is no symbol of")
            if PyBool_Check(plain) or not PyIndex_Check(plain):
                return 0
            number = PyNumber_Index(plain)
            if <object>part.numbers is not None and number not in <frozenset>part.numbers:
                return self.refuse_value(w, part, number, "is no number of")
            if not part.low <= number <= part.high:
                return self.refuse_value(w, part, number, "is out of the range of")
        held = number
        w.p = put_uvarint(w.p, <uint64_t>held)
        return 1

    # ---- messages ----------------------------------------------------------------------------------------------------

    cdef int write_message_field(self, Writer* w, const Part* part, object value) except -1:
        cdef int64_t begin
        put_tag(w, part)
        begin = w.p - w.base
        w.p += 1
        if not part.special or not self.write_special(w, part, value):
            self.write_message(w, part.parts[0], value)
        return self.end_length(w, begin)

    cdef int write_special(self, Writer* w, const Part* part, object value) except -1:
        """A value that the message stands for; 0: the value is no such thing."""
        cdef int64_t micros
        if value is None or PyDict_Check(value):
            return 0
        if part.special == IS_TIMESTAMP:
            return self.write_instant(w, part, value)
        if part.special == IS_DURATION:
            return self.write_span(w, part, value)
        if part.special == IS_DATE:
            if PyDateTime_Check(value) or not PyDate_Check(value):
                return 0
            put_part(w, 1, date_year(value))
            put_part(w, 2, date_month(value))
            put_part(w, 3, date_day(value))
            return 1
        if part.special == IS_TIME_OF_DAY:
            if not PyTime_Check(value):
                return 0
            if time_tzinfo(value) is not None:
                return self.refuse_value(w, part, value, "has a time zone, unlike")
            micros = micros_of_day(value)
            put_part(w, 1, micros // (3600 * MICROS))
            put_part(w, 2, micros // (60 * MICROS) % 60)
            put_part(w, 3, micros // MICROS % 60)
            put_part(w, 4, micros % MICROS * 1000)
            return 1
        return self.write_wrapped(w, part, value)

    cdef int write_instant(self, Writer* w, const Part* part, object value) except -1:
        """seconds=1 nanos=2, which count forward."""
        cdef int64_t micros, seconds, nanos
        if not PyDateTime_Check(value):
            return 0
        nanos = self.nanos_of(w, part, value)
        micros = micros_since_1970(value)
        seconds = micros // MICROS - (micros % MICROS < 0)
        if not FIRST_SECOND <= seconds <= LAST_SECOND:
            return self.refuse_value(w, part, value, "is out of the range of")
        put_part(w, 1, seconds)
        put_part(w, 2, (micros - seconds * MICROS) * 1000 + nanos)
        return 1

    cdef int write_span(self, Writer* w, const Part* part, object value) except -1:
        """seconds=1 nanos=2, which have one sign."""
        cdef int64_t micros, seconds, rest
        if not PyDelta_Check(value):
            return 0
        rest = getattr(value, "nanoseconds", 0)  # pandas.Timedelta
        if not 0 <= rest < 1000:
            return self.refuse_type(w, part, value)
        micros = micros_in(value)
        seconds = micros // MICROS
        if not -LONGEST <= seconds <= LONGEST:
            return self.refuse_value(w, part, value, "is out of the range of")
        rest += micros % MICROS * 1000
        if rest > 0 and seconds < 0:
            seconds += 1
            rest -= 1000 * MICROS
        put_part(w, 1, seconds)
        put_part(w, 2, rest)
        return 1

    cdef int write_wrapped(self, Writer* w, const Part* part, object value) except -1:
        cdef int kind = self.kind_of(type(value))
        if kind == IS_MAPPING or kind == IS_MESSAGE or kind == IS_ATTRIBUTES:
            return 0
        self.write(w, part.parts[0].parts[0], value)
        return 1

    cdef int write_message(self, Writer* w, const Part* part, object value) except -1:
        cdef int kind = IS_MAPPING
        if part.special:
            return self.write_dynamic(w, part, value)
        self.enter(w, part, 1)
        # Python counts the levels too: an object's code may encode another object, and so on.
        Py_EnterRecursiveCall(b" while an object is encoded")
        try:
            if not PyDict_Check(value):
                kind = self.kind_of(type(value))
            if kind == IS_MAPPING or kind == IS_ATTRIBUTES:
                self.write_fields(w, part, value, kind)
            elif kind == IS_MESSAGE:
                self.write_made(w, part, value)
            else:
                self.refuse_type(w, part, value)
        finally:
            Py_LeaveRecursiveCall()
        w.depth -= 1
        w.messages -= 1
        return 0

    cdef int write_dynamic(self, Writer* w, const Part* part, object value) except -1:
        """google.protobuf's Struct, Value or ListValue, which has no place of its own in the path of an error."""
        self.check_depth(w, 1)
        w.messages += 1
        # Python counts the levels too: an object's code may encode another object, and so on.
        Py_EnterRecursiveCall(b" while an object is encoded")
        try:
            if part.special == IS_VALUE:
                self.write_any(w, part, value)
            elif self.field_of_any(value) != (ANY_STRUCT if part.special == IS_STRUCT else ANY_LIST):
                self.refuse_type(w, part, value)
            elif not PyDict_Check(value) and self.kind_of(type(value)) == IS_MESSAGE:
                self.write_made(w, part, value)
            elif part.special == IS_STRUCT:
                self.write_map(w, part.parts[0], value)
            else:
                self.write_repeated(w, part.parts[0], value)
        finally:
            Py_LeaveRecursiveCall()
        w.messages -= 1
        return 0

    cdef int write_any(self, Writer* w, const Part* part, object value) except -1:
        """The field of a Value that takes the value."""
        cdef int field = self.field_of_any(value)
        if field < 0:
            value = plain_value(value)
            field = self.field_of_any(value)
        if field == ANY_VALUE:
            return self.write_made(w, part, value)
        if field < 0:
            return self.refuse_type(w, part, value)
        return self.write(w, part.parts[field], 0 if field == ANY_NULL else value)

    cdef int field_of_any(self, object value) except -2:
        cdef int kind
        if value is None:
            return ANY_NULL
        if PyUnicode_Check(value):
            return ANY_STRING
        if PyBool_Check(value):
            return ANY_BOOL
        if PyLong_Check(value) or PyFloat_Check(value):
            return ANY_NUMBER
        if PyDict_Check(value):
            return ANY_STRUCT
        if PyList_Check(value) or PyTuple_Check(value):
            return ANY_LIST
        kind = self.kind_of(type(value))
        if kind == IS_MESSAGE:
            return MESSAGES_OF_ANY.get(value.DESCRIPTOR.full_name, -1)
        return ANY_STRUCT if kind == IS_MAPPING else ANY_LIST if kind == IS_SEQUENCE else -1

    cdef int write_made(self, Writer* w, const Part* part, object value) except -1:
        """An object of the package protobuf."""
        cdef bytes encoded
        cdef object key = (part.number, type(value))
        if key not in self.checked:
            name = value.DESCRIPTOR.full_name
            if f"message {name}" != self.sources[part.number].target:
                return self.refuse(w, f"is a message {name}, and the format writes {self.target(part)}")
            if len(self.checked) >= CACHED_CLASSES:
                self.checked.clear()
            self.checked[key] = True
        try:
            encoded = value.SerializeToString(deterministic=True)
        except MemoryError:
            raise
        except Exception as error:
            self.refuse(w, f"cannot be written: {error}")
        return put_raw(self, w, PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded), False)

    cdef int kind_of(self, object cls) except -1:
        """object_kind(), remembered. A class does not change its kind."""
        kind = self.kinds.get(cls)
        if kind is None:
            kind = object_kind(cls)
            if len(self.kinds) >= CACHED_CLASSES:
                self.kinds.clear()
            self.kinds[cls] = kind
        return kind

    # ---- the fields of a message -------------------------------------------------------------------------------------

    cdef int write_fields(self, Writer* w, const Part* part, object value, int kind) except -1:
        cdef Frame* frame = &w.frames[w.depth - 1]
        cdef const Part* field
        cdef dict chosen = None
        cdef int64_t i, fields = 0
        if kind == IS_ATTRIBUTES and self.refuses_extra:
            self.check_class(w, part, type(value), <dict>part.symbols)
        for i in range(part.count):
            field = part.parts[i]
            frame.index = i
            item = self.item_of(w, part, value, kind, i)
            if item is ABSENT:
                if field.required or self.refuses_missing:
                    why = "requires it" if field.required else 'gets each field because of missing_columns="error"'
                    return self.refuse(w, f"is missing, and {self.target(part)} {why}: give a value")
                continue
            fields += 1
            if item is None:
                if field.required:
                    return self.refuse_type(w, field, item)
                continue
            if field.oneof >= 0:
                if chosen is None:
                    chosen = {}
                self.check_oneof(w, part, i, chosen)
            self.write(w, field, item)
        if kind == IS_MAPPING:
            return self.check_names(w, part, value, fields)
        if fields == 0 and part.count > 0:
            frame.index = -1
            return self.refuse_type(w, part, value)
        return 0

    cdef object item_of(self, Writer* w, const Part* part, object value, int kind, int64_t field):
        """What a mapping or an object has for a field, by the field's name or by its name in JSON; or ABSENT."""
        cdef object name = <object>PyTuple_GET_ITEM(<object>part.names, field)
        cdef object alias = <object>part.parts[field].alias
        cdef object item = item_named(value, kind, name)
        if alias is None or (item is not ABSENT and (self.refuses_extra or kind == IS_ATTRIBUTES)):
            return item
        other = item_named(value, kind, alias)
        if item is not ABSENT and other is not ABSENT:
            self.refuse(w, f"is there twice, as {name!r} and as {alias!r}: leave one out")
        return other if item is ABSENT else item

    cdef int check_oneof(self, Writer* w, const Part* part, int64_t field, dict chosen) except -1:
        cdef int64_t oneof = part.parts[field].oneof
        other = chosen.setdefault(oneof, field)
        if other != field:
            name = (<tuple>part.names)[<int64_t>other]
            return self.refuse(w, f"has a value, and so has {name!r}, which is of its oneof: make one of them None")
        return 0

    cdef int check_names(self, Writer* w, const Part* part, object value, int64_t fields) except -1:
        cdef int64_t count
        if not self.refuses_extra:
            return 0
        count = PyDict_Size(value) if PyDict_Check(value) else len(value)
        if count == fields:
            return 0
        self.check_extra(w, part, value, fields, <dict>part.symbols)
        w.frames[w.depth - 1].index = -1
        return self.refuse(w, f"has a field of {self.target(part)} twice, by its name and by its name in JSON: leave "
                              f"one out")

    # ---- repeated fields and maps ------------------------------------------------------------------------------------

    cdef int write_repeated(self, Writer* w, const Part* part, object value) except -1:
        cdef int64_t begin = -1, count
        if not PyList_Check(value) and not PyTuple_Check(value) and (
            PyDict_Check(value) or self.kind_of(type(value)) != IS_SEQUENCE
        ):
            return self.refuse_type(w, part, value)
        count = self.count_items(w, value)
        if count == 0:
            return 0
        self.enter(w, part, 0)
        if part.packed:
            put_tag(w, part)
            begin = w.p - w.base
            w.p += 1
        self.write_items(w, part, value, count)
        w.depth -= 1
        return self.end_length(w, begin) if part.packed else 0

    cdef int write_map(self, Writer* w, const Part* part, object value) except -1:
        """In the order of the keys, so that equal keys of records are equal bytes."""
        cdef list items
        cdef int64_t count
        if PyDict_Check(value):
            count = self.count_items(w, value)
            items = PyDict_Items(value)
        elif self.kind_of(type(value)) == IS_MAPPING:
            count = self.count_items(w, value)
            items = []
            for key in value:
                if len(items) == count:
                    break
                items.append((key, value[key]))
        else:
            return self.refuse_type(w, part, value)
        self.enter(w, part, 1)
        encoded = []
        for key, item in items:
            encoded.append((self.map_key(w, part, key), item))
        encoded.sort(key=first)
        for key, item in encoded:
            self.write_entry(w, part, key, item)
        w.depth -= 1
        w.messages -= 1
        return 0

    cdef object map_key(self, Writer* w, const Part* part, object key):
        """The key without its class: keys are compared, and that must run no code of the user's."""
        cdef const Part* field = part.parts[0]
        cdef object plain = plain_value(key)
        if field.kind == KIND_STRING and PyUnicode_Check(plain):
            return PyUnicode_FromObject(plain)
        if field.kind != KIND_STRING:
            if PyBool_Check(plain):
                return plain
            if PyIndex_Check(plain):
                return PyNumber_Index(plain)
        self.refuse(w, f"has a key of type {type(key).__name__}, and the keys of {self.target(part)} are "
                       f"{self.sources[field.number].target}")

    cdef int write_entry(self, Writer* w, const Part* part, object key, object value) except -1:
        cdef Frame* frame = &w.frames[w.depth - 1]
        cdef int64_t begin
        if w.end - w.p < ROOM:
            self.room(w, ROOM)
        frame.index = 0
        frame.key = <PyObject*>key
        try:
            put_tag(w, part)
            begin = w.p - w.base
            w.p += 1
            self.write(w, part.parts[0], key)
            if value is None and not is_any(part.parts[1]):
                return self.refuse_type(w, part.parts[1], value)
            self.write(w, part.parts[1], value)
        finally:
            frame.key = NULL
        frame.index = -1
        return self.end_length(w, begin)

    # ---- places and lengths ------------------------------------------------------------------------------------------

    cdef int enter(self, Writer* w, const Part* part, int messages) except -1:
        """The value has parts, and takes `messages` levels of a reader."""
        cdef Frame* frame
        self.check_depth(w, messages)
        frame = &w.frames[w.depth]
        frame.part = part
        frame.index = -1
        frame.key = NULL
        w.depth += 1
        w.messages += messages
        return 0

    cdef int check_depth(self, Writer* w, int messages) except -1:
        if w.depth == MAX_NESTING or w.messages + messages > MOST_MESSAGES:
            return self.refuse(w, f"is nested deeper than {MOST_MESSAGES - 1} messages, which no reader takes")
        return 0

    cdef int end_length(self, Writer* w, int64_t begin) except -1:
        """Write the length of the bytes from `begin` + 1 on; the byte at `begin` is free for it."""
        cdef int64_t size = w.p - w.base - begin - 1
        cdef int more
        cdef uint8_t* start
        if size < ONE_BYTE:
            w.base[begin] = <uint8_t>size
            return 0
        if w.end - w.p < ROOM:
            self.room(w, ROOM)
        more = uvarint_size(<uint64_t>size) - 1
        start = w.base + begin
        memmove(start + 1 + more, start + 1, <size_t>size)
        put_uvarint(start, <uint64_t>size)
        w.p += more
        return 0


seal(ProtobufObjectEncoder)


cdef inline void put_tag(Writer* w, const Part* part) noexcept:
    memcpy(w.p, &part.tag, 8)
    w.p += part.tag_size


cdef inline int put_sized(ProtobufObjectEncoder self, Writer* w, const char* data, int64_t size) except -1:
    """`data` stays where it is: no Python runs here."""
    if w.end - w.p < size + ROOM:
        self.room(w, size + ROOM)
    w.p = put_uvarint(w.p, <uint64_t>size)
    if size > 0:
        memcpy(w.p, data, <size_t>size)
    w.p += size
    return 0


cdef inline void put_part(Writer* w, int number, int64_t value) noexcept:
    """A varint field, whose number is below 16, without presence."""
    if value != 0:
        w.p[0] = <uint8_t>(number << 3)
        w.p = put_uvarint(w.p + 1, <uint64_t>value)


cdef inline bint is_any(const Part* part) noexcept:
    return part.kind == KIND_MESSAGE and part.parts[0].special == IS_VALUE


cdef inline bint is_zero(const uint8_t* p, const uint8_t* end) noexcept:
    while p < end:
        if p[0] != 0:
            return False
        p += 1
    return True


cdef object item_of_mapping(object value, object name):
    cdef object item = ABSENT
    try:
        item = value[name]
    except KeyError:
        pass
    return item


cdef object item_named(object value, int kind, object name):
    cdef PyObject* item
    if PyDict_Check(value):
        item = PyDict_GetItemWithError(value, name)
        return ABSENT if item == NULL else <object>item
    if kind == IS_MAPPING:
        return item_of_mapping(value, name)
    return getattr(value, name, ABSENT)


cdef object first(object pair):
    return (<tuple>pair)[0]
