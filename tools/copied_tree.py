"""A copy of the tree in which the extensions are built in another way; the extensions in place stay as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("kafkabuf", "pyspark_kafkabuf", "rigs", "tests", "tools", "bench", "docs", "requirements")
_MADE = (".so", ".pyc", ".html")


def sync(copy: Path) -> None:
    """Update the copy's sources from the tree. Files keep their times, so that only changed modules are built."""
    sources = {path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*") if _is_source(path)}
    sources |= {path.relative_to(ROOT) for path in ROOT.iterdir() if path.is_file()}
    for name in sources:
        old, new = ROOT / name, copy / name
        if not new.exists() or new.stat().st_mtime_ns != old.stat().st_mtime_ns:
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(old, new)
    for folder in FOLDERS:
        for path in (copy / folder).rglob("*"):
            if _is_source(path) and path.suffix != ".c" and path.relative_to(copy) not in sources:
                path.unlink()


def _is_source(path: Path) -> bool:
    return path.is_file() and path.suffix not in _MADE and "__pycache__" not in path.parts


def build(copy: Path, **variables: str) -> None:
    """Build the copy's extensions with these environment variables. Raises CalledProcessError if that fails."""
    environment = {**os.environ, **variables, "PYTHONPATH": str(copy)}
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=copy, env=environment, check=True
    )
