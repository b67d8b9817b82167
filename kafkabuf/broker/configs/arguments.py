"""Checks of the arguments that a test gives to the cluster. Each raises ConfigError, which names the argument."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from kafkabuf.errors import ConfigError


def require_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{name}={value!r}: a str is needed, found {type(value).__name__}")


def require_int(name: str, value: Any, least: int | None = None, most: int | None = None) -> None:
    """Accepts whole numbers, and no bool, from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | Integral):
        raise ConfigError(f"{name}={value!r}: an int is needed, found {type(value).__name__}")
    value = int(value)
    if least is not None and value < least:
        raise ConfigError(f"{name}={value}: at least {least} is needed")
    if most is not None and value > most:
        raise ConfigError(f"{name}={value}: at most {most} is allowed")


def require_timeout(name: str, value: Any) -> None:
    """Accepts numbers, infinity too, and no NaN. A time-out of less than 0 has passed already."""
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise ConfigError(f"{name}={value!r}: a number of seconds is needed")


def require_seconds(name: str, value: Any) -> None:
    """As `require_timeout`, but from 0 on."""
    require_timeout(name, value)
    if value < 0:
        raise ConfigError(f"{name}={value}: 0 or more seconds are needed")
