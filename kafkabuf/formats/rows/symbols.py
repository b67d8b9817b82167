"""Tables of an enum's symbols, which _symbols.pxd searches."""

from __future__ import annotations

import struct
from collections.abc import Iterable

_SYMBOL = struct.Struct("=qqq")


def symbol_table(symbols: Iterable[tuple[str, int]]) -> bytes:
    """Sorted by size and bytes: for each symbol its size, its number, and where its text begins; then the texts."""
    ordered = sorted((len(text.encode()), text.encode(), number) for text, number in symbols)
    offset = _SYMBOL.size * len(ordered)
    entries, texts = bytearray(), bytearray()
    for size, text, number in ordered:
        entries += _SYMBOL.pack(size, number, offset + len(texts))
        texts += text
    return bytes(entries + texts)
