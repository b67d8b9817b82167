"""Type names that several .pyi files share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

# Objects that export one contiguous run of bytes; collections.abc.Buffer from Python 3.12 on.
Buffer: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Iterable[tuple[str, Buffer | None]] | Mapping[str, Buffer | None]
