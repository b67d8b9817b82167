"""Objects of JSON become records, for `kafkabuf produce`: numbers keep their digits."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from math import isinf
from typing import Any, NoReturn

from kafkabuf.cli.produce.inputs.block import Columns
from kafkabuf.cli.produce.inputs.bytes import not_utf8
from kafkabuf.cli.produce.inputs.lines import Parts


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it is not JSON: {name} is no number of JSON")


class _Number:
    """A number that JSON is to have again as the line has it: Python's float has another text, or fewer digits."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _exact(text: str) -> float | _Number:
    number = float(text)
    return number if repr(number) == text else _Number(text)


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError(f"the number {text:.50} is larger than every double")
    return number


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(members)
    if len(made) != len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has two members {twice!r:.100}: which one counts is not known")
    return made


# json.loads() looks at the encoding of each text, and json.dumps() makes an encoder for each value.
_decode_exact = json.JSONDecoder(parse_float=_exact, parse_constant=_refuse_constant, object_pairs_hook=_object).decode
_decode = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant, object_pairs_hook=_object).decode
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def json_parser(
    columns: Columns, partitions: int, encode: Callable[[Any], bytes | None] | None, *, digits: bool = False
) -> Callable[[bytes], Parts | None]:
    """Parses a line with an object, whose members are columns.

    `encode` makes a value of an object without the columns that became other parts; None keeps the line as it is. A
    partition must be one of `partitions`, a number. With `digits` a key or raw value {"hex": DIGITS} is bytes.
    """
    key, headers, timestamp, partition, value = columns
    part = bytes_or_digits if digits else as_bytes

    def parse(line: bytes) -> Parts | None:
        if not line or line.isspace():
            return None
        row = _loaded(line, _decode_exact)
        optional = (
            None if key is None else part(_member(row, key)),
            None if headers is None else as_headers(row.get(headers)),
            None if partition is None else as_partition(row.get(partition), partitions),
            None if timestamp is None else as_timestamp(row.get(timestamp)),
        )
        return value_of(row, line), *optional

    def value_of(row: dict[str, Any], line: bytes) -> Any:
        if encode is None:
            return line if value is None else part(_member(row, value))
        if encode is not compact:
            row = _loaded(line, _decode)  # other formats take Python's numbers
        if value is not None:
            member = _member(row, value)
            return None if member is None else encode(member)
        for name in columns.beside_value:
            row.pop(name, None)
        return encode(row)

    return parse


def _loaded(line: bytes, decode: Callable[[str], Any]) -> dict[str, Any]:
    try:
        row = decode(line.decode())
    except UnicodeDecodeError:
        raise ValueError(not_utf8(line)) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"an object is needed, found {_kind(row)}")
    return row


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
    except TypeError:  # Python's encoder cannot write a _Number
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
    for name, _ in pairs:
        name.encode()  # raises UnicodeEncodeError for a half of a surrogate pair
    return pairs


def _pair(pair: object) -> tuple[str, bytes | None]:
    """A header as `kafkabuf consume -f json` prints it."""
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
        raise ValueError("each item of an array of headers must be an array of a name and a value")
    name, value = pair
    return name, bytes_or_digits(value)


def bytes_or_digits(value: object) -> bytes | None:
    """As `kafkabuf consume -f json` prints a part: bytes that are not UTF-8 are an object with their digits."""
    if isinstance(value, dict) and value.keys() == {"hex"}:
        return _digits(value["hex"])
    return as_bytes(value)


def _digits(text: object) -> bytes:
    try:
        return bytes.fromhex(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"bytes must be text of hexadecimal digits, found {text!r}") from None


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
