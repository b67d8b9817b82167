"""Checked settings without the model: a process that unpickles them does not load pydantic.

To load the model takes longer than a small task of Spark. A driver has checked the settings, and its tasks need only
the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SMALLEST_SLAB = 512


class PlainSecret:
    """As pydantic's SecretStr: no output shows the value. A pickle contains it."""

    def __init__(self, value: str) -> None:
        self._value = value

    def get_secret_value(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "PlainSecret('**********')"


class PlainConfig:
    """The attributes of a ProducerConfig, which makes it (`ProducerConfig.plain`) and whose place it takes."""

    def __init__(self, values: Mapping[str, Any], given: frozenset[str]) -> None:
        self.__dict__.update(values)
        self._given = given

    @property
    def slab_size(self) -> int:
        return slab_size(self.__dict__["batch_size"])

    def given(self) -> dict[str, Any]:
        """As ProducerConfig.given, but secrets are text."""
        found = {name: self.__dict__[name] for name in sorted(self._given)}
        return {name: v.get_secret_value() if isinstance(v, PlainSecret) else v for name, v in found.items()}

    def replaced(self, changes: Mapping[str, Any]) -> PlainConfig:
        """The settings with other values for some fields, which the caller has checked."""
        kept = {name: value for name, value in self.__dict__.items() if name != "_given"}
        return PlainConfig({**kept, **changes}, self._given | changes.keys())

    def __repr__(self) -> str:
        return f"PlainConfig({', '.join(sorted(self._given))})"


def slab_size(batch_size: int) -> int:
    """Bytes of one slab of the arena: `batch.size`, but at least enough for a batch header and a short record."""
    return max(batch_size, SMALLEST_SLAB)
