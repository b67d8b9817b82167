"""A model of the JSON that orjson writes for Python's values, and strategies that draw Arrow columns.

orjson itself is locked for the bench alone, which holds its bytes against those of kafkabuf.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from kafkabuf.formats import Json


def model(value: Any) -> str:
    """The text of a value of pyarrow's to_pylist(), with maps as dicts."""
    match value:
        case dict():
            return "{" + ",".join(f"{_key(key)}:{model(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(model, value)) + "]"
        case float():
            return orjson_real(value)
        case dt.datetime():
            return f'"{_with_whole_minutes(value).isoformat()}"'
        case dt.date() | dt.time():
            return f'"{value.isoformat()}"'
        case dt.timedelta():
            return f'"{iso_duration(value)}"'
        case bytes():
            return f'"{base64.b64encode(value).decode()}"'
        case decimal.Decimal():
            return format(value, "f")
    return json.dumps(value, ensure_ascii=False)


def _key(key: Any) -> str:
    text = model(key)
    return text if text.startswith('"') else f'"{text}"'


def _decimal_digits(text: str) -> tuple[str, str, int]:
    """Sign, digits without zeros at either end, and the place of the point before or behind them."""
    sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    return sign, digits.rstrip("0"), point


def _plain(sign: str, digits: str, point: int) -> str:
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    digits = digits.ljust(point, "0")
    return f"{sign}{digits[:point]}.{digits[point:] or '0'}"


def orjson_real(value: float) -> str:
    if not math.isfinite(value):
        return "null"
    sign, digits, point = _decimal_digits(repr(value))
    if not digits:
        return f"{sign}0.0"
    if -5 < point <= 16:
        return _plain(sign, digits, point)
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def java_real(text: str, value: float) -> str:
    """What Double.toString of Java 19 and newer makes of a number with this shortest text, as repr() has it.

    Of several numbers with two digits Java takes the closest, even if one digit were enough.
    """
    sign, digits, point = _decimal_digits(text)
    if len(digits) == 1:
        sign, digits, point = _decimal_digits(f"{value:.1e}")
    if not digits:
        return f"{sign}0.0"
    if -3 < point <= 7:
        return _plain(sign, digits, point)
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point - 1}"


def iso_duration(value: dt.timedelta) -> str:
    """Exact, by whole microseconds."""
    micros = abs(value) // dt.timedelta(microseconds=1)
    fraction = f".{micros % 10**6:06}".rstrip("0").rstrip(".")
    return f"{'-' if value < dt.timedelta(0) else ''}PT{micros // 10**6}{fraction}S"


def texts(column: pa.Array | pa.ChunkedArray, json_format: Json | None = None) -> list[str]:
    """The values of a column, each written as the member `c` of an object; "" where that is left out."""
    rows = (json_format or Json()).encode(pa.table({"c": column}))
    return ["" if row == b"{}" else (row or b"").decode()[len('{"c":') : -1] for row in rows]


# ---- columns ---------------------------------------------------------------------------------------------------------

Drawn = tuple[pa.DataType, st.SearchStrategy[Any]]

TEXTS = st.text(max_size=12) | st.sampled_from(
    [
        "",
        'a "quote"',
        "back\\slash",
        "\b\f\n\r\t\0\x1f\x7f",
        "é" * 9,
        "x" * 70,
        "\U0001f600",
        "seven..\x01",
        "eight...\x02",
    ]
)
_NAMES = TEXTS.filter(lambda name: "\0" not in name)
REALS = st.floats() | st.floats(0, 1e6).map(lambda value: round(value, 2)) | st.integers(-(2**53), 2**53).map(float)


def _ints(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high) | st.sampled_from([low, high, 0, 9, 10, 99, 100])


def _with_whole_minutes(at: dt.datetime) -> dt.datetime:
    """orjson rounds the offset of a zone to minutes. It takes 59.5 minutes for 60, and not for an hour: not drawn."""
    offset = at.utcoffset()
    if offset is None or offset.seconds % 60 == 0:
        return at
    minutes = (abs(offset) + dt.timedelta(seconds=30)) // dt.timedelta(minutes=1)
    return at.replace(tzinfo=dt.timezone(dt.timedelta(minutes=-minutes if offset < dt.timedelta(0) else minutes)))


# Python's datetime has the years 1 to 9999.
_LOCALS = st.datetimes()
_INSTANTS = st.datetimes(dt.datetime(1900, 1, 2), dt.datetime(9999, 12, 30)).map(lambda at: at.replace(tzinfo=dt.UTC))
_TIMES = st.times()
# Microseconds of 63 bits are fewer than those of Python's timedelta.
_DURATIONS = st.timedeltas(dt.timedelta(-100_000_000), dt.timedelta(100_000_000))


def _whole(values: st.SearchStrategy[Any], unit: str) -> st.SearchStrategy[Any]:
    divisor = {"s": 10**6, "ms": 10**3, "us": 1}[unit]
    return values.map(lambda value: value.replace(microsecond=value.microsecond // divisor * divisor))


KEYS: list[Drawn] = [
    (pa.string(), TEXTS), (pa.large_string(), TEXTS), (pa.string_view(), TEXTS),
    (pa.int8(), _ints(8, signed=True)), (pa.int16(), _ints(16, signed=True)), (pa.int32(), _ints(32, signed=True)),
    (pa.int64(), _ints(64, signed=True)), (pa.uint8(), _ints(8, signed=False)), (pa.uint16(), _ints(16, signed=False)),
    (pa.uint32(), _ints(32, signed=False)), (pa.uint64(), _ints(64, signed=False)),
    (pa.bool_(), st.booleans()), (pa.date32(), st.dates()), (pa.float64(), REALS.filter(math.isfinite).map(abs)),
    (pa.decimal128(10, 3), st.decimals(-1000, 1000, places=3)), (pa.timestamp("us"), _LOCALS),
]  # fmt: skip
_LEAVES: list[Drawn] = [
    *KEYS,
    (pa.float16(), st.floats(width=16)), (pa.float32(), st.floats(width=32)), (pa.float64(), REALS),
    (pa.binary(), st.binary(max_size=20)), (pa.large_binary(), st.binary(max_size=20)),
    (pa.binary_view(), st.binary(max_size=20)), (pa.binary(5), st.binary(min_size=5, max_size=5)),
    (pa.date64(), st.dates()), (pa.null(), st.none()),
    *((pa.timestamp(unit), _whole(_LOCALS, unit)) for unit in ("s", "ms", "us")),
    *((pa.timestamp(unit, zone), _whole(_INSTANTS, unit)) for unit in ("s", "ms", "us")
      for zone in ("UTC", "+05:30", "-00:30", "Europe/Berlin", "America/St_Johns")),
    *((pa.time32(unit), _whole(_TIMES, unit)) for unit in ("s", "ms")), (pa.time64("us"), _TIMES),
    (pa.duration("us"), _DURATIONS),
]  # fmt: skip
leaves = st.sampled_from(_LEAVES)


@st.composite
def _decimals(draw: st.DrawFn) -> Drawn:
    precision = draw(st.integers(1, 76))
    scale = draw(st.integers(0, precision))
    kind = pa.decimal256(precision, scale) if precision > 38 else pa.decimal128(precision, scale)
    bound = 10**precision - 1
    return kind, st.integers(-bound, bound).map(
        lambda number: decimal.Decimal((int(number < 0), decimal.Decimal(abs(number)).as_tuple().digits, -scale))
    )


@st.composite
def _lists(draw: st.DrawFn, items: st.SearchStrategy[Drawn]) -> Drawn:
    kind, values = draw(items)
    size = draw(st.integers(1, 3))
    arrow = draw(st.sampled_from([pa.list_(kind), pa.large_list(kind), pa.list_(kind, size)]))
    low, high = (size, size) if pa.types.is_fixed_size_list(arrow) else (0, 4)
    return arrow, st.lists(st.none() | values, min_size=low, max_size=high)


@st.composite
def _maps(draw: st.DrawFn, items: st.SearchStrategy[Drawn]) -> Drawn:
    key, keys = draw(st.sampled_from(KEYS))
    kind, values = draw(items)
    pairs = st.lists(st.tuples(keys, st.none() | values), max_size=4, unique_by=lambda pair: _key(pair[0]))
    return pa.map_(key, kind), pairs


@st.composite
def _structs(draw: st.DrawFn, items: st.SearchStrategy[Drawn]) -> Drawn:
    parts = draw(st.dictionaries(_NAMES, items, min_size=1, max_size=4))
    arrow = pa.struct([pa.field(name, kind) for name, (kind, _) in parts.items()])
    return arrow, st.fixed_dictionaries({name: st.none() | values for name, (_, values) in parts.items()})


columns = st.recursive(
    leaves | _decimals(), lambda items: st.one_of(_lists(items), _maps(items), _structs(items)), max_leaves=6
)


@st.composite
def tables(draw: st.DrawFn) -> pa.RecordBatch:
    """Up to six rows of up to four columns, which have nulls."""
    parts = draw(st.dictionaries(_NAMES, columns, min_size=1, max_size=4))
    rows = draw(st.integers(1, 6))
    arrays = [
        pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
        for kind, values in parts.values()
    ]
    return pa.RecordBatch.from_arrays(arrays, list(parts))


def rows_of(data: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = data.to_pylist(maps_as_pydicts="strict")
    return rows


__all__ = ["columns", "iso_duration", "java_real", "leaves", "model", "orjson_real", "rows_of", "tables", "texts"]
