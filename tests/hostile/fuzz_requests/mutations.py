"""Mutations of a request's bytes, which know nothing of its fields."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

_NUMBERS = (-(2**31), -1, 0, 1, 0x7F, 0x80, 0x7FFF, 0xFFFF, 2**31 - 1)


def mutated(generator: random.Random, frames: list[bytes]) -> bytes:
    """A request of the corpus with one to four mutations."""
    frame = bytearray(generator.choice(frames))
    for _ in range(generator.randint(1, 4)):
        generator.choice(_MUTATIONS)(generator, frame, frames)
    return bytes(frame)


def _change(generator: random.Random, frame: bytearray, frames: list[bytes]) -> None:
    if frame:
        frame[generator.randrange(len(frame))] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))


def _number(generator: random.Random, frame: bytearray, frames: list[bytes]) -> None:
    at = generator.randrange(len(frame) + 1)
    frame[at : at + 4] = struct.pack(">i", generator.choice(_NUMBERS) if generator.random() < 0.9 else len(frame) - at)


def _varint(generator: random.Random, frame: bytearray, frames: list[bytes]) -> None:
    at = generator.randrange(len(frame) + 1)
    frame[at : at + 1] = bytes([0xFF]) * generator.randint(1, 6) + bytes([generator.randrange(128)])


def _cut(generator: random.Random, frame: bytearray, frames: list[bytes]) -> None:
    at = generator.randrange(len(frame) + 1)
    del frame[at : at + generator.choice((1, 2, 4, len(frame)))]


def _splice(generator: random.Random, frame: bytearray, frames: list[bytes]) -> None:
    other = generator.choice(frames)
    at, start = generator.randrange(len(frame) + 1), generator.randrange(len(other))
    frame[at : at + generator.randint(0, 16)] = other[start : start + generator.randint(1, 64)]


def _api(generator: random.Random, frame: bytearray, frames: list[bytes]) -> None:
    """Give the body the API key and version of another request."""
    frame[:4] = generator.choice(frames)[:4]


_MUTATIONS: tuple[Callable[[random.Random, bytearray, list[bytes]], None], ...] = (
    _change,
    _number,
    _varint,
    _cut,
    _splice,
    _api,
)
