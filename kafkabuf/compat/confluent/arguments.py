"""What the calls of confluent-kafka's Producer take: checks, and forms of its own."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from kafkabuf.compat.confluent._confluent import bytes_of, pairs_of


def config_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The settings that the constructor was given. Raises TypeError."""
    if len(args) > 1 or (args and not isinstance(args[0], dict)) or not (args or kwargs):
        raise TypeError("expected configuration dict")
    return {**(args[0] if args else {}), **kwargs}


def limit_of(timeout: float | None) -> float | None:
    """A time-out in seconds; None: no time-out."""
    return None if timeout is None or timeout < 0 else timeout


class BatchRecord(NamedTuple):
    """A dict of produce_batch(), read: nothing in it runs the user's code when its record is queued."""

    value: Any
    key: Any
    partition: int
    callback: Any
    headers: Any


def read_batch(topic: Any, messages: Any, partition: Any, default: Any) -> list[BatchRecord]:
    """The records of produce_batch(). Raises TypeError, ValueError or NotImplementedError for what it does not take."""
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, found {type(topic).__name__}")
    if not isinstance(messages, list):
        raise TypeError("messages must be a list")
    if not isinstance(partition, int):
        raise TypeError("partition must be int")
    return [_record_of(message, index, partition, default) for index, message in enumerate(messages)]


def _record_of(message: Any, index: int, partition: int, default: Any) -> BatchRecord:
    if not isinstance(message, dict):
        raise TypeError(f"Message at index {index} must be a dict")
    if message.get("timestamp"):
        raise NotImplementedError("Message timestamps are not currently supported: use produce()")
    value, key = (_bytes_in(message, name, index) for name in ("value", "key"))
    number = message.get("partition", partition)
    if not isinstance(number, int):
        raise TypeError(f"Message partition at index {index} must be int")
    headers = message.get("headers")
    try:
        headers = None if headers is None else pairs_of(headers)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Invalid headers at index {index}: {error}") from None
    callback = message.get("callback") or message.get("on_delivery") or default
    return BatchRecord(value, key, operator.index(number), callback, headers)


def _bytes_in(message: dict[str, Any], name: str, index: int) -> bytes | None:
    data = message.get(name)
    if not isinstance(data, bytes | bytearray | memoryview | str | None):
        raise TypeError(f"Message {name} at index {index} must be bytes or str")
    return bytes_of(data, name)
