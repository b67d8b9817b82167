"""A setting as DescribeConfigs lists it."""

from __future__ import annotations

from dataclasses import dataclass

# Where a value comes from, by the protocol's numbers.
OF_TOPIC, OF_NODE, OF_ALL_NODES, STATIC, DEFAULT, OF_LOGGER, OF_CLIENT_METRICS, OF_GROUP = range(1, 9)
# A value on one level: the name of the setting there, the value (None: not shown), and its source.
Level = tuple[str, str | None, int]


@dataclass(frozen=True, slots=True)
class Setting:
    """`synonyms` has every level that has a value. The value of the first level applies."""

    name: str
    value: str | None
    type: int
    source: int
    synonyms: tuple[Level, ...] = ()
    read_only: bool = False
    sensitive: bool = False
    documentation: str | None = None
