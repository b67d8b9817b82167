# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Binds the columns of an exported Arrow struct; checks types and shapes before any row is read."""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memset, strcmp

from kafkabuf.errors import SerializationError

# The types of the C data interface's format strings, for error texts.
_NAMES = {
    "z": "binary", "Z": "large_binary", "u": "string", "U": "large_string", "i": "int32", "l": "int64", "b": "bool",
    "g": "double", "f": "float", "s": "int16", "c": "int8", "n": "null", "+l": "list", "+L": "large_list",
    "+s": "struct", "vu": "string_view", "vz": "binary_view", "tdD": "date32",
}
_LAYOUTS = {"z": SMALL, "u": SMALL, "+l": SMALL, "Z": LARGE, "U": LARGE, "+L": LARGE, "vz": VIEWS, "vu": VIEWS}
_UNITS = {"s": (1000, 1), "m": (1, 1), "u": (1, 1000), "n": (1, 1000000)}
_TEXT = ("u", "U", "vu")
_BYTES = ("z", "Z", "vz", *_TEXT)
_INDICES = tuple("cCsSiIlL")
_COLUMNS = ("value", "key", "topic", "partition", "timestamp", "headers")


cdef str type_name(const ArrowSchema* schema):
    # One level only: a dictionary's values are not dictionary-encoded. In malformed data the nesting may be endless.
    if schema.dictionary != NULL:
        return f"dictionary<{plain_type_name(schema.dictionary)}>"
    return plain_type_name(schema)


cdef str plain_type_name(const ArrowSchema* schema):
    cdef str text = format_of(schema)
    if text[:2] == "ts" and text[2:3] in _UNITS:
        return f"timestamp[{text[2]}]"
    return _NAMES.get(text, f"Arrow format {text!r}")


cdef str format_of(const ArrowSchema* schema):
    return schema.format.decode("utf-8", "replace") if schema.format != NULL else ""


cdef str name_of(const ArrowSchema* schema):
    return schema.name.decode("utf-8", "replace") if schema.name != NULL else ""


cdef int refuse(str column, const ArrowSchema* schema, str allowed) except -1:
    raise SerializationError(f"column '{column}' has the type {type_name(schema)}; allowed: {allowed}")


# ---- checks against malformed arrays, which would make a read leave their memory -------------------------------------

cdef int malformed(str column, str problem) except -1:
    raise SerializationError(f"column '{column}' {problem}: the Arrow data is malformed")


cdef int check_shape(
    str column, const ArrowSchema* schema, const ArrowArray* array, int64_t n_buffers, int64_t min_rows
) except -1:
    """Raises unless schema and array agree and there are `n_buffers` buffers and at least `min_rows` rows."""
    cdef int64_t i
    if array.n_buffers != n_buffers or array.n_children != schema.n_children:
        malformed(column, f"has the type {type_name(schema)} but {array.n_buffers} buffers and {array.n_children} "
                  f"children")
    if array.length < min_rows:
        malformed(column, f"has {array.length} rows and should have {min_rows}")
    if array.length < 0 or array.offset < 0 or array.length > INT64_MAX - array.offset:
        malformed(column, f"has {array.length} rows at offset {array.offset}")
    if n_buffers and array.buffers == NULL or array.n_children and (schema.children == NULL or array.children == NULL):
        malformed(column, "has a NULL pointer for its buffers or children")
    for i in range(array.n_children):
        if schema.children[i] == NULL or array.children[i] == NULL:
            malformed(column, "has a NULL pointer for a child")
    # Polars gives a column of the type null a buffer, and no bitmap.
    if n_buffers and array.null_count > 0 and array.buffers[0] == NULL and format_of(schema) != "n":
        malformed(column, f"has {array.null_count} nulls but no validity bitmap")
    if n_buffers > 1 and min_rows and array.buffers[1] == NULL:
        malformed(column, f"has {array.length} rows but a NULL pointer for their buffer")
    return 0


cdef int check_offsets(str column, const Column* c, int64_t first, int64_t rows) except -1:
    """Raises unless the offsets of `rows` rows from `first` on, counted in the buffer, are 0 or more and ascend."""
    cdef int64_t i
    cdef int backwards = 0
    cdef const int32_t* small = <const int32_t*>c.offsets + first
    cdef const int64_t* large = <const int64_t*>c.offsets + first
    if rows == 0:
        return 0
    # The loops have no early exit, so that the compiler can vectorise them.
    if c.layout == LARGE:
        backwards = large[0] < 0
        for i in range(rows):
            backwards |= large[i + 1] < large[i]
    else:
        backwards = small[0] < 0
        for i in range(rows):
            backwards |= small[i + 1] < small[i]
    if backwards:
        malformed(column, "has offsets that are negative or run backwards")
    return 0


cdef int64_t find_wrong_view(
    str column, const Column* c, const ArrowArray* array, int64_t first, int64_t rows
) except -2:
    """The first place of a long view that lies in no buffer; -1: there is none. Places are counted in the buffer.

    The last buffer holds the sizes of the buffers of bytes.
    """
    cdef int64_t i, variadic = array.n_buffers - 3
    cdef const int64_t* sizes = <const int64_t*>array.buffers[array.n_buffers - 1]
    cdef const View* view
    cdef const uint8_t* validity = c.dictionary_validity if c.index_type else c.validity
    if variadic and sizes == NULL:
        malformed(column, "has no buffer with the sizes of its buffers")
    for i in range(first, first + rows):
        view = <const View*>c.offsets + i
        if validity != NULL and not bit_at(validity, i):
            continue
        if view.size < 0 or view.size > INLINE_VIEW and (
                view.buffer < 0 or view.buffer >= variadic or view.offset < 0
                or c.buffers[view.buffer] == NULL or view.offset + <int64_t>view.size > sizes[view.buffer]):
            return i
    return -1


cdef int refuse_view(str column, const Column* c, const ArrowArray* array, int64_t place) except -1:
    malformed(column, f"has a view of {(<const View*>c.offsets + place).size} bytes that lies in none of its "
              f"{array.n_buffers - 3} buffers")


cdef int check_bytes(str column, const Column* c, const ArrowArray* array, int64_t first, int64_t rows) except -1:
    cdef int64_t wrong
    if c.layout == VIEWS:
        wrong = find_wrong_view(column, c, array, first, rows)
        return 0 if wrong < 0 else refuse_view(column, c, array, wrong)
    check_offsets(column, c, first, rows)
    if rows and c.data == NULL and offset_at(c, first + rows) > offset_at(c, first):
        malformed(column, "has a NULL pointer for its bytes")
    return 0


cdef int check_indices(str column, const Column* c, int64_t rows, int64_t allowed) except -1:
    cdef int64_t row, index
    for row in range(rows):
        if not is_null(c, row):
            index = index_at(c, c.start + row)
            if index < 0 or index >= allowed:
                malformed(column, f"has index {index} into a dictionary of {allowed} values")
    return 0


# ---- binding ---------------------------------------------------------------------------------------------------------

cdef Column borrow(const ArrowArray* array, int64_t start, Layout layout) noexcept:
    """The fields that columns of all types have. The caller has checked the shape: there is a first buffer."""
    cdef Column c
    memset(&c, 0, sizeof(c))
    c.layout = layout
    c.start = start + array.offset
    c.validity = <const uint8_t*>array.buffers[0] if array.null_count != 0 else NULL
    return c


cdef Column bind_plain(
    str column, const ArrowSchema* schema, const ArrowArray* array, int64_t start, int64_t rows, allowed,
    bint checks_views=True
) except *:
    """A column of strings or binaries: `rows` rows from `start` on."""
    cdef Column c
    cdef str text = format_of(schema)
    if schema.dictionary != NULL or text not in allowed:
        refuse(column, schema, "string, large_string, string_view" + (
            "" if allowed is _TEXT else ", binary, large_binary, binary_view"))
    cdef Layout layout = _LAYOUTS[text]
    check_shape(column, schema, array, max(array.n_buffers, 3) if layout == VIEWS else 3, start + rows)
    c = borrow(array, start, layout)
    c.offsets = array.buffers[1]
    c.data = <const uint8_t*>array.buffers[2]
    c.buffers = <const uint8_t**>array.buffers + 2
    if checks_views or layout != VIEWS:
        check_bytes(column, &c, array, c.start, rows)
    return c


cdef Column bind_bytes(
    str column, const ArrowSchema* schema, const ArrowArray* array, int64_t start, int64_t rows, allowed
) except *:
    """As `bind_plain`, also for a dictionary-encoded column."""
    cdef Column c, indices
    if schema.dictionary == NULL:
        return bind_plain(column, schema, array, start, rows, allowed)
    if format_of(schema) not in _INDICES or array.dictionary == NULL:
        malformed(column, f"has the type {type_name(schema)} but no integer indices, or no dictionary")
    check_shape(column, schema, array, 2, start + rows)
    c = bind_plain(column, schema.dictionary, array.dictionary, 0, array.dictionary.length, allowed)
    indices = borrow(array, start, FIXED)
    c.dictionary_start, c.dictionary_validity = c.start, c.validity
    c.start, c.validity = indices.start, indices.validity
    c.index_type = schema.format[0]
    c.indices = array.buffers[1]
    check_indices(column, &c, rows, array.dictionary.length)
    return c


cdef Column bind_fixed(
    str column, const ArrowSchema* schema, const ArrowArray* array, int64_t start, int64_t rows
) except *:
    cdef Column c
    check_shape(column, schema, array, 2, start + rows)
    c = borrow(array, start, FIXED)
    c.data = <const uint8_t*>array.buffers[1]
    return c


cdef Column bind_timestamp(const ArrowSchema* schema, const ArrowArray* array, int64_t start, int64_t rows) except *:
    cdef Column c
    cdef str text = format_of(schema)
    if schema.dictionary != NULL or text[:2] != "ts" or text[2:3] not in _UNITS:
        refuse("timestamp", schema, "timestamp of any unit")
    c = bind_fixed("timestamp", schema, array, start, rows)
    c.unit_multiplier, c.unit_divisor = _UNITS[text[2:3]]
    return c


cdef Column bind_partition(const ArrowSchema* schema, const ArrowArray* array, int64_t start, int64_t rows) except *:
    if schema.dictionary != NULL or format_of(schema) != "i":
        refuse("partition", schema, "int32")
    return bind_fixed("partition", schema, array, start, rows)


cdef int bind_headers(
    Columns* columns, const ArrowSchema* schema, const ArrowArray* array, int64_t start, int64_t rows
) except -1:
    cdef str allowed = "list<struct<key: string, value: binary>>"
    cdef const ArrowSchema* item
    cdef const ArrowArray* items
    cdef int64_t first, last
    cdef int key
    if format_of(schema) not in ("+l", "+L") or schema.n_children != 1:
        refuse("headers", schema, allowed)
    check_shape("headers", schema, array, 2, start + rows)
    columns.headers = borrow(array, start, _LAYOUTS[format_of(schema)])
    columns.headers.offsets = array.buffers[1]
    check_offsets("headers", &columns.headers, columns.headers.start, rows)
    item = schema.children[0]
    items = array.children[0]
    if format_of(item) != "+s" or item.n_children != 2:
        refuse("headers", item, allowed)
    # Only the items of these rows are checked; the rows may begin anywhere in the list.
    first = offset_at(&columns.headers, columns.headers.start) if rows else 0
    last = offset_at(&columns.headers, columns.headers.start + rows) if rows else 0
    check_shape("headers", item, items, 1, last)
    key = place_of_key(item)
    if key < 0:
        raise SerializationError(
            f"column 'headers' has a struct of the fields '{name_of(item.children[0])}' and "
            f"'{name_of(item.children[1])}'; allowed: {allowed}")
    columns.header = borrow(items, 0, FIXED)
    columns.header_key = bind_items(
        "headers.key", item.children[key], items.children[key], items.offset, first, last, _TEXT)
    columns.header_value = bind_items(
        "headers.value", item.children[1 - key], items.children[1 - key], items.offset, first, last, _BYTES)
    return 0


cdef int place_of_key(const ArrowSchema* item) noexcept:
    """Which of the two fields of a header's struct is the key, if the other is the value; -1: they are others."""
    if is_named(item.children[0], "key") and is_named(item.children[1], "value"):
        return 0
    return 1 if is_named(item.children[0], "value") and is_named(item.children[1], "key") else -1


cdef bint is_named(const ArrowSchema* schema, const char* name) noexcept:
    return schema.name != NULL and strcmp(schema.name, name) == 0


cdef Column bind_items(
    str column, const ArrowSchema* schema, const ArrowArray* array, int64_t start, int64_t first, int64_t last, allowed
) except *:
    cdef Column c
    if start > INT64_MAX - last:
        malformed(column, f"begins at offset {start}")
    c = bind_bytes(column, schema, array, start + first, last - first, allowed)
    c.start -= first
    return c


cdef int check_table(const ArrowSchema* schema, const ArrowArray* array) except -1:
    cdef int64_t row
    if schema.release == NULL or array.release == NULL:
        raise SerializationError("the Arrow data was released before: export the data again")
    if format_of(schema) != "+s":
        raise SerializationError(f"give a table or a record batch, found Arrow data of type {type_name(schema)}")
    check_shape("(the table)", schema, array, 1, 0)
    if array.null_count != 0 and array.buffers[0] != NULL:
        for row in range(array.length):
            if not bit_at(<const uint8_t*>array.buffers[0], array.offset + row):
                raise SerializationError(f"row {row} is a null struct: give a table, or a struct array without nulls")
    return 0


cdef int bind_columns(
    Columns* columns, const ArrowSchema* schema, const ArrowArray* array, str key="key", bint has_value=True
) except -1:
    cdef int64_t i, start = array.offset, rows = array.length
    cdef const ArrowSchema* child
    cdef const ArrowArray* column
    cdef set seen = set()
    memset(columns, 0, sizeof(Columns))
    check_table(schema, array)
    columns.rows = rows
    for i in range(schema.n_children):
        child = schema.children[i]
        column = array.children[i]
        name = name_of(child)
        if (name in _COLUMNS or name == key) and name in seen:
            raise SerializationError(f"there are two columns '{name}': rename or drop one of them")
        seen.add(name)
        if name == key:
            columns.key = bind_bytes(name, child, column, start, rows, _BYTES)
        elif name == "value" and has_value:
            columns.value = bind_bytes(name, child, column, start, rows, _BYTES)
        elif name == "topic":
            columns.topic = bind_bytes(name, child, column, start, rows, _TEXT)
        elif name == "partition":
            columns.partition = bind_partition(child, column, start, rows)
        elif name == "timestamp":
            columns.timestamp = bind_timestamp(child, column, start, rows)
        elif name == "headers":
            bind_headers(columns, child, column, start, rows)
    if has_value and columns.value.layout == ABSENT:
        raise SerializationError(f"column 'value' is missing; found: {', '.join(sorted(seen)) or 'none'}")
    return 0
