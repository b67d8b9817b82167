"""Options that are one of a few words."""

from __future__ import annotations

import difflib
from enum import StrEnum
from typing import TypeVar

from kafkabuf.errors import ConfigError

Choice = TypeVar("Choice", bound=StrEnum)


class _YesOrNo(StrEnum):
    TRUE = "true"
    FALSE = "false"


def choice(kind: type[Choice], name: str, given: str) -> Choice:
    """The word in upper or lower case. Raises ConfigError for another word."""
    try:
        return kind(given.strip().lower())
    except ValueError:
        allowed = ", ".join(kind)
        near = difflib.get_close_matches(given.lower(), list(kind), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ConfigError(f"option '{name}' is '{given}'; allowed: {allowed}{hint}") from None


def yes_or_no(name: str, given: str | None, *, default: bool) -> bool:
    """An option that is true or false. Raises ConfigError for another word."""
    return default if given is None else choice(_YesOrNo, name, given) is _YesOrNo.TRUE
