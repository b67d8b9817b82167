"""The folder of notes is found by a JVM's pid and start, also where there is no /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafkabuf.spark.worker import notes


def test_process_is_found_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = os.getpid()
    name, parent, started = notes._status(pid)
    assert parent == os.getppid()
    monkeypatch.setattr(notes, "_PROC", tmp_path / "none")  # as on macOS
    assert notes._status(pid)[:2] == (name, parent)
    assert notes._status(pid)[2].isdigit()
    assert notes._status(pid)[2] not in ("0", started)
    assert notes._status(2**22 + 1) == ("", 0, "0")
