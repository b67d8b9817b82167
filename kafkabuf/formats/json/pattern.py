"""Compiles patterns of dates and times, which are a subset of Java's, into operations (_columns.pxd)."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kafkabuf.errors import ConfigError
from kafkabuf.formats.json.names import escaped

# The letters, with the most of each that may stand together, and whether it needs a time, or an offset.
_DATE_LETTERS = {"y": 9, "M": 2, "d": 2}
_TIME_LETTERS = {"H": 2, "m": 2, "s": 2, "S": 9}
_OFFSET_LETTERS = {"X": 3}
_LETTERS = _DATE_LETTERS | _TIME_LETTERS | _OFFSET_LETTERS
_MAX_LITERAL = 255

Op = tuple[str, int | str]  # a letter with its number, or "L" with a text

# ---- patterns of the dialects ----------------------------------------------------------------------------------------

DATE: list[Op] = [("D", 0)]
ORJSON_TIME: list[Op] = [("C", 0), ("f", 0)]
ORJSON_LOCAL: list[Op] = [("D", 0), ("L", "T"), *ORJSON_TIME]
ORJSON_INSTANT: list[Op] = [*ORJSON_LOCAL, ("x", 5)]
SPARK_TIME: list[Op] = [("C", 0), ("l", 0)]
SPARK_LOCAL: list[Op] = [("D", 0), ("L", "T"), ("C", 0), ("L", "."), ("S", 3)]
SPARK_INSTANT: list[Op] = [*SPARK_LOCAL, ("X", 4)]


def pattern_ops(pattern: str, *, time: bool, offset: bool) -> list[Op]:
    """A pattern's operations, for a value that has a time, or not, and an offset, or not.

    Letters without a meaning for the value are left out with their optional part [ ], as Java does. Raises ConfigError
    for a letter that is not supported, and for one outside of brackets that the value has no meaning for.
    """
    parser = _Parser(pattern)
    ops, _ = parser.section(0, 0)
    known = _DATE_LETTERS | (_TIME_LETTERS if time else {}) | (_OFFSET_LETTERS if offset else {})
    return list(_flat(ops, pattern, known))


_Part = Op | list["_Part"]


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def section(self, at: int, depth: int) -> tuple[list[_Part], int]:
        """The parts from `at` to the end of the section, and the place behind it."""
        parts: list[_Part] = []
        while at < len(self._pattern):
            letter = self._pattern[at]
            if letter == "[":
                part: _Part
                part, at = self.section(at + 1, depth + 1)
                parts.append(part)
            elif letter == "]":
                if depth == 0:
                    raise self._wrong("a ] has no [")
                return parts, at + 1
            elif letter == "'":
                text, at = self._quoted(at + 1)
                parts.append(("L", text))
            elif letter.isascii() and letter.isalpha():
                end = at
                while self._pattern[end : end + 1] == letter:
                    end += 1
                parts.append((letter, self._checked(letter, end - at)))
                at = end
            elif letter in "#{}":
                raise self._wrong(f"{letter!r} is reserved")
            else:
                parts.append(("L", letter))
                at += 1
        if depth:
            raise self._wrong("a [ has no ]")
        return parts, at

    def _checked(self, letter: str, count: int) -> int:
        if count > _LETTERS.get(letter, 0) or (letter == "y" and count == 3):
            allowed = ", ".join(f"{known * most}" for known, most in _LETTERS.items())
            raise self._wrong(f"{letter * count!r} is not supported; letters at most: {allowed}")
        return count

    def _quoted(self, at: int) -> tuple[str, int]:
        """The text from `at` to the closing quote; '' is a quote, also outside of quotes."""
        if self._pattern[at : at + 1] == "'":
            return "'", at + 1
        text = ""
        while at < len(self._pattern):
            if self._pattern[at : at + 2] == "''":
                text, at = text + "'", at + 2
            elif self._pattern[at] == "'":
                return text, at + 1
            else:
                text, at = text + self._pattern[at], at + 1
        raise self._wrong("a quote is not closed")

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(f"the pattern {self._pattern!r} is not valid: {why}")


def _flat(parts: Sequence[_Part], pattern: str, known: dict[str, int]) -> Iterator[Op]:
    for part in parts:
        if isinstance(part, list):
            yield from _optional(part, pattern, known)
        elif part[0] != "L" and part[0] not in known:
            raise ConfigError(f"the pattern {pattern!r} has {part[0]!r}, which the column's values do not have")
        else:
            yield part


def _optional(parts: list[_Part], pattern: str, known: dict[str, int]) -> list[Op]:
    try:
        return list(_flat(parts, pattern, known))
    except ConfigError:
        # Java writes a section up to its first part without a value, and takes it back then.
        return []


# ---- time zones ------------------------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The calendar repeats itself after 400 years: after the last year, the writer looks 400 years and more back.
_FIRST_YEAR, _LAST_YEAR = 1800, 2500
_WEEK = 7 * 86_400


# What Java's ZoneId.of() takes, such as GMT+08:30 and +083015, and what Spark adds: +8:30 and +8:5.
_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(?:(\d\d?)(?::(\d\d?))?|(\d\d?):(\d\d):(\d\d)|(\d\d)(\d\d)(\d\d)?)", re.ASCII
)
_LARGEST_OFFSET = timedelta(hours=18)
# Java's ZoneId.SHORT_IDS, which Spark takes. Some of them have another meaning in zoneinfo.
_SPARKS_NAMES = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}


def zone_of(name: str, *, spark: bool) -> tzinfo | timedelta:
    """A time zone by its name, or a fixed offset such as +05:30. Raises ConfigError for an unknown name.

    `spark`: names of three letters are Java's.
    """
    name = _SPARKS_NAMES.get(name, name) if spark else name
    if name in {"UTC", "Z", "GMT", "UT", "Etc/UTC"}:
        return timedelta(0)
    if match := _OFFSET.fullmatch(name):
        sign, *numbers = (group for group in match.groups() if group is not None)
        hours, minutes, seconds = (*map(int, numbers), 0, 0)[:3]
        offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if offset <= _LARGEST_OFFSET and minutes < 60 and seconds < 60:
            return -offset if sign == "-" else offset
    else:
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise ConfigError(
        f"there is no time zone {name!r}: give a name such as Europe/Berlin, or an offset such as +05:30. Python needs "
        "the package tzdata where the system has no time zones"
    )


@functools.lru_cache(16)
def zone_table(name: str, *, spark: bool) -> tuple[tuple[int, int], ...]:
    """The seconds since 1970 at which the zone's offset changes, and the offset in seconds from then on."""
    zone = zone_of(name, spark=spark)
    if isinstance(zone, timedelta):
        return ((-(2**62), int(zone.total_seconds())),)
    at, end = (int((datetime(year, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) for year in (_FIRST_YEAR, _LAST_YEAR))
    offset = _offset(zone, at)
    table = [(-(2**62), offset)]
    while at < end:
        later = _offset(zone, at + _WEEK)
        if later != offset:
            low, high = at, at + _WEEK
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(zone, middle) == offset else (low, middle)
            table.append((high, later))
            offset = later
        at += _WEEK
    return tuple(table)


def _offset(zone: tzinfo, second: int) -> int:
    offset = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


# ---- bytes -----------------------------------------------------------------------------------------------------------


def encoded(ops: Sequence[Op], zone: str | None, *, spark: bool) -> bytes:
    """The pattern's table for the writer; without a zone, there is no offset."""
    code = b"".join(_encoded_op(letter, argument, spark=spark) for letter, argument in _joined(ops))
    table = zone_table(zone, spark=spark) if zone is not None else ()
    numbers = [len(table), *(number for pair in table for number in pair), len(code)]
    return struct.pack(f"={len(numbers)}q", *numbers) + code


def _joined(ops: Sequence[Op]) -> Iterator[Op]:
    """Neighbouring literals become one."""
    text = ""
    for letter, argument in ops:
        if letter == "L":
            text += str(argument)
            continue
        if text:
            yield "L", text
            text = ""
        yield letter, argument
    if text:
        yield "L", text


def _encoded_op(letter: str, argument: int | str, *, spark: bool) -> bytes:
    if isinstance(argument, int):
        return letter.encode() + bytes([argument])
    text = escaped(argument, spark=spark).encode()
    parts = (text[at : at + _MAX_LITERAL] for at in range(0, len(text), _MAX_LITERAL))
    return b"".join(b"L" + bytes([len(part)]) + part for part in parts)
