"""What the faces share when they translate settings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any

from kafkabuf.errors import ConfigError

KAFKA_PORT = 9092


def with_port(servers: str | Iterable[Any]) -> str:
    """Bootstrap servers as `host:port,...`. Clients other than Java's take 9092 where an entry has no port."""
    entries = servers.split(",") if isinstance(servers, str) else [str(entry) for entry in servers]
    return ",".join(_entry_with_port(entry.strip()) for entry in entries if entry.strip())


def _entry_with_port(entry: str) -> str:
    address = entry.rpartition("://")[2]
    is_bare_v6 = address.count(":") > 1 and not address.startswith("[") and " " not in address
    if is_bare_v6:
        return f"[{address}]:{KAFKA_PORT}"
    has_port = ":" in address.rpartition("]")[2]
    return entry if has_port else f"{entry}:{KAFKA_PORT}"


def in_whole_ms(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with their times rounded up: the clients take fractions of a millisecond, and kafkabuf does not.

    Text with a number, as of an environment variable, is that number. Raises ConfigError for a time that is no number.
    """
    return {name: _whole_ms(name, value) if name.endswith("_ms") else value for name, value in settings.items()}


def _whole_ms(name: str, value: Any) -> Any:
    number = as_number(name, value, "a number of milliseconds")
    # Infinity and what is negative stay as they are: kafkabuf refuses them under their name.
    return math.ceil(number) if isinstance(number, float) and 0 < number < math.inf else number


def as_number(name: str, value: Any, what: str = "a number") -> Any:
    """The number, also of text. The faces compute with it before kafkabuf sees it, and so refuse it under its name."""
    number = _number_in(value) if isinstance(value, str) else value
    if number is None or isinstance(number, bool) or not isinstance(number, Real):
        raise ConfigError(f"{name}: expected {what}, found {value!r:.200}")
    return number


def _number_in(text: str) -> float | None:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return None


def with_own_names(text: str, names: Mapping[str, str]) -> str:
    """The text of an error, and behind it what the settings that it names are called in the face: `names` says so."""
    known = [f"{name} is {own} here" for name, own in names.items() if _names(text, name)]
    note = f" ({'; '.join(known)})" if known else ""
    return text if note in text else text + note


def _names(text: str, name: str) -> bool:
    """Whether the text has the name, and not as a part of a longer one."""
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w|\.\w)", text) is not None


def absent(module: str, name: str, elsewhere: Mapping[str, str]) -> Exception:
    """The error for a name that a face lacks: it says what takes the name's place, if the peer has it.

    `from module import name` lets only an ImportError pass, and replaces the text of an AttributeError.
    """
    if name in elsewhere:
        return ImportError(f"{module} has no {name}: {elsewhere[name]}", name=name)
    return AttributeError(f"module {module!r} has no attribute {name!r}")


def file_text(name: str, path: str) -> str:
    """The PEM text of the file that a setting names. Raises ConfigError."""
    try:
        return Path(path).read_text(encoding="latin-1")
    except OSError as error:
        raise ConfigError(f"{name}: {path!r} cannot be read: {error.strerror}") from None
