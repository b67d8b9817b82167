"""The levels of the broker's loggers, as clients list and change them (KIP-412).

Python's logger kafkabuf.broker stands for Kafka's root logger. All nodes and all clusters of the process share it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from kafkabuf.broker.configs.setting import OF_LOGGER, Setting
from kafkabuf.errors import InvalidConfigError, InvalidRequestError

ROOT = "root"
SET, DELETE = 0, 1
_NAME = "kafkabuf.broker"
_OPERATIONS = {2: "APPEND", 3: "SUBTRACT"}
_UNKNOWN_TYPE = 0
# From the most detailed level on.
_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def describe() -> Iterator[Setting]:
    level = logging.getLogger(_NAME).getEffectiveLevel()
    name = next((name for name, number in _LEVELS.items() if level <= number), "FATAL")
    yield Setting(ROOT, name, _UNKNOWN_TYPE, OF_LOGGER, documentation="")


def alter(name: str, value: str | None, operation: int, *, dry_run: bool) -> None:
    """Changes the level of a logger. Raises InvalidConfigError or InvalidRequestError."""
    if operation in _OPERATIONS:
        raise InvalidRequestError(f"{_OPERATIONS[operation]} operation is not allowed for the BROKER_LOGGER resource")
    if name != ROOT:
        raise InvalidConfigError(f"Logger {name} does not exist!")
    if operation == DELETE:
        raise InvalidRequestError("Removing the log level of the root logger is not allowed")
    if value not in _LEVELS:
        raise InvalidConfigError(
            f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(_LEVELS))}"
        )
    if not dry_run:
        logging.getLogger(_NAME).setLevel(_LEVELS[value])
