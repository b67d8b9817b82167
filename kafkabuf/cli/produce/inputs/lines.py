"""The lines of a file or pipe become blocks: what a block holds does not grow with the input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from kafkabuf.append._bulk_lines import append_lines, count_lines
from kafkabuf.append.report import BulkReport
from kafkabuf.cli.produce.inputs.block import Block, Reader, Refused, Target
from kafkabuf.cli.produce.inputs.bytes import CHUNK, InputBytes
from kafkabuf.cli.produce.inputs.source import Source
from kafkabuf.clock import SystemClock
from kafkabuf.errors import SerializationError

# Makes value, key, headers, partition and timestamp of a line. None: the line is blank.
Parts = tuple[Any, Any, Any, Any, Any]
Parse = Callable[[bytes], Parts | None]
_CLOCK = SystemClock()


class Lines:
    """Neighbouring lines: `text` has a line feed between two. The first has the number `first`, from 1. `end` is the
    input's offset behind the last."""

    def __init__(self, text: bytes, first: int, end: int) -> None:
        count, self.has_blank = count_lines(text)
        self.text = text
        self.numbers = range(first, first + count)
        self.end = end

    @cached_property
    def each(self) -> list[bytes]:
        return self.text.split(b"\n")


def line_reader(make: Callable[[Target, Lines], Block], *, mark: bytes = b"") -> Reader:
    """Reads lines, as they come, and begins behind the `mark` of a file. A last line needs no line feed. A line that is
    too long to be kept is refused, and spilled in pieces, with a line feed at its end."""

    def read(opened: InputBytes, source: Source, target: Target, spill: Callable[[bytes], object]) -> Iterator[Block]:
        offset, done = source.settled
        if offset:
            opened.go_on(offset)
        first = done + 1
        begun: list[bytes] = []  # the pieces of a line without end
        size = 0
        pushed = b""
        while piece := pushed or opened.some(CHUNK):
            head, feed, tail = piece.rpartition(b"\n")
            pushed = b""
            if feed:
                text = b"".join((*begun, head))
                offset += len(text) + 1
                lines = Lines(text.removeprefix(mark) if first == 1 else text, first, offset)
                first = lines.numbers.stop
                yield make(target, lines)
                begun, size = [], 0
            begun.append(tail)
            size += len(tail)
            if size > target.longest:
                reason = f"it is longer than max.request.size ({target.longest} bytes)"
                yield _nothing(first - 1, offset, Refused(first, None, reason))
                for piece in begun:
                    spill(piece)
                spilled, pushed = _spilled(opened, spill)
                offset += size + spilled
                yield _nothing(first, offset)
                first, begun, size = first + 1, [], 0
        if size:
            text = b"".join(begun)
            yield make(target, Lines(text.removeprefix(mark) if first == 1 else text, first, offset + size))

    return read


def _spilled(opened: InputBytes, spill: Callable[[bytes], object]) -> tuple[int, bytes]:
    """Spills the input up to the end of a line. Returns the number of bytes, and what was read behind them."""
    nbytes, feed, rest = 0, b"", b""
    while not feed and (piece := opened.some(CHUNK)):
        head, feed, rest = piece.partition(b"\n")
        spill(head)
        nbytes += len(head) + len(feed)
    spill(b"\n")
    return nbytes, rest


def _nothing(last: int, end: int, *refused: Refused) -> Block:
    return Block((), lambda first, last: BulkReport(_CLOCK), lambda place: b"", refused, end, last)


def plain_lines(target: Target, lines: Lines) -> Block:
    """Each line is a value."""
    return _block(target, lines, lines.numbers, lines.text, lambda place: lines.each[place])


def whole_json_lines(target: Target, lines: Lines) -> Block:
    """Each line is a value as it is, apart from blank lines. Nothing parses it."""
    if not lines.has_blank:
        return plain_lines(target, lines)
    kept = [place for place, line in enumerate(lines.each) if line.strip()]
    each = [lines.each[place] for place in kept]
    return _block(target, lines, [lines.numbers[place] for place in kept], b"\n".join(each), each.__getitem__)


def _block(target: Target, lines: Lines, numbers: Sequence[int], text: bytes, raw: Callable[[int], bytes]) -> Block:
    """A block of which no line is parsed: all of the text is sent at once."""

    def send(first: int, last: int) -> BulkReport:
        report = BulkReport(_CLOCK)
        append_lines(target.producer, report, target.topic, text)
        return report

    return Block(numbers, send, raw, (), lines.end, lines.numbers[-1])


def parsed_lines(parser: Callable[[Target], Parse]) -> Callable[[Target, Lines], Block]:
    """Each line is parsed. A line for which the parser raises ValueError is refused."""

    def make(target: Target, lines: Lines) -> Block:
        parse = parser(target)
        numbers: list[int] = []
        raw: list[bytes] = []
        parts: list[Parts] = []
        refused: list[Refused] = []
        for number, line in zip(lines.numbers, lines.each, strict=True):
            try:
                part = parse(line)
            except UnicodeEncodeError:
                refused.append(Refused(number, line, "UTF-8 has no half of a surrogate pair"))
            except (ValueError, RecursionError, SerializationError) as error:
                refused.append(Refused(number, line, str(error) or "its values are nested too deeply"))
            else:
                if part is not None:
                    numbers.append(number)
                    raw.append(line)
                    parts.append(part)
        values, *optional = zip(*parts, strict=True) if parts else [()] * 5
        # Of a column without a value, send_many() need not look at each row.
        columns = [None if column.count(None) == len(column) else column for column in optional]

        def send(first: int, last: int) -> BulkReport:
            keys, headers, partitions, timestamps = (column and column[first:last] for column in columns)
            return target.producer.send_many(target.topic, values[first:last], keys, headers, partitions, timestamps)

        return Block(numbers, send, raw.__getitem__, refused, lines.end, lines.numbers[-1])

    return make


def keyed_lines(separator: bytes) -> Callable[[Target, Lines], Block]:
    """Each line is a key and a value, with the separator between."""

    def parse(line: bytes) -> Parts:
        key, separated, value = line.partition(separator)
        if not separated:
            shown = separator.decode(errors="backslashreplace")
            raise ValueError(f"it has no separator {shown!r} between key and value")
        return value, key, None, None, None

    return parsed_lines(lambda target: parse)
