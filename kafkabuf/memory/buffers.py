"""Type names that several .pyi files and the producers share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    # Type checkers know typing_extensions without installing it.
    from typing_extensions import Buffer as Buffer
    from typing_extensions import TypeVar

    # The types of the keys and values that a producer takes. A producer's class alone takes any.
    K = TypeVar("K", contravariant=True, default=Any)
    V = TypeVar("V", contravariant=True, default=Any)
    Headers: TypeAlias = Iterable[tuple[str, Buffer | None]] | Mapping[str, Buffer | None]
else:
    from typing import TypeVar

    K = TypeVar("K", contravariant=True)
    V = TypeVar("V", contravariant=True)
    Buffer = bytes | bytearray | memoryview  # collections.abc.Buffer from Python 3.12 on
    Headers = Iterable[tuple[str, Buffer | None]] | Mapping[str, Buffer | None]
