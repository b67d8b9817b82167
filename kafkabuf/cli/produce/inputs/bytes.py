"""The bytes of a file or pipe, as they come. Of gzip and zstd these are the bytes that were compressed."""

from __future__ import annotations

import os
import select  # of a process of ours, which nobody patches  # noqa: TID251
import stat
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable

import click

from kafkabuf.extras import needs

_IDLE_MS = 200
CHUNK = 1 << 18
# How compressed data begins.
DECODED = {"gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd"}


class InputBytes:
    """Reads a descriptor. `idle` is called a few times a second while a pipe has nothing to read. `consumed` is the
    number of bytes of the descriptor that are read. Raises click.ClickException for compressed data that is torn."""

    def __init__(self, descriptor: int, idle: Callable[[], object]) -> None:
        self.consumed = 0
        self._descriptor = descriptor
        self._idle = idle
        # Whether the bytes are those of the file.
        self.is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._poll: select.poll | None = None
        if not self.is_file:
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLIN)
        self._head = b""
        self._read: Callable[[int], bytes] | None = None

    def go_on(self, offset: int) -> None:
        """Goes on at an offset of a file that is not compressed."""
        self.consumed = os.lseek(self._descriptor, offset, os.SEEK_SET)
        self._read = self._read_raw

    def some(self, nbytes: int) -> bytes:
        """At most so many bytes: waits for the first. There are none at the end of the input."""
        if self._read is None:
            self._read = self._opened()
        return self._read(nbytes)

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

    def _is_ready(self) -> bool:
        return self._poll is None or bool(self._poll.poll(0))

    def _opened(self) -> Callable[[int], bytes]:
        """Reads the first bytes, which say whether the input is compressed."""
        while any(len(self._head) < len(magic) and magic.startswith(self._head) for magic in DECODED.values()):
            # At first as many as the shortest beginning has: what follows may be long in coming.
            if not (more := self._from_descriptor(1 if self._head else len(DECODED["gzip"]))):
                break
            self._head += more
        for codec, magic in DECODED.items():
            if self._head.startswith(magic):
                self.is_file = False
                return _explained(codec, self._gzip() if codec == "gzip" else self._zstd())
        return self._read_raw

    def _read_raw(self, nbytes: int) -> bytes:
        """Bytes of the descriptor, as they are."""
        head, self._head = self._head[:nbytes], self._head[nbytes:]
        if head and (len(head) == nbytes or not self._is_ready()):
            return head
        return head + self._from_descriptor(nbytes - len(head))

    def _from_descriptor(self, nbytes: int) -> bytes:
        while self._poll is not None and not self._poll.poll(_IDLE_MS):
            self._idle()
        piece = os.read(self._descriptor, nbytes)
        self.consumed += len(piece)
        return piece

    def _gzip(self) -> Callable[[int], bytes]:
        from gzip import GzipFile

        read: Callable[[int], bytes] = GzipFile(fileobj=Readable(self._read_raw), mode="rb").read1  # type: ignore[call-overload]  # only reads
        return read

    def _zstd(self) -> Callable[[int], bytes]:
        with needs("spark", "kafkabuf produce of zstd"):
            import pyarrow as pa

        raw = pa.PythonFile(Readable(self._read_raw), mode="r")
        read: Callable[[int], bytes] = pa.CompressedInputStream(raw, "zstd").read
        return read


class Readable:
    """A file for decoders: `read` gives what comes behind the head. They read in the thread that asks them."""

    closed = False

    def __init__(self, read: Callable[[int], bytes], head: bytes = b"") -> None:
        self._read = read
        self._head = head

    def read(self, nbytes: int) -> bytes:
        head, self._head = self._head[:nbytes], self._head[nbytes:]
        return head + self._read(nbytes - len(head)) if len(head) < nbytes else head

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


def not_utf8(text: bytes) -> str:
    """What to do with a text that is not UTF-8."""
    encoding = "utf-16" if text.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "latin1"
    return f"it is not UTF-8: iconv -f {encoding} -t utf-8 converts such files"
