"""JSON strings and the names of object members, escaped once, when a program is compiled."""

from __future__ import annotations

import re

NAME_BLOCK = 16  # as in _columns.pxd
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED = re.compile(r'["\\\x00-\x1f]')


def escaped(text: str, *, spark: bool) -> str:
    """What stands between the quotes. Spark writes hexadecimal digits in capitals."""
    digits = "04X" if spark else "04x"
    return _ESCAPED.sub(lambda match: _SHORT.get(match[0]) or f"\\u{ord(match[0]):{digits}}", text)


def padded(name: bytes) -> bytes:
    """The name as the writer copies it, in whole blocks."""
    return name + bytes(-len(name) % NAME_BLOCK)
