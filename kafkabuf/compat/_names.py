"""What the faces share when they translate settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
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
    """The settings with their times rounded up: the clients take fractions of a millisecond, and kafkabuf does not."""
    return {name: _whole_ms(value) if name.endswith("_ms") else value for name, value in settings.items()}


def _whole_ms(value: Any) -> Any:
    # A value that is no time at all stays as it is: kafkabuf refuses it under its name.
    return math.ceil(value) if isinstance(value, float) and 0 < value < math.inf else value


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
