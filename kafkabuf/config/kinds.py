"""The kinds of settings: how a value is checked, and what the documentation says of its type.

A function declares one setting in the body of a class. It returns a `Setting`, from which `ProducerConfig` makes the
value of an instance. So its type is Any: the annotation beside it gives the type of the value. Values may be text, as
Spark passes them.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from kafkabuf.config.secret import SecretStr, Url

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_WHOLE = re.compile(r"([+-]?\d+(?:_\d+)*)(?:\.0+)?", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_END_OF_HOST = re.compile(r"[/?#\\]")


class Setting(NamedTuple):
    """One setting. `type` and `valid` are words; `valid` is empty if every value of the type is valid."""

    check: Callable[[Any], Any]
    """Returns the value. Raises ValueError with what is expected, or ConfigError with the whole text."""
    default: Any
    description: str
    type: str
    valid: str = ""
    shown: bool = True
    """Whether an error may show a wrong value. A secret, or a URL with a password in it, appears nowhere."""


# Settings that Kafka has not, under names that Kafka will never have.
_PREFIX = "kafkabuf."
_PREFIXED = frozenset({"buffer_path", "buffer_sync", "buffer_expire", "buffer_full", "buffer_unproven"})


def dotted(field: str) -> str:
    """Kafka's spelling of a field's name."""
    return (_PREFIX if field in _PREFIXED else "") + field.replace("_", ".")


def field_of(name: str) -> str:
    """The field of a name in either spelling: the inverse of `dotted`."""
    field = name.replace(".", "_")
    short = field.removeprefix("kafkabuf_")
    return short if short in _PREFIXED else field


def special(
    check: Callable[[Any], Any],
    default: Any,
    description: str,
    type: str = "object",
    valid: str = "",
    *,
    shown: bool = True,
) -> Any:
    """A setting with a check of its own."""
    return Setting(check, default, description, type, valid, shown)


def integer(
    default: int | None, description: str, low: int = 0, high: int = INT32_MAX, valid: str | None = None
) -> Any:
    """A whole number. None is valid if it is the default. `valid` replaces the limits in the documentation."""

    def check(value: Any) -> int | None:
        number = whole(value)
        is_valid = value is default is None if number is None else low <= number <= high
        if not is_valid:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return number

    limits = f"{low} and above" if high in (INT32_MAX, INT64_MAX) else f"{low} to {high}"
    return Setting(check, default, description, "int", limits if valid is None else valid)


def long(default: int, description: str) -> Any:
    """A whole number of Kafka's type long, such as milliseconds."""
    return integer(default, description, high=INT64_MAX)


def fraction(default: float, description: str, low: float, high: float) -> Any:
    def check(value: Any) -> float:
        try:
            number = float("nan" if isinstance(value, bool) else value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low} to {high}")
        return number

    return Setting(check, default, description, "float", f"{low} to {high}")


def flag(default: bool, description: str) -> Any:
    return Setting(parse_flag, default, description, "boolean", "true, false")


def choice(default: str, description: str, *choices: str, fold: Callable[[str], str] = str) -> Any:
    """Some words. `fold` writes a given word as `choices` do."""
    valid = ", ".join(choices)

    def check(value: Any) -> str | None:
        word = fold(value.strip()) if isinstance(value, str) else None
        if word not in choices:
            raise ValueError(f"expected {_either(choices)}")
        return word

    return Setting(check, default, description, "string", valid)


def text(default: str | None, description: str, shortest: int = 0, longest: int | None = None) -> Any:
    """Text. None is valid if it is the default. Then blank text means None, unless it must not be so short."""

    def check(value: Any) -> str | None:
        if default is None and (value is None or (shortest == 0 and _is_blank(value))):
            return None
        text = _text(value)
        if longest is not None and not shortest <= len(text) <= longest:
            raise ValueError(f"expected text of {shortest} to {longest} characters")
        return text

    return Setting(check, default, description, "string")


def path(description: str, *, blank: bool = True) -> Any:
    """The path of a file; without it, None. Python gives a name that is no UTF-8 with halves of surrogate pairs.

    `blank`: blank text means None, too. If not it is refused: a program whose variable is empty wants a file.
    """

    def check(value: Any) -> str | None:
        given = os.fspath(value) if isinstance(value, os.PathLike) else value
        if given is None or (blank and _is_blank(given)):
            return None
        name = _any_text(given)
        if "\0" in name or _is_blank(name):
            raise ValueError("expected the path of a file")
        return name

    return Setting(check, None, description, "string")


def url(description: str) -> Any:
    """A URL; without it, None. It has no user and password: it appears in logs, errors and `repr`."""

    def check(value: Any) -> Url | None:
        if value is None or _is_blank(value):
            return None
        url = _text(value)
        if "@" in _END_OF_HOST.split(url.partition("//")[2] or url, maxsplit=1)[0]:
            raise ValueError("expected https://host[:port]/path without a user name and password in it")
        return Url(url)

    return Setting(check, None, description, "string", shown=False)


def secret(description: str) -> Any:
    """Text that no output shows. Blank text means None."""

    def check(value: Any) -> SecretStr | None:
        if value is None or _is_blank(value):
            return None
        # The secrets of other libraries, as pydantic's, have this method too.
        show = getattr(type(value), "get_secret_value", None)
        return SecretStr(_text(value if show is None else show(value)))

    return Setting(check, None, description, "password", shown=False)


def words(default: tuple[str, ...] | None, description: str, *choices: str) -> Any:
    """A list of words, or words between commas. None is valid if it is the default."""

    def check(value: Any) -> tuple[str, ...] | None:
        if value is None and default is None:
            return None
        entries = split(value)
        if not isinstance(entries, list | tuple):
            raise ValueError("expected a list, or words between commas")
        words = tuple(_text(entry) for entry in entries)
        if choices and not {*words} <= {*choices}:
            raise ValueError(f"expected a list of {_either(choices)}")
        return words

    return Setting(check, default, description, "list", ", ".join(choices))


def parse_flag(value: object) -> bool:
    flag = {"true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise ValueError("expected true or false")
    return flag


def split(value: Any) -> Any:
    """The entries between the commas of a text. Any other value stays as it is."""
    return tuple(entry.strip() for entry in value.split(",") if entry.strip()) if isinstance(value, str) else value


def whole(value: Any) -> int | None:
    """A whole number from a number or from text; None for all other values. A bool is not a number here."""
    if isinstance(value, str):
        match = _WHOLE.fullmatch(value.strip())
        # Python refuses to read a number of thousands of digits.
        return int(match[1]) if match and len(value) < 100 else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _either(choices: tuple[str, ...]) -> str:
    *before_last, last = map(repr, choices)
    return f"{', '.join(before_last)} or {last}"


def _is_blank(value: Any) -> bool:
    return isinstance(value, str | bytes | bytearray) and not value.strip()


def has_surrogate(text: str) -> bool:
    """Whether a text has half of a surrogate pair, which UTF-8 cannot encode.

    Python makes these of bytes that are no UTF-8, in arguments, environment variables and names of files.
    """
    return _SURROGATE.search(text) is not None


def _text(value: Any) -> str:
    text = _any_text(value)
    # At once: the error of the codec would have the whole text, a secret too, where the text is encoded.
    if has_surrogate(text):
        raise ValueError("expected text that UTF-8 can encode; this has bytes of another encoding")
    return text


def _any_text(value: Any) -> str:
    try:
        text = value.decode() if isinstance(value, bytes | bytearray) else value
    except UnicodeDecodeError:
        text = None  # the codec's own error would show the value, which may be a secret
    if not isinstance(text, str):
        raise ValueError("expected text")
    return text
