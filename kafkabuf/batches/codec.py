"""A codec, as batches use it. compression.py has the codecs; it loads cramjam, which a producer may not need."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class DoesNotFit(Exception):
    """The compressed records are larger than the memory offered for them."""


class Codec(NamedTuple):
    """`compress(records, target)` fills `target` from its start and returns the bytes used, or raises DoesNotFit."""

    id: int  # bits 0 to 2 of a batch's attributes
    compress: Callable[[memoryview, memoryview], int]


def scratch_size(records: int) -> int:
    """Bytes of work space that suffice for every codec, even if the records cannot be compressed."""
    return records + records // 6 + 1024
