"""Arrow types as plain values, made of the format strings of Arrow's C data interface."""

from __future__ import annotations

from typing import NamedTuple

from kafkabuf.errors import SerializationError

# The numbers of format strings: name, lowest and highest value.
INTEGERS = {
    "c": ("int8", -(2**7), 2**7 - 1),
    "s": ("int16", -(2**15), 2**15 - 1),
    "i": ("int32", -(2**31), 2**31 - 1),
    "l": ("int64", -(2**63), 2**63 - 1),
    "C": ("uint8", 0, 2**8 - 1),
    "S": ("uint16", 0, 2**16 - 1),
    "I": ("uint32", 0, 2**32 - 1),
    "L": ("uint64", 0, 2**64 - 1),
}
REALS = {"e": "half", "f": "float", "g": "double"}
TEXTS = {"u": "string", "U": "large_string", "vu": "string_view"}
BINARIES = {"z": "binary", "Z": "large_binary", "vz": "binary_view"}
LISTS = {"+l": "list", "+L": "large_list", "+vl": "list_view", "+vL": "large_list_view"}
# Units of times, in units a second.
UNITS = {"s": 1, "m": 10**3, "u": 10**6, "n": 10**9}
_UNIT_NAMES = {"s": "s", "m": "ms", "u": "us", "n": "ns"}
_PLAIN = {
    "n": "null", "b": "bool", "tdD": "date32", "tdm": "date64", "+s": "struct", "+m": "map", "+r": "run_end_encoded",
}  # fmt: skip


class ArrowType(NamedTuple):
    """A column's type with its name.

    `dictionary` is the type of the values of a dictionary-encoded or run-end encoded column, `extension` the name of an
    extension type, whose storage the other fields describe.
    """

    format: str
    name: str
    nullable: bool
    children: tuple[ArrowType, ...]
    dictionary: ArrowType | None
    extension: str = ""


# A column, and its number among the columns of its parent.
Column = tuple[int, ArrowType]


class Decimal(NamedTuple):
    precision: int
    scale: int
    width: int  # bytes


def decimal(kind: ArrowType) -> Decimal | None:
    """The parameters of a decimal type `d:precision,scale[,bits]`; None for another type."""
    if not kind.format.startswith("d:"):
        return None
    numbers = _numbers(kind.format[2:])
    if len(numbers) not in (2, 3):
        return None
    bits = numbers[2] if len(numbers) == 3 else 128
    return Decimal(numbers[0], numbers[1], bits // 8) if bits in (32, 64, 128, 256) else None


def width(kind: ArrowType) -> int | None:
    """The bytes of a fixed-size binary `w:n`, or the items of a fixed-size list `+w:n`; None for another type."""
    text = kind.format.removeprefix("+")
    numbers = _numbers(text[2:]) if text.startswith("w:") else []
    return numbers[0] if len(numbers) == 1 and 0 <= numbers[0] < 2**31 else None


def fixed_width(kind: ArrowType) -> int | None:
    """The bytes of a fixed-size binary; None for another type."""
    return width(kind) if kind.format.startswith("w:") else None


def list_reader(kind: ArrowType) -> tuple[str, int] | None:
    """The `read` of a list's step, and the items of a fixed-size list, else 0; None for another type."""
    if len(kind.children) != 1:
        return None
    if kind.format in LISTS:
        return "list", 0
    items = width(kind) if kind.format.startswith("+w:") else None
    return None if items is None else ("fixed_list", items)


def entries(kind: ArrowType, path: str) -> tuple[ArrowType, ArrowType] | None:
    """The key and the value of a map; None for another type.

    Arrow leaves their names open: the first is the key. Raises SerializationError for names that say the opposite.
    """
    if kind.format != "+m" or len(kind.children) != 1 or kind.children[0].format != "+s":
        return None
    fields = kind.children[0].children
    if len(fields) != 2:
        return None
    if [field.name for field in fields] == ["value", "key"]:
        raise SerializationError(
            f"column '{path}' is a map whose keys are named 'value' and whose values are named 'key': rename them, or "
            f"exchange them"
        )
    return fields[0], fields[1]


def unit(kind: ArrowType, family: str) -> int | None:
    """Units a second of a `ts` timestamp, `tt` time or `tD` duration; None for another type."""
    return UNITS.get(kind.format[2:3]) if kind.format.startswith(family) else None


def time_reader(kind: ArrowType) -> str:
    """The `read` of a timestamp, time or duration."""
    return "int32" if kind.format in {"tts", "ttm"} else "int64"


def with_zone(kind: ArrowType) -> bool:
    """Whether a timestamp has a time zone, which makes it an instant."""
    return kind.format.startswith("ts") and len(kind.format) > 4


def type_name(kind: ArrowType) -> str:
    """The type for people, as pyarrow prints it."""
    if kind.dictionary is not None:
        return f"{'run_end_encoded' if kind.format == '+r' else 'dictionary'}<{type_name(kind.dictionary)}>"
    text = kind.format
    if text in INTEGERS:
        return INTEGERS[text][0]
    for names in (REALS, TEXTS, BINARIES, LISTS, _PLAIN):
        if text in names:
            return names[text]
    if decimal_type := decimal(kind):
        return f"decimal{decimal_type.width * 8}({decimal_type.precision}, {decimal_type.scale})"
    if text[:2] in {"ts", "tt", "tD"} and text[2:3] in UNITS:
        unit_name = _UNIT_NAMES[text[2]]
        zone = f", tz={text[4:]}" if with_zone(kind) else ""
        return {"ts": "timestamp", "tt": "time", "tD": "duration"}[text[:2]] + f"[{unit_name}{zone}]"
    if width(kind) is not None:
        return f"{'fixed_size_list' if text.startswith('+') else 'fixed_size_binary'}[{width(kind)}]"
    return f"Arrow format {text!r}"


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        return []
