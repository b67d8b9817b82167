"""The resident memory of this process."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

MIB = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_INTERVAL_S = 0.05


def resident() -> int:
    """Resident bytes, including pages that other processes share."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def forget_peak() -> None:
    """From here on `peak` counts."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """The most bytes that were resident at a time since `forget_peak`, as the system counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024


class Growth:
    """`mib` is the largest growth of resident memory during the `with`, sampled 20 times a second."""

    def __init__(self) -> None:
        self._before = self._most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._before = self._most = resident()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._most = max(self._most, resident())

    def _watch(self) -> None:
        while not self._done.wait(_INTERVAL_S):
            self._most = max(self._most, resident())

    @property
    def mib(self) -> float:
        return (self._most - self._before) / MIB
