"""The bytes of a file or pipe, as they come."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable

_IDLE_MS = 200
CHUNK = 1 << 18


class InputBytes:
    """Reads a descriptor. `idle` is called a few times a second while a pipe has nothing to read. `offset` is the
    input's at which the descriptor stands."""

    def __init__(self, descriptor: int, idle: Callable[[], object], *, offset: int = 0) -> None:
        self.offset = offset
        self._descriptor = descriptor
        self._idle = idle
        self.is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._poll: select.poll | None = None
        if not self.is_file:
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLIN)

    def some(self, nbytes: int) -> bytes:
        """At most so many bytes: waits for the first. There are none at the end of the input."""
        while self._poll is not None and not self._poll.poll(_IDLE_MS):
            self._idle()
        found = os.read(self._descriptor, nbytes)
        self.offset += len(found)
        return found

    def whole(self, nbytes: int) -> bytes:
        """So many bytes: waits for all, and has fewer only at the end of the input."""
        pieces: list[bytes] = []
        while nbytes and (piece := self.some(min(nbytes, CHUNK))):
            pieces.append(piece)
            nbytes -= len(piece)
        return b"".join(pieces)

    def ready(self, nbytes: int) -> bytes:
        """At most so many bytes: waits for the first, and takes what there is without another wait."""
        pieces = [self.some(nbytes)]
        size = len(pieces[0])
        while pieces[-1] and size < nbytes and (self._poll is None or self._poll.poll(0)):
            pieces.append(self.some(nbytes - size))
            size += len(pieces[-1])
        return b"".join(pieces)
