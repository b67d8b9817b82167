# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""From an exported Arrow struct to the columns of records; types are checked once, before any row is read."""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from kafkabuf.errors import SerializationError

# Format strings of the C data interface, for messages.
_NAMES = {
    "z": "binary", "Z": "large_binary", "u": "string", "U": "large_string", "i": "int32", "l": "int64", "b": "bool",
    "g": "double", "f": "float", "s": "int16", "c": "int8", "n": "null", "+l": "list", "+L": "large_list",
    "+s": "struct", "vu": "string_view", "vz": "binary_view", "tdD": "date32",
}
_UNITS = {"s": (1000, 1), "m": (1, 1), "u": (1, 1000), "n": (1, 1000000)}
_TEXT = ("u", "U")
_BYTES = ("z", "Z", "u", "U")
_COLUMNS = ("value", "key", "topic", "partition", "timestamp", "headers")


cdef str type_name(const ArrowSchema* schema):
    cdef str text = schema.format.decode()
    if schema.dictionary != NULL:
        return f"dictionary<{_NAMES.get(schema.dictionary.format.decode(), '?')}>"
    if text.startswith("ts"):
        return f"timestamp[{text[2]}]"
    return _NAMES.get(text, f"Arrow format {text!r}")


cdef int refuse(str column, const ArrowSchema* schema, str allowed) except -1:
    raise SerializationError(f"column '{column}' has the type {type_name(schema)}; allowed: {allowed}")


cdef int check_shape(str column, const ArrowSchema* schema, const ArrowArray* array, int n_buffers) except -1:
    """What the type demands of the array: an array that has less would be read past its end."""
    if array.n_buffers != n_buffers or array.n_children != schema.n_children:
        raise SerializationError(
            f"column '{column}' says {type_name(schema)} but comes with {array.n_buffers} buffers and "
            f"{array.n_children} children: the Arrow data is malformed")
    return 0


cdef Column borrow(const ArrowArray* array, int64_t start) noexcept:
    """What columns of all types have in common. The shape has been checked: there is a first buffer."""
    cdef Column c
    memset(&c, 0, sizeof(c))
    c.present = True
    c.start = start + array.offset
    c.validity = <const uint8_t*>array.buffers[0] if array.null_count != 0 else NULL
    return c


cdef Column bind_bytes(str column, const ArrowSchema* schema, const ArrowArray* array, int64_t start, allowed) except *:
    cdef Column c
    cdef str text = schema.format.decode()
    if schema.dictionary != NULL or text not in allowed:
        refuse(column, schema, "string, large_string" if allowed is _TEXT else
               "binary, string, large_binary, large_string")
    check_shape(column, schema, array, 3)
    c = borrow(array, start)
    c.wide = text in ("Z", "U")
    c.offsets = array.buffers[1]
    c.data = <const uint8_t*>array.buffers[2]
    return c


cdef Column bind_fixed(str column, const ArrowSchema* schema, const ArrowArray* array, int64_t start) except *:
    cdef Column c
    if schema.dictionary != NULL:
        refuse(column, schema, "a plain column")
    check_shape(column, schema, array, 2)
    c = borrow(array, start)
    c.data = <const uint8_t*>array.buffers[1]
    return c


cdef Column bind_timestamp(const ArrowSchema* schema, const ArrowArray* array, int64_t start) except *:
    cdef Column c
    cdef str text = schema.format.decode()
    if not text.startswith("ts"):
        refuse("timestamp", schema, "timestamp of any unit")
    c = bind_fixed("timestamp", schema, array, start)
    c.unit_multiplier, c.unit_divisor = _UNITS[text[2:3]]
    return c


cdef Column bind_partition(const ArrowSchema* schema, const ArrowArray* array, int64_t start) except *:
    if schema.format.decode() != "i":
        refuse("partition", schema, "int32")
    return bind_fixed("partition", schema, array, start)


cdef int bind_headers(Columns* columns, const ArrowSchema* schema, const ArrowArray* array, int64_t start) except -1:
    cdef str allowed = "list<struct<key: string, value: binary>>"
    cdef const ArrowSchema* item
    cdef const ArrowArray* items
    if schema.format.decode() not in ("+l", "+L") or schema.n_children != 1:
        refuse("headers", schema, allowed)
    check_shape("headers", schema, array, 2)
    item = schema.children[0]
    items = array.children[0]
    if item.format.decode() != "+s" or item.n_children != 2:
        refuse("headers", item, allowed)
    check_shape("headers", item, items, 1)
    columns.headers = borrow(array, start)
    columns.headers.wide = schema.format.decode() == "+L"
    columns.headers.offsets = array.buffers[1]
    columns.header_key = bind_bytes("headers.key", item.children[0], items.children[0], items.offset, _TEXT)
    columns.header_value = bind_bytes("headers.value", item.children[1], items.children[1], items.offset, _BYTES)
    return 0


cdef int bind_columns(Columns* columns, const ArrowSchema* schema, const ArrowArray* array) except -1:
    cdef int64_t i
    cdef const ArrowSchema* child
    cdef const ArrowArray* column
    cdef set seen = set()
    memset(columns, 0, sizeof(Columns))
    if schema.format.decode() != "+s" or array.n_children != schema.n_children:
        raise SerializationError(f"a table or record batch is needed, found Arrow data of type {type_name(schema)}")
    columns.rows = array.length
    for i in range(schema.n_children):
        child = schema.children[i]
        column = array.children[i]
        name = child.name.decode("utf-8", "replace") if child.name != NULL else ""
        if name in _COLUMNS and name in seen:
            raise SerializationError(f"there are two columns '{name}': rename or drop one")
        seen.add(name)
        if column.length < array.offset + array.length:
            raise SerializationError(
                f"column '{name}' has {column.length} rows where {array.offset + array.length} are said to be")
        if name == "value":
            columns.value = bind_bytes(name, child, column, array.offset, _BYTES)
        elif name == "key":
            columns.key = bind_bytes(name, child, column, array.offset, _BYTES)
        elif name == "topic":
            columns.topic = bind_bytes(name, child, column, array.offset, _TEXT)
        elif name == "partition":
            columns.partition = bind_partition(child, column, array.offset)
        elif name == "timestamp":
            columns.timestamp = bind_timestamp(child, column, array.offset)
        elif name == "headers":
            bind_headers(columns, child, column, array.offset)
    if not columns.value.present:
        raise SerializationError(f"column 'value' is missing; found: {', '.join(sorted(seen)) or 'none'}")
    return 0
