"""Where the rows of CSV end, for pyarrow and for us: a quoted field may hold line ends."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

_LF, _CR, _QUOTE = b'\n\r"'
_LONG = 4 << 20  # bytes; numpy takes several times the memory of the text


class CsvRows:
    """Finds rows in text. A row ends with LF, CRLF, or a CR without LF. A quote opens a field only at its start."""

    def __init__(self, delimiter: str) -> None:
        self._delimiter = ord(delimiter)
        self._pattern = _row_pattern(re.escape(delimiter.encode()))

    def whole(self, text: bytes) -> tuple[int, bool]:
        """Where the whole rows at the start of a text end, and whether a field of theirs goes on behind its closing
        quote. No row ends at a CR that is the text's last byte: an LF may follow."""
        if b'"' not in text:
            return max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1, False
        end = self._end_of_rows(text) if len(text) < _LONG else None
        if end is not None:
            return end, False
        marked = [row for row in self._pattern.finditer(text) if row.lastindex]
        torn = sum(1 for row in marked if row[2] is None)
        return marked[torn].start(), torn > 0

    def rows(self, text: bytes) -> Iterator[re.Match[bytes]]:
        """The rows of a text that are not blank. Group 1 is not None in one of which a field goes on behind its closing
        quote."""
        return (row for row in self._pattern.finditer(text) if row[0].strip(b"\r\n"))

    def is_open(self, rest: bytes) -> bool:
        """Whether a text in which no row ends has a quote that is not closed."""
        row = self._pattern.match(rest)
        return row is not None and row[2].startswith(b'"')

    def awaited(self, rest: bytes) -> tuple[bytes, ...]:
        """The bytes of which one must come before the row ends that begins with this text."""
        return (b'"',) if self.is_open(rest) else (b"\n", b"\r")

    def _end_of_rows(self, text: bytes) -> int | None:
        """Where the last whole row ends, if quotes stand only at the edges of fields and beside each other: then they
        open and close in turn. Else None."""
        characters = np.frombuffer(b"\n%b\n" % text, np.uint8)
        ends = (characters == _LF) | (characters == _CR)
        quoting = characters == _QUOTE
        edges = ends | quoting | (characters == self._delimiter)
        quotes = np.flatnonzero(quoting)
        if not (edges[quotes[::2] - 1].all() and edges[quotes[1::2] + 1].all()):
            return None
        ends[-2] &= characters[-2] == _LF
        places = np.flatnonzero(ends[:-1])
        # The first place is in front of the text, which begins at place 1.
        return int(places[np.searchsorted(quotes, places) % 2 == 0][-1])


def _row_pattern(mark: bytes) -> re.Pattern[bytes]:
    """A row with its line end. Group 1: what follows from the first field on that goes on behind its closing quote.
    Group 2: the rest of a text, in which no row ends. It begins with a quote that is not closed, or is a CR, or is
    empty."""
    inner = rb"[^%b\r\n]" % mark
    quoted = rb'"[^"]*+(?:""[^"]*+)*+"'
    plain = rb'[^"%b\r\n]%b*+' % (mark, inner)
    fields = rb"(?:(?:%b|%b|)(?:%b|(?=[\r\n]|\Z)))*+" % (plain, quoted, mark)
    torn = rb"(%b%b++(?:%b(?:%b%b*+|%b|))*+)?" % (quoted, inner, mark, quoted, inner, plain)
    return re.compile(rb"%b%b(?:\r\n|\n|\r(?!\n|\Z)|(.*+))" % (fields, torn), re.DOTALL)
