"""What the reader of an input gives: records that can be sent, and the lines or rows that are no records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkabuf.cli.produce.inputs.bytes import InputBytes
from kafkabuf.cli.produce.inputs.source import Source

if TYPE_CHECKING:
    from kafkabuf.append.report import BulkReport
    from kafkabuf.producer import KafkaProducer


class Columns(NamedTuple):
    """The names of the columns for the parts of a record; None: no column."""

    key: str | None = None
    headers: str | None = None
    timestamp: str | None = None
    partition: str | None = None
    value: str | None = None

    @property
    def beside_value(self) -> tuple[str, ...]:
        return tuple(name for name in self[:4] if name is not None)


class Target(NamedTuple):
    """Where records go."""

    producer: KafkaProducer[Any, Any]
    topic: str
    partitions: int
    longest: int
    """bytes of a line"""


class Refused(NamedTuple):
    """A line or row that is no record, and why not. `raw` is what the input has for it; None: the reader has it."""

    number: int
    raw: bytes | None
    reason: str


class Block(NamedTuple):
    """Neighbouring records, with the numbers of their lines or rows, from 1.

    `send` queues the records from a place of the block to another. `raw` gives what the input has for the record at a
    place. The block ends at the input's offset `end`, behind the line or row `last`.
    """

    numbers: Sequence[int]
    send: Callable[[int, int], BulkReport]
    raw: Callable[[int], bytes]
    refused: Sequence[Refused]
    end: int
    last: int


# Gives the blocks of an input. The callable gets the pieces of a line that is too long to be kept.
Reader = Callable[[InputBytes, Source, Target, Callable[[bytes], object]], Iterator[Block]]
