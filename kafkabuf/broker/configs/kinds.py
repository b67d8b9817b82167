"""The types of settings: how Kafka's ConfigDef reads, checks and prints a value.

A value arrives as text. `Kind.canonical` returns the text that Kafka lists for it: " 5 " becomes "5", and "TRUE"
becomes "true". Errors have Kafka's texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafkabuf.errors import InvalidConfigError

# By the protocol's numbers.
BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = range(1, 10)
TYPE_NAMES = {
    BOOLEAN: "BOOLEAN",
    STRING: "STRING",
    INT: "INT",
    SHORT: "SHORT",
    LONG: "LONG",
    DOUBLE: "DOUBLE",
    LIST: "LIST",
    CLASS: "CLASS",
    PASSWORD: "PASSWORD",
}
_BITS = {SHORT: 15, INT: 31, LONG: 63}
# What Java's String.trim takes away.
_BLANKS = "".join(map(chr, range(33)))
# What a regular expression of Java's calls space. Kafka takes it away around the commas of a list.
_SPACES = " \t\n\v\f\r"
# A number is no longer: to read a long text as a number takes long, and clients may send a megabyte.
_LONGEST_NUMBER = 400
_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)", re.ASCII)
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)[pP][+-]?\d+[fFdD]?", re.ASCII)

# Raises InvalidConfigError for a value that the setting of this name does not take.
Check = Callable[[str, Any], None]


def invalid(name: str, value: object, fault: str) -> InvalidConfigError:
    return InvalidConfigError(f"Invalid value {value} for configuration {name}: {fault}")


@dataclass(frozen=True, slots=True)
class Kind:
    """A type with its check. Without `check` every value of the type is valid."""

    type: int
    check: Check | None = None

    def canonical(self, name: str, text: str) -> str:
        """The value as Kafka lists it. Raises InvalidConfigError."""
        value = parse(name, self.type, text)
        if self.check is not None:
            self.check(name, value)
        return printed(value)


def parse(name: str, kind: int, text: str) -> Any:
    """The value of a type that a text stands for. Raises InvalidConfigError."""
    trimmed = text.strip(_BLANKS)
    if kind == BOOLEAN:
        if trimmed.lower() not in ("true", "false"):
            raise invalid(name, text, "Expected value to be either true or false")
        return trimmed.lower() == "true"
    if kind == LIST:
        return [word.strip(_SPACES) for word in trimmed.split(",")] if trimmed else []
    if kind in _BITS:
        limit = 1 << _BITS[kind]
        if len(trimmed) > _LONGEST_NUMBER or not _INTEGER.fullmatch(trimmed) or not -limit <= int(trimmed) < limit:
            raise invalid(name, text, f"Not a number of type {TYPE_NAMES[kind]}")
        return int(trimmed)
    if kind == DOUBLE:
        return _parse_double(name, text, trimmed)
    return trimmed


def _parse_double(name: str, text: str, trimmed: str) -> float:
    number = trimmed.rstrip("fFdD")
    if len(trimmed) > _LONGEST_NUMBER:
        raise invalid(name, text, "Not a number of type DOUBLE")
    if _HEXADECIMAL.fullmatch(trimmed):
        try:
            return float.fromhex(number)
        except OverflowError:
            return math.inf
    if not _DECIMAL.fullmatch(trimmed):
        raise invalid(name, text, "Not a number of type DOUBLE")
    return float(number)


def printed(value: Any) -> str:
    """The text of a value, as Java prints it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(value)
    return _print_double(value) if isinstance(value, float) else str(value)


def _print_double(value: float) -> str:
    """Java's Double.toString: a fraction always, and an exponent below 0.001 and from 10,000,000 on."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    shortest = next(text for precision in range(18) if float(text := f"{value:.{precision}e}") == value)
    digits, _, exponent = shortest.partition("e")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


# ---- checks


def at_least(least: float, most: float | None = None) -> Check:
    """A number from `least` to `most`."""

    def check(name: str, value: Any) -> None:
        # A comparison with NaN is never true, so NaN passes, as it does in Kafka.
        if value < least:
            raise invalid(name, printed(value), f"Value must be at least {least}")
        if most is not None and value > most:
            raise invalid(name, printed(value), f"Value must be no more than {most}")

    return check


def one_of(*words: str) -> Check:
    """One of these words. For a list, each of its items must be one of them."""

    def check(name: str, value: Any) -> None:
        for word in value if isinstance(value, list) else [value]:
            if word not in words:
                raise invalid(name, word, f"String must be one of: {', '.join(words)}")

    return check
