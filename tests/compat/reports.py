"""What tests of compat.confluent share: a delivery callback, an address without a broker, their patience in seconds."""

from __future__ import annotations

import threading
from typing import Any

from kafkabuf.compat.confluent import Message
from tests.network.test_reconnect import closed_port

PATIENCE = 20


def dead_address() -> str:
    """Where no broker listens."""
    host, port = closed_port()
    return f"{host}:{port}"


class Reports:
    """A delivery callback that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Message]] = []
        self.threads: set[int] = set()

    def __call__(self, error: Any, message: Message) -> None:
        self.calls.append((error, message))
        self.threads.add(threading.get_ident())

    @property
    def values(self) -> list[Any]:
        return [message.value() for _, message in self.calls]


def knows(producer: Any, name: str) -> bool:
    """Whether a class of producers has a setting of this name."""
    try:
        producer({name: "\x01"})
    except Exception as error:  # a wrong value
        # librdkafka names its own setting for one of Java's.
        return "No such configuration property" not in str(error) and "Java" not in str(error)
    return True
