"""A cleaned segment takes the place of the segments that it was made from, at once or not at all.

Kafka's LocalLog.replaceSegments:

1. The cleaner writes the files NNN.log.cleaned, .index.cleaned, .timeindex.cleaned, .txnindex.cleaned, and flushes
   them. NNN is the base offset of the first segment that they replace.
2. They become NNN.index.swap and so on, and last NNN.log.swap: from here on the swap counts.
3. The files of the former segments go, and .swap falls off the names, last off NNN.log.

After a kill before the end of step 2 the former segments are whole, and opening the log deletes the new files. After a
later kill, opening the log does step 3 again. The last batch of the cleaned segment says which segments it replaces: it
ends where the last of them ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path

from kafkabuf.broker.records.producer_state import AbortedTransaction
from kafkabuf.broker.storage._stored import StoredBatch
from kafkabuf.broker.storage.batches import NO_LIMIT
from kafkabuf.broker.storage.disk import on_disk, sync_path
from kafkabuf.broker.storage.segment import Segment, file_name, is_offset
from kafkabuf.broker.storage.snapshot import copy_aborted

log = logging.getLogger("kafkabuf.broker")

_CLEANED = ".cleaned"
_SWAP = ".swap"
_INDEXES = (".index", ".timeindex", ".txnindex")


class CleanedSegment:
    """The cleaned batches of the segments `replaced`. `put_in_place` replaces them in the log's list of segments; it
    returns False, and changes nothing, if they have changed meanwhile."""

    def __init__(
        self,
        folder: Path,
        replaced: list[Segment],
        put_in_place: Callable[[Segment], bool],
        flusher: Executor | None,
    ) -> None:
        self._folder = folder
        self._replaced = replaced
        self._put_in_place = put_in_place
        self._flusher = flusher
        base = replaced[0].base_offset
        _delete(folder, base, _CLEANED)
        self._segment: Segment | None = Segment(folder, base, _CLEANED)

    def append(self, batch: StoredBatch) -> None:
        assert self._segment is not None
        self._segment.append(batch)

    def written(self) -> Future[None] | None:
        """Flushes the batches, in the thread of the flusher."""
        assert self._segment is not None
        self._segment.become_inactive()
        if self._flusher is not None:
            return self._flusher.submit(self._segment.flush, indexes=True)
        self._segment.flush(indexes=True)
        return None

    def commit(self, aborted: Sequence[AbortedTransaction]) -> bool:
        segment, first = self._segment, self._replaced[0]
        assert segment is not None
        with on_disk("write", segment.path):
            former = [former.beside(".txnindex") for former in self._replaced]
            entries = b"".join(path.read_bytes() for path in former if path.exists())
            segment.beside(".txnindex").write_bytes(copy_aborted(entries, aborted))
        sync_path(segment.beside(".txnindex"))
        if not self._put_in_place(segment):
            return False
        self._segment = None
        _rename_indexes(self._folder, segment.base_offset, _CLEANED, _SWAP)
        segment.rename(_SWAP)
        sync_path(self._folder)
        first.close()
        for former_segment in self._replaced[1:]:
            former_segment.delete()
        _rename_indexes(self._folder, segment.base_offset, _SWAP, "")
        segment.rename("")
        return True

    def abandon(self) -> None:
        if self._segment is not None:
            self._segment.delete()
            self._segment = None


def finish_swaps(folder: Path) -> None:
    """Does step 3 for each swap that a kill has interrupted. The caller deletes the other new files."""
    for path in folder.glob(f"*.log{_SWAP}"):
        name = path.name.removesuffix(f".log{_SWAP}")
        if path.is_symlink() or not path.is_file() or not is_offset(name):
            continue
        base = int(name)
        segment = Segment(folder, base, _SWAP)
        segment.open(None, NO_LIMIT)
        if not segment.size:
            log.warning("%s has no whole batch: the log goes on with the segments that it was made from", path)
            segment.close()
            continue
        for former in folder.glob("*.log"):
            if is_offset(former.stem) and base < int(former.stem) < segment.end_offset:
                _delete(folder, int(former.stem), "")
        segment.close()
        _rename_indexes(folder, base, _SWAP, "")
        with on_disk("rename", path):
            path.replace(folder / f"{file_name(base)}.log")


def _rename_indexes(folder: Path, base: int, before: str, after: str) -> None:
    for kind in _INDEXES:
        path = folder / f"{file_name(base)}{kind}{before}"
        with on_disk("rename", path):
            if path.exists():
                path.replace(folder / f"{file_name(base)}{kind}{after}")


def _delete(folder: Path, base: int, suffix: str) -> None:
    for kind in (".log", *_INDEXES):
        path = folder / f"{file_name(base)}{kind}{suffix}"
        with on_disk("delete", path):
            path.unlink(missing_ok=True)
