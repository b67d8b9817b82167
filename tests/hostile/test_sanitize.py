"""The copies of the tree in which `make sanitize` and `make test-portable` run the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools import copied_tree


def test_copy_follows_the_tree_and_keeps_built_extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    monkeypatch.setattr(copied_tree, "ROOT", tree)
    (tree / "kafkabuf").mkdir(parents=True)
    source, gone, built = (tree / "kafkabuf" / name for name in ("a.pyx", "b.py", "a.so"))
    for path in (source, gone, built):
        path.write_text("old")
    copied_tree.sync(copy)
    assert sorted(path.name for path in (copy / "kafkabuf").iterdir()) == ["a.pyx", "b.py"]
    sanitized = copy / "kafkabuf" / "a.so"
    sanitized.write_text("with sanitizers")
    gone.unlink()
    before = (copy / "kafkabuf" / "a.pyx").stat()
    copied_tree.sync(copy)
    assert sorted(path.name for path in (copy / "kafkabuf").iterdir()) == ["a.pyx", "a.so"]
    assert (sanitized.read_text(), (copy / "kafkabuf" / "a.pyx").stat()) == ("with sanitizers", before)
    source.write_text("new")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    copied_tree.sync(copy)
    assert (copy / "kafkabuf" / "a.pyx").read_text() == "new"
