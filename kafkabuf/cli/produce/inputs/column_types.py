"""Types of columns that are text in a file, for `kafkabuf produce`: their names, and the values that fit them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from kafkabuf.extras import needs

with needs("spark", "kafkabuf produce of csv, parquet and arrow"):
    import pyarrow as pa
    from pyarrow import compute

INFER = "infer"
_MICROS = pa.timestamp("us")
_ZONE = r":.*(Z|[+-]\d\d(:?\d\d)?)$"
# Eight digits may be a day: no milliseconds of these years have so few.
_MILLISECONDS = r"^-?(\d{1,7}|\d{9,})$"
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_INSTANT = re.compile(r"timestamp\[(s|ms|us|ns), ?UTC\]")
_NAMES = (
    "string, binary, bool, int8 to int64, uint8 to uint64, float, double, decimal(PRECISION, SCALE), date32, "
    "time32[ms], time64[us], timestamp[us], timestamp[us, UTC]"
)
_OUTSIDE = re.compile(r",(?![^(\[]*[)\]])")


class Types(NamedTuple):
    """What --types says."""

    given: dict[str, Any]
    infers: bool


def parse(options: Sequence[str]) -> Types:
    """Raises click.UsageError."""
    given: dict[str, Any] = {}
    infers = False
    for part in (part.strip() for option in options for part in _OUTSIDE.split(option)):
        name, equals, kind = part.rpartition("=")
        if part == INFER:
            infers = True
        elif not (name and equals):
            raise click.UsageError(f"--types: {part!r} is neither COL=TYPE nor infer")
        elif name in given:
            raise click.UsageError(f"--types names the column {name!r} twice")
        else:
            given[name] = type_of(kind.strip())
    return Types(given, infers)


def type_of(name: str) -> Any:
    """Raises click.UsageError for a name that is none of _NAMES."""
    try:
        if match := _DECIMAL.fullmatch(name):
            precision, scale = int(match[1]), int(match[2])
            if not 0 <= scale <= precision:
                raise ValueError("the scale is larger than the precision")
            return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
        if match := _INSTANT.fullmatch(name):
            return pa.timestamp(match[1], "UTC")
        kind = pa.type_for_alias(name)
    except ValueError:
        kind = None
    if kind is None or not _is_readable(kind):
        raise click.UsageError(f"--types: {name!r} is no type: there are {_NAMES}")
    return kind


def _is_readable(kind: Any) -> bool:
    types = pa.types
    checks = (
        types.is_string, types.is_binary, types.is_boolean, types.is_integer, types.is_float32, types.is_float64,
        types.is_date32, types.is_time, types.is_timestamp, types.is_null,
    )  # fmt: skip
    return any(check(kind) for check in checks)


def wrong(column: Any, kind: Any) -> list[int]:
    """The places of texts that are infinite numbers only for want of room. Raises pa.ArrowInvalid for a column with a
    text that is no value of the type at all."""
    cast = typed(column, kind)
    if not pa.types.is_floating(kind):
        return []
    infinite = compute.and_(compute.is_inf(cast), compute.invert(compute.match_substring_regex(column, "(?i)inf")))
    places: list[int] = compute.indices_nonzero(infinite).to_pylist()
    return places


def typed(column: Any, kind: Any) -> Any:
    """A column of text as one of the type. An empty text is null, but for string and binary. Raises pa.ArrowInvalid for
    a text that is no value of the type."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return column.cast(kind)
    column = null_if_empty(compute.utf8_trim(column, " \t"))
    if pa.types.is_null(kind):
        if column.null_count < len(column):
            raise pa.ArrowInvalid("there is a value in a column of nulls")
        return pa.nulls(len(column))
    if pa.types.is_time(kind):
        on_a_day = compute.binary_join_element_wise("1970-01-01T", column, "")
        return on_a_day.cast(pa.timestamp(kind.unit)).cast(kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _instants(column, kind.unit)
    return column.cast(kind)


def null_if_empty(column: Any) -> Any:
    """A column of text whose empty texts are null."""
    return compute.if_else(compute.equal(column, ""), pa.scalar(None, column.type), column)


def times(column: Any) -> Any:
    """A column of timestamps, as it is or cast to one. Text is milliseconds, or a time that is in UTC unless it names a
    zone. Raises pa.ArrowInvalid for a value that is no time, and pa.ArrowException for a column of another type."""
    if pa.types.is_timestamp(column.type):
        return column
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column.cast(pa.timestamp("ms"))
    counted, nothing = compute.match_substring_regex(column, _MILLISECONDS), pa.scalar(None, column.type)
    since_1970 = compute.if_else(counted, column, nothing).cast(pa.int64()).cast(pa.timestamp("ms"))
    instants = _instants(compute.if_else(counted, nothing, column), "us")
    return compute.coalesce(since_1970.cast(_MICROS), instants.cast(_MICROS))


def _instants(column: Any, unit: str) -> Any:
    """Text of times as instants: in UTC unless it names a zone."""
    # pyarrow takes text with a zone, or without one, for a column.
    zoned, nothing = compute.match_substring_regex(column, _ZONE), pa.scalar(None, column.type)
    in_zone = compute.if_else(zoned, column, nothing).cast(pa.timestamp(unit, "UTC"))
    in_utc = compute.if_else(zoned, nothing, column).cast(pa.timestamp(unit))
    return compute.coalesce(in_zone, compute.assume_timezone(in_utc, "UTC"))
