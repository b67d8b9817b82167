"""Lines become records, for `kafkabuf produce`: a text or columns, and the lines that are no records."""

from __future__ import annotations

import json
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from math import isinf
from typing import Any, NamedTuple, NoReturn, Protocol

from kafkabuf.cli.produce.inputs.lines import Block


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


class _Number:
    """A number that JSON is to have again as the line has it: Python's float has another text, or fewer digits."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class _FoundNumberError(Exception):
    """A value has a _Number, which Python's encoder cannot write."""


class _RefusedError(ValueError):
    """JSON of which it is not known what it means."""


def _exact(text: str) -> float | _Number:
    number = float(text)
    return number if repr(number) == text else _Number(text)


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise _RefusedError(f"the number {text:.50} is larger than every double")
    return number


def _found_number(value: object) -> NoReturn:
    raise _FoundNumberError


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(members)
    if len(made) != len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise _RefusedError(f"an object has two members {twice!r:.100}: which one counts is not known")
    return made


# json.loads() looks at the encoding of each text, and json.dumps() makes an encoder for each value.
_decode_exact = json.JSONDecoder(parse_float=_exact, parse_constant=_refuse_constant, object_pairs_hook=_object).decode
_decode = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant, object_pairs_hook=_object).decode
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_found_number).encode


class Refused(NamedTuple):
    """A line that is no record, and why not."""

    line: int
    raw: bytes
    reason: str


class Raw(Protocol):
    """What the input has for a record, by its place in the block."""

    def __getitem__(self, place: int, /) -> bytes: ...


class LinesOf:
    """The lines of a block. They are split where one is asked for."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def __getitem__(self, place: int) -> bytes:
        return self._lines[place]

    @cached_property
    def _lines(self) -> list[bytes]:
        return self._block.lines


@dataclass
class Records:
    """Columns of equal length; None where no record has the field. `lines` are numbers, `raw` is the input's text.

    With a `text` the values are its lines, and there is no other column.
    """

    lines: Sequence[int]
    raw: Raw
    values: list[Any] = field(default_factory=list)
    keys: list[bytes | None] | None = None
    headers: list[Any] | None = None
    partitions: list[int | None] | None = None
    timestamps: list[int | None] | None = None
    refused: list[Refused] = field(default_factory=list)
    text: bytes | None = None

    @property
    def columns(self) -> tuple[Any, ...]:
        """The arguments of send_many() behind the topic."""
        return self.values, self.keys, self.headers, self.partitions, self.timestamps


Parse = Callable[[Block], Records]


def plain_lines(block: Block) -> Records:
    """Each line is a value."""
    return Records(block.numbers, LinesOf(block), text=block.text)


def separated_lines(separator: bytes) -> Parse:
    """Each line is a key and a value, with the separator between."""

    def parse(block: Block) -> Records:
        lines, numbers = block.lines, block.numbers
        split = [line.partition(separator) for line in lines]
        records = Records(numbers, lines, [value for _, _, value in split], [key for key, _, _ in split])
        if all(has_separator for _, has_separator, _ in split):
            return records
        rows = [row for row, (_, has_separator, _) in enumerate(split) if has_separator]
        reason = f"it has no separator {separator.decode(errors='backslashreplace')!r} between key and value"
        return Records(
            [numbers[row] for row in rows],
            [lines[row] for row in rows],
            [split[row][2] for row in rows],
            [split[row][0] for row in rows],
            refused=[Refused(numbers[row], lines[row], reason) for row in range(len(split)) if not split[row][1]],
        )

    return parse


def whole_json_lines(block: Block) -> Records:
    """Each line is a value as it is, apart from blank lines. Nothing parses it."""
    if not block.blank:
        return plain_lines(block)
    kept = [(number, line) for number, line in zip(block.numbers, block.lines, strict=True) if line.strip()]
    lines = [line for _, line in kept]
    return Records([number for number, _ in kept], lines, text=b"\n".join(lines))


def without_mark(parse: Parse) -> Parse:
    """JSON has no byte order mark, which some editors write at the start of a file."""

    def parse_without(block: Block) -> Records:
        if block.first == 1:
            block = block._replace(text=block.text.removeprefix(BOM_UTF8))
        return parse(block)

    return parse_without


class Columns(NamedTuple):
    """The names of the columns for the parts of a record; None: no column."""

    key: str | None = None
    headers: str | None = None
    timestamp: str | None = None
    partition: str | None = None
    value: str | None = None

    @property
    def beside_value(self) -> tuple[str, ...]:
        return tuple(name for name in self[:4] if name is not None)


class JsonLines:
    """Each line is a JSON object, whose members are columns.

    `encode` makes a value of an object without the columns that became other parts; None keeps the line as it is. A
    partition must be one of `partitions`, a number.
    """

    def __init__(self, columns: Columns, partitions: int, encode: Callable[[Any], bytes] | None) -> None:
        self._columns = columns
        self._partitions = partitions
        self._encode = encode

    def __call__(self, block: Block) -> Records:
        columns = self._columns
        lines: list[int] = []
        records = Records(lines, [], [])
        raw: list[bytes] = []
        parts: list[tuple[Any, ...]] = []
        for number, line in enumerate(block.lines, block.first):
            if not line or line.isspace():
                continue
            try:
                parts.append(self._parts(line))
            except UnicodeEncodeError:
                records.refused.append(Refused(number, line, "UTF-8 has no half of a surrogate pair"))
            except (ValueError, RecursionError) as error:
                records.refused.append(Refused(number, line, str(error) or "its values are nested too deeply"))
            else:
                lines.append(number)
                raw.append(line)
        records.raw = raw
        records.values = [each[4] for each in parts]
        if columns.key is not None:
            records.keys = [each[0] for each in parts]
        if columns.headers is not None:
            records.headers = [each[1] for each in parts]
        if columns.timestamp is not None:
            records.timestamps = [each[2] for each in parts]
        if columns.partition is not None:
            records.partitions = [each[3] for each in parts]
        return records

    def _parts(self, line: bytes) -> tuple[Any, ...]:
        row = _loaded(line, _decode_exact)
        key, headers, timestamp, partition, value = self._columns
        return (
            None if key is None else as_bytes(_member(row, key)),
            None if headers is None else as_headers(row.get(headers)),
            None if timestamp is None else as_timestamp(row.get(timestamp)),
            None if partition is None else as_partition(row.get(partition), self._partitions),
            self._value(row, value, line),
        )

    def _value(self, row: dict[str, Any], column: str | None, line: bytes) -> Any:
        if self._encode is None:
            return line if column is None else as_bytes(_member(row, column))
        if self._encode is not compact:
            row = _loaded(line, _decode)  # other formats take Python's numbers
        if column is not None:
            member = _member(row, column)
            return None if member is None else self._encode(member)
        for name in self._columns.beside_value:
            row.pop(name, None)
        return self._encode(row)


def _loaded(line: bytes, decode: Callable[[str], Any]) -> dict[str, Any]:
    try:
        row = decode(line.decode())
    except UnicodeDecodeError:
        raise ValueError(not_utf8(line)) from None
    except _RefusedError:
        raise
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"an object is needed, found {_kind(row)}")
    return row


def not_utf8(text: bytes) -> str:
    """What to do with a text that is not UTF-8."""
    encoding = "utf-16" if text.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "latin1"
    return f"it is not UTF-8: iconv -f {encoding} -t utf-8 converts such files"


def _member(row: dict[str, Any], name: str) -> Any:
    try:
        return row[name]
    except KeyError:
        raise ValueError(f"it has no column {name!r}") from None


def _kind(value: object) -> str:
    names = {list: "an array", str: "text", bool: "a boolean"} | dict.fromkeys((int, float, _Number), "a number")
    return names.get(type(value), "null")


def compact(value: object) -> bytes:
    """JSON without blanks; numbers have the text of the line. Raises ValueError for text that UTF-8 cannot encode."""
    try:
        return _encode(value).encode()
    except _FoundNumberError:
        return _written(value).encode()


def _written(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_encode(name)}:{_written(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return value.text if isinstance(value, _Number) else _encode(value)


def as_bytes(value: object) -> bytes | None:
    """Text as UTF-8, null as null, and everything else as JSON."""
    if isinstance(value, str):
        return value.encode()
    return None if value is None else compact(value)


def as_headers(value: object) -> list[tuple[str, bytes | None]] | None:
    """An object of names and values, or an array of such pairs; null: no headers."""
    if value is None:
        return None
    if isinstance(value, list):
        pairs = [_pair(each) for each in value]
    elif isinstance(value, dict):
        pairs = [(name, as_bytes(each)) for name, each in value.items()]
    else:
        raise ValueError(f"the headers must be an object or an array of pairs, found {_kind(value)}")
    if not all(_is_utf8(name) for name, _ in pairs):
        raise ValueError("the name of a header is not UTF-8")
    return pairs


def _pair(pair: object) -> tuple[str, bytes | None]:
    """A header as `kafkabuf consume -f json` prints it: bytes that are not UTF-8 are an object with their digits."""
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
        raise ValueError("each item of an array of headers must be an array of a name and a value")
    name, value = pair
    if isinstance(value, dict) and value.keys() == {"hex"}:
        return name, _digits(value["hex"])
    return name, as_bytes(value)


def _digits(text: object) -> bytes:
    try:
        return bytes.fromhex(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"the bytes of a header must be text of hexadecimal digits, found {text!r}") from None


def _is_utf8(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def as_timestamp(value: object) -> int | None:
    """Milliseconds since 1970, or ISO-8601 text, which is in UTC unless it names a zone."""
    if value is None:
        return None
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
        value = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"a timestamp is milliseconds since 1970 or ISO-8601 text, found {value!r:.50}")
    return value


def as_partition(value: object, partitions: int) -> int | None:
    """One of the topic's partitions; null: the producer chooses."""
    if value is not None and (type(value) is not int or not 0 <= value < partitions):
        raise ValueError(f"a partition is a number from 0 to {partitions - 1}, found {value!r:.50}")
    return value
