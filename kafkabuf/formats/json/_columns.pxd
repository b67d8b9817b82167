# cython: language_level=3
"""JSON of Arrow rows, without the GIL, in one of two dialects.

    null: null | boolean: true, false | whole number: its digits | decimal: its digits with a point
    float, double: the shortest text that reads as the same number
        orjson: 1.5, 1e+16, null for NaN and infinity | Spark: 1.5, 1.0E16, "NaN", "Infinity", "-Infinity"
    string: "text", with \\" \\\\ \\b \\f \\n \\r \\t, and \\u001f for other control characters (Spark: \\u001F)
    bytes: "base64" | uuid: "8-4-4-4-12 hexadecimal digits"
    date, time, timestamp: "text", made by a pattern | duration: "text"
    struct: {"name":value,...} | list: [value,...] | map: {"key":value,...}

Each step writes a name, which is its `constant`, and a value. The name begins with a comma: `,"name":` of a struct's
part, `,` of a list's item and of a map's key, `:` of a map's value, and nothing of a whole value. The comma of the
first part is overwritten by the bracket that opens the whole.

How a step's fields are used:

    to_width        the bytes of the name; the constant goes on behind them, up to a multiple of NAME_BLOCK with zeros
    null_branch     a NullChoice
    value_branch    flags of ValueChoice
    factor          of a decimal: its scale; of a time: as _patterns.pxd says
    low, high       of a date, time or timestamp: the first and the last day since 1970 that it may have

A pattern's table (_patterns.pxd) follows the name's blocks.
"""

from kafkabuf.formats.rows._encoder cimport RowEncoder


cdef enum:
    NAME_BLOCK = 16


cdef enum NullChoice:
    NULL_REFUSED = -1
    NULL_WRITTEN = 0
    NULL_LEFT_OUT = 1


cdef enum ValueChoice:
    QUOTED = 1                  # a number is the key of a map
    SPARK = 2                   # Spark's dialect


cdef class JsonEncoder(RowEncoder):
    pass
