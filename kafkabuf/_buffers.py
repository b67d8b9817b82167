"""Type names shared by the stubs of the extensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

# Whatever exports one contiguous run of bytes; collections.abc.Buffer from Python 3.12 on.
Buffer: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Iterable[tuple[str, Buffer | None]] | Mapping[str, Buffer | None]
