"""Advice for names of other clients: a class that lacks a method says what to use, and hasattr() stays False.

A `__getattr__` would slow down each call of a method, since CPython then no longer keeps where it found the method.
"""

from __future__ import annotations

from typing import Any, NoReturn


class Hint:
    """Stands where a class lacks a method: to read it raises the AttributeError of a missing name, with advice."""

    def __init__(self, owner: str, name: str, advice: str) -> None:
        self.owner = owner
        self.name = name
        self.advice = advice

    def __get__(self, instance: Any, owner: type | None = None) -> NoReturn:
        raise AttributeError(
            f"{self.owner!r} object has no attribute {self.name!r}: {self.advice}", name=self.name, obj=instance
        )


def hints(owner: str, advice: dict[str, str]) -> dict[str, Hint]:
    return {name: Hint(owner, name, text) for name, text in advice.items()}


FUTURE = {
    "get": "call result(timeout)",
    "value": "call result(timeout)",
    "succeeded": "exception(0) is None once done() is True",
    "failed": "exception(0) is not None once done() is True",
    "is_done": "call done()",
    "add_callback": "give send() a callback, or call add_done_callback(fn)",
    "add_errback": "give send() a callback(metadata, error), or call add_done_callback(fn)",
}
PRODUCER = {
    "produce": "call send(topic, value, key), or use kafkabuf.compat.confluent.Producer",
    "poll": "leave it out: a thread of the producer's own runs the callbacks",
    "list_topics": "call partitions_for(topic)",
    "send_and_wait": "call send(...).result(), or use kafkabuf.aio.AIOKafkaProducer",
    "bootstrap_connected": "open it as KafkaProducer(check=True), which raises where no broker answers",
    "start": "leave it out: the producer is open; kafkabuf.aio.AIOKafkaProducer has start()",
    "stop": "call close(), or use kafkabuf.aio.AIOKafkaProducer",
}
