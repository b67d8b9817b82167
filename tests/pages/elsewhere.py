"""Stands for a producer whose cluster the tests do not reach: hidden blocks of pages give it the producer's name."""

from __future__ import annotations

from typing import ClassVar

from kafkabuf.clock import SystemClock
from kafkabuf.config import ProducerConfig
from kafkabuf.network.sasl import mechanisms as sasl


class Checked:
    """Takes the settings that a producer takes, and connects to nothing."""

    mechanisms: ClassVar[list[str]] = []
    """The SASL mechanisms of all producers so far."""

    def __init__(self, settings: dict[str, str]) -> None:
        Checked.mechanisms.append(sasl.mechanism(ProducerConfig(settings), SystemClock(), lambda: 0.5).name)

    def __enter__(self) -> Checked:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def send(self, topic: str, value: bytes) -> Checked:
        return self

    def result(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass
