"""The lines of a file or pipe in bounded blocks: what a block holds does not grow with the input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kafkabuf.append._bulk_lines import count_lines
from kafkabuf.cli.produce.inputs.bytes import CHUNK, InputBytes


class Block(NamedTuple):
    """`line_count` neighbouring lines: `text` has a line feed between two. The first has the number `first`, from 1.

    `blank`: one of them may be blank. `end` is the input's offset behind the last line. `overlong` is the length that
    the line behind these has at least, if it is too long to be kept. A block without lines ends behind such a line.
    """

    text: bytes
    line_count: int
    first: int
    end: int
    overlong: int = 0
    blank: bool = False

    @property
    def lines(self) -> list[bytes]:
        return self.text.split(b"\n") if self.line_count else []

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.line_count)


class LineReader:
    """Reads the lines of an input, as they come. A line of more than `limit` bytes is left out.

    `spill` gets the pieces of such a line, and a line feed at its end. The first line has the number `line`.
    """

    def __init__(
        self,
        source: InputBytes,
        limit: int,
        *,
        spill: Callable[[bytes], object],
        line: int = 1,
        chunk: int = CHUNK,
    ) -> None:
        self._chunk = chunk
        self._source = source
        self._limit = limit
        self._spill = spill
        self._offset = source.offset
        self._line = line
        self._pushed = b""

    def blocks(self) -> Iterator[Block]:
        """The blocks up to the end of the input. A last line needs no line feed."""
        carried: list[bytes] = []
        size = 0
        while chunk := self._read():
            head, feed, tail = chunk.rpartition(b"\n")
            if not feed:
                carried.append(chunk)
                size += len(chunk)
            else:
                yield self._block(b"".join((*carried, head)), 1)
                carried, size = [tail], len(tail)
            if size > self._limit:
                yield Block(b"", 0, self._line, self._offset, overlong=size)
                self._leave_out(carried)
                yield Block(b"", 0, self._line, self._offset)
                carried, size = [], 0
        if size:
            yield self._block(b"".join(carried), 0)

    def _block(self, text: bytes, last_feed: int) -> Block:
        count, blank = count_lines(text)
        self._line += count
        self._offset += len(text) + last_feed
        return Block(text, count, self._line - count, self._offset, blank=blank)

    def _leave_out(self, pieces: list[bytes]) -> None:
        """Spills a line that has begun with these pieces."""
        self._line += 1
        for piece in pieces:
            self._take(piece)
        while chunk := self._read():
            head, feed, rest = chunk.partition(b"\n")
            self._take(head + feed)
            if feed:
                # The rest may hold lines: it goes before what is read next.
                self._pushed = rest
                return
        self._spill(b"\n")

    def _take(self, piece: bytes) -> None:
        self._offset += len(piece)
        self._spill(piece)

    def _read(self) -> bytes:
        if self._pushed:
            pushed, self._pushed = self._pushed, b""
            return pushed
        return self._source.some(self._chunk)
