"""What the calls of confluent-kafka's Producer take: checks, and forms of its own."""

from __future__ import annotations

from typing import Any


def config_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The settings that the constructor was given. Raises TypeError."""
    if len(args) > 1 or (args and not isinstance(args[0], dict)) or not (args or kwargs):
        raise TypeError("expected configuration dict")
    return {**(args[0] if args else {}), **kwargs}


def limit_of(timeout: float | None) -> float | None:
    """A time-out in seconds; None if there is none."""
    return None if timeout is None or timeout < 0 else timeout


def check_batch(topic: Any, messages: Any, partition: Any) -> None:
    """Raises TypeError or NotImplementedError for arguments that produce_batch() does not take."""
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, found {type(topic).__name__}")
    if not isinstance(messages, list):
        raise TypeError("messages must be a list")
    if not isinstance(partition, int):
        raise TypeError("partition must be int")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise TypeError(f"Message at index {index} must be a dict")
        if message.get("timestamp"):
            raise NotImplementedError("Message timestamps are not currently supported: use produce()")
        for name in ("value", "key"):
            if not isinstance(message.get(name), bytes | bytearray | memoryview | str | None):
                raise TypeError(f"Message {name} at index {index} must be bytes or str")
        if not isinstance(message.get("partition", -1), int):
            raise TypeError(f"Message partition at index {index} must be int")
