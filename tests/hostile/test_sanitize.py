"""The copy of the tree in which `make sanitize` runs the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools import sanitize


def test_copy_follows_the_tree_and_keeps_built_extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    monkeypatch.setattr(sanitize, "ROOT", tree)
    monkeypatch.setattr(sanitize, "COPY", copy)
    (tree / "kafkabuf").mkdir(parents=True)
    source, gone, built = (tree / "kafkabuf" / name for name in ("a.pyx", "b.py", "a.so"))
    for path in (source, gone, built):
        path.write_text("old")
    sanitize.sync()
    assert sorted(path.name for path in (copy / "kafkabuf").iterdir()) == ["a.pyx", "b.py"]
    sanitized = copy / "kafkabuf" / "a.so"
    sanitized.write_text("with sanitizers")
    gone.unlink()
    before = (copy / "kafkabuf" / "a.pyx").stat()
    sanitize.sync()
    assert sorted(path.name for path in (copy / "kafkabuf").iterdir()) == ["a.pyx", "a.so"]
    assert (sanitized.read_text(), (copy / "kafkabuf" / "a.pyx").stat()) == ("with sanitizers", before)
    source.write_text("new")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    sanitize.sync()
    assert (copy / "kafkabuf" / "a.pyx").read_text() == "new"
