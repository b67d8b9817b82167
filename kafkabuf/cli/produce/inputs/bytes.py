"""The bytes of a file or pipe, as they come. Of gzip and zstd these are the bytes that were compressed."""

from __future__ import annotations

import os
import select  # of a process of ours, which nobody patches  # noqa: TID251
import stat
import zlib
from collections.abc import Callable

import click

from kafkabuf.extras import needs

_IDLE_MS = 200
CHUNK = 1 << 18
# How compressed data begins.
DECODED = {"gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd"}


class InputBytes:
    """Reads a descriptor. `idle` is called a few times a second while a pipe has nothing to read. `offset` is the
    number of bytes that it has given, with those before it where it goes on at an offset; `consumed` is the number of
    bytes of the descriptor. Raises click.ClickException for compressed data that is torn."""

    def __init__(self, descriptor: int, idle: Callable[[], object], *, offset: int = 0) -> None:
        self.offset = self.consumed = offset
        self._descriptor = descriptor
        self._idle = idle
        # Whether the bytes are those of the file.
        self.is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._poll: select.poll | None = None
        if not self.is_file:
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLIN)
        self._head = b""
        self._given: Callable[[int], bytes] | None = self.read if offset else None

    def some(self, nbytes: int) -> bytes:
        """At most so many bytes: waits for the first. There are none at the end of the input."""
        if self._given is None:
            self._given = self._begun()
        chunk = self._given(nbytes)
        self.offset += len(chunk)
        return chunk

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
        while pieces[-1] and size < nbytes and self._is_ready():
            pieces.append(self.some(nbytes - size))
            size += len(pieces[-1])
        return b"".join(pieces)

    def read(self, nbytes: int) -> bytes:
        """Bytes of the descriptor, for the decoders."""
        head, self._head = self._head[:nbytes], self._head[nbytes:]
        if not head:
            return self._raw(nbytes)
        return head + self._raw(nbytes - len(head)) if len(head) < nbytes and self._is_ready() else head

    def _is_ready(self) -> bool:
        return self._poll is None or bool(self._poll.poll(0))

    def _raw(self, nbytes: int) -> bytes:
        while self._poll is not None and not self._poll.poll(_IDLE_MS):
            self._idle()
        chunk = os.read(self._descriptor, nbytes)
        self.consumed += len(chunk)
        return chunk

    def _begun(self) -> Callable[[int], bytes]:
        """Reads the first bytes, which say whether the input is compressed."""
        head = b""
        while any(len(head) < len(magic) and magic.startswith(head) for magic in DECODED.values()):
            if not (more := self._raw(1 if head else len(DECODED["gzip"]))):
                break
            head += more
        self._head = head
        for codec, magic in DECODED.items():
            if head.startswith(magic):
                self.is_file = False
                return _explained(codec, _gzip(self) if codec == "gzip" else _zstd(self))
        return self.read


def _gzip(source: InputBytes) -> Callable[[int], bytes]:
    from gzip import GzipFile

    read: Callable[[int], bytes] = GzipFile(fileobj=source, mode="rb").read1  # type: ignore[call-overload]  # only reads
    return read


def _zstd(source: InputBytes) -> Callable[[int], bytes]:
    with needs("spark", "kafkabuf produce of zstd"):
        import pyarrow as pa

    read: Callable[[int], bytes] = pa.CompressedInputStream(pa.PythonFile(_Readable(source), mode="r"), "zstd").read
    return read


class _Readable:
    closed = False

    def __init__(self, source: InputBytes) -> None:
        self.read = source.read

    def close(self) -> None:
        """The input stays open."""


def _explained(codec: str, read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    def explained(nbytes: int) -> bytes:
        try:
            return read(nbytes)
        except (EOFError, zlib.error, OSError) as error:
            # Decoders say with an OSError that has no number that the data is torn.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise click.ClickException(f"the {codec} data cannot be read: {error}") from error

    return explained
